"""The typed schema of the configuration: every key a user may set, its meaning, unit and default.

Dataclasses are keyword-only and mutable while OmegaConf merges into them. Every number has a range, declared with
its field (`pipeline.config.fields`). Fields marked `hint` or `affects_result=False` change how fast or where work
is done, never what comes out, and so are left out of result keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from omegaconf import MISSING

from pipeline.config.atoms import LARGEST_ATOMS
from pipeline.config.fields import file_or_folder, hint, number
from pipeline.errors import ConfigError

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


AUTO = "auto"
"""What a setting is called that is found out by measuring."""
JOBS_PER_DEVICE = f" jobs that a GPU takes at once, or '{AUTO}' to measure how many fit"
STRENGTH = (
    ". The tilt is exp(value / eta), so smaller is stronger (0.1 is strong, 1 is mild) and inf is the reference "
    "policy itself"
)


class Backend(Enum):
    """Where jobs run."""

    local = "local"  # a pool of spawned processes on this machine
    inline = "inline"  # in this process, one job at a time


class Barrier(Enum):
    """What a job waits for."""

    none = "none"  # only its own inputs
    round = "round"  # every job of every earlier round as well


class Others(Enum):
    """What guidance does to tokens that are no candidates."""

    kept = "kept"  # each keeps exactly the probability that the reference gives it
    offset_zero = "offset_zero"  # an offset of 0 where candidates have theirs, and all share what there is
    dropped = "dropped"  # none is ever drawn


class DeviceChoice(Enum):
    """Which kind of device workers use."""

    auto = "auto"  # GPUs if there are any, else CPU slots
    cpu = "cpu"
    cuda = "cuda"


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
    hybrid_shard = "hybrid_shard"  # everything, within each machine


class Attention(Enum):
    """Attention implementation, by its name in transformers."""

    eager = "eager"
    sdpa = "sdpa"
    flash_attention_2 = "flash_attention_2"


class DType(Enum):
    """Floating-point type of weights and activations."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class HeadType(Enum):
    """Shape of a value model's output."""

    v = "v"  # one scalar, read at the position of a candidate token that was appended
    q = "q"  # one scalar per vocabulary entry, read at the last position of the prefix


class Pairing(Enum):
    """How PITA draws the two completions that it compares."""

    greedy = "greedy"  # one greedy, one sampled
    sampled = "sampled"  # two sampled


class Preference(Enum):
    """How a difference of scores becomes a preference."""

    bradley_terry = "bradley_terry"  # drawn with probability sigmoid(beta * difference)
    hard = "hard"  # the higher score wins


class PreferenceSource(Enum):
    """What says which of two completions is preferred."""

    correctness = "correctness"  # the one that is correct while the other is not
    reward = "reward"  # the difference of their scores
    correctness_then_reward = "correctness_then_reward"  # the first, else the second


class Ties(Enum):
    """What happens to a pair whose scores are equal."""

    drop = "drop"  # it says nothing
    coin = "coin"  # a fair draw decides


class LongPrompts(Enum):
    """What happens to a prompt that leaves no room for the completion in the model's context."""

    refuse = "refuse"  # the job fails and says which prompt it is
    truncate = "truncate"  # its last tokens are kept


class PairSource(Enum):
    """Where DPO's pairs come from."""

    sampled = "sampled"  # from the current policy, decided by scores
    existing = "existing"  # the columns `chosen` and `rejected` of the dataset


class Anchor(Enum):
    """The policy that a trained one is held close to."""

    initial = "initial"  # the reference, in every round
    previous = "previous"  # what the round started from


class DPOLoss(Enum):
    """Losses of `trl.DPOTrainer`, by its names: those that are a mean over pairs."""

    sigmoid = "sigmoid"
    hinge = "hinge"
    ipo = "ipo"
    exo_pair = "exo_pair"
    nca_pair = "nca_pair"
    robust = "robust"
    bco_pair = "bco_pair"
    sppo_hard = "sppo_hard"
    apo_zero = "apo_zero"
    apo_down = "apo_down"
    discopop = "discopop"
    sigmoid_norm = "sigmoid_norm"


class GRPOLoss(Enum):
    """How GRPO averages over tokens, by TRL's names."""

    grpo = "grpo"  # over the tokens of each completion, then over completions
    bnpo = "bnpo"  # over all tokens of a batch
    dr_grpo = "dr_grpo"  # summed over tokens, divided by completions and the longest length allowed
    dapo = "dapo"  # summed over tokens, divided by the tokens that an average batch of the round has


