"""Sentiment of a completion by the lexicon of VADER (Hutto and Gilbert 2014); needs no model and no network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from pipeline.config.install import install_command
from pipeline.errors import ConfigError
from pipeline.learning.rewards.traits import RewardTraits, Text, reward, text_of


@cache
def _analyzer() -> Any:
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError as error:
        raise ConfigError(f"the reward 'vader' needs a package: {install_command('sentiment')}") from error
    return SentimentIntensityAnalyzer()


@reward(
    RewardTraits(
        pointwise=True,
        verifies=False,
        graded=True,
        judges="sentiment",
        isolated=False,
        packages=("vaderSentiment",),
        version=2,
    )
)
def vader(
    prompts: Sequence[Text],
    completions: Sequence[Text],
    unit: bool = False,
    with_prompt: bool = False,
    **_: Any,
) -> list[float | None]:
    """VADER's compound score, from -1 (negative) to 1 (positive).

    Args:
        prompts: Texts or conversations.
        completions: Texts or conversations.
        unit: Map the score to [0, 1], which a Bernoulli value needs.
        with_prompt: Judge prompt and completion as one text.
    """
    scores: list[float | None] = []
    for prompt, completion in zip(prompts, completions, strict=True):
        text = (text_of(prompt) if with_prompt else "") + text_of(completion)
        compound = float(_analyzer().polarity_scores(text)["compound"])
        scores.append((compound + 1) / 2 if unit else compound)
    return scores
