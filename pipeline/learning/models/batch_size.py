"""Find batch sizes that fit: repeat work in smaller batches when memory runs out, and store the size.

Batches are halved by whole groups (all samples of a prompt, all completions that are compared), so no group is
split. A stored size is a hint: it saves later jobs the failure, and never makes a batch larger than configured.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import psutil
import torch
from msgspec import Meta
from torch import nn
from transformers import PreTrainedConfig

from pipeline.errors import OUT_OF_MEMORY_TEXTS, OutOfMemory
from pipeline.foreign import recall, remember
from pipeline.learning.models.tensor_parallel import split_over

Result = TypeVar("Result")

MICRO_BATCH = "micro-batch"
"""Name in the log for a batch whose gradients are accumulated."""

_SHARED: ContextVar[bool] = ContextVar("shared", default=False)
_MAKE_ROOM: ContextVar[Callable[[], bool]] = ContextVar("make_room", default=lambda: False)


@contextmanager
def on_device(*, shared: bool, make_room: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Set what else may be on the device meanwhile.

    Args:
        shared: Whether other jobs may run on the device, and take its memory. Smaller batches would then change
            the last bits of the result, and be stored, for a reason that is gone the next time. So batches are
            never halved there.
        make_room: Frees what earlier jobs have left in this process, and returns whether there was anything. If
            so, the same size is tried again, since memory that a worker happens to hold must not change sizes.
    """
    tokens = _SHARED.set(shared), _MAKE_ROOM.set(make_room)
    try:
        yield
    finally:
        _SHARED.reset(tokens[0])
        _MAKE_ROOM.reset(tokens[1])


