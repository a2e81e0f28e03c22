"""Declare settings: ranges of fields, what all methods, datasets and models have, what a run has once.

The settings of one method, dataset or model are a subclass beside the code that they set: `PITAConfig` beside
`PITA`. Fields marked `hint` or `affects_result=False` change how fast or where work is done, never what comes out,
and so are left out of result keys.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Self

# -- fields ------------------------------------------------------------------------------------------------------
# How fields of the configuration are declared: with the range of their numbers, or as the path of a file. The
# schema uses these, and so may settings of a class of the user's own. What is declared here is checked in one
# place, `pipeline.config.plain`, for every key alike.


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


@dataclass(frozen=True)
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
        sides = {"at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
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
    allowed = Range(at_least, above, at_most, below, infinite, words, hint, advice)
    return _field(default, affects_result, {RANGE: allowed, KEYED: keyed})


def memory_mb() -> Any:
    """A field of memory that is said by hand, in MiB."""
    hint = ", or null to go by what is measured"
    return number(None, at_least=1, at_most=100_000_000, hint=hint, affects_result=False)


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
    memory_mb: int | None = memory_mb()
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


# -- retries -----------------------------------------------------------------------------------------------------
# How often a job is tried: settings of `execution.retry`.


@dataclass(kw_only=True)
class RetryConfig:
    """Attempts that a job is given, counted apart for each kind of failure. A bug in its code is never retried."""

    worker_lost: int = number(3, at_least=1, at_most=1_000_000, affects_result=False)
    """Its worker died. A job that has ended this many workers is set aside as the likely cause."""
    hang: int = number(2, at_least=1, at_most=1_000_000, affects_result=False)
    """Its worker was killed because it gave no sign of life, made no progress or took too long."""
    out_of_memory: int = number(2, at_least=1, at_most=1_000_000, affects_result=False)
    """It ran out of memory even with the smallest batches; the next attempt gets a fresh process."""
    device: int = number(3, at_least=1, at_most=1_000_000, affects_result=False)
    """Its device reported an error, after which a process cannot go on; the next attempt gets a fresh one."""
    transient: int = number(5, at_least=1, at_most=1_000_000, affects_result=False)
    """A connection or a file system failed for the moment."""
    wait_s: float = number(1.0, at_least=0, at_most=LONGEST_S, affects_result=False)
    """Seconds before another attempt after a transient failure; doubles each time."""
    max_wait_s: float = number(60.0, at_least=0, at_most=LONGEST_S, affects_result=False)
    """Seconds that such a wait may reach by doubling."""
    device_failures: int = number(3, at_least=1, at_most=1_000_000, affects_result=False)
    """Different jobs in a row that a device must fail to be given no more; the last device is always kept."""


# -- ray ---------------------------------------------------------------------------------------------------------
# What a run is told of a Ray cluster.


AUTO = "auto"
"""The cluster that this machine is a node of."""


@dataclass(kw_only=True)
class RayConfig:
    """Where and with what workers run for `execution.backend=ray`."""

    address: str = hint(AUTO)
    """`auto` joins the cluster that this machine is a node of, `host:port` and `ray://host:port` another. Its
    token is taken from where Ray looks for it."""
    resources: dict[str, float] = number({}, at_least=0, at_most=1e15, affects_result=False)
    """What each worker takes of the cluster, by Ray's names; {} for one GPU, or as many CPUs as it has threads."""
    runtime_env: dict[str, Any] = hint({})
    """Ray's runtime environment of the workers, as `{pip: [...], env_vars: {...}}`."""


# -- tracking ----------------------------------------------------------------------------------------------------
# Trackers that follow runs: which, and how they are told.


class Tracker(Enum):
    """Programs that runs are told to as they go on, by the name of their extra."""

    tensorboard = "tensorboard"  # a folder of events for each chain
    trackio = "trackio"  # a database for each project
    wandb = "wandb"  # a folder for each chain, or a run on a server


class TrackingMode(Enum):
    """What wandb does with what it is told."""

    offline = "offline"  # it writes files, which `wandb sync` sends later
    online = "online"  # it sends what it is told at once


