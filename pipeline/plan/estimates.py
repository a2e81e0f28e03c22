"""Estimate roughly how long a job takes before one like it was timed: from tokens, model size and device.

A stage declares its seconds with the embedded model, default settings and one CPU core. Other settings scale this
by the number of completions or training sequences, by their tokens, and by the cost of a token: a fixed part for
calling layers, plus the weights' FLOPs at the speed of the device. `benchmarks/estimates.py` compares
estimates of whole runs with real times.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pipeline.config.schema import AlgoConfig, Config, DatasetConfig, Keep, ModelConfig
from pipeline.config.tables import REWARDS
from pipeline.learning.algos.base import Stage
from pipeline.learning.algos.policy_config import stores_adapters
from pipeline.learning.datasets.base import Dataset, plain_text
from pipeline.learning.memory.fit import STATE_BYTES, WEIGHT_BYTES
from pipeline.learning.rewards.registry import shipped_traits
from pipeline.plan.contents import REFERENCE, chains
from pipeline.plan.graph import Job, Plan
from pipeline.plan.models import count_weights, is_gguf, weights_at, weights_in_name

EMBEDDED_WEIGHTS = 76_000
EMBEDDED_TOKENS = 4
"""Tokens of a completion of the default task."""
EMBEDDED_PROMPT = 9
"""Tokens of a prompt of the default task."""
EMBEDDED_PROMPTS = 10_000
"""Default number of training prompts per round, for which the seconds of training stages are declared."""
TEXT_PROMPT = 32
"""Assumed tokens of a text prompt; low, since completions mostly end before their limit."""
DECIDED = 0.5
"""Fraction of pairs with different rewards, for a reward that is only right or wrong."""

_CALLING_S = {"decode": 1.5e-5, "train": 1.7e-5}
"""Seconds per token for calling layers, whatever the size of the model, in batches as configured."""
_CPU_FLOPS = {"decode": 3.1e10, "train": 9e10}
"""FLOP/s of a core, with matrices of a model of 135 million weights."""
_PASSES = {"decode": 2, "train": 6}
"""FLOPs per weight and token."""
_REACHED = {"decode": 0.1, "train": 0.3}
"""Fraction of a GPU's peak that a model of `_FILLING` weights reaches; decoding is bound by memory."""
_FILLING = 8e9
"""Size from which models reach that fraction. Smaller ones reach less, by the square root of their size, as
measured with 0.6 and 8 billion weights on an H200."""
_PEAKS = (
    ("B200", 2250),
    ("H[12]00", 989),
    ("L40S", 362),
    ("A100", 312),
    ("RTX 5090", 210),
    ("L40", 181),
    ("RTX 4090", 165),
    ("A6000", 155),
    ("A40", 150),
    ("A10|V100", 125),
    ("L4", 121),
    ("RTX 3090", 71),
    ("T4", 65),
)
"""Prefix of a GPU's name -> TFLOP/s of dense 16-bit products, longer names first."""
_UNKNOWN_PEAK = 100
NOTING_S = 0.2
"""Seconds of a job that only records that there is nothing to do."""
_PREFILL = 8
"""Number of prompt tokens read in the time of writing one token."""


@dataclass(frozen=True)
class Scale:
    """Size of a request's jobs, compared with the default request.

    Attributes:
        weights: Weights of the model; 0 if unknown.
        tokens: Largest number of tokens of a completion.
        prompt: Tokens of a prompt.
        prompts: Training prompts per round.
        samples: Completions per prompt, from `data_collection`.
        decided: Fraction of pairs of completions with different rewards.
        gpu: Name of the GPU that jobs run on; None for a CPU core.
    """

    weights: int = EMBEDDED_WEIGHTS
    tokens: int = EMBEDDED_TOKENS
    prompt: int = EMBEDDED_PROMPT
    prompts: int = EMBEDDED_PROMPTS
    samples: int = 1
    decided: float = DECIDED
    gpu: str | None = None

    def seconds_per_token(self, work: str) -> float:
        """Return the seconds per token that is decoded or trained on (``decode`` or ``train``)."""
        weights = self.weights or EMBEDDED_WEIGHTS
        reached = _REACHED[work] * min(1.0, weights / _FILLING) ** 0.5
        flops = _CPU_FLOPS[work] if self.gpu is None else reached * peak_flops(self.gpu)
        return _CALLING_S[work] + _PASSES[work] * weights / flops