class ScaleRewards(Enum):
    """What GRPO divides advantages by, by TRL's names."""

    group = "group"  # the standard deviation of the group
    batch = "batch"  # the standard deviation of all completions of the round
    none = "none"  # nothing


class Selection(Enum):
    """How best-of-n picks. Never by the reward that it is tested with."""

    reward_model = "reward_model"  # the highest score of a reward model fitted to training prompts
    majority = "majority"  # the commonest answer, the first of equals


class Warmup(Enum):
    """Learning-rate schedule after the warm-up."""

    constant = "constant"
    cosine = "cosine"


@dataclass(kw_only=True)
class ExperimentConfig:
    """What the experiment is called and how often it is repeated."""

    name: str = MISSING
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
    weight_decay: float = number(0.01, at_least=0, at_most=100)
    grad_clip: float = number(1.0, at_least=0, at_most=1e9)
    """Largest norm of the gradient; 0 does not clip."""
    warmup_steps: int = number(20, at_least=0, at_most=1_000_000_000)
    schedule: Warmup = Warmup.cosine
    gpus_per_job: int = number(1, at_least=1, at_most=1024, affects_result=False)
    """Devices that share one training, each with micro-batches of its own; the batch of a step is as configured.
    Part of a training's key where it is more than 1, with the strategy: float sums are taken in another order."""
    memory_mb: int | None = number(
        None, at_least=1, at_most=100_000_000, hint=OTHERWISE_MEASURED, affects_result=False
    )
    """Memory that a training takes of each of its GPUs, in MiB; null leaves it to what is measured."""
    strategy: Strategy = hint(Strategy.auto)
    """How they share it; `auto` is what `distributed.strategy` says; where that is `auto` too, the simplest
    that the memory model says fits, see `python -m pipeline gpus fit`."""
    checkpoint_every_steps: int = number(0, at_least=0, at_most=1_000_000_000, affects_result=False)
    """Steps between checkpoints of a training; 0 does not count steps."""
    checkpoint_every_minutes: float = number(5.0, at_least=0, at_most=1e9, affects_result=False)
    """Minutes between checkpoints; 0 does not look at the clock. Whichever of the two comes first."""


@dataclass(kw_only=True)
class GenerationConfig:
    """How text is drawn, in data collection and in evaluation."""

    batch_size: int = number(256, at_least=1, at_most=1_000_000)
    """Sequences decoded at once at most, halved when memory runs out. Draws are per sample; on numerics see
    docs/architecture.md."""
    max_new_tokens: int = number(64, at_least=1, at_most=1_000_000)
    """Upper bound; a dataset may set a lower one of its own."""
    temperature: float = number(1.0, at_least=SMALLEST_DIVISOR, at_most=1e6)
    top_p: float = number(1.0, above=0, at_most=1, hint=" (1 keeps every token)")
    """Nucleus that is kept, applied after the temperature; 1 keeps everything."""
    long_prompts: LongPrompts = LongPrompts.refuse
    memory_mb: int | None = number(
        None, at_least=1, at_most=100_000_000, hint=OTHERWISE_MEASURED, affects_result=False
    )
    """Memory that generating and evaluating take of a GPU, in MiB; null leaves it to what is measured."""


@dataclass(kw_only=True)
class DataCollectionConfig:
    """How much data each round collects."""

    prompts_per_round: int = number(10_000, at_least=1, at_most=1_000_000_000)
    """Training prompts that a round uses; the rounds of a chain go through different prompts while they last."""
    samples_per_example: int = number(1, at_least=1, at_most=100_000)
    """Roll-ins (QSharp, PITA) or completions drawn for each prompt."""
    reward_batch_size: int = number(256, at_least=1, at_most=1_000_000, affects_result=False)
    """Completions handed to a reward at once."""


