"""Runs one job after the other, in a worker process or in the engine's own: log, entry, commit, answer."""

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
from pipeline.engine.store.store import ANSWERS, FLOPS, Verified
from pipeline.engine.workers import work as jobs
from pipeline.engine.workers.messages import AttemptStopped, FromWorker, JobStarted, RunJob, Said
from pipeline.engine.workers.work import OutputTo, Work
from pipeline.errors import DamagedOutput
from pipeline.files import remove_tree
from pipeline.outputs.check import check_output

# -- changed -----------------------------------------------------------------------------------------------------
# What a job leaves changed in its process, so that later jobs can be given another: only what is quick to look at,
# and where a difference is no library's doing. Importing one may add variables to the environment, folders to the
# search path, and threads that end with the process.


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_BUILTINS = itemgetter(*(name for name in vars(builtins) if name != "_"))  # that is what a prompt has shown last
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)


def _umask() -> int:
    mask = os.umask(0o077)  # the only way to read it is to set it
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
    "the standard streams": lambda: [(one, one.closed) for one in (sys.stdin, sys.stdout, sys.stderr) if one],
    # Two are given back after each job, which had its log there, unless it closed what they were kept in.
    "descriptors 0 to 2": lambda: [(one.st_dev, one.st_ino) for one in map(os.fstat, (0, 1, 2))],
    "signal handlers": lambda: (list(map(signal.getsignal, _SIGNALS)), signal.getitimer(signal.ITIMER_REAL)),
    "limits of the process": lambda: list(map(resource.getrlimit, _LIMITS)),
    "threads that still run": _threads,
    "defaults of torch": _torch,
}


def process_state() -> dict[str, object]:
    """What code of later jobs relies on in this process, as it is now."""
    return {name: _look(look) for name, look in _LOOKS.items()}


def _look(look: Callable[[], object]) -> object:
    try:
        return look()
    except BaseException as error:  # a folder that is gone, a descriptor that is closed, an attribute of the job's
        return type(error)


def changed_since(before: Mapping[str, object]) -> str:
    """What is different by now, in words; "" for nothing."""
    now = process_state()
    return ", ".join(name for name, value in before.items() if _differs(value, now[name]))


