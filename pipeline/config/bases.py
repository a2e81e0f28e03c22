"""How settings are declared, and what every algorithm, dataset and model has among them.

The settings of one are a subclass, which stands beside the code that they set: `PITAConfig` beside `PITA`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from pipeline.config.schema import Config


# -- fields ------------------------------------------------------------------------------------------------------
# How fields of the configuration are declared: with the range of their numbers, or as the path of a file. The
# schema uses these, and so may settings of a class of the user's own. What is declared here is checked in one
# place, `pipeline.config.values`, for every key alike.


MISSING: Any = "???"
"""`omegaconf.MISSING`, without OmegaConf: importing it takes longer than many commands do."""
LARGEST_SEED = 2**63 - 1
"""What every generator of random numbers takes."""
LONGEST_S = 1_000_000_000
"""Seconds: thirty years, which every clock takes."""
LARGEST_RATE = 100.0
"""Learning rate, of Adam: a step moves each weight by about as much."""
LARGEST_WEIGHT = 1e6
"""Of what is added up in a loss or a reward: far from where float32 ends."""
SMALLEST_DIVISOR = 1e-6
"""Of what values are divided by, likewise."""
OTHERWISE_MEASURED = ", or null to go by what is measured"
"""Hint for memory, in MiB."""

RANGE = "range"
PATH = "path"
CHOICES = "choices"
UNLESS_DEFAULT = "unless_default"
KEYED = "keyed"
MODEL_TEXT = "model_text"
BY_CONTENT = "by what is there, wherever that is"
"""How results depend on the name of a place."""
_GROUPED_FROM = 10_000
_EXACT_BELOW = 2**53


@dataclass(frozen=True, kw_only=True)
class Range:
    """Which numbers a field takes.

    Attributes:
        at_least: The smallest.
        above: What it must be larger than, where there is no smallest.
        at_most: The largest.
        below: What it must be smaller than, where there is no largest.
        infinite: Whether infinity is taken as well, whatever the largest is.
        words: Texts that may stand in the place of a number.
        hint: What stands after the range: what else to write, or what a number means.
        advice: What a message says besides, to one whose number is out of range.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    infinite: bool = False
    words: Sequence[str] = ()
    hint: str = ""
    advice: str = ""

    def holds(self, value: float) -> bool:
        """Whether a number is in the range; nan never is."""
        if value != value or math.inf in (value, -value):
            return self.infinite and value > 0
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """In words, to follow "must be": ``at least 1 and at most 4096``."""
        sides = {
            "at least": self.at_least,
            "above": self.above,
            "at most": self.at_most,
            "below": self.below,
        }
        told = " and ".join(f"{name} {_readable(bound)}" for name, bound in sides.items() if bound is not None)
        return (told or "a finite number") + (", or inf" if self.infinite else "") + self.hint


def number(
    default: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    infinite: bool = False,
    words: Sequence[str] = (),
    hint: str = "",
    advice: str = "",
    affects_result: bool = True,
    keyed: str = "",
) -> Any:
    """A field of numbers with their range: a number, one or null, a list of numbers, or a table of them.

    What is out of range is refused before anything starts, and so are nan and infinity.

    Args:
        default: Its default; of a list or table each instance gets a copy.
        at_least: The smallest number.
        above: What it must be larger than, where there is no smallest.
        at_most: The largest number.
        below: What it must be smaller than, where there is no largest.
        infinite: Take infinity as well.
        words: Texts that may stand in the place of a number, for a field of type ``int | str``.
        hint: What is added to the range, such as ", or null to take what the machine has".
        advice: What a message says besides, as a sentence without its full stop.
        affects_result: False for what changes how fast or where work is done, never what comes out; it is then
            left out of the keys of results.
        keyed: Of one that is left out: what of it the plan puts into keys all the same, to follow "results depend
            on it", such as "where it is more than 1".
    """
    allowed = Range(
        at_least=at_least,
        above=above,
        at_most=at_most,
        below=below,
        infinite=infinite,
        words=words,
        hint=hint,
        advice=advice,
    )
    return _field(default, affects_result, {RANGE: allowed, KEYED: keyed})


def file_or_folder(default: str | None, *, affects_result: bool = True, keyed: str = "") -> Any:
    """A field that names a file or folder; what no file system takes is refused before anything starts.

    Args:
        default: Its default.
        affects_result: As for `number`.
        keyed: Likewise.
    """
    return _field(default, affects_result, {PATH: True, KEYED: keyed})


def one_of(
    default: str | None, choices: Mapping[str, str], *, affects_result: bool = True, keyed: str = ""
) -> Any:
    """A field of text that takes one of a few; any other is refused before anything starts.

    Args:
        default: Its default.
        choices: What may be chosen -> what that means, or "".
        affects_result: As for `number`.
        keyed: Likewise.
    """
    return _field(default, affects_result, {CHOICES: choices, KEYED: keyed})


