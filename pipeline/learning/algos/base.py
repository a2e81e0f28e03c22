"""What an algorithm is: a class that lists its stages and has one method for each.

This module and the modules of the algorithms are imported while planning, so they import torch only inside
methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, get_args

from pipeline.config.schema import AlgoConfig, StageConfig
from pipeline.errors import JobError, unknown_name
from pipeline.learning.rewards.traits import RewardFailures

if TYPE_CHECKING:
    from pipeline.learning.models.cache import ModelCache
    from pipeline.learning.training.checkpoint import Checkpoints
    from pipeline.learning.training.curve import Curve
    from pipeline.learning.training.distributed import Ranks

_Settings = TypeVar("_Settings", bound=AlgoConfig)

REFERENCE = "reference"
"""What stands in the place of an algorithm for the policy that all of them start from."""
WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "adapter_model.safetensors", "value_head.safetensors")
"""Files of a saved model that hold its weights, as patterns of their names."""
Rounds = Literal["this", "previous", "so_far", "shard"]
Owner = Literal["self", "reference", "dataset", "start"]
Shards = Literal["train", "eval", None]
Saves = Literal["", "policy", "value", "rewards"]
Section = Literal["system", "training", "generation", "data_collection", "evaluation", "algo", "dataset", "model"]
_CHOICES = {
    "rounds": get_args(Rounds),
    "algo": get_args(Owner),
    "shards": get_args(Shards),
    "saves": get_args(Saves),
}


def _check_choices(made: Read | Stage, *names: str) -> None:
    for name in names:
        value, allowed = getattr(made, name), _CHOICES[name]
        if value not in allowed:
            raise ValueError(
                f"{type(made).__name__}: {name}={value!r} must be one of {', '.join(map(repr, allowed))}"
            )


@dataclass(frozen=True)
class Read:
    """An input of a stage: the outputs of another stage.

    Attributes:
        stage: Name of the stage that is read.
        rounds: ``this`` round, the ``previous`` one (left out in round 1), or every round ``so_far``,
            this one included; of this round the ``shard`` of the same rows alone.
        algo: ``self``, ``reference`` for the reference policy, or ``dataset`` for the preparation of the data; all
            chains share those two. ``start`` is the last round of the method that the settings name as `start`,
            and left out where they name none.
    """

    stage: str
    rounds: Rounds = "this"
    algo: Owner = "self"

    def __post_init__(self) -> None:
        """Refuse rounds and owners that there are none of.

        Raises:
            ValueError: Names what there is.
        """
        _check_choices(self, "rounds", "algo")

    @property
    def name(self) -> str:
        """Name under which the stage's method finds it: ``train``, ``train@previous``, ``reference.train``."""
        prefix = "" if self.algo == "self" else f"{self.algo}."
        suffix = "" if self.rounds == "this" else f"@{self.rounds}"
        return f"{prefix}{self.stage}{suffix}"