@dataclass(kw_only=True)
class TrackingConfig:
    """Trackers that follow a run, see docs/looking-at-runs.md. None of this changes a result."""

    report_to: list[Tracker] = hint([])
    """Trackers that are told of the run as it goes on. One that fails costs a warning, never the run."""
    project: str | None = hint(None)
    """What trackio and wandb call the project; null takes the name of the experiment. Runs of several experiments
    in one project are told apart by their group, which is the experiment."""
    entity: str | None = hint(None)
    """Whose project it is on wandb; null takes the account that is logged in."""
    mode: TrackingMode = hint(TrackingMode.offline)
    """Whether wandb may use the network; the other trackers never do."""
    samples: int = number(8, at_least=0, at_most=1000, affects_result=False)
    """Rows of the table of samples that each round of a chain adds; 0 adds none."""
    finish_timeout_s: float = number(30.0, at_least=0, at_most=LONGEST_S, affects_result=False)
    """Seconds that the end of a run waits for trackers to take what is left; `python -m pipeline track NAME`, or
    the next run of the experiment, tells them the rest."""


# -- evaluation --------------------------------------------------------------------------------------------------
# How policies are evaluated: on what, how often, and what is told of it.


ENOUGH = 3
"""Seeds, or references, from which on they count as a sample of all there could be; fewer stand for themselves."""


@dataclass(kw_only=True)
class EvaluationConfig:
    """Held-out evaluation, the same for every algorithm."""

    split: str = one_of("test", {"test": "for what is reported", "validation": "while settings are being chosen"})
    """Which held-out prompts every policy is evaluated on."""
    num_prompts: int = number(500, at_least=1, at_most=1_000_000_000)
    """Held-out prompts that every policy is evaluated on; where this is not set, no more than every dataset holds
    out for it."""
    num_samples: int = number(2, at_least=1, at_most=100_000)
    """Completions per prompt."""
    bootstrap_samples: int = number(1000, at_least=20, at_most=1_000_000)
    """Draws of prompts for the intervals of one policy; of fewer than 20 none would lie outside of an interval."""
    confidence: float = number(0.95, above=0, below=1, hint=", for example 0.95")
    """Of the intervals: the probability with which they cover what is estimated."""
    etas: list[float] = number(
        [], at_least=SMALLEST_DIVISOR, at_most=1e6, infinite=True, advice="inf is the reference policy"
    )
    """Further guidance strengths that value-guided methods are tried at on the validation split: points of reward
    against KL; inf is the reference policy. The best of these and of the method's own is then evaluated on
    `split`."""
    common_eta: float = number(0.1, at_least=SMALLEST_DIVISOR, at_most=1e6)
    """Weight of the divergence, in nats, in J = reward - common_eta * KL, by which all policies are compared."""
    kl_limit: float | None = number(None, at_least=0, at_most=1e6, hint=", or null for no limit")
    """The best of `etas` has the highest mean reward of those whose KL per sequence is no more than this, in nats;
    null sets no limit."""
    objective: str | None = hint("*")
    """Whose result judges a run that is a trial of a sweep: an algorithm, a chain as `dataset/model/s0/ALGO`, or a
    pattern with `*`; of several chains the mean. Null judges by all."""
    matched_kl: list[float] = number([], above=0, at_most=1e6, affects_result=False)
    """KL per sequence, in nats, at which fronts are compared; empty takes parts of what all of them span."""
    budgets: list[float] = number([], above=0, at_most=1e36, affects_result=False)
    """FLOPs of training at which methods are compared, each after its last round within them; empty for none."""
    reward_batch_size: int = number(256, at_least=1, at_most=1_000_000)
    """Completions handed to a reward at once, at most: those of as many whole prompts as fit, and of one prompt at
    least. What a reward gives that compares completions depends on it."""
    sample_prompts: int = number(8, at_least=0, at_most=1_000_000)
    """Prompts whose completions are shown in samples.jsonl."""


JOBS_PER_DEVICE = f", or '{AUTO}' to measure how many fit"
SEVERAL = "where it is more than 1"
TOGETHER = "where several devices share a training"
ENABLED = "where distributed.enabled has a training use them all"


class Backend(Enum):
    """Where jobs run."""

    local = "local"  # a pool of spawned processes on this machine
    inline = "inline"  # in this process, one job at a time
    ray = "ray"  # actors on a Ray cluster; the extra `ray`


class Barrier(Enum):
    """What a job waits for."""

    none = "none"  # only its own inputs
    round = "round"  # every job of every earlier round as well


class Keep(Enum):
    """Of which rounds trained weights stay on the disk; others are removed once nothing is left to read them."""

    all = "all"  # of every round
    last = "last"  # of the last round of each method and seed
    best = "best"  # of the round that evaluates best, of each method and seed
    results = "results"  # of none


