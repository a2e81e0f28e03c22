"""What the pool expects of a worker, whatever carries it: a process here, this process itself, an actor elsewhere.

A worker lives once: started, given jobs that it runs one at a time, and over when it has delivered
`WorkerExited`. The pool makes another one in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pipeline.engine.workers.messages import FromWorker, RunJob
from pipeline.engine.workers.reaper import Reaper

Deliver = Callable[[FromWorker], None]


class Site(Protocol):
    """Where the workers of a pool live, if it takes more than this machine."""

    def open(self, reaper: Reaper) -> None:
        """Make it ready, before the first worker starts. Raises `WorkerError` where that fails."""

    def close(self, reaper: Reaper) -> None:
        """Let go of it, after the last worker has ended, and whatever has failed before."""


class Worker(Protocol):
    """One device and whatever runs jobs on it. No method but `receive` may take long, and none may raise."""

    @property
    def index(self) -> int:
        """Number of the worker in the pool."""

    def start(self) -> None:
        """Begin; `WorkerReady` follows."""

    def send(self, job: RunJob) -> None:
        """Hand over a job. Where that fails `WorkerExited` follows."""

    def sources(self) -> Sequence[int]:
        """File descriptors that become readable when `receive` has something to do."""

    def pending(self) -> bool:
        """Whether `receive` has something to do that no descriptor tells of."""

    def receive(self, deliver: Deliver) -> None:
        """Deliver what has arrived, without waiting for more. `WorkerExited` comes last, and once."""

    def show_stacks(self) -> None:
        """Have what it does now written to the job's log, before it is killed for hanging."""

    def ask_to_stop(self) -> None:
        """First step of stopping: let the current job finish or save a checkpoint, then exit."""

    def terminate(self) -> None:
        """Second step: break off the job, in a way that it could catch."""

    def kill(self) -> None:
        """Last step: end it and all its children in a way that nothing can catch."""

    def interrupt(self) -> None:
        """Called in a signal handler, for a job that occupies the calling thread itself: ask it to stop.

        The second time, break it off.
        """

    def last_words(self) -> str:
        """The end of what it wrote outside of jobs, as `tail` has it: why it could not start, for example."""
