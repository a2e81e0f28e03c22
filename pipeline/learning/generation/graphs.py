"""CUDA graphs: what a device is to do, recorded once, and said again in one call.

A graph is a list of operations on places in memory. To record it, Python says them once; whoever replays it runs
no Python at all. So what is recorded may depend on nothing but what is in memory, and must not wait for a number.
"""

from __future__ import annotations

from collections.abc import Callable
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
            RuntimeError: It does what a graph cannot hold.
        """
        graph = self._cuda.CUDAGraph()
        # Other threads of a worker may ask the driver for something, which is no part of it.
        with self._cuda.graph(graph, pool=self._pool, stream=self._aside, capture_error_mode="thread_local"):
            work()
        replay: Callable[[], None] = graph.replay
        return replay