@dataclass(kw_only=True)
class EvaluationConfig:
    """Held-out evaluation, the same for every algorithm."""

    split: str = "test"
    """`test`, or `validation` while settings are being chosen."""
    num_prompts: int = number(500, at_least=1, at_most=1_000_000_000)
    num_samples: int = number(2, at_least=1, at_most=100_000)
    """Completions per prompt."""
    bootstrap_samples: int = number(1000, at_least=20, at_most=1_000_000)
    """Draws of prompts for the intervals of one policy; of fewer than 20 none would lie outside of an interval."""
    confidence: float = number(0.95, above=0, below=1, hint=", for example 0.95")
    etas: list[float] = number(
        [], at_least=SMALLEST_DIVISOR, at_most=1e6, infinite=True, hint="; inf is the reference policy"
    )
    """Further guidance strengths that value-guided methods are tried at on the validation split: points of reward
    against KL. The best of these and of the method's own is then evaluated on `split`."""
    common_eta: float = number(0.1, at_least=SMALLEST_DIVISOR, at_most=1e6)
    """Weight of the divergence, in nats, in J = reward - common_eta * KL, by which all policies are compared."""
    kl_limit: float | None = number(None, at_least=0, at_most=1e6, hint=", or null for no limit")
    """The best of `etas` has the highest mean reward of those whose KL per sequence is no more than this, in nats;
    null sets no limit."""
    objective: str | None = hint("*")
    """Whose result a sweeper of Hydra maximises: an algorithm, a chain as `dataset/model/s0/ALGO`, or a pattern
    with `*`; of several chains the mean. Null gives it none."""
    matched_kl: list[float] = number([], above=0, at_most=1e6, affects_result=False)
    """KL per sequence, in nats, at which fronts are compared; empty takes parts of what all of them span."""
    budgets: list[float] = number([], above=0, at_most=1e36, affects_result=False)
    """FLOPs of training at which methods are compared, each after its last round within them; empty for none."""
    reward_batch_size: int = number(256, at_least=1, at_most=1_000_000, affects_result=False)
    """Completions handed to a reward at once."""
    sample_prompts: int = number(8, at_least=0, at_most=1_000_000)
    """Prompts whose completions are shown in samples.jsonl."""


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
    device_failures: int = number(3, at_least=1, at_most=1_000_000, affects_result=False)
    """Different jobs in a row that a device must fail to be given no more; the last device is always kept."""


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
    store: str | None = file_or_folder(None, affects_result=False)
    """Folder of finished outputs; null means `<output_dir>/.store`."""
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


@dataclass(kw_only=True)
class DistributedConfig:
    """Which GPUs a run uses, and how several share one training."""

    num_gpus: int | None = number(
        None, at_least=1, at_most=1024, hint=", or null to take every one", affects_result=False
    )
    """How many GPUs, the idlest first; null takes every visible one, or as many as `gpu_ids` names."""
    gpu_ids: list[int] | None = number(None, at_least=0, at_most=1023, affects_result=False)
    """Exactly these: positions in CUDA_VISIBLE_DEVICES, or in the list of all GPUs where that is not set."""
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


@dataclass(kw_only=True)
class AlgoConfig:
    """What every algorithm has."""

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
    epochs: int = number(4, at_least=1, at_most=1_000_000)
    options: dict[str, Any] = field(default_factory=dict)
    """Free-form settings of an algorithm of your own."""
    front: dict[str, Any] = field(default_factory=dict, metadata={"affects_result": False})
    """Settings of this algorithm with lists of values, as `{learning_rate: [1e-4, 3e-4]}`: it is run at each of
    them, as points of a front of reward against KL."""