def model_text(default: Any) -> Any:
    r"""A field of text that models read, or of a list of them: typed on the command line, ``\n`` is a line break.

    ``\t`` is a tab, ``\\n`` a backslash and an n; commands of LaTeX, such as ``\nabla``, stay as they are.

    Args:
        default: Its default.
    """
    return _field(default, True, {MODEL_TEXT: True})


def option(default: Any) -> Any:
    """A field that came after results were stored: with its default they are what they were, and keep their keys.

    Args:
        default: What there was before; any other value is part of keys.
    """
    return _field(default, True, {UNLESS_DEFAULT: True})


def hint(default: Any, keyed: str = "") -> Any:
    """A field that cannot change a result; `plan.graph` leaves it out.

    Args:
        default: Its default.
        keyed: As for `number`, of one that can.
    """
    return _field(default, False, {KEYED: keyed})


def _field(default: Any, affects_result: bool, declared: dict[str, Any]) -> Any:
    metadata = declared if affects_result else {**declared, "affects_result": False}
    if isinstance(default, (list, dict)):
        empty = type(default)
        return field(default_factory=(lambda: copy.copy(default)) if default else empty, metadata=metadata)
    return field(default=default, metadata=metadata)


def _readable(bound: float) -> str:
    if bound != int(bound) or (isinstance(bound, float) and abs(bound) >= _EXACT_BELOW):
        return f"{bound:g}"
    return f"{int(bound):,}" if abs(bound) >= _GROUPED_FROM else str(int(bound))


class Settings:
    """What a class of settings says of its fields together. Those inside of others may be one, too."""

    def problems(self, key: str, config: Config) -> Iterator[str]:  # noqa: ARG002 - for subclasses
        """What of these settings does not fit together, or not to the rest of the request: a message for each.

        Asked before anything starts, of what a run uses, and only where all numbers are in their ranges.

        Args:
            key: Where they stand, as ``algos.PITA``.
            config: The whole request.
        """
        yield from ()

    def idle(self, setting: str) -> str:  # noqa: ARG002 - likewise
        """Why a setting has no effect beside the others, for a warning; "" where it has one.

        Args:
            setting: Its key from here on, as ``beta`` or ``lora.alpha``.
        """
        return ""


@dataclass(kw_only=True)
class AlgoConfig(Settings):
    """What every algorithm has."""

    guides: ClassVar[bool] = False
    """Whether it steers the reference by values, at strengths that can be swept."""
    keeps_logprobs: ClassVar[bool] = False
    """Whether it keeps the log-probability of every token that it draws; for estimates of disk alone."""

    enabled: bool = hint(False)
    """Whether the run has chains of it. The files in conf/algos say true."""
    class_path: str | None = None
    """Dotted path of a class of your own; null for the algorithms that ship."""
    batch_size: int = number(128, at_least=1, at_most=1_000_000)
    """Sequences per optimizer step; with PITA both completions of a pair count."""
    num_workers: int = number(0, at_least=0, at_most=4096, affects_result=False)
    """Accepted, and without effect, for configurations that ask for processes to load data: what a training reads
    is in memory as token ids, and cutting a batch from it takes less than a millisecond."""
    memory_mb: int | None = number(
        None, at_least=1, at_most=100_000_000, hint=OTHERWISE_MEASURED, affects_result=False
    )
    """Memory that each of its jobs takes of a GPU, in MiB; goes before those of `training` and `generation`."""
    learning_rate: float = number(2e-3, above=0, at_most=LARGEST_RATE)
    """Of AdamW, at its highest; see training.warmup_steps and training.schedule."""
    epochs: int = number(4, at_least=1, at_most=1_000_000)
    """Passes over the data of a round."""
    options: dict[str, Any] = field(default_factory=dict)
    """Free-form settings of an algorithm of your own."""
    front: dict[str, Any] = hint({}, keyed="as its points have settings of their own")
    """Settings of this algorithm with lists of values, as `{learning_rate: [1e-4, 3e-4]}`: it is run at each of
    them, as points of a front of reward against KL."""

    @property
    def trains(self) -> bool:
        """Whether it trains anything."""
        return True

    @property
    def draws_to_train(self) -> bool:
        """Whether the training itself draws, by the policy as it has become."""
        return False

    def drawn(self, samples: int) -> float:
        """Completions that a round draws of a prompt; for estimates of time alone.

        Args:
            samples: As `data_collection.samples_per_example` says.
        """
        return samples

    def trained(self, stage: str, samples: int, decided: float) -> float:  # noqa: ARG002 - for subclasses
        """Sequences that a stage trains on of a prompt, each pass counted; for estimates of time alone.

        Args:
            stage: Its name.
            samples: As `data_collection.samples_per_example` says.
            decided: Part of pairs of completions that tell which is better.
        """
        return self.epochs * samples

    def idle(self, setting: str) -> str:
        """As of all settings; also what is accepted for other programs' sake."""
        return "training data is in memory, and no processes load it" if setting == "num_workers" else ""