class DeviceChoice(Enum):
    """Which kind of device workers use; an output that is stored counts on the other kind as well."""

    auto = "auto"  # GPUs if there are any, else CPU slots
    cpu = "cpu"  # CPU slots, each of `system.cpu_threads` threads
    cuda = "cuda"  # GPUs, or an error where there are none


class Strategy(Enum):
    """How several GPUs share one training."""

    auto = "auto"  # the first of the others that fits, see `python -m pipeline gpus fit`
    single = "single"  # one GPU
    ddp = "ddp"  # a whole copy on each GPU
    fsdp = "fsdp"  # weights, gradients and optimizer state spread as `fsdp_sharding_strategy` says


class Sharding(Enum):
    """What FSDP spreads over the GPUs."""

    full_shard = "full_shard"  # weights, gradients and optimizer state
    shard_grad_op = "shard_grad_op"  # gradients and optimizer state
    no_shard = "no_shard"  # nothing, as DDP


class Attention(Enum):
    """Attention implementation, by its name in transformers."""

    eager = "eager"  # plain products, which store all scores
    sdpa = "sdpa"  # torch's own fused kernels
    flash_attention_2 = "flash_attention_2"  # of the package flash-attn, on GPUs


class DType(Enum):
    """Floating-point type of weights and activations."""

    float32 = "float32"  # 4 bytes a number
    bfloat16 = "bfloat16"  # 2 bytes, with the range of float32
    float16 = "float16"  # 2 bytes, finer and of less range


class TextBackend(Enum):
    """What decodes completions that nothing guides."""

    own = "own"  # this package
    vllm = "vllm"  # the engine vLLM, on GPUs; the extra `vllm`


class LongPrompts(Enum):
    """What happens to a prompt that leaves no room for the completion in the model's context."""

    refuse = "refuse"  # the job fails and says which prompt it is
    truncate = "truncate"  # its last tokens are kept


class Optimizer(Enum):
    """What takes the steps of trainings."""

    adamw = "adamw"  # of torch
    adamw_8bit = "adamw_8bit"  # its moments in 8 bits, by bitsandbytes, on GPUs; the extra `quantization`
    muon = "muon"  # of torch, for the matrices of hidden layers; AdamW for everything else


class Schedule(Enum):
    """What the learning rate follows over all steps; all but the first are transformers' (`get_scheduler`)."""

    cosine_from_start = "cosine_from_start"  # a cosine to 0 from the first step on, which the warm-up multiplies
    cosine = "cosine"  # after the warm-up along a cosine to 0
    cosine_with_restarts = "cosine_with_restarts"  # the same with its default of one cycle
    linear = "linear"  # after the warm-up straight to 0
    polynomial = "polynomial"  # after the warm-up straight to 1e-7
    constant = "constant"  # stays, without a warm-up
    constant_with_warmup = "constant_with_warmup"  # stays after the warm-up
    inverse_sqrt = "inverse_sqrt"  # after the warm-up by the inverse square root of the step

    @property
    def has_end(self) -> bool:
        """Whether it follows from how many steps there are."""
        return self not in (Schedule.constant, Schedule.constant_with_warmup, Schedule.inverse_sqrt)


@dataclass(kw_only=True)
class ExperimentConfig:
    """What the experiment is called and how often it is repeated."""

    name: str = hint(MISSING)
    """Folder under `output_dir`: letters, digits, '.', '_' and '-'."""
    seeds: list[int] = number([0], at_least=0, at_most=LARGEST_SEED)
    """One chain per algorithm, dataset, model and seed."""


@dataclass(kw_only=True)
class SystemConfig:
    """Numerics and the process model."""

    use_parallel_execution: bool = hint(True)
    """False runs every job in this process, one after the other, with the same results."""
    attn_impl: Attention = Attention.sdpa
    dtype: DType = DType.float32
    cpu_threads: int = number(1, at_least=1, at_most=1024)
    """Threads of a CPU worker. Part of every key: the order of float additions depends on it."""
    portable: bool = False
    """Compute the same bytes on every x86-64 processor with AVX2, see docs/arithmetic.md; no effect on GPUs."""
    clear_cache_interval: int = number(0, at_least=0, at_most=1_000_000_000, affects_result=False)
    """Training steps between calls of `torch.cuda.empty_cache`; 0 never calls it."""


