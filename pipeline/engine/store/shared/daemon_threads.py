"""Threads that do what they are given, beside a run."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread


class DaemonThreads:
    """Threads that do what they are given, in order. One that waits for the network holds up no end."""

    def __init__(self, name: str, number: int, closing: Event) -> None:
        """Start them.

        Args:
            name: For people who look at stacks.
            number: How many.
            closing: Set when no further task is to begin.
        """
        self._closing = closing
        self._number = number
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        for index in range(number):
            Thread(target=self._work, name=f"{name}-{index}", daemon=True).start()

    def put(self, task: Callable[[], None]) -> None:
        """Have something done."""
        self._tasks.put(task)

    def dismiss(self) -> None:
        """Let the threads end that have nothing to do."""
        for _ in range(self._number):
            self._tasks.put(lambda: None)

    def _work(self) -> None:
        while not self._closing.is_set():
            self._tasks.get()()
