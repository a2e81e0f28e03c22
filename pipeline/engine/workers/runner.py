"""Runs one job after the other, in a worker process or in the engine's own: log, entry, commit, answer."""

from __future__ import annotations

import builtins
import locale
import math
import os
import platform
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, lru_cache
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from msgspec.structs import replace

import pipeline
from pipeline import arithmetic
from pipeline.engine.store.store import ANSWERS, FLOPS, Store
from pipeline.engine.store.verified import Verified
from pipeline.engine.workers.answers import ended_by, finished, raised
from pipeline.engine.workers.body import call_entry, contained, store_at, work_of
from pipeline.engine.workers.device_memory import begin_measuring, give_back, held_mb
from pipeline.engine.workers.messages import AttemptStopped, FromWorker, JobFinished, JobRaised, JobStarted, RunJob
from pipeline.engine.workers.output import OutputTo
from pipeline.engine.workers.work import Work
from pipeline.errors import DamagedOutput, StoreError
from pipeline.files import remove_tree
from pipeline.outputs.check import check_output

# -- changed -----------------------------------------------------------------------------------------------------
# What a job leaves changed in its process, so that another process can be given to the jobs after it.


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# That of `signal` makes an enum of each, which takes longer than all the rest.
_get_handler = import_module("_signal").getsignal
# Each is a call of the system. Those of signals, queues and priorities are left out: no job rests on them.
_LIMIT_NAMES = ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK")
_LIMITS = [limit for name in _LIMIT_NAMES if (limit := getattr(resource, f"RLIMIT_{name}", None)) is not None]
_BUILTINS = itemgetter(*(name for name in vars(builtins) if name != "_"))  # that is what a prompt has shown last
_AS_TORCH_STARTS = (True, False, "torch.float32", "cpu")


class ProcessState:
    """What code of later jobs relies on in this process, as it is now.

    Only what is quick to look at, and where a difference is no library's doing: importing one may add variables
    to the environment, folders to the search path, and threads that end with the process.
    """

    def __init__(self) -> None:
        self._found = _look_at_all()

    def changed(self) -> str:
        """What is different by now, in words; "" for nothing."""
        now = _look_at_all()
        with suppress(BaseException):  # something of the job's own is in a place, and cannot be compared
            if now == self._found:
                return ""
        differences = (_difference(name, before, now[name]) for name, before in self._found.items())
        return ", ".join(filter(None, differences))


def _look_at_all() -> dict[str, object]:
    try:
        return {name: look() for name, look in _LOOKS.items()}
    except BaseException:
        return {name: _look(look) for name, look in _LOOKS.items()}


def _look(look: Callable[[], object]) -> object:
    try:
        return look()
    except BaseException as error:  # a folder that is gone, a descriptor that is closed, an attribute of the job's
        return type(error)


def _difference(name: str, before: object, now: object) -> str:
    try:
        if before == now:
            return ""
        if isinstance(before, dict) and isinstance(now, dict):
            return _gone(name, {one for one in before if before[one] != now.get(one)})  # values may be secrets
        if isinstance(before, frozenset) and isinstance(now, frozenset):
            return _gone(name, before - now)
    except BaseException:  # something of the job's own is in the place
        return name
    return name


def _gone(name: str, gone: Collection[Any]) -> str:
    """What was there must be there still; what has come does not matter."""
    return f"{name} ({', '.join(sorted(map(os.fsdecode, gone)))})" if gone else ""


def _environment() -> object:
    # Beneath the mapping that everyone uses, which would decode every name and value: 30 us, and this is 1.
    return dict(getattr(os.environ, "_data", os.environ))


def _umask() -> int:
    mask = os.umask(0o077)  # the only way to read it is to set it
    os.umask(mask)
    return mask


def _streams() -> object:
    return [(stream, stream.closed) for stream in (sys.stdin, sys.stdout, sys.stderr) if stream is not None]


def _descriptors() -> object:
    # Two are given back after each job, which had its log there, unless it closed what they were kept in.
    return [(found.st_dev, found.st_ino) for found in map(os.fstat, (0, 1, 2))]


def _signals() -> object:
    return list(map(_get_handler, _SIGNALS)), signal.getitimer(signal.ITIMER_REAL)


def _threads() -> object:
    """Those that a job has left running; a daemon is mostly a library's own."""
    started = (thread for thread in threading.enumerate() if not thread.daemon)
    return [thread.ident for thread in started if thread is not threading.main_thread()]


def _torch() -> object:
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_device"):
        return _AS_TORCH_STARTS
    inference = torch.is_inference_mode_enabled()
    return torch.is_grad_enabled(), inference, str(torch.get_default_dtype()), str(torch.get_default_device())