@dataclass(kw_only=True)
class TrainingConfig:
    """What all trainings share; batch sizes and learning rates belong to the algorithms."""

    micro_batch_size: int = number(128, at_least=1, at_most=1_000_000)
    """Sequences in one forward pass at most; larger batches accumulate gradients. Halved when memory runs out."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass rather than keep them: less memory, a third more time."""
    padding_free: bool = option(False)
    """Compute no padding, and logits of supervised tokens alone, where a model allows it; other last bits."""
    group_by_length: bool = option(False)
    """Put sequences of like lengths into one micro-batch. The batch of a step stays as it is drawn."""
    weight_decay: float = number(0.01, at_least=0, at_most=100)
    """The part of a weight that a step takes away, as a multiple of the learning rate."""
    deterministic: bool = option(True)
    """On a GPU the same training gives the same bytes. False trains what needs kernels that add up as it comes."""
    optimizer: Optimizer = Optimizer.adamw
    adam_beta1: float = number(0.9, at_least=0, below=1)
    """Of AdamW: how much of the mean of gradients a step keeps."""
    adam_beta2: float = number(0.999, at_least=0, below=1)
    """Of AdamW: how much of the mean of their squares."""
    adam_epsilon: float = number(1e-8, above=0, at_most=1)
    """Of AdamW: what is added to the root of that which it divides by."""
    grad_clip: float = number(1.0, at_least=0, at_most=1e9)
    """Largest norm of the gradient; 0 does not clip."""
    warmup_steps: int = number(20, at_least=0, at_most=1_000_000_000)
    """Optimizer steps over which the rate rises to its full height; part of all steps, as `schedule` says."""
    schedule: Schedule = Schedule.cosine_from_start
    gpus_per_job: int = number(1, at_least=1, at_most=1024, affects_result=False, keyed=SEVERAL)
    """Devices that share one training, each with micro-batches of its own; the batch of a step is as configured.
    Part of a training's key where it is more than 1, with the strategy: float sums are taken in another order."""
    memory_mb: int | None = memory_mb()
    """Memory that a training takes of each of its GPUs, in MiB; null leaves it to what is measured."""
    strategy: Strategy = hint(Strategy.auto, keyed=TOGETHER)
    """How GPUs share one training; `auto` is what `distributed.strategy` says; where that is `auto` too, the
    simplest that the memory model says fits, see `python -m pipeline gpus fit`."""
    checkpoint_every_steps: int = number(0, at_least=0, at_most=1_000_000_000, affects_result=False)
    """Steps between checkpoints of a training; 0 does not count steps."""
    checkpoint_every_minutes: float = number(5.0, at_least=0, at_most=1e9, affects_result=False)
    """Minutes between checkpoints; 0 does not look at the clock. Whichever of the two comes first."""


@dataclass(kw_only=True)
class GenerationConfig:
    """How text is drawn, in data collection and in evaluation."""

    backend: TextBackend = hint(TextBackend.own, keyed="where it is another than own")
    """What decodes where no value model guides; algorithms that guide use `own` throughout. Part of the keys of
    what another than `own` draws, see docs/models.md."""
    batch_size: int = number(256, at_least=1, at_most=1_000_000)
    """Sequences decoded at once at most, halved when memory runs out. Draws are per sample; on numerics see
    docs/architecture.md."""
    max_new_tokens: int = number(64, at_least=1, at_most=1_000_000)
    """Upper bound; a dataset may set a lower one of its own."""
    temperature: float = number(1.0, at_least=SMALLEST_DIVISOR, at_most=1e6)
    """What logits are divided by before a token is drawn; guidance is applied after it."""
    top_p: float = number(1.0, above=0, at_most=1, hint=" (1 keeps every token)")
    """Nucleus that is kept, applied after the temperature; 1 keeps everything."""
    stop: list[str] = model_text([])
    """Texts that end a completion where they are complete, besides the ends of the tokenizer, of the model's
    generation config and of its chat template. Rewards and samples do not see them. One that is a special token of
    the tokenizer is one more end token."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the texts that rewards and samples have, as TRL and vLLM do. False keeps those
    that are no begin, end or padding, as for a reward that looks for `<think>` where that is one of them."""
    long_prompts: LongPrompts = LongPrompts.refuse
    cuda_graphs: bool = option(True)
    """On a GPU, record each step of decoding as one CUDA graph and replay it, three times as fast as saying its
    thousands of operations anew, see docs/gpus.md. False draws other texts where rounding decides."""
    gpus_per_job: int = number(1, at_least=1, at_most=1024, affects_result=False, keyed=SEVERAL)
    """Devices that share a policy, each with a part of every layer, where it does not fit on one (docs/gpus.md).
    Part of the keys of what is drawn so where it is more than 1: float sums are taken in another order."""
    memory_mb: int | None = memory_mb()
    """Memory that generating and evaluating take of a GPU, in MiB; null leaves it to what is measured."""


