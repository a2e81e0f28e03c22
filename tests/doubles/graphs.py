"""CUDA graphs on a CPU: operations that are recorded once, and done again on the same memory without any Python.

Like a device's, a recording does nothing: what it has written meanwhile is put back. What a graph cannot hold is
refused: waiting for a number, and sending one from the host. What a recording that failed leaves behind is that of
torch 2.11 to 2.13: `Left`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ASKS = {
    *("_local_scalar_dense", "item", "is_nonzero", "equal"),
    *("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "one_hot"),
}
"""Operations that a GPU has to answer: with a number, or with a shape that depends on numbers."""
REFUSED = "operation not permitted when stream is capturing"
SENDS = {"lift_fresh"}
"""Those that make a tensor of what the host has."""


def waits(op: Any, args: Any, kwargs: Any) -> bool:
    """Whether the host waits for a GPU that does this."""
    name = op.overloadpacket.__name__
    if name == "where":
        return len(args) == 1
    if name == "repeat_interleave":
        return any(isinstance(given, Tensor) for given in args[1:]) and kwargs.get("output_size") is None
    indices = args[1] if name.startswith("index") and len(args) > 1 and isinstance(args[1], list | tuple) else ()
    kinds = {index.dtype for index in indices if isinstance(index, Tensor)}
    return name in ASKS or bool(kinds & {torch.bool, torch.uint8})


class Recorder(TorchDispatchMode):
    """Notes operations, with the memory that they are done on."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, Any, Any, list[Tensor | None]]] = []
        """Operations, with the tensors that each has made; None for those that are of memory it was given."""
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, op: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs, writes = op.overloadpacket.__name__, kwargs or {}, False
        if name in SENDS or waits(op, args, kwargs):
            raise RuntimeError(f"{REFUSED}: {name}")
        for place, argument in zip(
            op._schema.arguments, [*args, *[None] * len(op._schema.arguments)], strict=False
        ):
            given = kwargs.get(place.name, argument)
            if place.alias_info is not None and place.alias_info.is_write and given is not None:
                self._keep(given)
                writes = True
        found = op(*args, **kwargs)
        there = {_memory(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        made = [
            one if isinstance(one, Tensor) and _memory(one) not in there else None for one in tree_leaves(found)
        ]
        if writes or any(one is not None for one in made):  # a view of what is there is nothing to be done again
            self.done.append((op, args, kwargs, made))
        return found

    def _keep(self, written: Tensor) -> None:
        memory = written.untyped_storage()
        if memory.data_ptr() not in self._before:
            self._before[memory.data_ptr()] = memory, memory.clone()

    def put_back(self) -> None:
        """As it was before anything was recorded."""
        for memory, before in self._before.values():
            memory.copy_(before)


class Graph:
    """Of `torch.cuda.CUDAGraph`."""

    replays = 0

    def __init__(self) -> None:
        self.recorder: Recorder | None = None

    def replay(self) -> None:
        assert self.recorder is not None
        Graph.replays += 1
        for op, args, kwargs, made in self.recorder.done:
            found = op(*args, **kwargs)
            for old, new in zip(made, [found] if isinstance(found, Tensor) else tree_leaves(found), strict=True):
                if old is not None:
                    old.copy_(new)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Stream:
    """Of `torch.cuda.Stream`."""

    device = "cpu"

    def wait_stream(self, _other: Stream) -> None:
        pass


class Left:
    """The state of a device that a recording changes, and gives back at its end alone.

    Attributes:
        current: Its stream.
        pools: Pools of memory that are open, each of which keeps the allocator from giving anything back.
        users: Of each pool: graphs, and recordings that have not ended.
        generating: Whether the generator of random numbers is recorded.
    """

    current = Stream()
    pools: ClassVar[list[object]] = []
    users: ClassVar[Counter[object]] = Counter()
    generating = False


@contextmanager
def recording(graph: Graph, *, pool: object, stream: Stream, capture_error_mode: str) -> Iterator[None]:
    """Of `torch.cuda.graph`."""
    assert pool is not None
    assert isinstance(stream, Stream)
    assert capture_error_mode == "thread_local"
    assert pool not in Left.pools
    graph.recorder, before = Recorder(), Left.current
    Left.current, Left.generating = stream, True
    Left.pools.append(pool)
    Left.users[pool] += 1
    try:
        with graph.recorder:
            yield
    except RuntimeError as error:
        if REFUSED in str(error):  # then the end of the recording fails too, before anything is given back
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
        Left.users[pool] -= 1
        end(before, pool)
        raise
    finally:
        graph.recorder.put_back()
    end(before, pool)


def end(before: Stream, pool: object) -> None:
    """As a recording ends that has not failed."""
    Left.current, Left.generating = before, False
    Left.pools.remove(pool)


def end_allocate(_device: int, pool: object) -> None:
    """Of `torch._C._cuda_endAllocateToPool`."""
    if pool not in Left.pools:
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
    Left.pools.remove(pool)


def release_pool(_device: int, pool: object) -> None:
    """Of `torch._C._cuda_releasePool`."""
    Left.users[pool] -= 1


@contextmanager
def on_stream(_stream: Stream) -> Iterator[None]:
    """Of `torch.cuda.stream`."""
    yield


def use_doubles(patch: pytest.MonkeyPatch) -> None:
    """Let graphs be recorded here."""
    handles = itertools.count(1)
    doubles = {
        "CUDAGraph": Graph,
        "Stream": Stream,
        "current_device": lambda: 0,
        "current_stream": lambda: Left.current,
        "graph": recording,
        "graph_pool_handle": lambda: (0, next(handles)),
        "set_stream": lambda stream: setattr(Left, "current", stream),
        "stream": on_stream,
    }
    for name, double in doubles.items():
        patch.setattr(torch.cuda, name, double)
    patch.setattr(torch._C, "_cuda_endAllocateToPool", end_allocate, raising=False)
    patch.setattr(torch._C, "_cuda_releasePool", release_pool, raising=False)
    patch.setattr(Graph, "replays", 0)
    for name, value in {"current": Stream(), "pools": [], "users": Counter(), "generating": False}.items():
        patch.setattr(Left, name, value)
