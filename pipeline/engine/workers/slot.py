"""A place for a worker, as the pool keeps books on it: which worker is there, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.engine.workers.messages import RunJob
from pipeline.engine.workers.protocol import Worker
from pipeline.errors import WorkerError


@dataclass(eq=False)
class Slot:
    """A place for a worker, and the worker in it."""

    worker: Worker
    worker_index: int
    start_deadline: float | None = None
    failed_starts: int = 0
    """How many workers in a row ended in this place before their first job."""
    used: bool = False
    """Whether the worker has begun a job."""
    alive: bool = False
    kill_deadline: float | None = None
    """When a worker that hangs is to be killed, whatever it says by then."""
    closed: bool = False
    """Whether the worker is not to be replaced when it ends."""
    dismissed: bool = False
    """Whether the worker is being ended on purpose, so that nothing it still says matters."""
    rss_bytes: int = 0
    """The most memory that a worker in this place was seen to hold."""
    came: bool = True
    """Whether there is a machine for it, or was once."""
    ready: bool = False
    """Whether the worker has said that it is."""
    orders: list[RunJob] = field(default_factory=list)
    """What it is given with the next `Pool.flush`."""

    def start(self, deadline: float | None) -> None:
        """Start the worker, which is to be ready by then if that is limited.

        Raises:
            WorkerError: Its process cannot be started.
        """
        try:
            self.worker.start()
        except OSError as error:
            raise WorkerError(f"cannot start worker {self.worker.index}: {error}") from error
        self.start_deadline = deadline
        self.alive, self.used, self.dismissed, self.ready = True, False, False, False