@dataclass(kw_only=True)
class DataCollectionConfig:
    """How much data each round collects."""

    prompts_per_round: int = number(10_000, at_least=1, at_most=1_000_000_000)
    """Training prompts that a round uses; the rounds of a chain go through different prompts while they last."""
    samples_per_example: int = number(1, at_least=1, at_most=100_000)
    """Roll-ins (QSharp, PITA) or completions drawn for each prompt."""
    reward_batch_size: int = number(256, at_least=1, at_most=1_000_000)
    """Completions handed to a reward at once, at most: those of as many whole prompts as fit, and of one prompt at
    least. What a reward gives that compares completions depends on it."""


@dataclass(kw_only=True)
class ExecutionConfig:
    """How the plan is carried out. Only `shard_size` can change what is computed."""

    backend: Backend = hint(Backend.local)
    workers: int | None = number(
        None, at_least=1, at_most=4096, hint=", or null to take what the machine has", affects_result=False
    )
    """Worker processes; null means one per GPU, or one per CPU core where there is no GPU."""
    jobs_per_device: int | str = number(
        1, at_least=1, at_most=64, words=(AUTO,), hint=JOBS_PER_DEVICE, affects_result=False
    )
    """Jobs that a GPU takes at once: a number, or `auto` to run the first job of each kind alone, measure its
    memory, and then put as many on a GPU as fit. One whose memory is known never starts where it would not fit."""
    shard_size: int = number(1000, at_least=1, at_most=1_000_000_000)
    """Prompts per generation or evaluation job."""
    barrier: Barrier = hint(Barrier.none)
    priority: str | None = hint(None)
    """Function of your own that gives a number for each job, as `my_module.estimate_job_priority`. Of jobs that
    could start, those with larger ones do first, and of equal ones those on the longest remaining path. Null
    has a first row of each method in the first half of the run, as far as that hardly makes it longer."""
    store: str | None = file_or_folder(None, affects_result=False)
    """Folder of finished outputs; null means `<output_dir>/.store`."""
    shared_store: str | None = hint(None)
    """A store that other machines reach too: `s3://bucket/prefix`, `gs://bucket/prefix`, `file:///folder` or the
    path of a folder. What is there is fetched into `execution.store` and not computed, what is made here is
    uploaded, where the first counts, see docs/scaling.md. Credentials come from where the
    library looks for them, as the environment, and never from here; null shares nothing."""
    keep: Keep = hint(Keep.all)
    """Of which rounds trained weights stay in the store, for each method and seed: of `all`, of the `last`, of the
    one that evaluates `best` on `evaluation.split`, or of none (`results`). The others are removed as soon as no
    job that is left reads them, and no other run does; results and all else stay, and nothing is computed again
    for it. What needs such weights later makes them again, the same. References are not touched."""
    heartbeat_s: float = number(5.0, at_least=0.001, at_most=LONGEST_S, affects_result=False)
    """Seconds between a worker's signs of life."""
    heartbeat_timeout_s: float = number(120.0, above=0, at_most=LONGEST_S, affects_result=False)
    """Seconds without a sign of life after which a worker that runs a job is killed."""
    progress_timeout_s: float | None = number(
        3600.0, above=0, at_most=LONGEST_S, hint=", or null to wait for ever", affects_result=False
    )
    """Seconds without progress after which a job is stopped, loading included; null waits for ever."""
    job_timeout_s: float | None = number(
        None, above=0, at_most=LONGEST_S, hint=", or null for no limit", affects_result=False
    )
    """Seconds that an attempt may take in all; null sets no limit."""
    wait_for_devices: bool = hint(False)
    """Queue for GPUs that another run holds, instead of refusing the request."""
    start_timeout_s: float = number(60.0, above=0, at_most=LONGEST_S, affects_result=False)
    """Seconds a new worker may take to report that it is ready."""
    stop_grace_s: float = number(10.0, at_least=0, at_most=LONGEST_S, affects_result=False)
    """Seconds that running jobs are given to finish, or to save a checkpoint, when the run is interrupted."""
    models_in_memory: int = number(4, at_least=1, at_most=1_000_000, affects_result=False)
    """Models that a worker keeps loaded between jobs."""
    retry: RetryConfig = field(default_factory=RetryConfig)
    ray: RayConfig = field(default_factory=RayConfig)


