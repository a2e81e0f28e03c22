"""The right to use a GPU, between the runs of one user on one machine.

    <folder>/<uuid>.lock     held as long as its holder lives; says who that is
    <folder>/queue/          a ticket, held the same way, for each run that waits
    <folder>/guard           held for the instant in which one process looks and takes

A lease is a claim (`pipeline.locks`): it dies with its holder, `kill -9` included, and children have none. The
memory that a worker which outlives the engine may still hold is waited for in `inventory.py`.

Only one process at a time looks and takes, so a set is taken as a whole or not at all, and none can wait for
another in a circle.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

from pipeline.engine.devices.inventory import Device
from pipeline.errors import DeviceError
from pipeline.foreign import ForeignDataError, read_json, read_plain
from pipeline.locks import Claim, claim, is_held

FOLDER = "PIPELINE_LEASE_DIR"
"""Variable that names another folder for leases, such as one that containers on a machine share."""
PRIVATE = 0o700


def lease_dir() -> Path:
    """The folder of leases, made if it is missing.

    One fixed place: a session folder such as XDG_RUNTIME_DIR differs between a login, a cron job and a batch job
    of one user, and is removed at logout while runs go on, so two of them would miss each other.

    Raises:
        DeviceError: It belongs to someone else, or others may write there.
    """
    named = os.environ.get(FOLDER)
    folder = Path(named) if named else Path(f"/tmp/pipeline-leases-{os.getuid()}")  # noqa: S108 - checked below
    try:
        folder.mkdir(mode=PRIVATE, parents=bool(named), exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise DeviceError(f"cannot keep leases in {folder}: {error}. Name another folder by {FOLDER}.") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise DeviceError(
            f"{folder} is not a folder of yours that you alone can write to, so leases there mean nothing. "
            f"Remove it, or name another by {FOLDER}."
        )
    return folder


def claim_lease(path: Path, *, wait: bool = False) -> Claim | None:
    """Claim what a file in the folder of leases stands for; None if another process has it.

    Raises:
        DeviceError: The file cannot be opened or locked.
    """
    try:
        return claim(path, wait=wait, strict=True)
    except OSError as error:
        raise _cannot_open(path, error) from error


def _cannot_open(path: Path, error: OSError) -> DeviceError:
    said = error.strerror or error
    return DeviceError(f"cannot open or lock the lease {path}: {said}. Remove it, or set {FOLDER}.")


def _held_text(path: Path) -> str | None:
    """What a file says that a process holds; None for one that nobody does. Called under the guard.

    Raises:
        DeviceError: It cannot be read.
    """
    try:
        return read_plain(path, 1 << 16).decode(errors="replace") if is_held(path) else None
    except FileNotFoundError:
        return None
    except (OSError, ForeignDataError) as error:
        raise _cannot_open(path, error if isinstance(error, OSError) else OSError(str(error))) from error


@contextmanager
def guard(folder: Path) -> Iterator[None]:
    """Be the only process that looks at leases and takes them.

    Raises:
        DeviceError: The file system has no locks.
    """
    held = claim_lease(folder / "guard", wait=True)
    assert held is not None
    with held:
        yield


class Ticket:
    """A place in the queue: a file whose name sorts by time, locked while its owner waits."""

    def __init__(self, folder: Path, names: set[str]) -> None:
        """Draw none yet.

        Args:
            folder: The folder of leases.
            names: What is wanted.
        """
        self._path = folder / "queue" / f"{time.time_ns():020d}-{os.getpid()}"
        self._names = names
        self._held: Claim | None = None

    def queue(self) -> bool:
        """Line up; called under the guard. False if this was done before."""
        if self._held is not None:
            return False
        self._held = claim_lease(self._path)
        assert self._held is not None
        self._held.write(json.dumps(sorted(self._names)))
        return True

    def is_next(self) -> bool:
        """Whether nobody who came earlier waits for any of these devices; called under the guard.

        Who does not want to wait has no ticket and goes after all who have one: otherwise a stream of small runs
        would keep one that needs many GPUs waiting for ever.
        """
        return not any(self._names & wanted for wanted in self._earlier())

    def _earlier(self) -> Iterator[set[str]]:
        queue = self._path.parent
        for path in sorted(queue.iterdir()) if queue.is_dir() else ():
            if self._held is not None and path.name >= self._path.name:
                return
            with suppress(DeviceError):  # what is no file is nobody's ticket
                text = _held_text(path)
                if text is None:  # its owner is gone
                    path.unlink(missing_ok=True)
                    continue
                try:
                    yield read_json(text, set[str])
                except ForeignDataError:  # who waits for something that cannot be read may wait for anything
                    yield self._names

    def __enter__(self) -> Self:
        """The ticket; nobody queues yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the queue."""
        if self._held is not None:
            self._held.release()


POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a lease.

    Attributes:
        pid: Process id.
        experiment: Its experiment; empty for none.
        since: When it took the lease, as ``2026-01-31T12:00:00``.
        host: Its machine, or container.
    """

    pid: int
    experiment: str
    since: str
    host: str

    def __str__(self) -> str:
        """As in ``'name' (pid 4711 since 12:00:00)``."""
        return " ".join(self.words())

    def words(self) -> tuple[str, ...]:
        """The same in pieces, for where it takes several lines."""
        whose = f"'{self.experiment}'" if self.experiment else "a program"
        elsewhere = "" if self.host == socket.gethostname() else f" in {self.host}"
        day, _, hour = self.since.partition("T")
        when = hour if day == f"{datetime.now():%Y-%m-%d}" else self.since.replace("T", " ")
        return (whose, f"(pid {self.pid}{elsewhere}", f"since {when})")


