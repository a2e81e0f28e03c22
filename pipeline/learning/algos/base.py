"""Base of algorithms: a class that lists its stages and has one method for each.

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
"""Name in place of an algorithm's for the reference policy, from which all algorithms start."""
WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "adapter_model.safetensors", "value_head.safetensors")
"""Files of a saved model that hold its weights, as patterns of their names."""
Rounds = Literal["this", "previous", "so_far", "shard"]
Owner = Literal["self", "reference", "dataset", "start", "teacher"]
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
        rounds: ``this`` round, the ``previous`` one (omitted in round 1), or every round ``so_far``, including
            this one; of this round only the ``shard`` with the same rows.
        algo: ``self``, ``reference`` for the reference policy, or ``dataset`` for the preparation of the data; all
            chains share the last two. ``start`` and ``teacher`` mean the last round of the method that the setting
            of that name names, and are omitted if it names none.
    """

    stage: str
    rounds: Rounds = "this"
    algo: Owner = "self"

    def __post_init__(self) -> None:
        """Check that rounds and owner are valid.

        Raises:
            ValueError: One is not; the message lists the valid ones.
        """
        _check_choices(self, rounds=Rounds, algo=Owner)

    @property
    def name(self) -> str:
        """Name of the input for the stage's method: ``train``, ``train@previous``, ``reference.train``."""
        prefix = "" if self.algo == "self" else f"{self.algo}."
        suffix = "" if self.rounds == "this" else f"@{self.rounds}"
        return f"{prefix}{self.stage}{suffix}"


@dataclass(frozen=True)
class Stage:
    """One named step of a round.

    Attributes:
        name: Name of the stage and of the method that runs it.
        shards: Whether it is split over the round's training prompts, over the evaluation prompts, or not at all.
        reads: Its inputs.
        config: Sections of the configuration that it may read. Its key covers them.
        judges: Whether it calls rewards. If not, its dataset has no rewards and
            `data_collection.reward_batch_size` is at its default, and its key covers neither: its output stays
            valid when a reward or that size changes.
        seeded: Whether the result depends on the seed of the chain.
        devices: Number of devices that it needs at once.
        only_with: A list among the settings, as ``evaluation.etas``: if the list is empty the stage is left out,
            and its readers do not have this input. "" for a stage that is always there.
        scales: Whether it trains one model with `train`, so that `training.gpus_per_job` devices can share the
            work.
        loads_models: False for work on files alone, which has no preference for a worker.
        saves: Which models its output has, to estimate its disk space: the whole ``policy``, a ``value`` model, or
            ``rewards`` (one reward model, or as many as the settings say). "" for none.
        weights: Name patterns of files, in any folder of its output, with the weights of the models that it saves:
            what `execution.keep` may remove.
        seconds: Rough seconds per job (per 1,000 samples if it is split; for a training, in the first round) on
            one CPU core with the default model and settings. `plan.estimates` scales this to the request until
            such a job was timed.
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
        """Check that a plan can be made of the stage.

        Raises:
            ValueError: It cannot; the message says why.
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
        """Whether it draws text with a policy, which `generation.gpus_per_job` devices can share."""
        return self.shards is not None and "generation" in self.config