@dataclass(kw_only=True)
class DistributedConfig:
    """Which GPUs a run uses, and how several share one training."""

    num_gpus: int | None = number(
        None, at_least=1, at_most=1024, hint=", or null to take every one", affects_result=False, keyed=ENABLED
    )
    """How many GPUs, the idlest first; null takes every visible one, or as many as `gpu_ids` names."""
    gpu_ids: list[int] | None = number(None, at_least=0, at_most=1023, affects_result=False, keyed=ENABLED)
    """Exactly these: positions in CUDA_VISIBLE_DEVICES, or in the list of all GPUs where that is not set."""
    gpu_list: list[int] | None = number(None, at_least=0, at_most=1023, affects_result=False, keyed=ENABLED)
    """The same as `gpu_ids`, by its other name: `distributed.gpu_list=0,1,2,3`."""
    enabled: bool = False
    """Let one training use all GPUs that `num_gpus` or `gpu_ids` asks for. False gives every training as many as
    `training.gpus_per_job` says, one by default, and runs several side by side."""
    strategy: Strategy = Strategy.auto
    fsdp_sharding_strategy: Sharding = Sharding.full_shard
    fsdp_cpu_offload: bool = False
    """Keep what FSDP spreads in the machine's memory, and on the GPU only what it computes with."""
    master_port: int | None = number(
        None, at_least=1024, at_most=65_535, hint=", or null to find a free one", affects_result=False
    )
    """TCP port where the processes of one training meet; null finds a free one, so that runs never collide."""

    @property
    def ids(self) -> list[int] | None:
        """The GPUs that are asked for by number, under either name; None for any."""
        return self.gpu_list if self.gpu_ids is None else self.gpu_ids


class StageChoice(Enum):
    """How much of the plan is carried out."""

    all = "all"  # everything
    prepare = "prepare"  # only what is done to datasets before anything is generated


@dataclass(kw_only=True)
class Config:
    """The whole request."""

    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
    stage: StageChoice = hint(StageChoice.all)
    rounds_of_training: int = number(2, at_least=1, at_most=1_000_000)
    """Turns of generate, train and evaluate, each on the results of those before it."""
    dry_run: bool = hint(False)
    """Print the plan and what is already stored, and stop."""
    device: DeviceChoice = hint(DeviceChoice.auto)
    output_dir: str = file_or_folder("outputs", affects_result=False)
    """Folder of all runs: each leaves its own in `output_dir/NAME/`, and outputs are shared in `.store`."""
    system: SystemConfig = field(default_factory=SystemConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    data_collection: DataCollectionConfig = field(default_factory=DataCollectionConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    algos: dict[str, AlgoConfig] = field(default_factory=dict)
    datasets: dict[str, DatasetConfig] = field(default_factory=dict)
    models: dict[str, ModelConfig] = field(default_factory=dict)


@dataclass(kw_only=True)
class StageConfig:
    """What one stage of one chain is given: only the sections that the stage declares are set.

    The key of a job covers exactly these sections, so a stage that could read more could depend on something its
    key does not know. Reading a section that was not declared raises.
    """

    system: SystemConfig = field(default_factory=SystemConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    data_collection: DataCollectionConfig = field(default_factory=DataCollectionConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    model: ModelConfig = field(default_factory=ModelConfig)


# -- ranks -------------------------------------------------------------------------------------------------------
# On how many devices one training runs, and how they share it: what several keys say together.


BY_TENSORS = "tensor_parallel"
"""The strategy of ranks that write texts together: each has a part of every layer (`generation.gpus_per_job`)."""


def devices_per_training(config: Config) -> int:
    """Devices that share one training."""
    asked = config.distributed
    if config.training.gpus_per_job > 1 or not asked.enabled:
        return config.training.gpus_per_job
    return asked.num_gpus or len(asked.ids or ()) or 1


def spread(config: Config) -> dict[str, Any]:
    """How they share it, as plain data."""
    named = (config.training.strategy, config.distributed.strategy)
    strategy = next((one for one in named if one is not Strategy.auto), Strategy.auto)
    return {
        "strategy": strategy.name,
        "sharding": config.distributed.fsdp_sharding_strategy.name,
        "cpu_offload": config.distributed.fsdp_cpu_offload,
    }