class LeaseSet:
    """Devices that this process holds until it gives them back or ends. A context manager."""

    def __init__(self, devices: Sequence[Device], files: dict[str, Claim]) -> None:
        self.devices = list(devices)
        self._files = files

    @classmethod
    def acquire(
        cls,
        devices: Sequence[Device],
        wait: bool = False,
        *,
        count: int | None = None,
        experiment: str = "",
        on_wait: Callable[[str], None] | None = None,
        how_to_wait: str = "execution.wait_for_devices=true",
    ) -> LeaseSet:
        """Take devices, all or none. CPU slots are free to all.

        Args:
            devices: Those that would do, the best first.
            wait: Queue while others hold them, first come first served, rather than fail.
            count: How many of them; None for all.
            experiment: Whose run this is, for the messages of others.
            on_wait: Told once who is waited for.
            how_to_wait: What a user adds to the command to wait, for messages.

        Raises:
            DeviceError: Others hold too many of them. Names them.
        """
        count = len(devices) if count is None else count
        if all(device.kind == "cpu" for device in devices):
            return cls(devices[:count], {})
        if count > len(devices):
            raise DeviceError(f"{count} GPUs asked for, but there are {len(devices)} to choose from")
        folder = lease_dir()
        holder = _holder(experiment)
        with Ticket(folder, {_name(device) for device in devices}) as ticket:
            while True:
                with guard(folder):
                    files = _take(folder, devices, count, holder) if ticket.is_next() else None
                    if files is not None:
                        return cls([device for device in devices if _name(device) in files], files)
                    busy = _refusal(folder, devices, count)
                    if not wait:
                        raise DeviceError(
                            f"{busy}. Ask for fewer or for others, or wait for them with {how_to_wait}."
                        )
                    queued = ticket.queue()
                if queued and on_wait:
                    on_wait(busy)
                time.sleep(POLL_S)

    def release(self) -> None:
        """Give all back; a second time does nothing."""
        for name in list(self._files):
            self._close(name)

    def give_back(self, device: Device) -> None:
        """Give one device back and keep the others."""
        self.devices = [kept for kept in self.devices if kept != device]
        self._close(_name(device))

    def _close(self, name: str) -> None:
        if (file := self._files.pop(name, None)) is not None:
            file.release()

    def __enter__(self) -> Self:
        """The set itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give all back."""
        self.release()


def holders(devices: Sequence[Device]) -> dict[str, Holder]:
    """UUID -> who holds it, of those devices that someone does."""
    folder = lease_dir()
    with guard(folder):
        return {device.uuid: holder for device in devices if device.uuid and (holder := _read(folder, device))}


def _take(folder: Path, devices: Sequence[Device], count: int, holder: Holder) -> dict[str, Claim] | None:
    taken: dict[str, Claim] = {}
    for device in devices:
        if len(taken) < count and (file := claim_lease(_path(folder, device))) is not None:
            taken[_name(device)] = file
            file.write(json.dumps(asdict(holder)))
    if len(taken) < count:
        for file in taken.values():
            file.release()
        return None
    return taken


def _refusal(folder: Path, devices: Sequence[Device], count: int) -> str:
    held: dict[tuple[int, str, str], tuple[Holder, list[Device]]] = {}
    for device in sorted(devices, key=_place):
        if holder := _read(folder, device):
            held.setdefault((holder.pid, holder.host, holder.experiment), (holder, []))[1].append(device)
    total = sum(len(theirs) for _, theirs in held.values())
    who = "; ".join(f"{holder} has {_labels(theirs)}" for holder, theirs in held.values())
    if len(devices) - total >= count:
        return f"{count} of {_labels(devices)} wanted, but others queued for them first"
    return f"{count} of {_labels(devices)} wanted, but {total} of these {len(devices)} are leased: {who}"


def _place(device: Device) -> tuple[int, int]:
    return device.index, device.slice_index or 0


def _labels(devices: Sequence[Device]) -> str:
    """``GPU 0, 2, 3``."""
    numbers = [device.label.removeprefix("GPU ") for device in sorted(devices, key=_place)]
    return f"GPU {', '.join(numbers)}"


def _read(folder: Path, device: Device) -> Holder | None:
    """Who holds a device; called under the guard."""
    text = _held_text(_path(folder, device))
    try:
        return None if text is None else read_json(text, Holder)
    except ForeignDataError:
        return Holder(pid=0, experiment="a run that does not say", since="?", host=socket.gethostname())


def _holder(experiment: str) -> Holder:
    now = datetime.now().isoformat(timespec="seconds")
    return Holder(pid=os.getpid(), experiment=experiment, since=now, host=socket.gethostname())


def _name(device: Device) -> str:
    return device.uuid or device.label


def _path(folder: Path, device: Device) -> Path:
    return folder / f"{_name(device).replace('/', '_')}.lock"