class Progress(Protocol):
    """Reports progress; cheap enough to call at every step, as it sends only a few times a second."""

    def __call__(self, done: int, *, total: int | None = None, tokens: int = 0) -> None:
        """Report progress.

        Args:
            done: Samples or steps finished so far.
            total: All of them; None for the number of samples in the plan.
            tokens: Tokens generated or trained on since the job began.
        """


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """Everything a stage method may use.

    Attributes:
        job_id: Id of the job, for messages.
        algo: Name of the algorithm.
        seed: Seed of the chain; 0 in stages that are not seeded.
        round: 0 for the reference, then 1 and up.
        rows: Positions ``[start, stop)`` in the round's list of prompts, for a stage that is split.
        greedy: Whether an evaluation decodes greedily.
        config: The sections that the stage declared; reading another one raises.
        inputs: Input name -> folders of the stored outputs, in the order of rounds and shards.
        out: Folder to write to; committed whole when the method returns.
        device: ``cpu`` or ``cuda``, for `torch.device`.
        checkpoints: Folder that survives a failed attempt and the run, for checkpoints from which the next attempt
            continues.
        checkpoint_every_steps: The setting in `training`, for stages that do not declare that section too.
        checkpoint_every_minutes: The setting in `training`.
        hints: Folder shared by all jobs of a store, for data that make later jobs faster but change no result.
        joined: Value of `ranks` if the job has several processes.
        stopping: Returns whether the run is about to end; then save a checkpoint and raise `JobStopped`.
        models: Models that stay loaded between jobs of this worker.
        loading: Context manager in which time counts as loading rather than as work.
        progress: Reports progress.
        show: Shows some metrics of the present step, by name, with the next progress.
        failures: Completions of the job on which rewards failed.
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
    first_sample: int = field(default=0, kw_only=True)
    greedy: bool = field(default=False, kw_only=True)
    loading: Callable[[], AbstractContextManager[None]] = field(repr=False)
    progress: Progress = field(repr=False)
    stopping: Callable[[], bool] = field(repr=False)
    show: Callable[[Mapping[str, float | None]], None] = field(repr=False, default=lambda _: None)
    failures: RewardFailures = field(repr=False, default_factory=RewardFailures)

    @property
    def ranks(self) -> Ranks:
        """The processes of this job, of which this is one: each of them calls the stage's method.

        Only what rank 0 writes to `out` is kept.
        """
        with self.loading():
            from pipeline.learning.training.distributed import ALONE
        return self.joined or ALONE

    def settings(self, kind: type[_Settings]) -> _Settings:
        """Return the settings of the algorithm, as an instance of a class.

        Args:
            kind: The class, such as `GRPOConfig`.

        Raises:
            JobError: The algorithm's settings have another class.
        """
        algo = self.config.algo
        if not isinstance(algo, kind):
            raise JobError(
                f"algos.{self.algo} has the settings of {type(algo).__name__}, and this stage "
                f"reads those of {kind.__name__}; set its config_class to {kind.__name__} or a subclass of it"
            )
        return algo

    def input(self, name: str) -> Path:
        """Return the folder of an input that is a single output.

        Raises:
            JobError: There is no such input, or it has several folders.
        """
        folders = self.inputs.get(name, ())
        if len(folders) != 1:
            raise JobError(f"expected one folder for input '{name}', found {len(folders)}")
        return folders[0]

    def checkpoint(self, training: str, *, also_finished: bool = False) -> Checkpoints:
        """Return the checkpoints of a training of this job; see `learning.training.checkpoint`.

        Args:
            training: Name of the training within the stage; a plain word.
            also_finished: Whether to save its end too, for a stage that goes on with other work.
        """
        # The folder is named by the job's key, which covers every setting that affects what is computed.
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
        """Return the writer of a training's curve; see `Drawing` of `learning.training.loop`.

        Args:
            training: Name of the training within the stage; a plain word.
        """
        from pipeline.learning.training.loop import Curve

        return Curve(training=training, folder=self.out, show=self.show)

    @property
    def first_device(self) -> str:
        """Device on which to load a model for training.

        A model that will be sharded stays on the CPU until its parts are distributed.
        """
        return "cpu" if self.ranks.is_sharded else self.device

    def optional_input(self, name: str) -> Path | None:
        """Return the folder of an input that the first round does not have, or None."""
        return self.input(name) if self.inputs.get(name) else None


class Algorithm:
    """Base of every algorithm.

    A subclass sets the attributes below and has, for each stage, a method of the stage's name that takes a
    `JobContext` and writes its result into ``ctx.out``.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Version of its results, part of every key; raise it when results would change."""
    stages: ClassVar[tuple[Stage, ...]]
    config_class: ClassVar[type[AlgoConfig]] = AlgoConfig
    """Settings under ``algos.<name>``."""
    is_fixed: ClassVar[bool] = False
    """Whether its policy is the same in every round, so that it stands beside the last one alone."""
    kl_is_bound: ClassVar[bool] = False
    """Whether the KL divergence in its evaluation is an upper bound instead of exact; stated below tables."""

    @classmethod
    def stages_with(cls, settings: AlgoConfig) -> tuple[Stage, ...]:
        """Return its stages under given settings; all of `stages` unless the settings decide."""
        return cls.stages

    @classmethod
    def drawn_with(cls, settings: AlgoConfig) -> Mapping[str, Any] | None:
        """Return the settings that its stage `generate` reads, if other methods have the same stage.

        The key then covers these in place of the method and all its settings, so that methods that draw the same
        completions with the same policy share them. Return None for a stage of its own.
        """
        return None

    def spent_before(self, ctx: JobContext) -> int:
        """Return the tokens that earlier stages of this round have trained on."""
        return 0

    def told_before(self, ctx: JobContext) -> dict[str, Any]:
        """Return entries of earlier stages of this round to add to ``training.json``."""
        return {}


DATASET, PROMPTS = "dataset", "prompts"
"""Inputs of every stage that sees the section ``dataset`` (the rows) or decodes text (the prompts), if data are
prepared."""

REFERENCE_TRAIN = Read("train", algo="reference")
START_TRAIN = Read("train", algo="start")
TEACHER_TRAIN = Read("train", algo="teacher")
"""Input with the value model of `teacher`."""
REFERENCE_GREEDY = Read("evaluate", "shard", algo="reference")
"""Input with the reference's greedy completions of the same prompts."""

