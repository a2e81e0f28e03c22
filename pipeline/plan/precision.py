"""A precision that is slow on the devices of a run: one warning before it starts."""

from __future__ import annotations

from pipeline.config.schema import Config, DType


def slow_precision(config: Config, gpu: bool) -> str | None:
    """What to say of half precision on a CPU whose instructions for it are not to be used.

    Args:
        config: The request.
        gpu: Whether it runs on GPUs.
    """
    system = config.system
    if gpu or not system.portable or system.dtype is DType.float32:
        return None
    return (
        f"system.dtype={system.dtype.name} is slower than float32 on a CPU with system.portable=true, which does "
        "without the instructions for it: use system.dtype=float32, or system.portable=false where the "
        "processor has them"
    )
