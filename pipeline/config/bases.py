"""What every algorithm, dataset and model has among its settings, and what their classes may say of them.

The settings of one are a subclass, which stands beside the code that they set: `PITAConfig` beside `PITA`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pipeline.config.fields import (
    BY_CONTENT,
    LARGEST_RATE,
    LARGEST_SEED,
    LARGEST_WEIGHT,
    LONGEST_S,
    MISSING,
    OTHERWISE_MEASURED,
    file_or_folder,
    hint,
    number,
)

if TYPE_CHECKING:
    from pipeline.config.schema import Config


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