METRICS = Stage(
    "metrics",
    reads=(Read("evaluate"), Read("evaluate", "previous"), Read("evaluate", algo="reference")),
    config=("evaluation",),
    loads_models=False,
    seconds=0.1,
)
"""The last stage of every chain: metrics with intervals, and differences to the reference and the previous round.
"""


def timed(stages: Iterable[Stage], **seconds: float) -> tuple[Stage, ...]:
    """Return stages with other estimated seconds.

    Args:
        stages: The stages.
        **seconds: Name of a stage -> its `Stage.seconds`; stages without an entry keep theirs.
    """
    return tuple(replace(stage, seconds=seconds.get(stage.name, stage.seconds)) for stage in stages)


TEXT: tuple[Section, ...] = ("system", "generation", "dataset", "model")
"""Sections that any stage that decodes text depends on."""

FIND = Stage("find", config=("algo",), judges=False, seeded=False, loads_models=False, seconds=0.1)
"""Stage that finds the checkpoint of another program."""
GENERATE = Stage(
    "generate",
    shards="train",
    reads=(REFERENCE_TRAIN, START_TRAIN, Read("train", "previous")),
    config=(*TEXT, "data_collection", "algo"),
    judges=False,
    seconds=0.35,
)
"""Stage that draws completions with the round's policy; in the first round that is the reference, or the policy of
`start`."""

SCORE = Stage(
    "score",
    shards="train",
    reads=(Read("generate", "shard"),),
    config=("system", "dataset", "data_collection", "algo"),
    seconds=0.05,
)
"""Stage that computes rewards of these completions, and stores what training needs of both."""


# -- shortage ----------------------------------------------------------------------------------------------------
# Learning signal: warnings about a training that had almost nothing to learn from, or has learnt almost nothing.


LEAST_PROMPTS = 20
"""Fewest held-out prompts for the verdict that a value model has learnt nothing; with fewer it may be chance."""

PAIRS = "pairs"
"""Tally keys for a dataset's own pairs."""
PARTED = (
    "without the end of their prompt: the chat template writes it otherwise where an answer follows, or tokens "
    "merge there"
)
ENDLESS = (
    "with no token behind an answer that ends a completion, so that the model does not learn to end: the chat "
    "template or tokenizer writes none"
)
COMPLETIONS = "completions"
"""Tally keys for completions that are judged one by one."""

log = logging.getLogger("pipeline")


