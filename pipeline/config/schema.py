"""Declare settings: ranges of fields, the settings shared by methods, datasets and models, and those of a run.

The settings of one method, dataset or model are a subclass beside its code: `PITAConfig` beside `PITA`. Fields
marked `hint` or `affects_result=False` change how fast or where work is done, but not its result, so they are left
out of result keys.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Self

from pipeline.errors import unknown_name
from pipeline.outputs.formats import Sampling

# -- fields ------------------------------------------------------------------------------------------------------
# Declarations of fields: with a range of numbers, or as the path of a file. Users' own settings classes may use
# them too. `pipeline.config.plain` checks all keys in the same way.


MISSING: Any = "???"
"""`omegaconf.MISSING` without importing OmegaConf, which takes longer than many commands."""
LARGEST_SEED = 2**63 - 1
"""Largest seed that every random number generator accepts."""
LONGEST_S = 1_000_000_000
"""Largest time in seconds: thirty years, which every clock accepts."""
LARGEST_RATE = 100.0
"""Largest learning rate; with Adam a step changes each weight by about that much."""
LARGEST_WEIGHT = 1e6
"""Largest weight of a term in a loss or a reward: far below the limit of float32."""
SMALLEST_DIVISOR = 1e-6
"""Smallest divisor of values, for the same reason."""

RANGE = "range"
PATH = "path"
CHOICES = "choices"
UNLESS_DEFAULT = "unless_default"
KEYED = "keyed"
MODEL_TEXT = "model_text"
BY_CONTENT = "by what is there, wherever that is"
"""Dependence of results on a path, in words."""
_GROUPED_FROM = 10_000
_EXACT_BELOW = 2**53


@dataclass(frozen=True)
class Range:
    """A range of numbers that a field accepts.

    Attributes:
        at_least: The smallest.
        above: Exclusive lower bound, if there is no smallest.
        at_most: The largest.
        below: Exclusive upper bound, if there is no largest.
        infinite: Whether infinity is accepted too, regardless of the largest.
        words: Texts accepted instead of a number.
        hint: Text after the range, such as ", or null to take what the machine has".
        advice: Advice in the message for a number out of range, as a sentence without its full stop.
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
        """Return whether a number is in the range; nan never is."""
        if value != value or math.inf in (value, -value):
            return self.infinite and value > 0
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """Describe the range, to follow "must be": ``at least 1 and at most 4096``."""
        sides = {"at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        bounds = " and ".join(f"{name} {_readable(bound)}" for name, bound in sides.items() if bound is not None)
        return (bounds or "a finite number") + (", or inf" if self.infinite else "") + self.hint


def number(default: Any, *, affects_result: bool = True, keyed: str = "", **limits: Any) -> Any:
    """Declare a field of numbers with a range: a number, one or null, a list of numbers, or a table of them.

    Numbers out of range, nan and infinity are refused before anything starts.

    Args:
        default: Its default; each instance gets a copy of a list or table.
        affects_result: False if the field changes how fast or where work is done, but not its result; it is then
            left out of the keys of results.
        keyed: For a field that is left out: what the plan puts into keys all the same, to follow "results depend
            on it", such as "where it is more than 1".
        limits: Fields of `Range`: ``at_least``, ``above``, ``at_most``, ``below``, ``infinite``, ``words`` (texts
            accepted instead of a number, for a field of type ``int | str``), ``hint`` and ``advice``.
    """
    return _field(default, affects_result, {RANGE: Range(**limits), KEYED: keyed})


def memory_mb() -> Any:
    """Declare a field of memory set by the user, in MiB."""
    return hint(None, at_least=1, at_most=100_000_000, hint=", or null to go by what is measured")


def file_or_folder(default: str | None, *, affects_result: bool = True, keyed: str = "") -> Any:
    """Declare a field with the path of a file or folder; paths that no file system accepts are refused at once.

    Args:
        default: Its default.
        affects_result: As for `number`.
        keyed: As for `number`.
    """
    return _field(default, affects_result, {PATH: True, KEYED: keyed})


def one_of(
    default: str | None, choices: Mapping[str, str], *, affects_result: bool = True, keyed: str = ""
) -> Any:
    """Declare a text field with a few valid choices; any other is refused before anything starts.

    Args:
        default: Its default.
        choices: Valid choice -> its meaning, or "".
        affects_result: As for `number`.
        keyed: As for `number`.
    """
    return _field(default, affects_result, {CHOICES: choices, KEYED: keyed})


def model_text(default: Any) -> Any:
    r"""Declare a field of text (or a list) that models read: on the command line ``\n`` is a line break.

    ``\t`` is a tab, ``\\n`` a backslash and an n; LaTeX commands such as ``\nabla`` are unchanged.

    Args:
        default: Its default.
    """
    return _field(default, True, {MODEL_TEXT: True})


def option(default: Any, **limits: Any) -> Any:
    """Declare a field added after results were stored: at its default it is left out of keys, so they stay valid.

    Args:
        default: The behaviour before; any other value is part of keys.
        limits: For numbers, their `Range`.
    """
    return _field(default, True, {UNLESS_DEFAULT: True, **({RANGE: Range(**limits)} if limits else {})})


def hint(default: Any, keyed: str = "", **limits: Any) -> Any:
    """Declare a field that cannot change a result; `plan.graph` leaves it out of keys.

    Args:
        default: Its default.
        keyed: As for `number`, for a field that can.
        limits: For numbers, their `Range`.
    """
    return _field(default, False, {KEYED: keyed, **({RANGE: Range(**limits)} if limits else {})})


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
    """Base of settings classes: reports problems between its fields. Nested settings may be one too."""

    def problems(self, key: str, config: Config) -> Iterator[str]:  # noqa: ARG002 - for subclasses
        """Yield a message for each conflict between these settings, or with the rest of the request.

        Called before anything starts, for sections that a run uses, and only if all numbers are in their ranges.

        Args:
            key: Their key, as ``algos.PITA``.
            config: The whole request.
        """
        yield from ()

    def idle(self, setting: str) -> str:  # noqa: ARG002 - likewise
        """Say why a setting has no effect with the others, for a warning; "" if it has one.

        Args:
            setting: Its key within these settings, as ``beta`` or ``lora.alpha``.
        """
        return ""


@dataclass(kw_only=True)
class AlgoConfig(Settings):
    """Settings of every algorithm."""

    guides: ClassVar[bool] = False
    """Whether it guides the reference by values, at strengths that can be swept."""
    keeps_logprobs: ClassVar[bool] = False
    """Whether it stores the log-probability of every drawn token; used only to estimate disk space."""

    enabled: bool = hint(False)
    """Whether the run includes this algorithm. The files in conf/algos set true."""
    class_path: str | None = None
    """Dotted path of a class of your own; null for the shipped algorithms."""
    batch_size: int = number(128, at_least=1, at_most=1_000_000)
    """Sequences per optimizer step; with PITA both completions of a pair count."""
    num_workers: int = hint(0, at_least=0, at_most=4096)
    """Accepted without effect, for configurations that ask for data loading processes: training data are in memory
    as token ids, and slicing a batch takes less than a millisecond."""
    memory_mb: int | None = memory_mb()
    """GPU memory in MiB that each of its jobs takes; overrides the settings in `training` and `generation`."""
    learning_rate: float = number(2e-3, above=0, at_most=LARGEST_RATE)
    """Peak learning rate of AdamW; see training.warmup_steps and training.schedule."""
    epochs: int = number(4, at_least=1, at_most=1_000_000)
    """Passes over the data of a round."""
    continues: str | None = hint(None, keyed="as the rounds that it shares")
    """Algorithm of the same class, and the last of its rounds that this one shares with it, as `DPO@2`: it goes on
    from there with its own settings. Null begins with the reference; `pipeline clone` sets it."""
    options: dict[str, Any] = field(default_factory=dict)
    """Free-form settings of an algorithm of your own."""
    front: dict[str, Any] = hint({}, keyed="as its points have settings of their own")
    """Settings of this algorithm with lists of values, as `{learning_rate: [1e-4, 3e-4]}`: it runs once with each
    combination, as points of a Pareto front of reward against KL."""

    @property
    def trains(self) -> bool:
        """Whether it trains anything."""
        return True

    @property
    def draws_to_train(self) -> bool:
        """Whether training itself draws completions, with the current policy."""
        return False

    def drawn(self, samples: int) -> float:
        """Return the completions that a round draws per prompt; only for estimates of time.

        Args:
            samples: The setting `data_collection.samples_per_example`.
        """
        return samples

    def trained(self, stage: str, samples: int, decided: float) -> float:  # noqa: ARG002 - for subclasses
        """Return the sequences that a stage trains on per prompt, counting each pass; only for estimates of time.

        Args:
            stage: Name of the stage.
            samples: The setting `data_collection.samples_per_example`.
            decided: Fraction of pairs of completions with different rewards.
        """
        return self.epochs * samples

    def idle(self, setting: str) -> str:
        """Say why a setting has no effect; includes those that are accepted only for compatibility."""
        return "training data is in memory, and no processes load it" if setting == "num_workers" else ""


NOTHING = "nothing"
"""Value of `correct_by` if no reward says which completions are correct."""


@dataclass(kw_only=True)
class GradingConfig:
    """How rewards are called."""

    options: dict[str, Any] = field(default_factory=dict)
    """Settings of rewards: name -> table of arguments, for example `{vader: {unit: true}}`. The entry `use` names
    another reward to call, so that one can be used twice under two names."""
    correct_by: str | None = None
    """The reward that decides which completions are correct, by a value of 1 or more; null takes the first one
    known to do so. With `nothing` none does, and results are mean rewards."""
    timeout_s: float = number(10.0, above=0, at_most=LONGEST_S)
    """Seconds per completion that an isolated reward may take; a call with 8 completions may take 8 times as long.
    """
    memory_gib: float = number(4.0, above=0, at_most=1e6)
    """Memory in GiB that an isolated reward may take beyond its imports."""
    isolated: bool = True
    """Call reward functions in separate processes, so that one that hangs or crashes loses only the scores of one
    call. False calls them in the worker, without a time limit."""
    processes: int = hint(2, at_least=1, at_most=4096)
    """Grading processes per worker, started when a reward needs them."""
    start_timeout_s: float = hint(120.0, above=0, at_most=LONGEST_S)
    """Seconds for a grading process to start and import a reward."""


@dataclass(kw_only=True)
class SamplingConfig(Settings):
    """How completions are drawn where policies are evaluated on this dataset; training draws as ever."""

    temperature: float | None = number(None, at_least=0, at_most=1e6, hint=", or null for generation.temperature")
    """0 decodes greedily, once per prompt, and leaves the KL divergence out: it would be 0 or infinite."""
    top_p: float | None = number(None, above=0, at_most=1, hint=", or null for generation.top_p")
    """Probability of the nucleus."""
    max_new_tokens: int | None = number(
        None, at_least=1, at_most=1_000_000, hint=", or null for generation.max_new_tokens"
    )
    """Most new tokens of a completion."""
    num_samples: int | None = number(
        None, at_least=1, at_most=100_000, hint=", or null for evaluation.num_samples"
    )
    """Completions per prompt."""

    @property
    def is_greedy(self) -> bool:
        """Whether completions are decoded greedily."""
        return self.temperature is not None and self.temperature < SMALLEST_DIVISOR

    def of_generation(self) -> dict[str, Any]:
        """Return the settings that take the place of those of `generation`."""
        own = vars(replace(self, temperature=None) if self.is_greedy else self).items()
        return {name: value for name, value in own if value is not None and hasattr(GenerationConfig, name)}

    def problems(self, key: str, config: Config) -> Iterator[str]:  # noqa: ARG002 - as above
        """Report several samples of a greedy policy."""
        if self.is_greedy and (self.num_samples or 1) > 1:
            yield f"{key}.num_samples={self.num_samples}: greedy samples (temperature=0) are all the same; use 1"


def continued_from(algo: AlgoConfig) -> tuple[str | None, int]:
    """Return the algorithm whose first rounds a method shares, and how many; None and 0 if it shares none."""
    name, _, number = (algo.continues or "").rpartition("@")
    return (name, int(number)) if name and re.fullmatch("[0-9]{1,7}", number) else (None, 0)


@dataclass(kw_only=True)
class DatasetConfig(Settings):
    """Settings of a dataset: its class and its sizes."""

    kind: str = MISSING
    """Name of a shipped dataset."""
    class_path: str | None = None
    """Dotted path of a class of your own; null for the shipped datasets."""
    seed: int = number(0, at_least=0, at_most=LARGEST_SEED)
    """Seed of the splits; the seeds of the experiment do not change them."""
    reward: str = "exact_match"
    """Name of a shipped reward, or a dotted path."""
    rewards: dict[str, float] = number({}, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """Several rewards with weights, instead of `reward`: their weighted sum is the reward."""
    grading: GradingConfig = field(default_factory=GradingConfig)
    test_size: int = number(10_000, at_least=1, at_most=10_000_000)
    """Number of rows for evaluation."""
    validation_size: int = number(10_000, at_least=1, at_most=10_000_000)
    """Number of rows for choosing settings."""
    trained_on: bool = hint(True)
    """Whether the run trains on it. False leaves it to `evaluation.on`, as for a file of `conf/dataset/` that
    `evaluation.on` names and `dataset=` does not choose."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig, metadata={"affects_result": False})
    options: dict[str, Any] = field(default_factory=dict)
    """Free-form settings of a dataset of your own."""

    @property
    def reward_weights(self) -> dict[str, float]:
        """Rewards with their weights."""
        return self.rewards or {self.reward: 1.0}

    def without_rewards(self) -> Self:
        """Return the same settings without rewards."""
        return replace(self, reward="", rewards={}, grading=GradingConfig())

    def idle(self, setting: str) -> str:
        """Say why a setting has no effect."""
        return "`rewards` of the same dataset goes before it" if setting == "reward" and self.rewards else ""


@dataclass(kw_only=True)
class ModelConfig(Settings):
    """Settings of a reference policy, and of the backbone of the value models that guide it."""

    is_trained: ClassVar[bool] = False
    """Whether the run trains it, instead of loading it."""

    kind: str = MISSING
    """`tiny` (trained in the run) or `hf` (any causal language model that transformers loads)."""
    path: str | None = file_or_folder(None, affects_result=False, keyed=BY_CONTENT)
    """For `hf`: folder, GGUF file or hub id. Results depend on the content (`plan.models`), not on the path."""
    value_path: str | None = file_or_folder(None, affects_result=False, keyed=BY_CONTENT)
    """Path of the backbone of value models, in the same form; null copies the reference's. It must have the same
    tokenizer."""

    @property
    def weights(self) -> int:
        """Approximate number of weights; 0 if files tell."""
        return 0

    @property
    def demonstrations(self) -> int:
        """Number of sequences that it is trained on in the run."""
        return 0

    @property
    def in_bits(self) -> int | None:
        """Bits per weight of the reference after quantisation; None if it is not quantised."""
        return None

    @property
    def trusts_code(self) -> bool:
        """Whether Python code that comes with the model may run."""
        return False

    @property
    def revisions(self) -> Mapping[str, str | None]:
        """Commit, tag or branch on the hub for ``reference`` and ``value``; None takes the newest."""
        return {"reference": None, "value": None}

    @property
    def references(self) -> Sequence[int | None]:
        """Seeds of the references that the model stands for; None for a model that is not trained from a seed."""
        return (None,)

    def with_reference(self, reference: int | None) -> ModelConfig:  # noqa: ARG002 - there is but one
        """Return the model settings for the chains of one of its references."""
        return self


# -- retries -----------------------------------------------------------------------------------------------------
# Retries: settings of `execution.retry`.


@dataclass(kw_only=True)
class RetryConfig:
    """Attempts per job, counted separately for each kind of failure. A bug in the job's code is never retried."""

    worker_lost: int = hint(3, at_least=1, at_most=1_000_000)
    """Attempts if its worker died. A job that has ended this many workers is given up as the likely cause."""
    hang: int = hint(2, at_least=1, at_most=1_000_000)
    """Attempts if its worker was killed because it sent no heartbeat, made no progress or took too long."""
    out_of_memory: int = hint(2, at_least=1, at_most=1_000_000)
    """Attempts if it ran out of memory even with the smallest batches; each retry gets a new process."""
    device: int = hint(3, at_least=1, at_most=1_000_000)
    """Attempts if its device reported an error after which a process cannot continue; each retry gets a new
    process."""
    transient: int = hint(5, at_least=1, at_most=1_000_000)
    """Attempts if a connection or a file system failed temporarily."""
    wait_s: float = hint(1.0, at_least=0, at_most=LONGEST_S)
    """Seconds before the first retry after a temporary failure; doubles each time."""
    max_wait_s: float = hint(60.0, at_least=0, at_most=LONGEST_S)
    """Longest wait in seconds that doubling may reach."""
    device_failures: int = hint(3, at_least=1, at_most=1_000_000)
    """Number of different jobs in a row that a device must fail to get no more jobs; the last device is always
    kept."""


# -- ray ---------------------------------------------------------------------------------------------------------
# Settings of a Ray cluster.


AUTO = "auto"
"""The cluster that this machine is a node of."""


@dataclass(kw_only=True)
class RayConfig:
    """Ray cluster and its workers for `execution.backend=ray`."""

    address: str = hint(AUTO)
    """`auto` joins the cluster that this machine is a node of, `host:port` and `ray://host:port` another one. Ray
    looks up its token as usual."""
    resources: dict[str, float] = hint({}, at_least=0, at_most=1e15)
    """Resources of each worker by Ray's names; {} for one GPU, or as many CPUs as it has threads."""
    runtime_env: dict[str, Any] = hint({})
    """Ray's runtime environment of the workers, as `{pip: [...], env_vars: {...}}`."""


# -- tracking ----------------------------------------------------------------------------------------------------
# Trackers that follow runs: which ones, and their settings.


class Tracker(Enum):
    """Programs that follow a run, by the name of their extra."""

    tensorboard = "tensorboard"  # a folder of event files for each chain
    trackio = "trackio"  # a database for each project
    wandb = "wandb"  # a folder for each chain, or a run on a server


class TrackingMode(Enum):
    """How wandb handles the data of a run."""

    offline = "offline"  # write files, which `wandb sync` uploads later
    online = "online"  # upload at once


@dataclass(kw_only=True)
class TrackingConfig:
    """Trackers that follow a run, see docs/looking-at-runs.md. They do not change results."""

    report_to: list[Tracker] = hint([])
    """Trackers that follow the run. If one fails there is a warning, and the run goes on."""
    project: str | None = hint(None)
    """Name of the project in trackio and wandb; null takes the name of the experiment. Runs of several experiments
    in one project are distinguished by their group, which is the experiment."""
    entity: str | None = hint(None)
    """Owner of the project on wandb; null takes the account that is logged in."""
    mode: TrackingMode = hint(TrackingMode.offline)
    """Whether wandb may use the network; the other trackers never do."""
    samples: int = hint(8, at_least=0, at_most=1000)
    """Rows added to the table of samples for each round of a chain; 0 adds none."""
    finish_timeout_s: float = hint(30.0, at_least=0, at_most=LONGEST_S)
    """Seconds to wait at the end of a run for trackers to finish; `python -m pipeline track NAME`, or the next run
    of the experiment, sends them the rest."""


# -- evaluation --------------------------------------------------------------------------------------------------
# Evaluation of policies: on which prompts, how often, and what is reported.


ENOUGH = 3
"""Number of seeds, or references, from which they count as a sample of all possible ones; fewer stand only for
themselves."""


@dataclass(kw_only=True)
class EvaluationConfig:
    """Held-out evaluation, the same for every algorithm."""

    split: str = one_of("test", {"test": "for what is reported", "validation": "while settings are being chosen"})
    """Held-out prompts on which every policy is evaluated."""
    on: list[str] = hint([])
    """Further test sets: datasets on whose held-out prompts every policy is evaluated, whatever it was trained on.
    Names of files of `conf/dataset/`, as `math500`, or of sections of `datasets`. Results name them
    `TRAINED_ON@TEST_SET`."""
    on_own: bool = hint(True)
    """Whether policies are evaluated on the dataset that they are trained on, too. False leaves it out unless `on`
    names it."""
    also: dict[str, str | None] = hint({})
    """Checkpoints that the run has not trained, as `{sft: /models/sft, qwen: Qwen/Qwen3-0.6B@main}`: folders of
    models or of LoRA adapters, GGUF files or hub ids. Each is evaluated under its name, on the same prompts with
    the same draws as all others."""
    num_prompts: int = number(500, at_least=1, at_most=1_000_000_000)
    """Number of held-out prompts for evaluation; if not set, at most the number that every dataset holds out."""
    num_samples: int = number(2, at_least=1, at_most=100_000)
    """Completions per prompt."""
    bootstrap_samples: int = number(1000, at_least=20, at_most=1_000_000)
    """Bootstrap samples of prompts for the intervals of one policy. With fewer than 20 no sample would lie outside
    of an interval."""
    confidence: float = number(0.95, above=0, below=1, hint=", for example 0.95")
    """Coverage probability of the intervals."""
    etas: list[float] = number(
        [], at_least=SMALLEST_DIVISOR, at_most=1e6, infinite=True, advice="inf is the reference policy"
    )
    """Further guidance strengths at which value-guided methods are tried on the validation split, as points of
    reward against KL; inf is the reference policy. The best of these and of the method's own is then evaluated on
    `split`."""
    common_eta: float = number(0.1, at_least=SMALLEST_DIVISOR, at_most=1e6)
    """Weight of the KL divergence, in nats, in J = reward - common_eta * KL, which compares all policies."""
    kl_limit: float | None = number(None, at_least=0, at_most=1e6, hint=", or null for no limit")
    """Largest KL per sequence, in nats, for the choice among `etas`: the best one has the highest mean reward
    within this limit. Null sets no limit."""
    objective: str | None = hint("*")
    """Result that judges a run as a trial of a sweep: an algorithm, a chain as `dataset/model/s0/ALGO`, or a
    pattern with `*`; the mean of several chains. Test sets of `on` and checkpoints of `also` count only where it
    names them, as `gsm8k@math500/*`. Null judges by all."""
    matched_kl: list[float] = hint([], above=0, at_most=1e6)
    """KL per sequence, in nats, at which fronts are compared; empty takes values in the range that all of them
    cover."""
    budgets: list[float] = hint([], above=0, at_most=1e36)
    """Training budgets in FLOPs at which methods are compared, each after its last round within the budget; empty
    for none."""
    reward_batch_size: int = number(256, at_least=1, at_most=1_000_000)
    """Most completions per call of a reward: those of as many whole prompts as fit, and at least one prompt.
    Results of a reward that compares completions depend on it."""
    grown_from: list[list[int]] = hint([], at_least=1, at_most=1_000_000_000)
    """Prompts and completions per prompt that the evaluation had before it was extended, as `[[500, 2]]`: these
    are kept, and only the missing ones are drawn. `pipeline evaluate NAME --samples 16` sets it."""
    sample_prompts: int = number(8, at_least=0, at_most=1_000_000)
    """Number of prompts whose completions are shown in samples.jsonl."""


@dataclass(frozen=True)
class EvaluationPart:
    """One extension of an evaluation: some completions of some prompts.

    Attributes:
        settings: The section as it was then.
        prompts: Positions ``[start, stop)`` of prompts.
        samples: Positions of completions of each prompt, likewise.
    """

    settings: EvaluationConfig
    prompts: tuple[int, int]
    samples: tuple[int, int]


def evaluation_on(config: Config, dataset: str) -> EvaluationConfig:
    """Return the section `evaluation` for a dataset, which may have a number of samples of its own."""
    own, section = config.datasets[dataset].sampling, config.evaluation
    if (number := 1 if own.is_greedy else own.num_samples) is None:
        return section
    return replace(
        section, num_samples=number, grown_from=[[prompts, number] for prompts, _ in section.grown_from]
    )


def evaluation_parts(section: EvaluationConfig) -> list[EvaluationPart]:
    """Return the parts of an evaluation: all at once, or the first size and each extension."""
    sizes = [*((old[0], old[1]) for old in section.grown_from), (section.num_prompts, section.num_samples)]
    parts, prompts, samples = list[EvaluationPart](), 0, 0
    for more_prompts, more_samples in sizes:
        settings = replace(section, num_prompts=more_prompts, num_samples=more_samples)
        if prompts and more_samples > samples:
            parts.append(EvaluationPart(settings, (0, prompts), (samples, more_samples)))
        if more_prompts > prompts:
            parts.append(EvaluationPart(settings, (prompts, more_prompts), (0, more_samples)))
        prompts, samples = more_prompts, more_samples
    return parts


JOBS_PER_DEVICE = f", or '{AUTO}' to measure how many fit"
SEVERAL = "where it is more than 1"
TOGETHER = "where several devices share a training"
ENABLED = "where distributed.enabled has a training use them all"


class Backend(Enum):
    """Where jobs run."""

    local = "local"  # a pool of worker processes on this machine
    inline = "inline"  # in this process, one job at a time
    ray = "ray"  # actors on a Ray cluster; the extra `ray`


class Barrier(Enum):
    """What a job waits for."""

    none = "none"  # only its own inputs
    round = "round"  # also every job of every earlier round


class Keep(Enum):
    """Rounds whose trained weights stay on disk; other weights are removed once no job needs them."""

    all = "all"  # all rounds
    last = "last"  # the last round of each method and seed
    best = "best"  # the round with the best evaluation, for each method and seed
    results = "results"  # none


class DeviceChoice(Enum):
    """Kind of device for workers; stored outputs of one kind are also used on the other."""

    auto = "auto"  # GPUs if there are any, else CPU slots
    cpu = "cpu"  # CPU slots, each of `system.cpu_threads` threads
    cuda = "cuda"  # GPUs, or an error if there are none


class Strategy(Enum):
    """How several GPUs share one training."""

    auto = "auto"  # the first of the others that fits, see `python -m pipeline gpus fit`
    single = "single"  # one GPU
    ddp = "ddp"  # a full copy on each GPU
    fsdp = "fsdp"  # weights, gradients and optimizer state sharded as `fsdp_sharding_strategy` says


class Sharding(Enum):
    """What FSDP shards over the GPUs."""

    full_shard = "full_shard"  # weights, gradients and optimizer state
    shard_grad_op = "shard_grad_op"  # gradients and optimizer state
    no_shard = "no_shard"  # nothing, like DDP


class Attention(Enum):
    """Attention implementation, by its name in transformers."""

    eager = "eager"  # plain products, which store all scores
    sdpa = "sdpa"  # torch's fused kernels
    flash_attention_2 = "flash_attention_2"  # the package flash-attn, on GPUs


class DType(Enum):
    """Floating-point type of weights and activations."""

    float32 = "float32"  # 4 bytes per number
    bfloat16 = "bfloat16"  # 2 bytes, with the range of float32
    float16 = "float16"  # 2 bytes, more precise but with a smaller range


class TextBackend(Enum):
    """Backend that decodes completions."""

    own = "own"  # this package
    vllm = "vllm"  # vLLM, by our own draws; the extra `vllm`
    auto = "auto"  # the one of the two that is faster as measured, chosen when the run is planned


class LongPrompts(Enum):
    """What to do with a prompt that leaves no room for the completion in the model's context."""

    refuse = "refuse"  # the job fails and names the prompt
    truncate = "truncate"  # keep its last tokens


class Optimizer(Enum):
    """Optimizer of trainings."""

    adamw = "adamw"  # torch's
    adamw_8bit = "adamw_8bit"  # with moments in 8 bits, by bitsandbytes, on GPUs; the extra `quantization`
    muon = "muon"  # torch's, for the matrices of hidden layers; AdamW for everything else


class Schedule(Enum):
    """Schedule of the learning rate over all steps; all but the first are transformers' (`get_scheduler`)."""

    cosine_from_start = "cosine_from_start"  # cosine to 0 from the first step on, multiplied by the warm-up
    cosine = "cosine"  # cosine to 0 after the warm-up
    cosine_with_restarts = "cosine_with_restarts"  # the same with its default of one cycle
    linear = "linear"  # linear to 0 after the warm-up
    polynomial = "polynomial"  # linear to 1e-7 after the warm-up
    constant = "constant"  # constant, without a warm-up
    constant_with_warmup = "constant_with_warmup"  # constant after the warm-up
    inverse_sqrt = "inverse_sqrt"  # inverse square root of the step after the warm-up

    @property
    def has_end(self) -> bool:
        """Whether it depends on the total number of steps."""
        return self not in (Schedule.constant, Schedule.constant_with_warmup, Schedule.inverse_sqrt)


class Until(Enum):
    """When a round of a race needs no further prompts, and what becomes of chains."""

    separated = "separated"  # every two of its policies are told apart; every chain is trained to the end
    best = "best"  # one policy is shown better than all others; a chain that is shown worse is trained no further
    budget = "budget"  # all prompts are used; every chain is trained to the end


@dataclass(kw_only=True)
class RaceConfig(Settings):
    """A race: policies are compared while they are evaluated, on no more prompts than that takes."""

    metric: str = hint("pass@1")
    """What is compared: pass@k or maj@k."""
    alpha: float = hint(0.05, above=0, below=1)
    """Probability that anything is false that the race says of the policies of one dataset, model, reference and
    seed, in all rounds together."""
    until: Until = hint(Until.separated)
    look: int | None = hint(None, at_least=1, at_most=1_000_000_000, hint=", or null for execution.shard_size")
    """Prompts of each policy between two looks at the results, in whole shards."""
    added: dict[str, int] = hint({}, at_least=1, at_most=1_000_000_000)
    """Algorithm that was added later -> prompts that were seen before, of which no claim on it is made; `pipeline
    add` and `clone` set it."""
    rounds: int | None = hint(None, at_least=1, at_most=1_000_000, hint=", or null for rounds_of_training")
    """Rounds that the race began with, if more were added; `pipeline add` sets it."""
    seen: int = hint(0, at_least=0, at_most=1_000_000_000)
    """Prompts that were seen of chains which left the race since; `pipeline stop` sets it."""

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Report what no race can be with."""
        size, evaluation = config.execution.shard_size, config.evaluation
        match = re.fullmatch(r"(pass|maj)@([1-9]\d{0,5})", self.metric)
        least = min((evaluation_on(config, name).num_samples for name in config.trained_on), default=1)
        if match is None or int(match[2]) > least:
            within = f"pass@k or maj@k with k of at most {least}, the completions of a prompt"
            yield f"{key}.metric={self.metric[:80]!r}: a race needs bounds of what it compares: {within}"
        if self.look is not None and self.look % size:
            yield f"{key}.look={self.look}: must be whole shards, a multiple of execution.shard_size={size}"
        if self.rounds is not None and self.rounds > config.rounds_of_training:
            yield (
                f"{key}.rounds={self.rounds}: must be at most rounds_of_training={config.rounds_of_training}, or "
                "null, as it says with how many of these rounds the race began"
            )
        if config.execution.keep is not Keep.all:
            yield f"{key}: execution.keep={config.execution.keep.name} removes weights of later looks; use all"
        if evaluation.grown_from or config.experiment.looks:
            settings = "evaluation.grown_from and experiment.looks"
            yield f"{key} decides on how many prompts to evaluate: leave out {settings}"
        if not evaluation.on_own:
            yield f"{key} judges by the dataset that is trained on: set evaluation.on_own=true"
        racers = [name for name in config.algos if name not in evaluation.also]
        if unknown := sorted({*self.added} - {*racers}):
            yield f"{key}.added: {unknown_name('algorithm of the run', unknown[0], racers)}"
        if len({*racers} - {*self.added}) < 2:
            yield f"{key}: needs two algorithms or more"


@dataclass(kw_only=True)
class BudgetConfig:
    """What one command may spend on jobs; the limit that is reached first counts."""

    device_hours: float | None = hint(None, above=0, at_most=1e9, hint=", or null for no limit")
    """Hours in jobs, summed over the devices of each job; lost attempts count too."""
    flops: float | None = hint(None, above=0, at_most=1e36, hint=", or null for no limit")
    """FLOPs of finished jobs, as far as they count them."""

    def __bool__(self) -> bool:
        """Return whether there is a limit."""
        return self.device_hours is not None or self.flops is not None


@dataclass(kw_only=True)
class ExperimentConfig:
    """Name of the experiment, its seeds, and what it may spend."""

    name: str = hint(MISSING)
    """Name of the experiment's folder under `output_dir`: letters, digits, '.', '_' and '-'."""
    seeds: list[int] = number([0], at_least=0, at_most=LARGEST_SEED)
    """One chain runs for each algorithm, dataset, model and seed."""
    last_rounds: dict[str, int] = hint({}, at_least=0, at_most=1_000_000)
    """Chain, or algorithm, that ends before `rounds_of_training` -> its last round, as
    `{DPO: 1, addition/tiny/s0/PITA: 2}`; `pipeline stop` sets it."""
    looks: dict[str, list[int]] = hint({}, at_least=1, at_most=1_000_000_000)
    """Chain, or algorithm, that is evaluated on fewer prompts than `evaluation.num_prompts` -> the number in each
    round, the first prompts of its own dataset; all of them in rounds that are not named. A race sets it."""
    race: RaceConfig | None = hint(None)
    """A race, as `{metric: pass@1, alpha: 0.05, until: separated, look: 250}`: see docs/evaluation.md. Null trains
    and evaluates every policy in full."""
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    """What this command may spend, as `{device_hours: 8}` or `{flops: 1e18}`. Jobs are ordered so that there is a
    table whenever it ends: round by round, and in a round chain by chain with its evaluation. Once it is spent no
    job starts, running ones may end, and the same command goes on with a new budget."""


@dataclass(kw_only=True)
class SystemConfig:
    """Numerics and processes."""

    use_parallel_execution: bool = hint(True)
    """False runs every job in this process, one after the other, with the same results."""
    attn_impl: Attention = Attention.sdpa
    dtype: DType = DType.float32
    cpu_threads: int = number(1, at_least=1, at_most=1024)
    """Threads of a CPU worker. Part of every key, since the order of float additions depends on it."""
    portable: bool = False
    """Compute the same bytes on every x86-64 processor with AVX2, see docs/arithmetic.md; no effect on GPUs."""
    clear_cache_interval: int = hint(0, at_least=0, at_most=1_000_000_000)
    """Training steps between calls of `torch.cuda.empty_cache`; 0 never calls it."""


@dataclass(kw_only=True)
class TrainingConfig:
    """Settings shared by all trainings; batch sizes and learning rates are settings of the algorithms."""

    micro_batch_size: int = number(128, at_least=1, at_most=1_000_000)
    """Most sequences in one forward pass; larger batches accumulate gradients. Halved when memory runs out."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of storing them: less memory, a third more time."""
    padding_free: bool = option(False)
    """Compute without padding, and logits of supervised tokens only, if a model allows it; changes the last bits
    of results."""
    group_by_length: bool = option(False)
    """Put sequences of similar length into one micro-batch. The batch of a step is unchanged."""
    weight_decay: float = number(0.01, at_least=0, at_most=100)
    """Fraction of a weight that a step subtracts, as a multiple of the learning rate."""
    deterministic: bool = option(True)
    """The same training on a GPU gives the same bytes. False allows kernels whose order of additions varies, which
    some models need."""
    optimizer: Optimizer = Optimizer.adamw
    adam_beta1: float = number(0.9, at_least=0, below=1)
    """AdamW's decay rate of the mean of gradients."""
    adam_beta2: float = number(0.999, at_least=0, below=1)
    """AdamW's decay rate of the mean of squared gradients."""
    adam_epsilon: float = number(1e-8, above=0, at_most=1)
    """AdamW's constant added to the denominator."""
    grad_clip: float = number(1.0, at_least=0, at_most=1e9)
    """Largest norm of the gradient; 0 does not clip."""
    warmup_steps: int = number(20, at_least=0, at_most=1_000_000_000)
    """Optimizer steps over which the rate rises to its peak; they count among the steps of `schedule`."""
    schedule: Schedule = Schedule.cosine_from_start
    gpus_per_job: int = hint(1, at_least=1, at_most=1024, keyed=SEVERAL)
    """Devices that share one training, each with its own micro-batches; the batch of a step is unchanged. If it is
    more than 1, it is part of a training's key with the strategy, as the order of float sums differs."""
    memory_mb: int | None = memory_mb()
    """GPU memory in MiB that a training takes on each of its GPUs; null uses measurements."""
    strategy: Strategy = hint(Strategy.auto, keyed=TOGETHER)
    """How GPUs share one training; `auto` takes `distributed.strategy`; if that is `auto` too, the simplest
    strategy that fits according to the memory model, see `python -m pipeline gpus fit`."""
    checkpoint_every_steps: int = hint(0, at_least=0, at_most=1_000_000_000)
    """Steps between checkpoints of a training; 0 disables this limit."""
    checkpoint_every_minutes: float = hint(5.0, at_least=0, at_most=1e9)
    """Minutes between checkpoints; 0 disables this limit. The limit that is reached first counts."""


@dataclass(kw_only=True)
class GenerationConfig:
    """Sampling of text, in data collection and in evaluation."""

    backend: TextBackend = hint(TextBackend.own, keyed="where it is another than own")
    """Backend that decodes, guided or not. The plan says what `auto` has become, and why. Any other backend than
    `own` is part of the keys of what it draws, see docs/models.md."""
    batch_size: int = number(256, at_least=1, at_most=1_000_000)
    """Most sequences decoded at once, halved when memory runs out. Random draws belong to samples, not batches; on
    numerics see docs/architecture.md."""
    max_new_tokens: int = number(64, at_least=1, at_most=1_000_000)
    """Most new tokens of a completion; a dataset may set a lower limit."""
    temperature: float = number(1.0, at_least=SMALLEST_DIVISOR, at_most=1e6)
    """Divisor of the logits before sampling; guidance is applied after it."""
    top_p: float = number(1.0, above=0, at_most=1, hint=" (1 keeps every token)")
    """Nucleus sampling: probability of the nucleus, after the temperature; 1 keeps all tokens."""
    stop: list[str] = model_text([])
    """Texts that end a completion, besides the end tokens of the tokenizer, of the model's generation config and
    of its chat template. Rewards and samples do not include them. A special token of the tokenizer becomes a
    further end token."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the texts for rewards and samples, as TRL and vLLM do. False keeps those that
    are no begin, end or padding tokens, for example for a reward that looks for `<think>` if that is one."""
    long_prompts: LongPrompts = LongPrompts.refuse
    cuda_graphs: bool = option(True)
    """On a GPU, record each decoding step as a CUDA graph and replay it, which is three times as fast as launching
    thousands of operations each time, see docs/gpus.md. False gives other texts where rounding decides."""
    gpus_per_job: int = hint(1, at_least=1, at_most=1024, keyed=SEVERAL)
    """Devices that share a policy that does not fit on one, each with a part of every layer (tensor parallel,
    docs/gpus.md). If it is more than 1, it is part of the keys of what is drawn, as the order of float sums
    differs."""
    memory_mb: int | None = memory_mb()
    """GPU memory in MiB that generating and evaluating take; null uses measurements."""

    @property
    def sampling(self) -> Sampling:
        """The distribution that tokens are drawn from."""
        return Sampling(temperature=self.temperature, top_p=self.top_p)


@dataclass(kw_only=True)
class DataCollectionConfig:
    """Amount of data that each round collects."""

    prompts_per_round: int = number(10_000, at_least=1, at_most=1_000_000_000)
    """Training prompts per round; the rounds of a chain use different prompts as long as there are enough."""
    samples_per_example: int = number(1, at_least=1, at_most=100_000)
    """Roll-ins (QSharp, PITA) or completions per prompt."""
    reward_batch_size: int = number(256, at_least=1, at_most=1_000_000)
    """Most completions per call of a reward: those of as many whole prompts as fit, and at least one prompt.
    Results of a reward that compares completions depend on it."""


@dataclass(kw_only=True)
class ExecutionConfig:
    """How the plan is carried out. Only `shard_size` can change results."""

    backend: Backend = hint(Backend.local)
    workers: int | None = hint(None, at_least=1, at_most=4096, hint=", or null to take what the machine has")
    """Number of worker processes; null means one per GPU, or without GPUs one per `system.cpu_threads`
    cores."""
    jobs_per_device: int | str = hint(1, at_least=1, at_most=64, words=(AUTO,), hint=JOBS_PER_DEVICE)
    """Jobs that a GPU runs at once: a number, or `auto` to run the first job of each kind alone, measure its
    memory, and then run as many on a GPU as fit. A job of known memory never starts where it would not fit."""
    shard_size: int = number(1000, at_least=1, at_most=1_000_000_000)
    """Prompts per generation or evaluation job."""
    barrier: Barrier = hint(Barrier.none)
    priority: str | None = hint(None)
    """Function of your own that returns a number for each job, as `my_module.estimate_job_priority`. Ready jobs
    with larger numbers start first, at equal numbers those on the longest remaining path. With null a first result
    of each method is ready in the first half of the run, if that hardly lengthens the run."""
    store: str | None = file_or_folder(None, affects_result=False)
    """Folder of finished outputs; null means `<output_dir>/.store`."""
    shared_store: str | None = hint(None)
    """A store that other machines can reach: `s3://bucket/prefix`, `gs://bucket/prefix`, `file:///folder` or the
    path of a folder. Outputs found there are fetched into `execution.store` instead of computed, and new outputs
    are uploaded unless they exist there already, see docs/scaling.md. The library looks up credentials as usual,
    for example in the environment; they are never set here. Null shares nothing."""
    keep: Keep = hint(Keep.all)
    """Rounds whose trained weights stay in the store, for each method and seed: `all`, the `last`, the `best` by
    evaluation on `evaluation.split`, or none (`results`). Other weights are removed as soon as no remaining job
    and no other run reads them. Results and all other files stay, and nothing is computed again because of it. A
    later job that needs removed weights makes them again, with the same bytes. References are never removed."""
    heartbeat_s: float = hint(5.0, at_least=0.001, at_most=LONGEST_S)
    """Seconds between a worker's heartbeats."""
    heartbeat_timeout_s: float = hint(120.0, above=0, at_most=LONGEST_S)
    """Seconds without a heartbeat after which a worker that runs a job is killed."""
    progress_timeout_s: float | None = hint(3600.0, above=0, at_most=LONGEST_S, hint=", or null to wait for ever")
    """Seconds without progress, loading included, after which a job is stopped; null sets no limit."""
    job_timeout_s: float | None = hint(None, above=0, at_most=LONGEST_S, hint=", or null for no limit")
    """Most seconds of an attempt; null sets no limit."""
    wait_for_devices: bool = hint(False)
    """Wait for GPUs that another run holds, instead of refusing the request."""
    start_timeout_s: float = hint(60.0, above=0, at_most=LONGEST_S)
    """Most seconds until a new worker reports that it is ready."""
    stop_grace_s: float = hint(10.0, at_least=0, at_most=LONGEST_S)
    """Seconds for running jobs to finish, or to save a checkpoint, when the run is interrupted."""
    models_in_memory: int = hint(4, at_least=1, at_most=1_000_000)
    """Number of models that a worker keeps loaded between jobs."""
    retry: RetryConfig = field(default_factory=RetryConfig)
    ray: RayConfig = field(default_factory=RayConfig)


@dataclass(kw_only=True)
class DistributedConfig:
    """Which GPUs a run uses, and how several share one training."""

    num_gpus: int | None = hint(None, at_least=1, at_most=1024, hint=", or null to take every one", keyed=ENABLED)
    """Number of GPUs, the idlest first; null takes every visible one, or all of `gpu_ids`."""
    gpu_ids: list[int] | None = hint(None, at_least=0, at_most=1023, keyed=ENABLED)
    """Exactly these GPUs: positions in CUDA_VISIBLE_DEVICES, or in the list of all GPUs if that is not set."""
    gpu_list: list[int] | None = hint(None, at_least=0, at_most=1023, keyed=ENABLED)
    """Another name of `gpu_ids`: `distributed.gpu_list=0,1,2,3`."""
    planned_gpu: str | None = hint(None)
    """GPU of a profile, as `A100 80GB`: `dry_run=true` plans for `num_gpus` of them if this machine has too few,
    by times recorded on GPUs whose names have these words. Has no other effect."""
    planned_gpu_gib: float | None = hint(None, at_least=1, at_most=100_000, hint=", or null")
    """Memory of such a GPU in GiB."""
    enabled: bool = False
    """Let one training use all GPUs of `num_gpus` or `gpu_ids`. False gives each training `training.gpus_per_job`
    GPUs, one by default, and runs several at the same time."""
    strategy: Strategy = Strategy.auto
    fsdp_sharding_strategy: Sharding = Sharding.full_shard
    fsdp_cpu_offload: bool = False
    """Keep sharded tensors in CPU memory, and on the GPU only those in use."""
    master_port: int | None = hint(None, at_least=1024, at_most=65_535, hint=", or null to find a free one")
    """TCP port where the processes of one training meet; null finds a free one, so that runs never collide."""

    @property
    def ids(self) -> list[int] | None:
        """The requested GPU numbers, under either name; None for any."""
        return self.gpu_list if self.gpu_ids is None else self.gpu_ids


class StageChoice(Enum):
    """How much of the plan to carry out."""

    all = "all"  # everything
    prepare = "prepare"  # only the preparation of datasets


class DryRun(Enum):
    """Whether only the plan is printed."""

    true = "true"  # and its time from the recorded times of such jobs
    false = "false"  # no, it is carried out
    measure = "measure"  # and its time from a short measurement of each kind of job, on the devices

    def __bool__(self) -> bool:
        """Return whether nothing of the plan is carried out."""
        return self is not DryRun.false


@dataclass(kw_only=True)
class Config:
    """The whole request."""

    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
    stage: StageChoice = hint(StageChoice.all)
    rounds_of_training: int = number(2, at_least=1, at_most=1_000_000)
    """Rounds of generate, train and evaluate, each based on the results of earlier rounds."""
    dry_run: DryRun = hint(DryRun.false)
    """Print the plan, what is already stored and how long the rest takes, and stop."""
    device: DeviceChoice = hint(DeviceChoice.auto)
    output_dir: str = file_or_folder("outputs", affects_result=False)
    """Folder of all runs: each has its own folder in `output_dir/NAME/`, and outputs are shared in `.store`."""
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

    @property
    def enabled(self) -> dict[str, AlgoConfig]:
        """The algorithms that the run includes."""
        return {name: algo for name, algo in self.algos.items() if algo.enabled}

    @property
    def trained_on(self) -> dict[str, DatasetConfig]:
        """The datasets that the run trains on."""
        return {name: dataset for name, dataset in self.datasets.items() if dataset.trained_on}


@dataclass(kw_only=True)
class StageConfig:
    """Configuration of one stage of one chain: only the sections that the stage declares are set.

    The key of a job covers exactly these sections. Reading another one raises, since the stage could then depend
    on something that its key does not cover.
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
# How many devices one training uses, and how they share it: combined from several keys.


BY_TENSORS = "tensor_parallel"
"""Strategy of tensor-parallel ranks that generate text (`generation.gpus_per_job`)."""


def devices_per_training(config: Config) -> int:
    """Return the number of devices that share one training."""
    distributed = config.distributed
    if config.training.gpus_per_job > 1 or not distributed.enabled:
        return config.training.gpus_per_job
    return distributed.num_gpus or len(distributed.ids or ()) or 1


def spread(config: Config) -> dict[str, Any]:
    """Return how they share it, as plain data."""
    named = (config.training.strategy, config.distributed.strategy)
    strategy = next((strategy for strategy in named if strategy is not Strategy.auto), Strategy.auto)
    return {
        "strategy": strategy.name,
        "sharding": config.distributed.fsdp_sharding_strategy.name,
        "cpu_offload": config.distributed.fsdp_cpu_offload,
    }