def _differs(before: object, now: object) -> bool:
    try:
        if isinstance(before, dict) and isinstance(now, dict):  # what has come does not matter
            return any(value != now.get(name) for name, value in before.items())
        return before != now
    except BaseException:  # something of the job's own is in the place, and cannot be compared
        return True


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a rank is told on its command line: its part of a job of several devices, which its leader stores.

    Attributes:
        rank: Which it is.
        device: What it computes on, as `torch.device` takes it.
        out: Folder for what it writes.
    """

    rank: int
    device: str
    out: str


class JobRunner:
    """Runs jobs one at a time and keeps between them what they load.

    Attributes:
        device: ``cpu`` or ``cuda``, or that of a rank.
        name: Product name of the device.
        part: Which part of a job of several devices it runs, and stores nothing of; None for whole jobs.
        memory: Handed to every job as `Work.memory`.
        stop_requested: No further job will come, and the present one should save a checkpoint or finish.
        cut_off: The patience with the present job is over, so a `KeyboardInterrupt` is not the job's own.
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
            send: Takes what happens during a job.
            device: See above.
            name: Likewise.
            own_process: Whether the standard streams are this worker's alone. Otherwise they are given back
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
        """Called in a signal handler: leave the job that runs in this thread, now or at its next step.

        Raises:
            KeyboardInterrupt: In the middle of the job's own code, but never between the steps around it, which
                would be left half done.
        """
        self.stop_requested = self.cut_off = True
        if self._in_body:
            raise KeyboardInterrupt

    def run(self, order: RunJob) -> Said:
        """Run a job to its end.

        Raises:
            KeyboardInterrupt: The worker was told to stop.
        """
        start = time.monotonic()
        if self._as_begun is None and self._own_process:  # there is no replacing of the engine's own process
            self._as_begun = process_state()
        said: Said | None = None
        try:
            with nullcontext() if self.part else OutputTo(order.log_path) as output:
                said = self._run_logged(order, output, start)
        except Exception as error:  # the log cannot be written; or its descriptors were closed, when all is said
            said = said or jobs.raised(order, error, start)
        if self._as_begun is None or isinstance(said, AttemptStopped) or order.gang:  # whose ranks were others
            return said
        return replace(said, left_changed=changed_since(self._as_begun))

    def _run_logged(self, order: RunJob, output: OutputTo | None, start: float) -> Said:
        def send(message: FromWorker) -> None:
            with nullcontext() if self._own_process or output is None else output.paused():
                self._send(message)

        def report(message: FromWorker) -> None:
            with self._outside_body():
                send(message)

        try:
            send(JobStarted(job_id=order.job_id, attempt=order.attempt))
            work = self._execute(order, report, start)
        except BaseException as error:  # SystemExit too: a job may end itself, not its worker
            if self.cut_off:  # whatever the job makes of that
                raise KeyboardInterrupt from error
            failed = jobs.ended_by(order, error, start, stop_requested=self.stop_requested)
        else:
            return jobs.finished(
                order, work, start, self._held_mb(order) if work.held_mb is None else work.held_mb
            )
        # Not inside `except`: the traceback there holds the frames of the job and all their tensors.
        return failed if isinstance(failed, AttemptStopped) else replace(failed, held_mb=self._held_mb(order))

    def _held_mb(self, order: RunJob) -> int:
        """What stays on a device with other workers; where there are none it is nobody's concern."""
        if order.slots == 1:
            return 0
        jobs.give_back(self.device)
        return jobs.held_mb(self.device)

    @contextmanager
    def _body(self) -> Iterator[None]:
        """The job's own code, where `interrupt` may strike."""
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
            if not part:  # no input is trusted that was not read whole in this run and is as it was then
                verified = Verified(store, _folder(order.verified))
                for key_read in dict.fromkeys(chain.from_iterable(order.inputs.values())):
                    verified.require(key_read)
            work.hold_to_limit()
            with self._body():
                if order.gang and not part:
                    from pipeline.engine.workers.gang import run_gang  # most workers never lead one

                    run_gang(order, work)
                else:
                    jobs.call_entry(order, work)
            work.check_counts()
            if key:
                entries = check_output(out)
                # What went on from a checkpoint took longer than this attempt.
                resumed = os.path.lexists(work.checkpoints)
                took_s = math.inf if resumed else time.monotonic() - start
                store.commit(key, out, self._about(order), took_s, entries)
                _link(order)
                store.costs.note(key, _cost(work, start))
                if resumed:
                    remove_tree(work.checkpoints)
        except BaseException as error:
            if isinstance(error, DamagedOutput):
                self.memory.clear()  # it may have been loaded before that was found
            if key:
                remove_tree(out)
            raise
        return work

    def _about(self, order: RunJob) -> dict[str, str]:
        # What a CPU computes by, libraries have read from the environment once.
        self._arithmetic = self._arithmetic or arithmetic.describe(os.environ, self.device, self.name)
        return {"job": order.job_id, "arithmetic": self._arithmetic, **_versions()}


_folder = lru_cache(maxsize=16)(Path)


def _link(order: RunJob) -> None:
    """Let the folder of a job's log point to its output; for people only, so a failure costs nothing."""
    # Both were just made, so neither is a link; what is above them is the same for many. No paths: they are slow.
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
    """Of what results may depend on; not whether it was imported, which differs between workers."""
    from importlib.metadata import PackageNotFoundError, version  # 10 ms that the start of a worker does not need

    versions = {"pipeline": pipeline.__version__, "python": platform.python_version()}
    for package in ("torch", "transformers"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