@dataclass(frozen=True)
class Stage:
    """One named step of a round.

    Attributes:
        name: Name of the stage and of the method that runs it.
        shards: Split over the round's training prompts, over the evaluation prompts, or not at all.
        reads: Its inputs.
        config: Sections of the configuration that it may read. They are what its key covers.
        judges: Whether it asks rewards. Without, its dataset has none, and its key covers none: what it leaves
            stays where a reward changes.
        seeded: Whether the result depends on the seed of the chain.
        devices: Devices it needs at once.
        only_with: A list among the settings, as ``evaluation.etas``: without an entry in it the stage is left out,
            and what reads it has no such input. "" for a stage that is always there.
        scales: Whether it trains one model with `train`, so that `training.gpus_per_job` devices can share that.
        loads_models: False for work on files alone, which has no preference for a worker.
        saves: The models that its output holds, for an estimate of the disk that it takes: the whole ``policy``, a
            ``value`` model, or ``rewards``, one reward model or those that the settings ask for. "" for none.
        weights: Patterns of the names of files, in whatever folder of its output, that hold the weights of what it
            saves: what `execution.keep` may remove.
        seconds: Rough time per job (per 1,000 samples where it is split; of a training, in the first round) on one
            CPU core with the default model and settings. What a request has otherwise is reckoned from that
            (`plan.estimates`), until such a job was timed.
    """

    name: str
    shards: Shards = None
    reads: tuple[Read, ...] = ()
    config: tuple[Section, ...] = ()
    judges: bool = True
    seeded: bool = True
    devices: int = 1
    only_with: str = ""
    scales: bool = False
    loads_models: bool = True
    saves: Saves = ""
    weights: tuple[str, ...] = WEIGHTS
    seconds: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what no plan can be made of.

        Raises:
            ValueError: Says what.
        """
        _check_choices(self, "shards", "saves")
        if not self.name.isidentifier() or iskeyword(self.name) or self.name.startswith("__"):
            raise ValueError(f"a stage is named as its method is, and {self.name!r} can be no method")
        if odd := [one for one in self.config if one not in get_args(Section)]:
            raise ValueError(f"the stage '{self.name}': {unknown_name('section', str(odd[0]), get_args(Section))}")
        if self.devices < 1 or not all(isinstance(read, Read) for read in self.reads):
            raise ValueError(f"the stage '{self.name}' needs one device or more, and reads Read(STAGE) alone")

    @property
    def draws(self) -> bool:
        """Whether it writes texts by a policy, which `generation.gpus_per_job` devices can share."""
        return self.shards is not None and "generation" in self.config


class Progress(Protocol):
    """Reports how far a job is; cheap to call at every step, sends a few times a second."""

    def __call__(self, done: int, *, total: int | None = None, tokens: int = 0) -> None:
        """Report how far the job is.

        Args:
            done: Samples or steps finished so far.
            total: How many there are; None for the samples that the plan counted.
            tokens: Generated or trained on since the job began.
        """


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """Everything a stage method may use.

    Attributes:
        job_id: The job, for messages.
        algo: Name of the algorithm.
        seed: Seed of the chain; 0 in stages that are not seeded.
        round: 0 for the reference, then 1 and up.
        rows: Positions ``[start, stop)`` in the round's list of prompts, for a stage that is split.
        config: The sections that the stage declared; reading another one raises.
        inputs: Input name -> folders of the stored outputs, in the order of rounds and shards.
        out: Folder to write to; committed whole when the method returns.
        device: ``cpu`` or ``cuda``, for `torch.device`.
        checkpoints: Folder that outlives a failed attempt and the run, for what lets the next attempt go on.
        checkpoint_every_steps: As `training` has it, for stages that do not declare that section too.
        checkpoint_every_minutes: As `training` has it.
        hints: Folder shared by all jobs of a store, for what makes later jobs faster but changes no result.
        joined: What `ranks` is where the job has several processes.
        stopping: Whether the run is about to end: save a checkpoint and raise `JobStopped`.
        models: Models that stay loaded between jobs of this worker.
        loading: Context in which time counts as loading rather than as work.
        progress: Reports how far the job is.
        show: Takes a few numbers of the present step, by name, which go along with the next progress.
        failures: Completions of the job at which rewards failed.
    """

    job_id: str
    algo: str
    seed: int
    round: int
    rows: tuple[int, int]
    config: StageConfig
    inputs: Mapping[str, tuple[Path, ...]]
    out: Path
    device: str
    checkpoints: Path
    checkpoint_every_steps: int
    checkpoint_every_minutes: float
    hints: Path
    joined: Ranks | None
    models: ModelCache
    loading: Callable[[], AbstractContextManager[None]] = field(repr=False)
    progress: Progress = field(repr=False)
    stopping: Callable[[], bool] = field(repr=False)
    show: Callable[[Mapping[str, float | None]], None] = field(repr=False, default=lambda _: None)
    failures: RewardFailures = field(repr=False, default_factory=RewardFailures)

    @property
    def ranks(self) -> Ranks:
        """The processes that do this job, of which this is one: all of them call the stage's method.

        Only what rank 0 writes to `out` is kept.
        """
        with self.loading():
            from pipeline.learning.training.distributed import ALONE
        return self.joined or ALONE

    def settings(self, kind: type[_Settings]) -> _Settings:
        """The settings of the algorithm, with the fields of a class.

        Args:
            kind: That class, as `GRPOConfig`.

        Raises:
            JobError: The algorithm has settings of another kind.
        """
        algo = self.config.algo
        if not isinstance(algo, kind):
            raise JobError(
                f"algos.{self.algo} has the settings of {type(algo).__name__}, and this stage "
                f"reads those of {kind.__name__}; set its config_class to {kind.__name__} or a subclass of it"
            )
        return algo

    def input(self, name: str) -> Path:
        """The folder of an input that is a single output.

        Raises:
            JobError: There is no such input, or it has several folders.
        """
        folders = self.inputs.get(name, ())
        if len(folders) != 1:
            raise JobError(f"expected one folder for input '{name}', found {len(folders)}")
        return folders[0]

    def checkpoint(self, training: str, *, also_finished: bool = False) -> Checkpoints:
        """The checkpoints of a training that this job does; see `learning.training.checkpoint`.

        Args:
            training: Names it among the trainings of the stage; a plain word.
            also_finished: Save its end too, for a stage that goes on with other work.
        """
        # The folder is named by the job's key, which covers every setting that decides what is computed.
        about = {"key": self.checkpoints.name, "algo": self.algo, "round": self.round, "seed": self.seed}
        from pipeline.learning.training.checkpoint import Checkpoints

        return Checkpoints(
            self.checkpoints / training,
            {**about, "training": training},
            every_steps=self.checkpoint_every_steps,
            every_minutes=self.checkpoint_every_minutes,
            stopping=self.stopping,
            also_finished=also_finished,
            ranks=self.ranks,
        )

    def curve(self, training: str) -> Curve:
        """Where the curve of a training goes that this job does; see `learning.training.curve`.

        Args:
            training: Names it among the trainings of the stage; a plain word.
        """
        from pipeline.learning.training.curve import Curve

        return Curve(training=training, folder=self.out, show=self.show)

    @property
    def first_device(self) -> str:
        """Where a model that is to be trained is loaded to: what is spread gets to its devices part by part."""
        return "cpu" if self.ranks.is_sharded else self.device

    def optional_input(self, name: str) -> Path | None:
        """The folder of an input that the first round does not have, or None."""
        return self.input(name) if self.inputs.get(name) else None


class Algorithm:
    """Base of every algorithm.

    A subclass sets the attributes below and has, for each stage, a method of the stage's name that takes a
    `JobContext` and writes its result into ``ctx.out``.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Part of every key; raise it when results would change."""
    stages: ClassVar[tuple[Stage, ...]]
    config_class: ClassVar[type[AlgoConfig]] = AlgoConfig
    """Settings under ``algos.<name>``."""
    kl_is_bound: ClassVar[bool] = False
    """Whether the divergence that its evaluation tells is an upper bound, not exact; said below tables."""

    @classmethod
    def stages_with(cls, settings: AlgoConfig) -> tuple[Stage, ...]:  # noqa: ARG003 - for subclasses
        """Its stages under some settings of its section; all of `stages` unless the settings decide."""
        return cls.stages

    @classmethod
    def drawn_with(cls, settings: AlgoConfig) -> Mapping[str, Any] | None:  # noqa: ARG003 - for subclasses
        """All of its settings that its stage `generate` reads, where that stage is the same for other methods.

        Their keys then cover that in the place of the method and its settings, so that what several draw by the
        same policy is drawn once. None for a stage of its own.
        """
        return None

    def spent_before(self, ctx: JobContext) -> int:  # noqa: ARG002 - for methods with more stages
        """Tokens that earlier stages of this round have trained on."""
        return 0

    def told_before(self, ctx: JobContext) -> dict[str, Any]:  # noqa: ARG002 - likewise
        """What to add to ``training.json`` of earlier stages of this round."""
        return {}


DATASET, PROMPTS = "dataset", "prompts"
"""Inputs that every stage gets which sees the section ``dataset``, or decodes text too, where data is prepared."""

REFERENCE_TRAIN = Read("train", algo="reference")
START_TRAIN = Read("train", algo="start")

METRICS = Stage(
    "metrics",
    reads=(Read("evaluate"), Read("evaluate", "previous"), Read("evaluate", algo="reference")),
    config=("evaluation",),
    loads_models=False,
    seconds=0.1,
)
"""The last stage of every chain: numbers with intervals, and differences to the reference and the last round."""


def timed(stages: Iterable[Stage], **seconds: float) -> tuple[Stage, ...]:
    """The same stages, some of which take another time.

    Args:
        stages: The stages.
        **seconds: Name of a stage -> as `Stage.seconds`.
    """
    return tuple(replace(stage, seconds=seconds.get(stage.name, stage.seconds)) for stage in stages)


TEXT: tuple[Section, ...] = ("system", "generation", "dataset", "model")
"""What any stage that decodes text depends on."""

GENERATE = Stage(
    "generate",
    shards="train",
    reads=(REFERENCE_TRAIN, START_TRAIN, Read("train", "previous")),
    config=(*TEXT, "data_collection", "algo"),
    judges=False,
    seconds=0.35,
)
"""Texts of the round's policy, which in the first round is the reference, or the policy of `start`."""

SCORE = Stage(
    "score",
    shards="train",
    reads=(Read("generate", "shard"),),
    config=("system", "dataset", "data_collection", "algo"),
    seconds=0.05,
)
"""What rewards say of these texts, and what training needs of both."""
