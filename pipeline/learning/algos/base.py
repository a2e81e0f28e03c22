"""What an algorithm is: a class that lists its stages and has one method for each.

This module and the modules of the algorithms are imported while planning, so they import torch only inside
methods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, replace
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, get_args

from pipeline.config.schema import AlgoConfig, StageConfig
from pipeline.errors import JobError, unknown_name
from pipeline.files import json_text
from pipeline.learning.rewards.traits import RewardFailures
from pipeline.outputs.formats import GENERATION, Calibration, Tally, read_generation, read_input

if TYPE_CHECKING:
    from pipeline.learning.models.cache import ModelCache
    from pipeline.learning.training.checkpoint import Checkpoints
    from pipeline.learning.training.distributed import Ranks
    from pipeline.learning.training.loop import Curve

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


def _check_choices(made: Read | Stage, **allowed: Any) -> None:
    for name, kind in allowed.items():
        if (value := getattr(made, name)) not in get_args(kind):
            listed = ", ".join(map(repr, get_args(kind)))
            raise ValueError(f"{type(made).__name__}: {name}={value!r} must be one of {listed}")


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
        _check_choices(self, rounds=Rounds, algo=Owner)

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
        judges: Whether it asks rewards. Without, its dataset has none, `data_collection.reward_batch_size` is the
            default, and its key covers neither: what it leaves stays where a reward or that size changes.
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
        _check_choices(self, shards=Shards, saves=Saves)
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
        """Where the curve of a training goes that this job does; see `Drawing` of `learning.training.loop`.

        Args:
            training: Names it among the trainings of the stage; a plain word.
        """
        from pipeline.learning.training.loop import Curve

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
    def stages_with(cls, settings: AlgoConfig) -> tuple[Stage, ...]:
        """Its stages under some settings of its section; all of `stages` unless the settings decide."""
        return cls.stages

    @classmethod
    def drawn_with(cls, settings: AlgoConfig) -> Mapping[str, Any] | None:
        """All of its settings that its stage `generate` reads, where that stage is the same for other methods.

        Their keys then cover that in the place of the method and its settings, so that what several draw by the
        same policy is drawn once. None for a stage of its own.
        """
        return None

    def spent_before(self, ctx: JobContext) -> int:
        """Tokens that earlier stages of this round have trained on."""
        return 0

    def told_before(self, ctx: JobContext) -> dict[str, Any]:
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


# -- rounds ------------------------------------------------------------------------------------------------------
# What a stage knows of its chain's rounds: which data is new, and what it took to generate.


# -- shortage ----------------------------------------------------------------------------------------------------
# What is said of a training that had next to nothing to learn from, or that has learnt next to nothing.


LEAST_PROMPTS = 20
"""Held-out prompts that it takes to say that a value model has learnt nothing. With fewer, chance says it."""

PAIRS = "pairs"
"""What a tally counts of a dataset's own pairs."""
PARTED = (
    "without the end of their prompt: the chat template writes it otherwise where an answer follows, or tokens "
    "merge there"
)
ENDLESS = (
    "with no token behind an answer that ends a completion, so that the model does not learn to end: the chat "
    "template or tokenizer writes none"
)
COMPLETIONS = "completions"
"""What it counts where each of them is judged by itself."""

log = logging.getLogger("pipeline")


def shortage(kept: int, batch_size: int, tally: Tally | None, what: str = "trained on") -> str | None:
    """Say that there was little to train on, or None where there was enough.

    Args:
        kept: Sequences that can teach something.
        batch_size: Sequences of an optimizer step.
        tally: What they were taken from.
        what: What was done with them.
    """
    if kept >= batch_size:
        return None
    why = "" if tally is None else f"; {tally}"
    if kept == 0:
        return f"{what} nothing (0 sequences){why}"
    return f"{what} {kept} sequence{'' if kept == 1 else 's'}, fewer than one batch of {batch_size}{why}"