class BatchSize:
    """Number of sequences to process at once.

    Attributes:
        size: Sequences, a multiple of the group; at least one group.
    """

    def __init__(
        self,
        configured: int,
        *,
        group: int = 1,
        what: str = "batch",
        remedy: str = "",
        hint: Path | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Start with the configured size, or a smaller one that fitted before.

        Args:
            configured: Largest number of sequences at once.
            group: Sequences that belong together.
            what: Name in the log: ``micro-batch``, ``batch``.
            remedy: Advice to the user if not even one group fits.
            hint: File with the size that fitted after a larger one had not; None stores none.
            about: Description of the work for this file.
        """
        self.group, self._what, self._remedy, self._hint, self._identity = group, what, remedy, hint, about
        self.configured = self._whole(configured)
        stored = self._stored_hint()
        self.start_at(configured if stored is None else stored.size)
        self._unproven = False
        self._tried: list[int] = []

    def start_at(self, size: int) -> None:
        """Continue with a size that fitted before, unless a smaller one is configured."""
        self.size = min(self.configured, self._whole(size))

    def run(
        self,
        work: Callable[[], Result],
        *,
        undo: Callable[[], None] = lambda: None,
        used: Callable[[], int] | None = None,
        together: bool = False,
    ) -> Result:
        """Do work that looks at `size`; when memory runs out, halve the size and do it again from its start.

        Args:
            work: Must be repeatable after `undo`.
            undo: Takes back what a failed attempt has changed and lets go of its tensors.
            used: Returns the sequences that the work has at once with the present `size`, if fewer.
            together: Whether other ranks wait in the middle of it. It cannot be done again then: the attempt ends,
                and the next one begins with half.

        Raises:
            OutOfMemory: Not even one group fits. On a shared device what the allocator said goes on as it is.
        """
        while True:
            try:
                result = work()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or _SHARED.get():
                    raise
                if together:
                    raise self.give_up(error) from error
                text = (str(error).splitlines() or [type(error).__name__])[0]
            else:
                if self._unproven:
                    self._remember(self.size)
                self._unproven = False
                return result
            # Not inside `except`: the traceback there holds the frames of the failed work and all their tensors.
            undo()
            had_more = _MAKE_ROOM.get()()
            free_memory()
            if had_more:
                _say("out of memory: let go of models of earlier jobs, and try the same size again")
                continue
            self._halve(text, self.size if used is None else min(self.size, used()))

    def give_up(self, error: BaseException) -> OutOfMemory:
        """Remember half of the size for the next attempt, where this one cannot go on.

        Returns:
            What to raise.
        """
        groups = self.size // self.group
        if groups > 1:
            self._remember(groups // 2 * self.group)
        text = (str(error).splitlines() or [type(error).__name__])[0]
        return OutOfMemory(self._what, (*self._tried, self.size), self.group, text, self._remedy)

    def _halve(self, text: str, tried: int) -> None:
        self._tried.append(tried)
        groups = tried // self.group
        if groups <= 1:
            raise OutOfMemory(self._what, tuple(self._tried), self.group, text, self._remedy)
        self.size = groups // 2 * self.group
        self._unproven = True
        accumulated = f" with {self.configured / self.size:.3g}x accumulation" if self._what == MICRO_BATCH else ""
        _say(f"out of memory at {self._what} {tried}: using {self.size}{accumulated}")

    def _stored_hint(self) -> _Hint | None:
        return None if self._hint is None else recall(self._hint, _Hint)

    def _remember(self, size: int) -> None:
        if self._hint is not None:
            old = self._stored_hint()
            remember(self._hint, {"size": size if old is None else min(size, old.size), "about": self._identity})

    def _whole(self, size: int) -> int:
        return max(1, size // self.group) * self.group


class BatchSizes:
    """Batch sizes of the work that a job does with some models on its device."""

    def __init__(self, hints: Path | None, device: str, *models: nn.Module) -> None:
        """Prepare.

        Args:
            hints: Folder of what jobs have learnt; None remembers nothing.
            device: ``cpu`` or ``cuda``.
            models: All that are in memory at once.
        """
        self._hints = hints
        self._device = device
        self._models = models

    def begin(
        self,
        work: str,
        configured: int,
        *,
        length: int,
        group: int = 1,
        what: str = "batch",
        remedy: str = "",
        together: bool = False,
    ) -> BatchSize:
        """Return the batch size for a kind of work.

        Args:
            work: Kind of work, such as ``generate``: sizes that fit differ between kinds.
            configured: Largest number of sequences at once.
            length: Tokens of the longest sequence.
            group: Sequences that belong together.
            what: Name in the log.
            remedy: Advice to the user if not even one group fits.
            together: Whether all ranks that share a model call this, and must start with the same size.
        """
        identity = {**self._identity, "work": work, "tokens_up_to": 1 << max(0, length - 1).bit_length()}
        text = json.dumps(identity, sort_keys=True)
        path = None
        if self._hints is not None:
            path = self._hints / "batch_sizes" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"

        batch = BatchSize(configured, group=group, what=what, remedy=remedy, hint=path, about=identity)
        ranks = next(filter(None, map(split_over, self._models)), None) if together else None
        if ranks is not None:
            batch.start_at(ranks.least(batch.size))  # hints are read by each, and may be written meanwhile
        return batch

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return {"device": _device_name(self._device), "models": [memory_identity(model) for model in self._models]}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, by the messages of several allocators."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY_TEXTS)


def free_memory() -> None:
    """Free unreferenced memory, so that allocations of other sizes can use it."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def memory_identity(model: nn.Module) -> str:
    """Return what determines the memory that work with a model takes: architecture and types, not its weights."""
    config = getattr(model, "config", None)
    described = config.to_dict() if isinstance(config, PreTrainedConfig) else {}
    for name in ("_name_or_path", "transformers_version"):
        described.pop(name, None)
    parameters = list(model.parameters())
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    types = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
    digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:16]
    ranks = split_over(model)
    return " ".join(
        [
            *([] if ranks is None else [f"1/{ranks.size} of"]),
            type(model).__name__,
            f"{sum(parameter.numel() for parameter in parameters)} parameters",
            f"{trained} trained",
            *types,
            digest,
        ]
    )


def _say(text: str) -> None:
    with suppress(OSError):
        print(text, flush=True)  # noqa: T201 - the job's log


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        gpu = torch.cuda.get_device_properties(torch.device(device))
        return f"{gpu.name} {gpu.total_memory >> 30} GiB"
    return f"{device} {psutil.virtual_memory().total >> 30} GiB"


@dataclass(frozen=True, kw_only=True)
class _Hint:
    """Stored size of a kind of work, one file each. Files are replaced whole, so writers need no lock."""

    size: Annotated[int, Meta(ge=1, le=1 << 40)]
