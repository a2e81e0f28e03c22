"""Run one job after the other, in a worker process or in the engine's own: log, entry, commit, answer."""

import builtins
import math
import os
import platform
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import pipeline
from pipeline import arithmetic
from pipeline.engine.store.store import ANSWERS, FLOPS, Store, Verified
from pipeline.engine.workers import work as jobs
from pipeline.engine.workers.messages import AttemptStopped, End, FromWorker, JobStarted, RunJob
from pipeline.engine.workers.work import OutputTo, Work
from pipeline.errors import DamagedOutput
from pipeline.files import remove_tree
from pipeline.outputs.check import check_output

# -- changed -----------------------------------------------------------------------------------------------------
# What a job changes in its process, so that later jobs can get another process. Only state is compared that is
# quick to read and that libraries do not change: importing one may add variables to the environment, folders to
# the search path, and threads that end with the process.


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# the values that `ps` or a prompt has shown last
_BUILTINS = itemgetter(*(name for name in vars(builtins) if name != "_"))
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)


def _umask() -> int:
    mask = os.umask(0o077)  # the only way to read the umask is to set it
    os.umask(mask)
    return mask


def _threads() -> object:
    return [one.ident for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]


def _torch() -> object:
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_device"):
        return True, False, "torch.float32", "cpu"
    inference = torch.is_inference_mode_enabled()
    return torch.is_grad_enabled(), inference, str(torch.get_default_dtype()), str(torch.get_default_device())


_LOOKS: dict[str, Callable[[], object]] = {
    "the working directory": os.getcwd,
    "the umask": _umask,
    "the environment": lambda: dict(os.environ),
    "the search path of modules": lambda: dict.fromkeys(sys.path, True),
    "built-in functions": lambda: _BUILTINS(vars(builtins)),
    "the standard streams": lambda: [(std, std.closed) for std in (sys.stdin, sys.stdout, sys.stderr) if std],
    # Descriptors 1 and 2 are restored after each job, whose log they were, unless the job closed the saved ones.
    "descriptors 0 to 2": lambda: [(status.st_dev, status.st_ino) for status in map(os.fstat, (0, 1, 2))],
    "signal handlers": lambda: (list(map(signal.getsignal, _SIGNALS)), signal.getitimer(signal.ITIMER_REAL)),
    "limits of the process": lambda: list(map(resource.getrlimit, _LIMITS)),
    "threads that still run": _threads,
    "defaults of torch": _torch,
}


def process_state() -> dict[str, object]:
    """Return the state of this process that later jobs rely on."""
    return {name: _look(look) for name, look in _LOOKS.items()}


def _look(look: Callable[[], object]) -> object:
    try:
        return look()
    except BaseException as error:  # a folder that is gone, a closed descriptor, or an attribute of a job's object
        return type(error)


def changed_since(before: Mapping[str, object]) -> str:
    """Say what has changed since `before`; "" for nothing."""
    now = process_state()
    return ", ".join(name for name, value in before.items() if _differs(value, now[name]))


def _differs(before: object, now: object) -> bool:
    try:
        if isinstance(before, dict) and isinstance(now, dict):  # additions do not matter
            return any(value != now.get(name) for name, value in before.items())
        return before != now
    except BaseException:  # an object of the job has replaced it, and cannot be compared
        return True


@dataclass(frozen=True, kw_only=True)
class Part:
    """Part of a rank in a multi-GPU job, from its command line; its leader stores the output.

    Attributes:
        rank: Number of the rank.
        device: Its device, as `torch.device` takes it.
        out: Folder for its output.
    """

    rank: int
    device: str
    out: str