_DEFAULT = Scale()


def scale_of(config: Config, dataset: Dataset, weights: int, gpu: str | None) -> Scale:
    """Return the scale of a request's jobs on one dataset and model.

    Args:
        config: The request.
        dataset: The dataset.
        weights: Weights of the model; 0 if unknown.
        gpu: Name of the GPU that jobs run on; None for a CPU core.
    """
    own = None if dataset.config.trained_on else dataset.config.sampling.max_new_tokens
    longest = own or config.generation.max_new_tokens
    return Scale(
        weights=weights,
        tokens=min(longest, dataset.completion_length or longest),
        prompt=prompt_tokens(dataset),
        prompts=config.data_collection.prompts_per_round,
        samples=config.data_collection.samples_per_example,
        decided=decided_pairs(dataset.config),
        gpu=gpu,
    )


def guess_seconds(
    stage: Stage, samples: int, scale: Scale, algo: AlgoConfig | None = None, *, rounds: int = 1, devices: int = 1
) -> float:
    """Estimate the seconds of a job of a stage.

    Args:
        stage: The stage.
        samples: Samples of the job; 0 if it is not split over prompts.
        scale: Scale of the request.
        algo: Settings of its algorithm.
        rounds: Number of rounds whose data a training reads.
        devices: Number of devices of the job.
    """
    units = samples / 1000 if samples else 1.0
    if not stage.loads_models:
        return stage.seconds * units
    usual = type(algo)() if algo is not None else None
    if not samples and "training" in stage.config:
        if algo is not None and usual is not None:
            units = algo.trained(stage.name, scale.samples, scale.decided) / max(
                1e-9, usual.trained(stage.name, _DEFAULT.samples, _DEFAULT.decided)
            )
        units *= rounds * scale.prompts / EMBEDDED_PROMPTS / devices
        return stage.seconds * units * _longer(scale) * _costlier(scale, "train")
    if stage.shards == "train" and algo is not None and usual is not None:
        units /= max(1e-9, usual.drawn(_DEFAULT.samples))
    read = (scale.tokens + scale.prompt / _PREFILL) / (EMBEDDED_TOKENS + EMBEDDED_PROMPT / _PREFILL)
    return stage.seconds * units * read * _costlier(scale, "decode")


def guess_reference(stage: Stage, scale: Scale, model: ModelConfig, devices: int = 1) -> float:
    """Estimate the seconds of making a reference; a model that is only read takes almost none.

    Args:
        stage: The stage.
        scale: Scale of the request.
        model: Settings of the model.
        devices: Number of devices of the job.
    """
    if not model.is_trained:
        return NOTING_S
    usual = type(model)().demonstrations or 1
    return stage.seconds * model.demonstrations / usual / devices * _longer(scale) * _costlier(scale, "train")


def prompt_tokens(dataset: Dataset) -> int:
    """Return the tokens of a prompt: counted if our code makes the rows, else typical of text prompts."""
    if dataset.prepared or dataset.config.class_path or not dataset.vocabulary:
        return TEXT_PROMPT
    first = dataset.row(int(dataset.ids("train")[0]))
    return 1 + len(re.findall(dataset.symbol_pattern, plain_text(first.prompt)))


def decided_pairs(dataset: DatasetConfig) -> float:
    """Return the fraction of pairs of completions with different rewards.

    1 if rewards are finer than right or wrong.
    """
    names = {*dataset.reward_weights}
    if not names <= set(REWARDS):  # without any import
        return 1.0
    return DECIDED if all(traits.verifies for traits in shipped_traits(dataset).values()) else 1.0


def peak_flops(gpu: str) -> float:
    """Return the FLOP/s of dense 16-bit products of a GPU, by its name."""
    teraflops = next((peak for name, peak in _PEAKS if re.search(rf"\b(?:{name})(?!\d)", gpu)), _UNKNOWN_PEAK)
    return teraflops * 1e12