def uninformed(calibration: Calibration | None) -> str | None:
    """Say that a value model is no better than the base rate on held-out prompts, or None where it is better.

    That is so where its Brier skill is 0 or less, or where its area under the ROC curve is not above 0.5 by more
    than its standard error, which is known where enough prompts have each of the labels.

    Args:
        calibration: Of the value model; None where nothing was held out.
    """
    if calibration is None or calibration.prompts < LEAST_PROMPTS:
        return None
    where = f"on {calibration.prompts} held-out prompts"
    if calibration.brier is None:
        return f"the value model predicts what is no number {where}: its training has diverged"
    area, error, skill = calibration.auc, calibration.auc_se, calibration.brier_skill
    unranked = area is not None and error is not None and area - error <= 0.5
    if skill is None or (skill > 0 and not unranked):
        return None
    about = "" if error is None else f" +- {error:.3f}"
    shown = "" if area is None else f"AUC {area:.3f}{about}, "
    return f"the value model is no better than the base rate {where} ({shown}Brier skill {skill:.3f})"


def teaching(about: Mapping[str, Any], group_size: int) -> int | None:
    """Sequences that could teach something, by what a method reports of its training; None where it does not say.

    Args:
        about: Its ``training.json``.
        group_size: Completions of a group, where it goes by groups.
    """
    sequences, pairs, groups = (about.get(name) for name in ("sequences", "pairs", "groups"))
    silent = about.get("groups_without_signal", 0)
    if isinstance(sequences, int):
        return sequences
    if isinstance(pairs, int):
        return 2 * pairs
    return (groups - silent) * group_size if isinstance(groups, int) and isinstance(silent, int) else None


def left_out(tally: Tally | None) -> str | None:
    """Say what of the pairs or completions that a dataset has is not trained on, or None where all is."""
    if tally is None or tally.what not in (PAIRS, COMPLETIONS):
        return None
    counts = (
        (tally.same, "left out: their two answers are equal"),
        (tally.parted, f"trained on {PARTED}"),
        (tally.endless, f"trained on {ENDLESS}"),
    )
    said = [f"{count:,} of {tally.count:,} {tally.what} are {what}" for count, what in counts if count]
    return "; ".join(said) or None


def noted(
    kept: int | None,
    batch_size: int,
    tally: Tally | None,
    what: str = "trained on",
    calibration: Calibration | None = None,
    told: str | None = None,
) -> dict[str, str]:
    """What to add to ``training.json``: a note, said in the job's log as well, or nothing."""
    scarce = None if kept is None else shortage(kept, batch_size, tally, what)
    said = [note for note in (scarce, left_out(tally), uninformed(calibration), told) if note]
    for note in said:
        log.warning("%s", note)
    return {"note": "; ".join(said)} if said else {}


SCORED = "score@so_far"


def rounds_to_train_on(ctx: JobContext, *, aggregate: bool) -> tuple[Path, ...]:
    """Folders of generated data: those of all rounds so far, or of this round alone."""
    folders = ctx.inputs.get(SCORED, ())
    # Every round has equally many shards.
    return folders if aggregate else folders[len(folders) // ctx.round * (ctx.round - 1) :]


def started_from(ctx: JobContext, *, previous: bool = True) -> Path | None:
    """The folder of the policy that a round starts from; None for the reference.

    Args:
        ctx: Of the stage.
        previous: Take that of the round before, where there is one; else that of `start` in every round.
    """
    return (ctx.optional_input("train@previous") if previous else None) or ctx.optional_input(START_TRAIN.name)


def write_generation(
    folder: Path, prompts: int, completions: int, tokens: int, tally: Tally | None = None
) -> None:
    """Note what generation took: prompts, completions and their tokens; and what became of them, if given."""
    about: dict[str, Any] = {"prompts": prompts, "completions": completions, "tokens": tokens}
    if tally is not None:
        about["tally"] = asdict(tally)
    (folder / GENERATION).write_text(json_text(about) + "\n")


def tokens_generated(ctx: JobContext) -> int:
    """Tokens that this round has generated to learn from."""
    folders = rounds_to_train_on(ctx, aggregate=False)
    return sum(read_input(folder, GENERATION, read_generation).tokens for folder in folders)


def tally_of(folders: Iterable[Path]) -> Tally | None:
    """What became of what generate stages have drawn, by their outputs; None where one does not say."""
    found = [read_input(folder, GENERATION, read_generation).tally for folder in folders]
    known = [tally for tally in found if tally is not None]
    if not known or len(known) < len(found):
        return None
    sums = {item.name: sum(getattr(tally, item.name) for tally in known) for item in fields(Tally)[1:]}
    return Tally(known[0].what, **sums)
