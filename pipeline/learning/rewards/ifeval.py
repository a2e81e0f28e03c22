"""Reward the share of a prompt's instructions that a completion follows, as IFEval checks them (arXiv 2311.07911).

lm-evaluation-harness has the checkers; this is its strict evaluation, without its draws in the place of settings
that a row lacks. Columns: ``instruction_id_list``, and ``kwargs`` with their settings. The harness is imported
where rows are checked or graded, as that takes long.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pipeline.errors import unknown_name
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
    if not (
        isinstance(named, list)
        and isinstance(settings, list)
        and len(named) == len(settings) > 0
        and all(isinstance(name, str) for name in named)
        and all(isinstance(own, Mapping) for own in settings)
    ):
        return (
            "needs `instruction_id_list` and `kwargs`, two lists of equal length, with a name and an object per "
            "instruction"
        )
    if (needing := _BY_NLTK.intersection(named)) and not _has_tokenizer():
        return f"needs data of nltk for {min(needing)}: run python -m nltk.downloader punkt_tab"
    problems = map(_wrong_with, named, settings)
    return next((problem for problem in problems if problem), "")


def _wrong_with(name: str, settings: Mapping[str, Any]) -> str:
    checkers = _checker().instructions_registry.INSTRUCTION_DICT
    if name not in checkers:
        return f"checks other instructions: {unknown_name('instruction', name, checkers).removesuffix('.')}"
    try:
        _followed([name], [settings], "", "a")
    except _Drawn:
        needed = checkers[name](name).get_instruction_args_keys()
        given = ", ".join(f"{each}={settings.get(each)!r}" for each in needed)
        return f"needs all kwargs of {name}, where it has {given}: a threshold or word would be drawn at random"
    except Exception as error:  # whatever a wrong value causes in a checker
        given = ", ".join(f"{each}={value!r}" for each, value in settings.items() if value is not None)
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return f"cannot check {name} with {given or 'no kwargs'} ({said})"
    return ""


class _Drawn(Exception):  # noqa: N818 - it names what was done
    """A checker draws a setting at random."""


def _draw(*_: Any, **__: Any) -> None:
    raise _Drawn


_NO_DRAWS = SimpleNamespace(choice=_draw, randint=_draw, sample=_draw)


@cache
def _checker() -> Any:
    """Import the checkers of lm_eval; they look for data of nltk, and must not download it on their own."""
    import langdetect

    with patch("nltk.download"):
        from lm_eval.tasks.ifeval import utils

    langdetect.DetectorFactory.seed = 0  # it guesses languages by random draws
    return utils


@cache
def _counts_characters() -> Any:
    """Return the checker of letters for any character: of '#' and '!' in IFEval lm_eval's draws a letter."""
    from lm_eval.tasks.ifeval.instructions import LetterFrequencyChecker

    class AnyCharacter(LetterFrequencyChecker):  # type: ignore[misc]
        def build_description(self, *, letter: Any = None, **others: Any) -> Any:
            is_one = isinstance(letter, str) and len(letter.strip()) == 1
            said = super().build_description(letter="a" if is_one else None, **others)
            self._letter = letter.strip().lower()
            return said

    return AnyCharacter


def _followed(
    named: Sequence[str], settings: Sequence[Mapping[str, Any]], prompt: str, text: str
) -> Sequence[bool]:
    """Return whether a text follows each instruction.

    Raises:
        _Drawn: A setting is missing, or out of the range of a checker.
    """
    utils = _checker()
    row = utils.InputExample(0, [*named], prompt, [*settings])
    known = utils.instructions_registry.INSTRUCTION_DICT
    with (
        patch.dict(known, {"keywords:letter_frequency": _counts_characters()}),
        patch("lm_eval.tasks.ifeval.instructions.random", _NO_DRAWS),
        patch("lm_eval.tasks.ifeval.instructions_util.random", _NO_DRAWS),
    ):
        followed: Sequence[bool] = utils.test_instruction_following_strict(row, text).follow_instruction_list
    return followed


@reward(
    RewardTraits(
        pointwise=True,
        verifies=True,
        graded=True,
        judges="instructions",
        refuses=_refuses,
        packages=("lm-eval", "langdetect", "nltk"),
        version=2,
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
        text = text_of(completion).rpartition("</think>")[2]
        followed = _followed(named, settings, text_of(prompt), text)
        shares.append(sum(followed) / len(followed))
    return shares