_LOOKS: dict[str, Callable[[], object]] = {
    "the working directory": os.getcwd,
    "the umask": _umask,
    "the environment": _environment,
    "the search path of modules": lambda: frozenset(sys.path),
    "built-in functions": lambda: _BUILTINS(vars(builtins)),
    "the standard streams": _streams,
    "descriptors 0 to 2": _descriptors,
    "signal handlers": _signals,
    "limits of the process": lambda: list(map(resource.getrlimit, _LIMITS)),
    "the recursion limit": sys.getrecursionlimit,
    "the locale": lambda: locale.setlocale(locale.LC_ALL),
    "the timeout of sockets": socket.getdefaulttimeout,
    "threads that still run": _threads,
    "defaults of torch": _torch,
}


# -- inputs ------------------------------------------------------------------------------------------------------
# Whether the inputs of a job are what was committed: small ones are read before it, large ones while it
# loads. read before in this run, or small checked, then the job begins large names and sizes are compared,
# then the job begins, and a thread reads them beside it; so the disk is read once for both Nothing comes of a
# job before all of them were found good: its first progress waits for that, and its first question whether
# the run is about to end, before which it has done no more than a step and saved nothing; and so do its end
# and its failure.


LARGE_BYTES = 64 << 20
"""From which size on an output is read beside the job: what is smaller is hashed in a tenth of a second."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class InputChecks:
    """The checks of the inputs of one attempt, for as long as its code runs."""

    def __init__(self, verified: Verified, keys: Iterable[str], *, beside: bool) -> None:
        """Prepare.

        Args:
            verified: Notes on what was found good in this run.
            keys: Of the inputs.
            beside: Whether large ones may be read while the job runs; else all are read before.
        """
        self._verified = verified
        self._keys = list(dict.fromkeys(keys))
        self._beside = beside
        self._later: list[str] = []
        self._thread: Thread | None = None
        self._found: BaseException | None = None

    def __enter__(self) -> InputChecks:
        """Check what is small, and begin with the rest.

        Raises:
            DamagedOutput: One is not what was committed, as far as was looked.
        """
        for key in self._keys:
            if self._beside and self._is_large(key):
                if problem := self._verified.store.problem(key, checksums=False):
                    raise DamagedOutput(key, problem)
                self._later.append(key)
            else:
                self._verified.require(key)
        if self._later:
            thread = Thread(target=self._read, name="inputs", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads for this process
                for key in self._later:
                    self._verified.require(key)
            else:
                self._thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the rest; what a job says of damaged inputs is a consequence of these.

        Raises:
            DamagedOutput: One is not what was committed.
        """
        if isinstance(error, KeyboardInterrupt):
            return  # the job is cut off, and nothing of it is kept
        try:
            self.wait()
        except DamagedOutput as damage:
            raise damage from (None if error is damage else error)

    def wait(self) -> None:
        """Wait until all inputs were read.

        Raises:
            DamagedOutput: One is not what was committed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._found is not None:
            raise self._found

    @property
    def are_good(self) -> bool:
        """Whether all inputs were read by now, and found good."""
        return self._thread is None and self._found is None

    @property
    def found_damaged(self) -> bool:
        """Whether one was found damaged that the job may have read."""
        return isinstance(self._found, DamagedOutput)

    def before(self, call: Callable[_P, _T]) -> Callable[_P, _T]:
        """The same, once all inputs were found good."""

        def held(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            self.wait()
            return call(*args, **kwargs)

        return held

    def _is_large(self, key: str) -> bool:
        if self._verified.is_noted(key):
            return False
        try:
            files = self._verified.store.manifest(key)["files"]
        except StoreError:
            return False
        size: int = sum(entry["size"] for entry in files.values())
        return size >= LARGE_BYTES

    def _read(self) -> None:
        try:
            for key in self._later:
                self._verified.require(key)
        except BaseException as error:  # raised where the job waits: what was not read to its end is not good
            self._found = error


class JobRunner:
    """Runs jobs one at a time and keeps between them what they load.

    Attributes:
        memory: Handed to every job as `Work.memory`.
        stop_requested: No further job will come, and the present one should save a checkpoint or finish.
        cut_off: The patience with the present job is over, so a `KeyboardInterrupt` is not the job's own.
    """

    def __init__(
        self, send: Callable[[FromWorker], None], device: str, *, name: str = "GPU", own_process: bool = True
    ) -> None:
        """Prepare to run jobs.

        Args:
            send: Takes what happens during a job.
            device: ``cpu`` or ``cuda``.
            name: Product name of the device.
            own_process: Whether the standard streams are this worker's alone. Otherwise they are given back
                while `send` runs.
        """
        self.memory: dict[str, Any] = {}
        self.stop_requested = False
        self.cut_off = False
        self._in_body = False
        self._send = send
        self._device = device
        self._own_process = own_process
        self._as_begun: ProcessState | None = None
        self._name = name
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

    def run(self, order: RunJob) -> JobFinished | JobRaised | AttemptStopped:
        """Run a job to its end.

        Raises:
            KeyboardInterrupt: The worker was told to stop.
        """
        start = time.monotonic()
        if self._as_begun is None and self._own_process:  # there is no replacing of the engine's own process
            self._as_begun = ProcessState()
        said: JobFinished | JobRaised | AttemptStopped | None = None
        try:
            with OutputTo(order.log_path) as output:
                said = self._run_logged(order, output, start)
        except Exception as error:  # the log cannot be written; or its descriptors were closed, when all is said
            said = said or raised(order, error, start)
        if self._as_begun is None or isinstance(said, AttemptStopped) or order.gang:  # whose ranks were others
            return said
        return replace(said, left_changed=self._as_begun.changed())

    def _run_logged(
        self, order: RunJob, output: OutputTo, start: float
    ) -> JobFinished | JobRaised | AttemptStopped:
        def send(message: FromWorker) -> None:
            with self._streams(output):
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
            failed = ended_by(order, error, start, stop_requested=self.stop_requested)
        else:
            return finished(order, work, start, self._held_mb(order) if work.held_mb is None else work.held_mb)
        # Not inside `except`: the traceback there holds the frames of the job and all their tensors.
        return failed if isinstance(failed, AttemptStopped) else replace(failed, held_mb=self._held_mb(order))

    def _held_mb(self, order: RunJob) -> int:
        """What stays on a device with other workers; where there are none it is nobody's concern."""
        if order.slots == 1:
            return 0
        give_back(self._device)
        return held_mb(self._device)

    def _streams(self, output: OutputTo) -> AbstractContextManager[None]:
        return nullcontext() if self._own_process else output.paused()

    @contextmanager
    def _body(self) -> Iterator[None]:
        """The job's own code, where `interrupt` may strike."""
        self._in_body = True
        try:
            if self.cut_off:
                raise KeyboardInterrupt
            with contained():
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
        store, scratch = store_at(order.store), _folder(order.scratch)
        out = store.begin(scratch, order.key, order.attempt) if order.key else scratch
        work = work_of(
            order, out, self._device, memory=self.memory, send=report, stopping=lambda: self.stop_requested
        )
        if not order.keep_models:
            self.memory.clear()
            give_back(self._device)
        begin_measuring(self._device)
        inputs = _checked_inputs(order, store)
        try:
            work.hold_to_limit()
            with inputs, self._body():
                work.report, work.stopping = inputs.before(work.report), inputs.before(work.stopping)
                if order.gang:
                    from pipeline.engine.workers.gang import run_gang  # most workers never lead one

                    run_gang(order, work)
                else:
                    call_entry(order, work)
            work.check_counts()
            if order.key:
                entries = check_output(out)
                # What went on from a checkpoint took longer than this attempt.
                resumed = os.path.lexists(work.checkpoints)
                took_s = math.inf if resumed else time.monotonic() - start
                store.commit(order.key, out, self._about(order), took_s, entries)
                _link(order)
                store.costs.note(order.key, _cost(work, start))
                if resumed:
                    remove_tree(work.checkpoints)
        except BaseException as error:
            if isinstance(error, DamagedOutput) or not inputs.are_good:
                self.memory.clear()  # it may have been loaded before that was found
            if order.key:
                remove_tree(out)
                if inputs.found_damaged:
                    remove_tree(work.checkpoints)  # so may what was saved by code that tells of no progress
            raise
        return work

    def _about(self, order: RunJob) -> dict[str, str]:
        # What a CPU computes by, libraries have read from the environment once.
        self._arithmetic = self._arithmetic or arithmetic.describe(os.environ, self._device, self._name)
        return {"job": order.job_id, "arithmetic": self._arithmetic, **_versions()}


def _checked_inputs(order: RunJob, store: Store) -> InputChecks:
    """Trust no input that was not read whole in this run and is as it was then.

    The ranks of a gang save checkpoints whatever their leader waits for, so their inputs are read before. So are
    those of a further attempt: the one before may have ended its worker, or hung, by what is damaged.
    """
    keys = (key for keys in order.inputs.values() for key in keys)
    beside = not order.gang and order.attempt == 1
    return InputChecks(Verified(store, _folder(order.verified)), keys, beside=beside)


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
