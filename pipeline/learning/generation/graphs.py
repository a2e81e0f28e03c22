"""CUDA graphs: what a device is to do, recorded once, and said again in one call.

A graph is a list of operations on places in memory. To record it, Python says them once; whoever replays it runs
no Python at all. So what is recorded may depend on nothing but what is in memory, and must not wait for a number.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch


class Graphs:
    """Graphs that share the memory of what they compute on the way: they take turns, and leave nothing there."""

    def __init__(self) -> None:
        cuda: Any = torch.cuda  # which is typed in parts
        self._cuda = cuda
        self._pool = cuda.graph_pool_handle()
        self._aside = cuda.Stream()

    def warm(self, work: Callable[[], None]) -> None:
        """Do it where graphs are recorded: what libraries do at the first time alone cannot be recorded."""
        current = self._cuda.current_stream()
        self._aside.wait_stream(current)
        with self._cuda.stream(self._aside):
            work()
        current.wait_stream(self._aside)

    def recorded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record work, which is not done meanwhile; returns what does it.

        Raises:
            RuntimeError: It does what a graph cannot hold. The device is then as if nothing had been recorded.
        """
        graph, before = self._cuda.CUDAGraph(), self._cuda.current_stream()
        failed: list[Exception] = []

        def noted() -> None:
            try:
                work()
            except Exception as error:
                failed.append(error)
                raise

        try:
            self._record(graph, noted, self._pool)
        except RuntimeError as error:
            self._leave(before)
            # Of what failed first, the end of the recording says no more than that something did.
            raise (failed or [error])[0] from None
        replay: Callable[[], None] = graph.replay
        return replay

    def _record(self, graph: Any, work: Callable[[], object], pool: Any) -> None:
        # Other threads of a worker may ask the driver for something, which is no part of it.
        with self._cuda.graph(graph, pool=pool, stream=self._aside, capture_error_mode="thread_local"):
            work()

    def _leave(self, before: Any) -> None:
        """Leave a recording that has failed, of which `torch.cuda.graph` (2.11 to 2.13) leaves three things.

        Its stream stays the current one. Its memory pool stays open, and meanwhile the allocator gives nothing
        back, neither by `empty_cache` nor before it runs out of memory. The generator of random numbers waits for
        the end of a recording, which it is told of by one that succeeds.
        """
        self._cuda.set_stream(before)
        device = self._cuda.current_device()
        with suppress(RuntimeError):  # the pool is closed already where the recording ended as it should
            # As `torch.cuda.use_mem_pool` ends, which closes no pool but those that it has opened itself.
            torch._C._cuda_endAllocateToPool(device, self._pool)
            torch._C._cuda_releasePool(device, self._pool)
            mark = torch.zeros(1, device=self._aside.device)
            self._record(self._cuda.CUDAGraph(), lambda: mark.add_(1), self._cuda.graph_pool_handle())
