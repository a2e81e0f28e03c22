"""How a worker on a Ray cluster was lost, in words, from what Ray raises."""

from __future__ import annotations

from dataclasses import dataclass

_SHOWN = 300


@dataclass(frozen=True)
class LostWorker:
    """The end of an actor.

    Attributes:
        how: In a few words.
        elsewhere: Whether it was its node that was lost, so that neither a job nor a device is to blame.
        details: All that Ray says, indented as the end of a log.
    """

    how: str
    elsewhere: bool = False
    details: str = ""


def loss_of(error: BaseException) -> LostWorker:
    """Say how a worker was lost.

    Args:
        error: What a call to its actor has raised. Told by names and texts, so that nobody has to import Ray.
    """
    text = str(error).strip()
    details = "".join(f"\n    {line}" for line in text.splitlines()[-15:])
    low = text.lower()
    names = {kind.__name__ for kind in type(error).__mro__}
    if getattr(error, "preempted", False):
        return LostWorker("its node was taken away (preempted)", True, details)
    if "OutOfMemoryError" in names or "memory monitor" in low or "low memory" in low or "out of memory" in low:
        return LostWorker("Ray's memory monitor killed it, as its node was out of memory", False, details)
    if "NodeDiedError" in names or "node has died" in low or "node died" in low or "node was terminated" in low:
        return LostWorker("its node was lost", True, details)
    if getattr(error, "actor_init_failed", False):
        return LostWorker(f"its node cannot serve: {_reason(text)}", False, details)
    if names & {"RayActorError", "WorkerCrashedError"}:
        return LostWorker("its actor died", False, details)
    return LostWorker(f"Ray: {type(error).__name__}: {text[:_SHOWN]}", False, details)


def _reason(text: str) -> str:
    """The exception of the constructor: the last line of its traceback."""
    last = text.splitlines()[-1].strip()
    return last.partition("WorkerError: ")[2] or last
