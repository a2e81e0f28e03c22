"""Define what the pipeline may know of a reward beyond TRL's signature, attached to the function by a decorator.

Few imports on purpose: grading processes import this module and little else.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, TypeVar

from pipeline.files import json_text
from pipeline.outputs import formats

Message = Mapping[str, str]
Text = str | Sequence[Message]
"""A prompt or completion as in TRL: text, or a conversation."""
Function = TypeVar("Function", bound=Callable[..., Any])
_ATTRIBUTE = "reward_traits"
_LONGEST = 300
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
CORRECT = 1.0
"""Least value of a correct completion unless a reward sets another, as in TRL's accuracy rewards."""
GRADING = 6
"""Version of `learning.rewards`: how scores and preferences follow from the values of rewards; see
`plan.contents`."""


def text_of(completion: Text) -> str:
    """Return the text of a completion; for a conversation, the text of its last message."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def stripped(completion: Text) -> str | None:
    """Return the completion without surrounding white space, for rewards that take all of it as the answer."""
    return text_of(completion).strip() or None


def judged(
    completions: Sequence[Text], solution: Sequence[str | None], judge: Callable[[Text, str], float | None]
) -> list[float | None]:
    """Score each completion by the solution of its row; a row without a solution gets None."""
    pairs = zip(completions, solution, strict=True)
    return [None if wanted is None else judge(given, wanted) for given, wanted in pairs]


@dataclass(frozen=True)
class RewardTraits:
    """Traits of a reward. Unset traits are unknown, and nothing is assumed.

    Attributes:
        verifies: Whether the values decide which completions are correct; None if unknown. Only a reward that
            verifies, or is named by `grading.correct_by`, gives pass@k and maj@k.
        correct_from: The least value of a correct completion, for a reward that verifies.
        graded: Whether the reward is known to give values between its lowest and its highest.
        judges: What the values measure, in a word or two for messages: "correctness", "format", "length".
        answer: Returns the vote of a completion in maj@k, a text or a number, or None for no vote. None if answers
            cannot be read, so that votes are never counted.
        right: Takes the columns of a row and returns the texts with value 1, ignoring white space around them; all
            other texts have value 0. Empty if the row has no value. None if the texts cannot be listed.
        gold: Takes the columns of a row and returns its solution as right completions write it; empty if the row
            has none. These texts are tried before the run. None if the form of answers is unknown.
        refuses: Takes the columns of a row and returns what is wrong with them if no completion of that row can be
            scored; "" otherwise. `prepare` calls it for every row. None if every row is accepted.
        messages: Which of "prompts" and "completions" the reward takes only as conversations; None uses its
            annotations.
        pointwise: Whether the score of a completion depends only on the completion and its row, whatever else is
            in the call. If also isolated, the reward is called with one completion at a time, and a failure costs
            only that one. Other rewards are called as in TRL: with all completions of a prompt, and of several
            prompts, at once.
        isolated: Whether to call the reward in a process of its own with a deadline.
        packages: Packages whose versions affect the scores.
        version: Raise it when scores change. This and the versions of the packages are part of the keys of stored
            scores and, for a shipped reward, of the keys of outputs.
    """

    verifies: bool | None = None
    correct_from: float = CORRECT
    graded: bool = False
    judges: str = ""
    answer: Callable[[Text], str | float | None] | None = None
    right: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    gold: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    refuses: Callable[[Mapping[str, Any]], str] | None = None
    messages: frozenset[str] | None = None
    pointwise: bool = False
    isolated: bool = True
    packages: tuple[str, ...] = ()
    version: int = 1

    def vote(self, completion: Text) -> str | None:
        """Return the vote of a completion in maj@k as text; None for no vote."""
        given = None if self.answer is None else self.answer(completion)
        return None if given is None else str(given)


def reward(traits: RewardTraits) -> Callable[[Function], Function]:
    """Attach traits to a reward. Of a function without any, such as one written for TRL, nothing is known.

    Raises:
        TypeError: It was given something else, as the function itself.
    """
    if not isinstance(traits, RewardTraits):
        raise TypeError(
            f"write @reward(RewardTraits(verifies=True)) above a reward, not @reward of {_brief(traits)}"
        )

    def attach(function: Function) -> Function:
        setattr(function, _ATTRIBUTE, traits)
        return function

    return attach


def declared_traits(function: object) -> RewardTraits | None:
    """Return the traits attached to a reward, or None."""
    traits = getattr(function, _ATTRIBUTE, None)
    return traits if isinstance(traits, RewardTraits) else None


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a reward is declared `async`: a function, or an object with an `async` `__call__`."""
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


class WrongScores(ValueError):  # noqa: N818 - it names what was returned
    """A reward returned something else than one number, or None, for each completion."""


def read_scores(given: object, expected: int) -> list[float | None]:
    """Convert the return value of a reward to scores.

    Args:
        given: Return value of the reward.
        expected: Number of completions in the call.

    Raises:
        WrongScores: The value is no list with one number, or None, per completion; the message names both.
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
        if isinstance(score, str | bytes | bytearray):  # float() would parse some of these
            raise TypeError
        return float(score)
    except (TypeError, ValueError) as error:
        raise WrongScores(f"the reward returned {_brief(score)} as a score, which is no number") from error


def _brief(given: object) -> str:
    return repr(given) if given is None or isinstance(given, str | int | float) else f"a {type(given).__name__}"


@dataclass
class RewardFailures:
    """Completions for which rewards failed, counted over a job: ``faults.json`` in its output, if there are any.

    Attributes:
        completions: Number of scored completions.
        failed: Number of these for which a reward failed.
        first: Message of the first failure.
    """

    completions: int = 0
    failed: int = 0
    first: str = ""

    def add(self, faults: Sequence[str | None], first: str, out: Path) -> None:
        """Count scored completions, and write the counts to the output of the job once there is a failure.

        Args:
            faults: Fault of each completion, or None.
            first: Message of the first failure.
            out: Folder of the output.
        """
        self.completions += len(faults)
        self.failed += sum(fault is not None for fault in faults)
        # Addresses differ between processes, and equal jobs write equal bytes.
        self.first = self.first or _ADDRESS.sub("0x...", first)[:_LONGEST]
        self.write(out)

    def write(self, out: Path) -> None:
        """Write the counts to the output of the job, if there is a failure."""
        if self.failed:
            (out / formats.FAULTS).write_text(json_text(asdict(self), indent=1) + "\n")
