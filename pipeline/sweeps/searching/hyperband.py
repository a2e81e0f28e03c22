"""When a trial is not worth its end: the rule of W&B's ``early_terminate``, to the letter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.sweeps.spec import Goal, Hyperband

_MOST_BANDS = 100


def bands_of(block: Mapping[str, Any]) -> tuple[int, ...]:
    """Numbers of logged values at which trials are compared, ascending; none where `max_iter` is too small.

    Args:
        block: ``early_terminate``, with `max_iter` and `s`, or `min_iter`.
    """
    eta = block.get("eta", 3)
    if "max_iter" in block and "s" in block:
        band, found = float(block["max_iter"]), []
        for _ in range(min(block["s"], _MOST_BANDS)):
            band /= eta
            if band < 1:
                break
            found.append(int(band))
    else:
        band, found = float(block["min_iter"]), []
        while len(found) < _MOST_BANDS and math.isfinite(band):
            found.append(int(band))
            band *= eta
    return tuple(sorted(set(found)))


def why_stop(rule: Hyperband, goal: Goal, number: int, values: Mapping[int, Sequence[float]]) -> str | None:
    """Why a trial that runs is to be ended, or None.

    At the last band that the trial has come to, it is compared with all trials that have come there: of `n`, the
    best ``n / eta`` go on.

    Args:
        rule: The rule.
        goal: Which values are better.
        number: Of the trial.
        values: Number of each trial -> what it has logged so far, in order.
    """
    sign = -1.0 if goal is Goal.maximize else 1.0
    logged = {each: [sign * value for value in of if math.isfinite(value)] for each, of in values.items()}
    own = logged.get(number, [])
    band = max((band for band in rule.bands if band <= len(own)), default=None)
    if band is None:
        return None
    there = sorted(of[band - 1] for of in logged.values() if len(of) >= band)
    threshold = there[int(1 / rule.eta * len(there))]
    reached = own[band - 1] if rule.strict else min(own)
    if reached <= threshold:
        return None
    what = f"value {band}" if rule.strict else "best value"
    return (
        f"hyperband: its {what} of the metric, {sign * reached:.6g}, is worse than {sign * threshold:.6g}, where "
        f"the best 1/{rule.eta:g} of {len(there)} trials are at {band}"
    )
