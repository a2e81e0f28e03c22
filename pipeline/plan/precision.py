"""What a run draws or computes otherwise than may be meant: a warning each before it starts."""

from __future__ import annotations

from pipeline.config.ignored import GPU_PROFILES
from pipeline.config.schema import Config, DType


def slow_precision(config: Config, gpu: bool) -> str | None:
    """What to say of half precision on a CPU whose instructions for it are not to be used, or of none on a GPU.

    Args:
        config: The request.
        gpu: Whether it runs on GPUs.
    """
    system = config.system
    if gpu and system.dtype is DType.float32 and any(not model.is_trained for model in config.models.values()):
        profiles = ", ".join(f"profile={name}" for name in GPU_PROFILES)
        return (
            "system.dtype=float32 on a GPU takes several times as long as bfloat16 and twice the memory, in "
            f"batches made for a CPU: use the profile of its memory, of {profiles}, or set system.dtype=bfloat16"
        )
    if gpu or not system.portable or system.dtype is DType.float32:
        return None
    return (
        f"system.dtype={system.dtype.name} is slower than float32 on a CPU with system.portable=true, which does "
        "without the instructions for it: use system.dtype=float32, or system.portable=false where the "
        "processor has them"
    )


def nucleus_beside_logprobs(config: Config) -> str | None:
    """What to say of algorithms that weigh tokens by a whole distribution, where only its nucleus is drawn from.

    The ratio of such probabilities is that of no policy that drew a text (trl#6789).
    """
    if config.generation.top_p >= 1:
        return None
    names = [name for name, algo in config.algos.items() if algo.enabled and algo.keeps_logprobs]
    if not names:
        return None
    return (
        f"generation.top_p={config.generation.top_p:g} with {', '.join(names)}: texts come from the nucleus, and "
        "log-probabilities are those of the whole distribution, so tokens outside of it are never seen to be bad. "
        "Use generation.top_p=1 where that matters"
    )