@dataclass(kw_only=True)
class ValueAlgoConfig(AlgoConfig):
    """What value-guided algorithms share."""

    eta: float = number(0.1, at_least=SMALLEST_DIVISOR, at_most=1e6, infinite=True, hint=STRENGTH)
    """Guidance strength: the tilt is exp(value / eta). Smaller is stronger; inf is the reference policy."""
    head: HeadType = HeadType.q
    learning_rate: float = number(1e-3, above=0, at_most=LARGEST_RATE)
    """Of the backbone, which is pretrained: a high rate wipes out what it knows before the head can use it."""
    head_learning_rate: float | None = number(
        3e-2, above=0, at_most=LARGEST_RATE, hint=", or null for learning_rate"
    )
    """Of the head alone, which starts from zero and has further to go; null takes `learning_rate`. A step moves a
    value by about this times the width of the model, so wider models want less: see docs/tuning.md."""
    top_k: int = number(6, at_least=1, at_most=1_000_000)
    """Candidates that guidance looks at: the most likely tokens of the reference."""
    min_p: float = number(0.02, at_least=0, below=1)
    """Tokens that the reference gives less than this probability are no candidates."""
    others: Others = Others.kept
    """What becomes of tokens that are no candidates: `kept` leaves each the reference's probability, `offset_zero`
    is the rule of the papers' code, `dropped` never draws one. See docs/algorithms.md."""
    truncate: bool | None = hint(None)
    """Former name: true is `others=dropped`, false is `others=kept`. Null leaves it to `others`."""
    aggregate: bool = True
    """Train on the data of all rounds so far rather than of this round alone."""
    warm_start: bool = True
    """Continue from the value model of the previous round."""
    held_out: float = number(0.1, at_least=0, below=1, hint=" (0 trains on all)")
    """Share of the prompts that the value model is not trained on, in any round: how good it is on them is in
    `training.json`, and a note is printed where it is no better than the base rate. 0 trains on all."""

    def __post_init__(self) -> None:
        """Take the former name."""
        if self.truncate is None:
            return
        if self.others is Others.offset_zero:
            given = str(self.truncate).lower()
            raise ConfigError(
                f"others=offset_zero and truncate={given}: `truncate` is the former name of `others`; leave it out"
            )
        self.others, self.truncate = Others.dropped if self.truncate else Others.kept, None


