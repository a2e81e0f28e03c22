"""How long a job takes, roughly, before anything like it was timed.

A stage states what it takes with the embedded model on one CPU core. Other models are compared with that one by
the arithmetic of a token, which grows with the number of weights; large matrices run nearer to what the hardware
can do than the small ones of that model. Right within a factor of three or so: enough to tell minutes from hours.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.learning.algos.base import Stage

EMBEDDED_WEIGHTS = 76_000
EMBEDDED_TOKENS = 4
"""Of a completion of the default task."""
EMBEDDED_PROMPTS = 10_000
"""Training prompts of a round by default, on which the figures of stages that train rest."""
_FASTER_CPU = 8.0
"""Arithmetic per second of a large model on a core, as a multiple of the embedded one's 5 GFLOP/s."""
_FASTER_GPU = 6_000.0
"""The same on a GPU: about 30 TFLOP/s, between decoding and training of a model of 8 billion weights."""


@dataclass(frozen=True)
class Scale:
    """What makes jobs of a request longer than those of the default one.

    Attributes:
        weights: Of the model; 0 for one that is trained in the run, or whose size is not known.
        tokens: Of a completion at most.
        prompts: Training prompts of a round.
        gpu: Whether jobs run on GPUs.
    """

    weights: int = 0
    tokens: int = EMBEDDED_TOKENS
    prompts: int = EMBEDDED_PROMPTS
    gpu: bool = False


def guess_seconds(stage: Stage, samples: int, scale: Scale) -> float:
    """Seconds that a job of a stage takes.

    Args:
        stage: The stage.
        samples: Of the job; 0 where it is not split over prompts.
        scale: Of the request.
    """
    units = samples / 1000 if samples else 1.0
    if not stage.loads_models or not scale.weights:
        return stage.seconds * units
    if not samples and "training" in stage.config:
        units = scale.prompts / EMBEDDED_PROMPTS
    size = scale.weights / EMBEDDED_WEIGHTS * scale.tokens / EMBEDDED_TOKENS
    faster = _FASTER_GPU if scale.gpu else _FASTER_CPU
    return stage.seconds * units * max(1.0, size / faster)