NOTHING = "nothing"
"""The word of `correct_by` for rewards none of which says what is correct."""


@dataclass(kw_only=True)
class GradingConfig:
    """How rewards are called."""

    options: dict[str, Any] = field(default_factory=dict)
    """Settings of rewards: name -> table of arguments, for example `{vader: {unit: true}}`. The entry `use` names
    another reward to call, so that one can be used twice under two names."""
    correct_by: str | None = None
    """The reward that says which completions are correct, by a value of 1 or more; null takes the first that is
    known to say so. `nothing` where none does: results are then mean rewards."""
    timeout_s: float = number(10.0, above=0, at_most=LONGEST_S)
    """Seconds that an isolated reward may take for each completion of a call; one with 8 has 8 times as long."""
    memory_gib: float = number(4.0, above=0, at_most=1e6)
    """Memory that an isolated reward may take beyond what its imports take."""
    isolated: bool = True
    """Call functions in processes of their own, so that one that hangs or crashes costs the scores of one call.
    False makes calls in the worker, without deadline."""
    processes: int = number(2, at_least=1, at_most=4096, affects_result=False)
    """Grading processes per worker, started when a reward needs them."""
    start_timeout_s: float = number(120.0, above=0, at_most=LONGEST_S, affects_result=False)
    """Seconds that a grading process may take to start and import a reward."""


@dataclass(kw_only=True)
class DatasetConfig(Settings):
    """A dataset: which class makes it, and its sizes."""

    kind: str = MISSING
    """Name in the registry of datasets."""
    class_path: str | None = None
    """Dotted path of a class of your own; null for the datasets that ship."""
    seed: int = number(0, at_least=0, at_most=LARGEST_SEED)
    """Decides the splits; the seeds of the experiment do not."""
    reward: str = "exact_match"
    """Name in the registry of rewards, or a dotted path."""
    rewards: dict[str, float] = number({}, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """Several rewards with their weights, instead of `reward`: their weighted sum counts."""
    grading: GradingConfig = field(default_factory=GradingConfig)
    test_size: int = number(10_000, at_least=1, at_most=10_000_000)
    """Rows that are kept apart for evaluation."""
    validation_size: int = number(10_000, at_least=1, at_most=10_000_000)
    """Rows that are kept apart for choosing settings."""
    options: dict[str, Any] = field(default_factory=dict)
    """Free-form settings of a dataset of your own."""

    def without_rewards(self) -> Self:
        """The same, of which no reward can be asked."""
        return replace(self, reward="", rewards={}, grading=GradingConfig())

    def idle(self, setting: str) -> str:
        """As of all settings."""
        return "`rewards` of the same dataset goes before it" if setting == "reward" and self.rewards else ""


@dataclass(kw_only=True)
class ModelConfig(Settings):
    """A reference policy and the backbone of the value models that guide it."""

    is_trained: ClassVar[bool] = False
    """Whether the run trains it, rather than reading it."""

    kind: str = MISSING
    """`tiny` (trained in the run) or `hf` (any causal language model that transformers loads)."""
    path: str | None = file_or_folder(None, affects_result=False, keyed=BY_CONTENT)
    """For `hf`: folder, GGUF file or hub id. Results depend on the content (`plan.models`), not on where it is."""
    value_path: str | None = file_or_folder(None, affects_result=False, keyed=BY_CONTENT)
    """Backbone of value models, likewise; null copies the reference's. Must share its tokenizer."""

    @property
    def weights(self) -> int:
        """How many there are, roughly; 0 where files tell."""
        return 0

    @property
    def demonstrations(self) -> int:
        """Sequences that it is trained on in the run."""
        return 0

    @property
    def in_bits(self) -> int | None:
        """Bits that a weight of the reference is kept in; None as it is read."""
        return None

    @property
    def trusts_code(self) -> bool:
        """Whether Python code may run that comes with the model."""
        return False

    @property
    def revisions(self) -> Mapping[str, str | None]:
        """Commit, tag or branch on the hub of ``reference`` and ``value``; None takes the newest."""
        return {"reference": None, "value": None}

    @property
    def references(self) -> Sequence[int | None]:
        """Seeds of the references that the model stands for; None for the one that is not made from a seed."""
        return (None,)

    def with_reference(self, reference: int | None) -> ModelConfig:  # noqa: ARG002 - there is but one
        """The model as the chains of one of its references see it."""
        return self
