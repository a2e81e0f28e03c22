"""What the pool expects of a worker, whatever carries it: a process here, this process itself, an actor elsewhere.

A worker lives once: started, given one job at a time, and over when it has delivered `WorkerExited`. The pool
makes another one in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pipeline.workers.messages import FromWorker, RunJob

Deliver = Callable[[FromWorker], None]


class Worker(Protocol):
    """One device and whatever runs jobs on it. No method but `receive` may take long, and none may raise."""

    @property
    def index(self) -> int:
        """Number of the worker in the pool."""

    def start(self) -> None:
        """Begin; `WorkerReady` follows."""

    def send(self, job: RunJob) -> None:
        """Hand over a job. Where that fails the worker is lost, and `WorkerExited` follows."""

    def sources(self) -> Sequence[int]:
        """File descriptors that become readable when `receive` has something to do."""

    def pending(self) -> bool:
        """Whether `receive` has something to do that no descriptor tells of."""

    def receive(self, deliver: Deliver) -> None:
        """Deliver what has arrived, without waiting for more. `WorkerExited` comes last, and once."""

    def ask_to_stop(self) -> None:
        """First step of stopping: leave the current job and exit."""

    def terminate(self) -> None:
        """Second step: end it in a way that it could catch."""

    def kill(self) -> None:
        """Last step: end it and all its children in a way that nothing can catch."""

    def interrupt(self) -> None:
        """Called in a signal handler: break off a job that occupies the calling thread itself, if there is one."""

    def last_words(self) -> str:
        """The end of what it wrote outside of jobs: why it could not start, for example. May be empty."""
