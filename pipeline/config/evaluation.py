"""How policies are evaluated: on what, how often, and what is told of it."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config.fields import SMALLEST_DIVISOR, hint, number, one_of

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
    """Whose result a sweeper of Hydra maximises: an algorithm, a chain as `dataset/model/s0/ALGO`, or a pattern
    with `*`; of several chains the mean. Null gives it none."""
    matched_kl: list[float] = number([], above=0, at_most=1e6, affects_result=False)
    """KL per sequence, in nats, at which fronts are compared; empty takes parts of what all of them span."""
    budgets: list[float] = number([], above=0, at_most=1e36, affects_result=False)
    """FLOPs of training at which methods are compared, each after its last round within them; empty for none."""
    reward_batch_size: int = number(256, at_least=1, at_most=1_000_000)
    """Completions handed to a reward at once, at most: those of as many whole prompts as fit, and of one prompt at
    least. What a reward gives that compares completions depends on it."""
    sample_prompts: int = number(8, at_least=0, at_most=1_000_000)
    """Prompts whose completions are shown in samples.jsonl."""
