"""How long a job takes, roughly, before anything like it was timed: by tokens, the size of the model, the device.

A stage states what it takes with the embedded model, default settings and one CPU core. Others are compared with
that: how many completions they draw or sequences they train on, of how many tokens, and what a token costs, which
is a fixed part for calling layers, and the arithmetic of the weights at what the device reaches. Over a whole run
that is right within a factor of two, see docs/benchmarks.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.config.schema import AlgoConfig, Config, DatasetConfig, ModelConfig
from pipeline.config.tables import REWARDS
from pipeline.learning.algos.base import Stage
from pipeline.learning.datasets.base import Dataset, plain_text
from pipeline.learning.rewards.registry import shipped_traits

EMBEDDED_WEIGHTS = 76_000
EMBEDDED_TOKENS = 4
"""Of a completion of the default task."""
EMBEDDED_PROMPT = 9
"""Tokens of its prompts."""
EMBEDDED_PROMPTS = 10_000
"""Training prompts of a round by default, on which the figures of stages that train rest."""
TEXT_PROMPT = 32
"""Tokens that a prompt of text is taken to have, few since completions mostly end before their limit."""
DECIDED = 0.5
"""Pairs of completions that differ, where a reward knows no more than right and wrong."""

_CALLING_S = {"decode": 1.5e-5, "train": 1.7e-5}
"""Of a token, whatever the size of the model: calling layers, in batches as configured."""
_CPU_FLOPS = {"decode": 3.1e10, "train": 9e10}
"""Of a core, with matrices of a model of 135 million weights."""
_PASSES = {"decode": 2, "train": 6}
"""FLOPs for each weight and token."""
_REACHED = {"decode": 0.1, "train": 0.3}
"""Part of a GPU's peak that a model of `_FILLING` weights reaches; decoding waits for its memory."""
_FILLING = 8e9
"""Smaller models reach less, by the root of their size, as measured with 0.6 and 8 billion weights on an H200."""
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
"""Beginning of a GPU's name -> TFLOP/s of dense 16-bit products, the longer names first."""
_UNKNOWN_PEAK = 100
NOTING_S = 0.2
"""A job that finds nothing to do but to say so."""
_PREFILL = 8
"""Tokens of a prompt that are read in the time in which one is written."""
_SIZE_IN_NAME = re.compile(r"(\d+(?:\.\d+)?)\s*([BM])(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class Scale:
    """What makes jobs of a request longer than those of the default one.

    Attributes:
        weights: Of the model; 0 where that is not known.
        tokens: Of a completion at most.
        prompt: Tokens of a prompt.
        prompts: Training prompts of a round.
        samples: Completions of each, as `data_collection` says.
        decided: Part of pairs of completions that tell which is better.
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
        """Of one token that is decoded or trained on, ``decode`` or ``train``."""
        weights = self.weights or EMBEDDED_WEIGHTS
        reached = _REACHED[work] * min(1.0, weights / _FILLING) ** 0.5
        flops = _CPU_FLOPS[work] if self.gpu is None else reached * peak_flops(self.gpu)
        return _CALLING_S[work] + _PASSES[work] * weights / flops


_DEFAULT = Scale()


def scale_of(config: Config, dataset: Dataset, weights: int, gpu: str | None) -> Scale:
    """The scale of a request's jobs on one dataset and model.

    Args:
        config: The request.
        dataset: The dataset.
        weights: Of the model; 0 where that is not known.
        gpu: Name of the GPU that jobs run on; None for a CPU core.
    """
    longest = config.generation.max_new_tokens
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
    """Seconds that a job of a stage takes.

    Args:
        stage: The stage.
        samples: Of the job; 0 where it is not split over prompts.
        scale: Of the request.
        algo: Settings of its algorithm.
        rounds: How many rounds' data a training reads.
        devices: How many share it.
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
    """Seconds that making a reference takes; one that is read is only noted.

    Args:
        stage: The stage.
        scale: Of the request.
        model: Settings of the model.
        devices: How many share it.
    """
    if not model.is_trained:
        return NOTING_S
    usual = type(model)().demonstrations or 1
    return stage.seconds * model.demonstrations / usual / devices * _longer(scale) * _costlier(scale, "train")


def prompt_tokens(dataset: Dataset) -> int:
    """Tokens of a prompt: counted where rows are made by code of ours, else what prompts of text mostly have."""
    if dataset.prepared or dataset.config.class_path or not dataset.vocabulary:
        return TEXT_PROMPT
    first = dataset.row(int(dataset.ids("train")[0]))
    return 1 + len(re.findall(dataset.symbol_pattern, plain_text(first.prompt)))


def decided_pairs(dataset: DatasetConfig) -> float:
    """Part of pairs of completions that tell which is better; all where a reward is finer than right or wrong."""
    names = set(dataset.rewards or [dataset.reward])
    if not names <= set(REWARDS):  # of which nothing is imported
        return 1.0
    return DECIDED if all(traits.verifies for traits in shipped_traits(dataset).values()) else 1.0


def peak_flops(gpu: str) -> float:
    """FLOP/s of dense 16-bit products of a GPU, by its name."""
    found = next((peak for name, peak in _PEAKS if re.search(rf"\b(?:{name})(?!\d)", gpu)), _UNKNOWN_PEAK)
    return found * 1e12


def weights_in_name(path: str) -> int:
    """Weights of a model by its name, as ``Qwen2.5-1.5B-Instruct``; 0 where that does not say."""
    found = _SIZE_IN_NAME.findall(path.rpartition("/")[2])
    return int(float(found[-1][0]) * {"b": 1e9, "m": 1e6}[found[-1][1].lower()]) if found else 0


def _longer(scale: Scale) -> float:
    return (scale.prompt + scale.tokens) / (EMBEDDED_PROMPT + EMBEDDED_TOKENS)


def _costlier(scale: Scale, work: str) -> float:
    return scale.seconds_per_token(work) / _DEFAULT.seconds_per_token(work)
