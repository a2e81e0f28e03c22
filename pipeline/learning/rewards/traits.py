"""What the engine may know of a reward beyond TRL's signature, attached to the function by a decorator.

Light on purpose: the processes that grade import this and little else.
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
"""A prompt or completion as TRL gives it: text, or a conversation."""
Function = TypeVar("Function", bound=Callable[..., Any])
_ATTRIBUTE = "reward_traits"
_LONGEST = 300
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
CORRECT = 1.0
"""Least value of a correct completion where a reward says nothing else, as TRL's accuracy rewards have it."""
GRADING = 6
"""Version of `learning.rewards`: how scores and preferences follow from what rewards say; see `plan.contents`."""


def text_of(completion: Text) -> str:
    """The text of a completion; of a conversation, that of its last message."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def stripped(completion: Text) -> str | None:
    """The whole text as an answer, without surrounding white space, where completions are nothing but answers."""
    return text_of(completion).strip() or None


def judged(
    completions: Sequence[Text], solution: Sequence[str | None], judge: Callable[[Text, str], float | None]
) -> list[float | None]:
    """Judge each completion by its solution; one whose row has none is not judged, and gets None."""
    pairs = zip(completions, solution, strict=True)
    return [None if wanted is None else judge(given, wanted) for given, wanted in pairs]


@dataclass(frozen=True)
class RewardTraits:
    """What a reward is like. What nobody has said of it is not taken for granted.

    Attributes:
        verifies: Whether its values say which completions are correct; None where that is not known. Only what
            verifies, or is named by `grading.correct_by`, makes pass@k and maj@k.
        correct_from: The least value of a correct completion, of a reward that verifies.
        graded: Whether it is known to give values between its lowest and its highest.
        judges: What its values speak of, in a word or two for messages: "correctness", "format", "length".
        answer: Takes a completion and gives what it votes for in maj@k, a text or a number, or None for no vote.
            None where answers cannot be told, and so are never counted.
        right: Takes the columns of a row and gives the texts at which its value is 1, white space around them
            aside, where it is 0 at every other text; none where the row has no value. None where they cannot be
            listed.
        gold: Takes the columns of a row and gives its solution as right completions write it; nothing where the
            row has none. They are tried before the run. None where nobody has said how answers are written.
        refuses: Takes the columns of a row and says what is wrong with them where no completion of that row can be
            judged; "" where nothing is. `prepare` asks it of every row. None where it takes any.
        messages: Which of "prompts" and "completions" it takes as conversations alone; None goes by its
            annotations.
        pointwise: Whether the score of a completion depends on it and its row alone, whatever else is in the call.
            Where it is isolated it is called with one completion at a time, and a failure costs that one.
            Others are called as TRL does: with all completions of a prompt, and of several prompts, at once.
        isolated: Whether to call it in a process of its own with a deadline.
        packages: Packages whose versions scores depend on.
        version: Raise it when scores would change. This and the versions of the packages are part of the keys of
            kept scores and, for a reward that ships, of those of outputs.
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
        """What a completion votes for in maj@k: the text of what `answer` gives, be it a number."""
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
    """The traits that were attached to a reward, or None."""
    traits = getattr(function, _ATTRIBUTE, None)
    return traits if isinstance(traits, RewardTraits) else None


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
        if isinstance(score, str | bytes | bytearray):  # of which float() would read some
            raise TypeError
        return float(score)
    except (TypeError, ValueError) as error:
        raise WrongScores(f"the reward returned {_brief(score)} as a score, which is no number") from error


def _brief(given: object) -> str:
    return repr(given) if given is None or isinstance(given, str | int | float) else f"a {type(given).__name__}"


@dataclass
class RewardFailures:
    """Completions at which rewards failed, counted over a job: ``faults.json`` in its output, if any did.

    Attributes:
        completions: How many were scored.
        failed: At how many of them a reward failed.
        first: What was said of the first of these.
    """

    completions: int = 0
    failed: int = 0
    first: str = ""

    def add(self, faults: Sequence[str | None], first: str, out: Path) -> None:
        """Count completions that were scored, and write it to the output of the job once there is a failure.

        Args:
            faults: How a reward failed at each, or None.
            first: What is said of the first failure.
            out: The output.
        """
        self.completions += len(faults)
        self.failed += sum(fault is not None for fault in faults)
        # Addresses differ from process to process, and equal jobs leave equal bytes.
        self.first = self.first or _ADDRESS.sub("0x...", first)[:_LONGEST]
        self.write(out)

    def write(self, out: Path) -> None:
        """Write the counts to the output of the job, where there is a failure."""
        if self.failed:
            (out / formats.FAULTS).write_text(json_text(asdict(self), indent=1) + "\n")