def shortage(kept: int, batch_size: int, tally: Tally | None, what: str = "trained on") -> str | None:
    """Say that there was little to train on, or return None if there was enough.

    Args:
        kept: Number of sequences with a learning signal.
        batch_size: Sequences per optimizer step.
        tally: Counts of what they were chosen from.
        what: Use of the sequences, in words.
    """
    if kept >= batch_size:
        return None
    why = "" if tally is None else f"; {tally}"
    if kept == 0:
        return f"{what} nothing (0 sequences){why}"
    return f"{what} {kept} sequence{'' if kept == 1 else 's'}, fewer than one batch of {batch_size}{why}"


def uninformed(calibration: Calibration | None) -> str | None:
    """Say that a value model is no better than the base rate on held-out prompts, or return None if it is better.

    It is no better if its Brier skill is 0 or less, or if its area under the ROC curve exceeds 0.5 by no more than
    its standard error. The latter needs enough prompts of each label.

    Args:
        calibration: Calibration of the value model; None if nothing was held out.
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
    """Return how many sequences had a learning signal according to a method's report; None if it does not say.

    Args:
        about: The content of ``training.json``.
        group_size: Completions of a group, for methods that use groups.
    """
    sequences, pairs, groups = (about.get(name) for name in ("sequences", "pairs", "groups"))
    silent = about.get("groups_without_signal", 0)
    if isinstance(sequences, int):
        return sequences
    if isinstance(pairs, int):
        return 2 * pairs
    return (groups - silent) * group_size if isinstance(groups, int) and isinstance(silent, int) else None


def left_out(tally: Tally | None) -> str | None:
    """Say which of a dataset's pairs or completions are not trained on, or return None if all are."""
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
    """Return entries for ``training.json``: a note, which is also logged, or nothing."""
    scarce = None if kept is None else shortage(kept, batch_size, tally, what)
    said = [note for note in (scarce, left_out(tally), uninformed(calibration), told) if note]
    for note in said:
        log.warning("%s", note)
    return {"note": "; ".join(said)} if said else {}


SCORED = "score@so_far"


def rounds_to_train_on(ctx: JobContext, *, aggregate: bool) -> tuple[Path, ...]:
    """Return the folders of generated data: of all rounds so far, or of this round only."""
    folders = ctx.inputs.get(SCORED, ())
    # Every round has the same number of shards.
    return folders if aggregate else folders[len(folders) // ctx.round * (ctx.round - 1) :]


def started_from(ctx: JobContext, *, previous: bool = True) -> Path | None:
    """Return the folder of the policy that a round starts from; None for the reference.

    Args:
        ctx: Context of the stage.
        previous: Whether to start from the round before, if there is one; otherwise every round starts from
            `start`.
    """
    return (ctx.optional_input("train@previous") if previous else None) or ctx.optional_input(START_TRAIN.name)


def write_generation(
    folder: Path, prompts: int, completions: int, tokens: int, tally: Tally | None = None
) -> None:
    """Write the counts of a generation (prompts, completions, tokens), and the tally of their use if given."""
    about: dict[str, Any] = {"prompts": prompts, "completions": completions, "tokens": tokens}
    if tally is not None:
        about["tally"] = asdict(tally)
    (folder / GENERATION).write_text(json_text(about) + "\n")


def tokens_generated(ctx: JobContext) -> int:
    """Return the number of tokens that this round has generated as training data."""
    folders = rounds_to_train_on(ctx, aggregate=False)
    return sum(read_input(folder, GENERATION, read_generation).tokens for folder in folders)


def tally_of(folders: Iterable[Path]) -> Tally | None:
    """Return the tally over outputs of generate stages; None if one of them has none."""
    found = [read_input(folder, GENERATION, read_generation).tally for folder in folders]
    known = [tally for tally in found if tally is not None]
    if not known or len(known) < len(found):
        return None
    sums = {item.name: sum(getattr(tally, item.name) for tally in known) for item in fields(Tally)[1:]}
    return Tally(known[0].what, **sums)
