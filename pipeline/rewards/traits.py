"""What the engine may know of a reward beyond TRL's signature, attached to the function by a decorator.

Light on purpose: the processes that grade import this and little else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, TypeVar

Message = Mapping[str, str]
Text = str | Sequence[Message]
"""A prompt or completion as TRL gives it: text, or a conversation."""
Function = TypeVar("Function", bound=Callable[..., Any])
_ATTRIBUTE = "reward_traits"
GRADING = 1
"""Version of `pipeline.rewards`: how scores and preferences follow from what rewards say; see `plan.versions`."""


def text_of(completion: Text) -> str:
    """The text of a completion; of a conversation, that of its last message."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def stripped(completion: Text) -> str | None:
    """The answer of a completion where a reward names none: its text without surrounding white space."""
    return text_of(completion).strip() or None


def judged(
    completions: Sequence[Text], solution: Sequence[str | None], judge: Callable[[Text, str], float | None]
) -> list[float | None]:
    """Judge each completion by its solution; one whose row has none is not judged, and gets None."""
    pairs = zip(completions, solution, strict=True)
    return [None if wanted is None else judge(given, wanted) for given, wanted in pairs]


@dataclass(frozen=True)
class RewardTraits:
    """What a reward is like.

    Attributes:
        verifies: Whether a value of 1 means that the completion is correct; without such a reward there is no
            pass@k and no maj@k.
        isolated: Whether to call it in a process of its own with a deadline, one completion at a time.
        answer: Takes a completion and gives what it votes for in maj@k, or None for no vote.
        packages: Packages whose versions scores depend on.
        version: Raise it when scores would change. This and the versions of the packages are part of the keys of
            kept scores and, for a reward that ships, of those of outputs.
    """

    verifies: bool = True
    isolated: bool = True
    answer: Callable[[Text], str | None] = stripped
    packages: tuple[str, ...] = ()
    version: int = 1


def reward(traits: RewardTraits) -> Callable[[Function], Function]:
    """Attach traits to a reward. A function without any, for example one written for TRL, gets the defaults."""

    def attach(function: Function) -> Function:
        setattr(function, _ATTRIBUTE, traits)
        return function

    return attach


def traits_of(function: object) -> RewardTraits:
    """The traits of a reward."""
    traits = getattr(function, _ATTRIBUTE, None)
    return traits if isinstance(traits, RewardTraits) else RewardTraits()


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a reward is declared `async`: a function, or an object whose `__call__` is."""
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


class WrongScores(ValueError):  # noqa: N818 - it names what was returned
    """A reward returned something else than one number, or None, for each completion."""


def read_scores(given: object, expected: int) -> list[float | None]:
    """What a reward returned.

    Args:
        given: What it returned.
        expected: Completions that it was given.

    Raises:
        WrongScores: Says what it returned, and what it must return.
    """
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping | Set):
        raise WrongScores(
            f"the reward returned {_brief(given)}, but must return a list with one number, or None, for each "
            "completion"
        )
    scores = list(given)
    if len(scores) != expected:
        completions = "one completion" if expected == 1 else f"{expected} completions"
        raise WrongScores(f"the reward returned {len(scores)} scores for {completions}")
    return [None if score is None else _number(score) for score in scores]


def _number(score: Any) -> float:
    try:
        if not isinstance(score, str | bytes | bytearray):  # of which float() would read some
            return float(score)
    except (TypeError, ValueError) as error:
        raise WrongScores(_no_number(score)) from error
    raise WrongScores(_no_number(score))


def _no_number(score: object) -> str:
    return f"the reward returned {_brief(score)} as a score, which is no number"


def _brief(given: object) -> str:
    return repr(given) if given is None or isinstance(given, str | int | float) else f"a {type(given).__name__}"