class JobRunner:
    """Runs jobs one at a time and keeps loaded models between them.

    Attributes:
        device: ``cpu`` or ``cuda``, or the device of a rank.
        name: Product name of the device.
        part: Its part of a multi-GPU job, which stores no output; None for whole jobs.
        memory: Passed to every job as `Work.memory`.
        stop_requested: Whether no further job will come, and the present one should save a checkpoint or finish.
        cut_off: Whether the grace period is over, so that a `KeyboardInterrupt` is not the job's own.
    """

    def __init__(
        self,
        send: Callable[[FromWorker], None],
        device: str = "cpu",
        name: str = "GPU",
        *,
        own_process: bool = True,
    ) -> None:
        """Prepare to run jobs.

        Args:
            send: Receives the messages of a job.
            device: See above.
            name: Likewise.
            own_process: Whether the standard streams belong to this worker alone. Otherwise they are restored
                while `send` runs.
        """
        self.device, self.name = device, name
        self.part: Part | None = None
        self.memory: dict[str, Any] = {}
        self.stop_requested = False
        self.cut_off = False
        self._in_body = False
        self._send = send
        self._own_process = own_process
        self._as_begun: dict[str, object] | None = None
        self._arithmetic = ""

    def interrupt(self) -> None:
        """Interrupt the job that runs in this thread, now or at its next step. Called in a signal handler.

        Raises:
            KeyboardInterrupt: In the middle of the job's own code, but never between the steps around it, which
                would be left unfinished.
        """
        self.stop_requested = self.cut_off = True
        if self._in_body:
            raise KeyboardInterrupt

    def run(self, order: RunJob) -> End:
        """Run a job to its end; return its last message.

        Raises:
            KeyboardInterrupt: The worker was told to stop.
        """
        start = time.monotonic()
        if self._as_begun is None and self._own_process:  # the engine's own process cannot be replaced
            self._as_begun = process_state()
        ending: End | None = None
        try:
            with nullcontext() if self.part else OutputTo(order.log_path) as output:
                ending = self._run_logged(order, output, start)
        # the log cannot be written, or its descriptors were closed after everything was sent
        except Exception as error:
            ending = ending or jobs.raised(order, error, start)
        # the ranks ran in other processes
        if self._as_begun is None or isinstance(ending, AttemptStopped) or order.gang:
            return ending
        return replace(ending, left_changed=changed_since(self._as_begun))

    def _run_logged(self, order: RunJob, output: OutputTo | None, start: float) -> End:
        def send(message: FromWorker) -> None:
            with nullcontext() if self._own_process or output is None else output.paused():
                self._send(message)

        def report(message: FromWorker) -> None:
            with self._outside_body():
                send(message)

        try:
            send(JobStarted(job_id=order.job_id, attempt=order.attempt))
            work = self._execute(order, report, start)
        except BaseException as error:  # SystemExit too: a job may end itself, but not its worker
            if self.cut_off:  # whatever the job makes of a stop request
                raise KeyboardInterrupt from error
            failed = jobs.ended_by(order, error, start, stop_requested=self.stop_requested)
        else:
            return jobs.finished(
                order, work, start, self._held_mb(order) if work.held_mb is None else work.held_mb
            )
        # Not inside `except`: the traceback there keeps the frames of the job and all their tensors alive.
        return failed if isinstance(failed, AttemptStopped) else replace(failed, held_mb=self._held_mb(order))

    def _held_mb(self, order: RunJob) -> int:
        """Return the MiB still held on a device that has several workers; 0 if it has only this one."""
        if order.slots == 1:
            return 0
        jobs.give_back(self.device)
        return jobs.held_mb(self.device)

    @contextmanager
    def _body(self) -> Iterator[None]:
        """Mark the job's own code, in which `interrupt` may raise."""
        self._in_body = True
        try:
            if self.cut_off:
                raise KeyboardInterrupt
            with jobs.contained():
                yield
        finally:
            self._in_body = False

    @contextmanager
    def _outside_body(self) -> Iterator[None]:
        self._in_body = False
        yield
        self._in_body = True
        if self.cut_off:
            raise KeyboardInterrupt

    def _execute(self, order: RunJob, report: Callable[[FromWorker], None], start: float) -> Work:
        """Run a job on verified inputs and commit its output; the leader does both for all ranks of a gang."""
        store, scratch, part = jobs.store_at(order.store), _folder(order.scratch), self.part
        key = "" if part else order.key
        out = Path(part.out) if part else store.begin(scratch, key, order.attempt) if key else scratch
        work = jobs.work_of(
            order,
            out,
            self.device,
            memory=self.memory,
            send=report,
            stopping=lambda: self.stop_requested,
            rank=part.rank if part else 0,
        )
        if not order.keep_models:
            self.memory.clear()
            jobs.give_back(self.device)
        jobs.begin_measuring(self.device)
        try:
            if not part:  # an input is trusted only if this run has read it whole and it has not changed since
                verified = Verified(store, _folder(order.verified))
                for key_read in dict.fromkeys(chain.from_iterable(order.inputs.values())):
                    verified.require(key_read)
            self._call(order, work)
            if key:
                self._commit(order, store, out, work, start)
        except BaseException as error:
            if isinstance(error, DamagedOutput):
                self.memory.clear()  # it may have been loaded before the damage was found
            if key:
                remove_tree(out)
            raise
        return work

    def _call(self, order: RunJob, work: Work) -> None:
        work.hold_to_limit()
        with self._body():
            if order.gang and not self.part:
                from pipeline.engine.workers.gang import run_gang  # most workers never lead ranks

                run_gang(order, work)
            else:
                jobs.call_entry(order, work)
        work.check_counts()

    def _commit(self, order: RunJob, store: Store, out: Path, work: Work, start: float) -> None:
        entries = check_output(out)
        # A job that continued from a checkpoint took longer than this attempt.
        resumed = os.path.lexists(work.checkpoints)
        took_s = math.inf if resumed else time.monotonic() - start
        store.commit(order.key, out, self._origin(order), took_s, entries)
        _link(order)
        store.costs.note(order.key, _cost(work, start))
        if resumed:
            remove_tree(work.checkpoints)

    def _origin(self, order: RunJob) -> dict[str, str]:
        # How a CPU computes depends on the environment, which libraries read once.
        self._arithmetic = self._arithmetic or arithmetic.describe(os.environ, self.device, self.name)
        return {"job": order.job_id, "arithmetic": self._arithmetic, **_versions()}


_folder = lru_cache(maxsize=16)(Path)


def _link(order: RunJob) -> None:
    """Link the folder of a job's log to its output; for people only, so errors are ignored."""
    # Both folders are new, so neither is a link; the folders above are shared by many jobs. No Path objects: they
    # are slow.
    folder, key = order.log_path.rpartition("/")[0], order.key
    store = _relative(order.store, folder.rpartition("/")[0])
    with suppress(OSError):
        os.symlink(f"../{store}/{key[:2]}/{key}", f"{folder}/output")  # noqa: PTH211


@lru_cache(maxsize=1024)
def _relative(folder: str, start: str) -> str:
    return os.path.relpath(os.path.realpath(folder), os.path.realpath(start))


def _cost(work: Work, start: float) -> dict[str, float]:
    run_s = round(time.monotonic() - start, 3)
    flops = {f"{FLOPS}/{purpose}": count for purpose, count in work.flops.items()}
    counts = {"tokens": work.tokens, ANSWERS: work.answers, FLOPS: sum(flops.values()), **flops}
    return {"run_s": run_s, "load_s": round(work.load_s, 3), **counts}


@cache
def _versions() -> dict[str, str]:
    """Return the versions that results may depend on, whether or not this process has imported the libraries."""
    from importlib.metadata import PackageNotFoundError, version  # 10 ms that the start of a worker does not need

    versions = {"pipeline": pipeline.__version__, "python": platform.python_version()}
    for package in ("torch", "transformers"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
