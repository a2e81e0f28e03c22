"""Reward the share of a prompt's instructions that a completion follows, as IFEval checks them (arXiv 2311.07911).

lm-evaluation-harness has the checkers; this is its strict evaluation. Columns: ``instruction_id_list``, and
``kwargs`` with their settings. The harness is imported in grading processes alone, as that takes long.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pipeline.learning.rewards.traits import RewardTraits, Text, reward, text_of

_BY_NLTK = {"length_constraints:number_sentences", "change_case:capital_word_frequency"}
"""Instructions that need the data of nltk's tokenizer."""


@cache
def _has_tokenizer() -> bool:
    import nltk

    try:
        return bool(nltk.data.find("tokenizers/punkt_tab"))
    except LookupError:
        return False


def _refuses(columns: Mapping[str, Any]) -> str:
    named, settings = columns.get("instruction_id_list"), columns.get("kwargs")
    if not (isinstance(named, list) and isinstance(settings, list) and len(named) == len(settings) > 0):
        return "needs `instruction_id_list` and `kwargs`, two lists of equal length, one entry per instruction"
    if (needing := _BY_NLTK.intersection(named)) and not _has_tokenizer():
        return f"needs data of nltk for {min(needing)}: run python -m nltk.downloader punkt_tab"
    return ""


@cache
def _checker() -> Any:
    """Import the checkers of lm_eval; they look for data of nltk, and must not download it on their own."""
    from unittest.mock import patch

    import langdetect

    with patch("nltk.download"):
        from lm_eval.tasks.ifeval import utils

    langdetect.DetectorFactory.seed = 0  # it guesses languages by random draws
    return utils


@reward(
    RewardTraits(
        pointwise=True,
        verifies=True,
        graded=True,
        judges="instructions",
        refuses=_refuses,
        packages=("lm-eval", "langdetect", "nltk"),
    )
)
def ifeval(
    prompts: Sequence[Text],
    completions: Sequence[Text],
    instruction_id_list: Sequence[Sequence[str]],
    kwargs: Sequence[Sequence[Mapping[str, Any]]],
    **_: Any,
) -> list[float | None]:
    """Return the share of instructions that each completion follows; with all of them it is correct.

    Args:
        prompts: Texts or conversations.
        completions: Texts or conversations; reasoning up to ``</think>`` is left out.
        instruction_id_list: Names of the instructions of each prompt.
        kwargs: Their settings; None for those that an instruction does not have.
    """
    shares: list[float | None] = []
    for prompt, completion, named, settings in zip(prompts, completions, instruction_id_list, kwargs, strict=True):
        row = _checker().InputExample(0, [*named], text_of(prompt), [*settings])
        text = text_of(completion).rpartition("</think>")[2]
        followed = _checker().test_instruction_following_strict(row, text).follow_instruction_list
        shares.append(sum(followed) / len(followed))
    return shares