@dataclass(kw_only=True)
class QSharpConfig(ValueAlgoConfig):
    """Q# (arXiv 2502.20548)."""

    atoms: int = number(1, at_least=1, at_most=LARGEST_ATOMS, hint=" (1 is a single probability)")
    """Values at which the head has a probability each, evenly spaced over the range; 1 is the Bernoulli head, a
    single probability of the highest value."""
    value_min: float = number(0.0, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """Lowest reward."""
    value_max: float = number(1.0, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """Highest reward."""


@dataclass(kw_only=True)
class CDConfig(QSharpConfig):
    """Guidance by the mean reward, the baseline of Q#'s paper (after arXiv 2310.17022)."""


@dataclass(kw_only=True)
class RewardModelConfig:
    """A reward model that is fitted to preferences (Bradley and Terry 1952), on the value models' backbone."""

    batch_size: int = number(128, at_least=1, at_most=1_000_000)
    """Sequences per optimizer step; both completions of a pair count."""
    learning_rate: float = number(1e-3, above=0, at_most=LARGEST_RATE)
    epochs: int = number(2, at_least=1, at_most=1_000_000)
    folds: int = number(2, at_least=1, at_most=100)
    """Reward models, each fitted to the pairs of all folds of prompts but one, whose completions it scores. Costs
    folds - 1 passes over the pairs. 1 scores what it was fitted to, which flatters it."""


@dataclass(kw_only=True)
class PreferenceConfig:
    """How pairs of completions of one prompt are decided."""

    source: PreferenceSource = PreferenceSource.correctness_then_reward
    preference: Preference = Preference.hard
    """How a difference of scores decides."""
    beta: float = number(1.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Slope of the Bradley-Terry draw."""
    ties: Ties = Ties.drop
    pairs_per_prompt: int = number(3, at_least=1, at_most=1_000_000)
    """Decided pairs that are kept of each prompt at most."""
    widest_first: bool = False
    """Keep those with the largest differences of rewards instead of the first ones."""


@dataclass(kw_only=True)
class QSharpHFConfig(QSharpConfig):
    """Q# on a reward that is learnt from preferences and standardised."""

    batch_size: int = number(256, at_least=1, at_most=1_000_000)
    learning_rate: float = number(1.2e-3, above=0, at_most=LARGEST_RATE)
    head_learning_rate: float | None = number(
        4.5e-2, above=0, at_most=LARGEST_RATE, hint=", or null for learning_rate"
    )
    epochs: int = number(3, at_least=1, at_most=1_000_000)
    eta: float = number(0.2, at_least=SMALLEST_DIVISOR, at_most=1e6, infinite=True, hint=STRENGTH)
    atoms: int = number(11, at_least=1, at_most=LARGEST_ATOMS, hint=" (1 is a single probability)")
    value_min: float = number(-2.0, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    """In standard deviations of the learnt reward; what lies outside is clipped."""
    value_max: float = number(2.0, at_least=-LARGEST_WEIGHT, at_most=LARGEST_WEIGHT)
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)
    reward_model: RewardModelConfig = field(default_factory=lambda: RewardModelConfig(learning_rate=3.3e-4))


@dataclass(kw_only=True)
class PITAConfig(ValueAlgoConfig):
    """PITA (arXiv 2507.20067)."""

    eta: float = number(1.0, at_least=SMALLEST_DIVISOR, at_most=1e6, infinite=True, hint=STRENGTH)
    batch_size: int = number(64, at_least=1, at_most=1_000_000)
    pairing: Pairing = Pairing.greedy
    source: PreferenceSource = PreferenceSource.correctness_then_reward
    preference: Preference = Preference.hard
    """How a difference of scores decides."""
    beta: float = number(1.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Slope of the Bradley-Terry draw."""
    ties: Ties = Ties.drop


@dataclass(kw_only=True)
class LoraSettings:
    """Low-rank adapters instead of whole weights (arXiv 2106.09685); merged into the model when it is saved."""

    rank: int = number(0, at_least=0, at_most=16_384, hint=" (0 is no adapters)")
    """0 trains the weights themselves."""
    alpha: int = number(32, at_least=1, at_most=1_000_000)
    """The adapters' share is scaled by alpha / rank."""
    target_modules: list[str] | None = None
    """Names of the layers that get adapters; null takes every linear layer but the output head."""


@dataclass(kw_only=True)
class PolicyAlgoConfig(AlgoConfig):
    """What algorithms that train the policy share."""

    num_generations: int = number(4, at_least=1, at_most=100_000)
    """Completions drawn for each training prompt; TRL's name. `data_collection.samples_per_example` is for
    value-guided algorithms."""
    batch_size: int = number(128, at_least=1, at_most=1_000_000)
    """Sequences per optimizer step, for DPO both completions of a pair."""
    learning_rate: float = number(2e-4, above=0, at_most=LARGEST_RATE)
    epochs: int = number(1, at_least=1, at_most=1_000_000)
    """Passes over the data of a round."""
    aggregate: bool = False
    """Train on the data of all rounds so far rather than of this round alone."""
    warm_start: bool = True
    """Continue from the policy of the previous round; false starts from the reference again."""
    lora: LoraSettings = field(default_factory=LoraSettings)


@dataclass(kw_only=True)
class DPOConfig(PolicyAlgoConfig):
    """Direct preference optimisation (arXiv 2305.18290), the losses of TRL."""

    aggregate: bool = True
    """As for every algorithm. With `reference=initial`, fresh pairs alone let a round undo what the one before it
    has learnt: pairs of the current policy's new mistakes have by far the largest gradients."""
    learning_rate: float = number(6.6e-4, above=0, at_most=LARGEST_RATE)
    epochs: int = number(2, at_least=1, at_most=1_000_000)
    """Passes over the data of a round."""
    beta: float = number(0.52, above=0, at_most=LARGEST_WEIGHT)
    """Strength of the pull towards the anchor."""
    loss_type: DPOLoss = DPOLoss.sigmoid
    label_smoothing: float = number(0.0, at_least=0, below=1)
    """For `robust` the probability that a label is wrong; for `exo_pair` its epsilon."""
    sft_weight: float = number(0.0, at_least=0, at_most=LARGEST_WEIGHT)
    """Weight of the chosen completions' negative log-likelihood per token: RPO (arXiv 2404.19733)."""
    reference: Anchor = Anchor.initial
    pairs: PairSource = PairSource.sampled
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)


@dataclass(kw_only=True)
class GRPOConfig(PolicyAlgoConfig):
    """Group-relative policy optimisation (arXiv 2402.03300), the loss of TRL. `epochs` is TRL's num_iterations."""

    learning_rate: float = number(6.5e-4, above=0, at_most=LARGEST_RATE)
    loss_type: GRPOLoss = GRPOLoss.grpo
    beta: float = number(0.01, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is no KL term)")
    """Weight of the KL divergence from the anchor; 0 leaves it out and loads no anchor."""
    epsilon: float = number(0.2, above=0, below=1)
    """The probability ratio to the sampling policy is clipped to 1 - epsilon and 1 + epsilon_high."""
    epsilon_high: float | None = number(None, above=0, at_most=LARGEST_WEIGHT, hint=", or null to take epsilon")
    """Null takes epsilon."""
    scale_rewards: ScaleRewards = ScaleRewards.group
    reference: Anchor = Anchor.initial


@dataclass(kw_only=True)
class GRPOHFConfig(GRPOConfig):
    """GRPO on a reward that is learnt from preferences among the samples of each group."""

    learning_rate: float = number(2e-4, above=0, at_most=LARGEST_RATE)
    beta: float = number(0.04, at_least=0, at_most=LARGEST_WEIGHT, hint=" (0 is no KL term)")
    """Weight of the KL divergence from the anchor; 0 leaves it out and loads no anchor."""
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)


@dataclass(kw_only=True)
class SFTConfig(PolicyAlgoConfig):
    """Rejection sampling: imitate the best of n."""

    learning_rate: float = number(8.4e-4, above=0, at_most=LARGEST_RATE)
    epochs: int = number(2, at_least=1, at_most=1_000_000)
    """Passes over the data of a round."""
    only_correct: bool = True
    """Leave out prompts whose best completion is known to be wrong."""


@dataclass(kw_only=True)
class BestOfNConfig(AlgoConfig):
    """Best of n samples of the reference, with nothing trained but what picks."""

    num_generations: int = number(4, at_least=1, at_most=100_000)
    """Samples that are picked from, n."""
    selection: Selection = Selection.reward_model
    aggregate: bool = True
    """Fit the reward model to the data of all rounds so far rather than of this round alone."""
    batch_size: int = number(128, at_least=1, at_most=1_000_000)
    """Sequences per optimizer step of the reward model; both completions of a pair count."""
    learning_rate: float = number(1e-3, above=0, at_most=LARGEST_RATE)
    epochs: int = number(2, at_least=1, at_most=1_000_000)
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)


TRL_REWARD_NAMES = (
    "accuracy_reward",
    "get_cosine_scaled_reward",
    "get_repetition_penalty_reward",
    "get_soft_overlong_punishment",
    "reasoning_accuracy_reward",
    "think_format_reward",
)
"""TRL's own rewards, and the functions that make one of their settings."""
OWN_REWARD_NAMES = ("boxed", "exact_match", "gsm8k", "length", "math_verify", "model", "star_graph", "vader")
"""Rewards that ship."""
REWARD_NAMES = (*OWN_REWARD_NAMES, *TRL_REWARD_NAMES)
"""Rewards with a name; any other one is the dotted path of a function with TRL's signature."""
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
    """Seconds that an isolated reward may take for one completion."""
    memory_gib: float = number(4.0, above=0, at_most=1e6)
    """Memory that an isolated reward may take beyond what its imports take."""
    isolated: bool = hint(True)
    """Call functions in processes of their own, one completion at a time, so that one that hangs or crashes costs
    a single score. False calls them in the worker, in batches."""
    processes: int = number(2, at_least=1, at_most=4096, affects_result=False)
    """Grading processes per worker, started when a reward needs them."""
    start_timeout_s: float = number(120.0, above=0, at_most=LONGEST_S, affects_result=False)
    """Seconds that a grading process may take to start and import a reward."""
    keep_scores: bool = hint(False)
    """Keep scores of functions in a file beside the store, for later runs."""


@dataclass(kw_only=True)
class DatasetConfig:
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
    validation_size: int = number(10_000, at_least=1, at_most=10_000_000)
    options: dict[str, Any] = field(default_factory=dict)
    """Free-form settings of a dataset of your own."""


@dataclass(kw_only=True)
class AdditionConfig(DatasetConfig):
    """Addition of two numbers, operands and sum written least significant digit first."""

    digits: int = number(3, at_least=1, at_most=4)
    carry_drop: float = number(0.6, at_least=0, at_most=1)
    """Share of the reference's demonstrations that ignore every carry."""


@dataclass(kw_only=True)
class StarGraphConfig(DatasetConfig):
    """Paths in star graphs G(d, l) (arXiv 2403.06963), made from the seed and the row's id."""

    degree: int = number(2, at_least=2, at_most=10_000)
    """Arms of the graph, d."""
    path_length: int = number(5, at_least=2, at_most=10_000)
    """Nodes of an arm, the centre included, l."""
    labels: int = number(50, at_least=1, at_most=1_000_000)
    """Names that nodes may have: 0 up to labels - 1."""
    random_arm: float = number(0.0, at_least=0, at_most=1)
    """Share of the reference's demonstrations that walk down an arm drawn blindly; 0 shows right paths alone."""
    train_size: int = number(200_000, at_least=1, at_most=10_000_000)


@dataclass(kw_only=True)
class FilesConfig(DatasetConfig):
    """Rows read from files or from the Hugging Face hub, in TRL's columns; docs/datasets.md has examples."""

    test_size: int = number(500, at_least=1, at_most=1_000_000_000)
    """Test prompts at most. Taken from the test split where the source has one, else cut from train."""
    validation_size: int = number(500, at_least=1, at_most=1_000_000_000)
    """Validation prompts at most, likewise."""
    path: str | None = file_or_folder(None, affects_result=False)
    """File, folder or hub id. Results depend on the content, not on where it is."""
    validation_path: str | None = file_or_folder(None, affects_result=False)
    """A source of its own for validation; null looks in `path`."""
    test_path: str | None = file_or_folder(None, affects_result=False)
    """A source of its own for the test split; null looks in `path`."""
    subset: str | None = None
    """Configuration of the hub's dataset, or the folder of that name inside a local one."""
    revision: str | None = hint(None)
    """Commit, tag or branch of `path` on the hub; null takes the newest."""
    train_split: str | None = None
    """Name of the split to train on; null takes `train`, or the only one there is."""
    validation_split: str | None = None
    """Null takes `validation` where there is one, else cuts it from train."""
    test_split: str | None = None
    """Null takes `test` where there is one, else cuts it from train."""
    columns: dict[str, str] = field(default_factory=dict)
    """Our name -> the file's name, for columns that are called otherwise: {prompt: question}."""
    further_columns: list[str] | None = None
    """Columns kept for rewards besides TRL's own; null keeps all."""
    prompt_template: str | None = None
    """Text of the prompt with columns in braces, such as 'Q: {prompt} A:'; null takes the prompt as it is."""
    chat: bool = False
    """Make a prompt of text the user's turn of a conversation, so that the model's chat template is applied."""
    system_prompt: str | None = None
    """First message of every conversation."""
    limit: int | None = number(None, at_least=1, at_most=1_000_000_000, hint=", or null to read all")
    """Rows read of each split at most; null reads all."""


STEP_BY_STEP = "{prompt}\nPlease reason step by step, and put your final answer within \\boxed{{}}."


@dataclass(kw_only=True)
class GSM8KConfig(FilesConfig):
    """Grade-school mathematics (arXiv 2110.14168)."""

    reward: str = "gsm8k"
    path: str | None = file_or_folder("openai/gsm8k", affects_result=False)
    subset: str | None = "main"
    test_size: int = number(1319, at_least=1, at_most=1_000_000_000)
    prompt_template: str | None = STEP_BY_STEP


@dataclass(kw_only=True)
class MathConfig(FilesConfig):
    """Competition mathematics (MATH, arXiv 2103.03874), tested on MATH-500 (arXiv 2305.20050)."""

    reward: str = "math_verify"
    path: str | None = file_or_folder("DigitalLearningGmbH/MATH-lighteval", affects_result=False)
    test_path: str | None = file_or_folder("HuggingFaceH4/MATH-500", affects_result=False)
    prompt_template: str | None = STEP_BY_STEP


@dataclass(kw_only=True)
class IMDBConfig(FilesConfig):
    """Film reviews (Maas et al., 2011), to be continued from their first words."""

    reward: str = "vader"
    path: str | None = file_or_folder("stanfordnlp/imdb", affects_result=False)
    test_size: int = number(5000, at_least=1, at_most=1_000_000_000)
    prompt_words: int = number(60, at_least=1, at_most=1_000_000)
    """Words of the review that make the prompt."""


@dataclass(kw_only=True)
class TLDRConfig(FilesConfig):
    """Posts to be summarised, as TRL ships them: with a summary, or with a preferred and another one."""

    reward: str = "model"
    path: str | None = file_or_folder("trl-lib/tldr", affects_result=False)


@dataclass(kw_only=True)
class ModelConfig:
    """A reference policy and the backbone of the value models that guide it."""

    kind: str = MISSING
    """`tiny` (trained in the run) or `hf` (any causal language model that transformers loads)."""
    path: str | None = file_or_folder(None, affects_result=False)
    """For `hf`: folder, GGUF file or hub id. Results depend on the content (`plan.models`), not on where it is."""
    value_path: str | None = file_or_folder(None, affects_result=False)
    """Backbone of value models, likewise; null copies the reference's. Must share its tokenizer."""

    @property
    def references(self) -> Sequence[int | None]:
        """Seeds of the references that the model stands for; None for the one that is not made from a seed."""
        return (None,)

    def with_reference(self, reference: int | None) -> ModelConfig:  # noqa: ARG002 - there is but one
        """The model as the chains of one of its references see it."""
        return self


@dataclass(kw_only=True)
class HFModelConfig(ModelConfig):
    """A causal language model of the Hugging Face ecosystem; docs/models.md has examples."""

    revision: str | None = hint(None)
    """Commit, tag or branch of `path` on the hub; null takes the newest."""
    value_revision: str | None = hint(None)
    """The same for `value_path`."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Only for models whose code you have read."""


@dataclass(kw_only=True)
class TinyModelConfig(ModelConfig):
    """A GPT-2 of some 76,000 parameters, trained in the run on the dataset's demonstrations."""

    seed: int | None = number(None, at_least=0, at_most=LARGEST_SEED)
    """Of initialisation and training, of one reference that all seeds of the experiment share; null is 0."""
    seeds: list[int] | None = number(None, at_least=0, at_most=LARGEST_SEED, affects_result=False)
    """Several references instead of the one of `seed`, each with chains of its own for every seed of the
    experiment. A stage sees the `seed` of its own reference alone."""
    n_embd: int = number(64, at_least=1, at_most=2048)
    n_layer: int = number(2, at_least=1, at_most=48)
    n_head: int = number(4, at_least=1, at_most=128)
    n_inner: int = number(128, at_least=1, at_most=8192)
    n_positions: int = number(128, at_least=1, at_most=16_384)
    steps: int = number(1000, at_least=0, at_most=1_000_000_000)
    batch_size: int = number(128, at_least=1, at_most=1_000_000)
    learning_rate: float = number(3e-3, above=0, at_most=LARGEST_RATE)
    warmup_steps: int = number(100, at_least=0, at_most=1_000_000_000)

    @property
    def references(self) -> Sequence[int]:
        """Seeds of the references, in the order of their chains."""
        return [self.seed or 0] if self.seeds is None else self.seeds

    def with_reference(self, reference: int | None) -> TinyModelConfig:
        """The model with one reference alone."""
        return replace(self, seed=reference, seeds=None)


class StageChoice(Enum):
    """How much of the plan is carried out."""

    all = "all"
    prepare = "prepare"  # only what is done to datasets before anything is generated


@dataclass(kw_only=True)
class Config:
    """The whole request."""

    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
    stage: StageChoice = StageChoice.all
    rounds_of_training: int = number(2, at_least=1, at_most=1_000_000)
    dry_run: bool = False
    """Print the plan and what is already stored, and stop."""
    device: DeviceChoice = DeviceChoice.auto
    output_dir: str = file_or_folder("outputs")
    system: SystemConfig = field(default_factory=SystemConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    data_collection: DataCollectionConfig = field(default_factory=DataCollectionConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
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


ALGO_SCHEMAS: dict[str, type[AlgoConfig]] = {
    "BestOfN": BestOfNConfig,
    "CD": CDConfig,
    "DPO": DPOConfig,
    "GRPO": GRPOConfig,
    "GRPO-HF": GRPOHFConfig,
    "PITA": PITAConfig,
    "QSharp": QSharpConfig,
    "QSharp-HF": QSharpHFConfig,
    "SFT": SFTConfig,
}
"""Settings of the algorithms that ship, by name. One of your own names its dataclass as `config_class`."""

DATASET_SCHEMAS: dict[str, type[DatasetConfig]] = {
    "addition": AdditionConfig,
    "csv": FilesConfig,
    "gsm8k": GSM8KConfig,
    "hf": FilesConfig,
    "imdb_sentiment": IMDBConfig,
    "jsonl": FilesConfig,
    "math": MathConfig,
    "parquet": FilesConfig,
    "star_graph": StarGraphConfig,
    "tldr": TLDRConfig,
}
"""Settings of the datasets that ship, by kind."""

MODEL_SCHEMAS: dict[str, type[ModelConfig]] = {"tiny": TinyModelConfig, "hf": HFModelConfig}
"""Settings of models, by kind."""
