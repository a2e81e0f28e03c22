"""Which of two completions is preferred. Pure functions over scores; worker side only.

Shapes: N pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import Preference
from pipeline.rewards.base import CORRECT


def prefer(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    draws: NDArray[np.float64],
    preference: Preference,
    beta: float,
) -> NDArray[np.int8]:
    """Decide every pair.

    Where exactly one completion is correct it is preferred. Otherwise the difference of the scores decides: the
    higher one wins, or the first is drawn with probability sigmoid(beta * difference) (Bradley and Terry 1952).

    Args:
        first: Scores of the first completions, shape [N]; NaN where there is none.
        second: Scores of the second ones, shape [N].
        draws: In (0, 1), shape [N].
        preference: How a difference of scores decides.
        beta: Slope of the Bradley-Terry draw.

    Returns:
        1 where the first is preferred, 0 where the second is, -1 where nothing can be said, shape [N].
    """
    difference = first - second
    if preference is Preference.bradley_terry:
        decided = (draws < 1 / (1 + np.exp(-beta * difference))).astype(np.int8)
    else:
        decided = np.where(difference > 0, 1, np.where(difference < 0, 0, -1)).astype(np.int8)
    one_correct = (first >= CORRECT) != (second >= CORRECT)
    decided = np.where(one_correct, (first >= CORRECT).astype(np.int8), decided)
    return np.where(np.isnan(difference), -1, decided).astype(np.int8)