def _longer(scale: Scale) -> float:
    return (scale.prompt + scale.tokens) / (EMBEDDED_PROMPT + EMBEDDED_TOKENS)


def _costlier(scale: Scale, work: str) -> float:
    return scale.seconds_per_token(work) / _DEFAULT.seconds_per_token(work)


# -- disk --------------------------------------------------------------------------------------------------------
# Disk space: what the models that a plan trains take in the store, estimated before anything runs. Policies, value
# models and reward models are stored in float32. Texts, evaluations and adapters are not counted: they take about
# a hundredth of that, and the lengths of texts are unknown. Checkpoints are not counted either, as they are
# removed when a training ends.


@dataclass(frozen=True, kw_only=True)
class DiskNeed:
    """Disk space for the outputs of the jobs to run.

    Attributes:
        made: Bytes of all models that are trained.
        stays: Bytes of models left at the end, after `execution.keep` has removed the others.
        least: Bytes needed at some time in any case, for models whose files are on this machine.
        unknown: Models of unknown size, as ``models.hf``.
    """

    made: int = 0
    stays: int = 0
    least: int = 0
    unknown: tuple[str, ...] = ()


def disk_need(plan: Plan, config: Config, missing: Collection[str]) -> DiskNeed:
    """Estimate the disk space of a plan's jobs that must run.

    Args:
        plan: The plan.
        config: Its request.
        missing: Ids of the jobs that must run.
    """
    stages = {
        (chain.algo, stage.name): (stage, chain.config)
        for chain in chains(config)
        for stage in chain.kind.stages_with(chain.config)
    }
    made, known = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    unknown = dict[str, None]()
    for job in (plan.jobs[job_id] for job_id in missing):
        stage, algo = stages.get((job.algo, job.stage), (None, None))
        if stage is None or algo is None or not (stage.saves or (job.algo == REFERENCE and stage.scales)):
            continue
        model, where = config.models[job.model], (job.chain, job.round) if job.weights else _STAYS
        bytes_each, weights = _stored(config, job, stage, algo)
        if bytes_each and not weights:
            unknown[f"models.{job.model}"] = None
        made[where] += bytes_each * weights
        if model.is_trained or not (is_gguf(str(model.path)) or weights_in_name(str(model.path))):
            known[where] += bytes_each * weights
    largest = max((size for where, size in known.items() if where != _STAYS), default=0)
    return DiskNeed(
        made=made.total(),
        stays=_bytes_left(config.execution.keep, made),
        least=max(_bytes_left(config.execution.keep, known), known[_STAYS] + largest),
        unknown=tuple(unknown),
    )


_STAYS = ("", 0)
"""Replaces chain and round for models that are never removed."""


def _bytes_left(keep: Keep, sizes: Mapping[tuple[str, int], int]) -> int:
    """Return the bytes left of the models of all rounds of each chain; all rounds of a chain are equally large."""
    by_chain: dict[str, list[int]] = {}
    for (chain, _), size in sizes.items():
        by_chain.setdefault(chain, []).append(size)
    most = {Keep.all: sum, Keep.results: lambda _: 0}.get(keep, max)
    return sum(most(rounds) if chain else sum(rounds) for chain, rounds in by_chain.items())


def _stored(config: Config, job: Job, stage: Stage, algo: AlgoConfig) -> tuple[int, int]:
    """Return the bytes that a job stores per weight, and the number of weights; 0 if unknown."""
    model = config.models[job.model]
    if job.algo == REFERENCE:
        return 4 * model.is_trained, model.weights
    adapts = getattr(getattr(algo, "lora", None), "rank", 0) and stores_adapters(algo, config.algos)
    if not algo.trains or (stage.saves == "policy" and adapts):
        return 0, 0
    if stage.saves != "policy" and model.value_path is not None:
        weights = weights_at(model.value_path, model.revisions["value"])
    else:
        weights = count_weights(model)
    # and also its optimizer, with which the next round continues
    if stage.saves == "policy" and algo.draws_to_train:
        return WEIGHT_BYTES + STATE_BYTES[config.training.optimizer], weights
    folds = getattr(getattr(algo, "reward_model", None), "folds", 1)
    return 4 * (folds if stage.saves == "rewards" else 1), weights
