"""Choose the devices of a run: one GPU per worker, else CPU slots. GPUs can be inspected or leased."""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pipeline.config.schema import AUTO, Backend, DeviceChoice, DistributedConfig, ExecutionConfig
from pipeline.engine.devices import inventory
from pipeline.errors import DeviceError
from pipeline.files import Claim, claim, is_held
from pipeline.foreign import ForeignDataError, read_json, read_plain
from pipeline.machine.memory import memory_available_bytes, usable_bytes

# -- lease -------------------------------------------------------------------------------------------------------
# Leases: the right to use a GPU, shared between the runs of one user on one machine.
#
#     <folder>/<uuid>.lock     locked as long as its holder lives; its text names the holder
#     <folder>/queue/          a ticket, locked the same way, for each run that waits
#     <folder>/guard           locked for the moment in which one process inspects and takes leases
#
# A lease is a claim (`pipeline.files`): it ends with its holder, even on `kill -9`, and children do not inherit
# it. A worker that outlives the engine may still hold memory; `inventory.py` waits for that. Only one process at a
# time inspects and takes leases, so a set is taken whole or not at all, and processes cannot deadlock.


FOLDER = "PIPELINE_LEASE_DIR"
"""Environment variable with another folder for leases, for example one that the containers on a machine share."""
PRIVATE = 0o700


def lease_dir() -> Path:
    """Return the folder of leases, creating it if it is missing.

    The folder is always the same. A session folder such as XDG_RUNTIME_DIR would not do: it differs between a
    login, a cron job and a batch job of one user, and is removed at logout while runs go on, so two runs would not
    see each other's leases.

    Raises:
        DeviceError: The folder belongs to another user, or others may write there.
    """
    named = os.environ.get(FOLDER)
    folder = Path(named) if named else Path(f"/tmp/pipeline-leases-{os.getuid()}")  # noqa: S108 - checked below
    try:
        folder.mkdir(mode=PRIVATE, parents=bool(named), exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise DeviceError(f"cannot keep leases in {folder}: {error}. Name another folder by {FOLDER}.") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise DeviceError(
            f"{folder} is not a folder of yours that you alone can write to, so leases there mean nothing. "
            f"Remove it, or name another by {FOLDER}."
        )
    return folder


def claim_lease(path: Path, *, wait: bool = False) -> Claim | None:
    """Lock a file in the folder of leases; return None if another process holds it.

    Raises:
        DeviceError: The file cannot be opened or locked.
    """
    try:
        return claim(path, wait=wait, strict=True)
    except OSError as error:
        raise _cannot_open(path, error) from error


def _cannot_open(path: Path, error: OSError) -> DeviceError:
    why = error.strerror or error
    return DeviceError(f"cannot open or lock the lease {path}: {why}. Remove it, or set {FOLDER}.")


def _held_text(path: Path) -> str | None:
    """Return the text of a lease file that a process holds, or None if nobody holds it. Call this under the guard.

    Raises:
        DeviceError: The file cannot be read.
    """
    try:
        return read_plain(path, 1 << 16).decode(errors="replace") if is_held(path) else None
    except FileNotFoundError:
        return None
    except (OSError, ForeignDataError) as error:
        raise _cannot_open(path, error if isinstance(error, OSError) else OSError(str(error))) from error


def guard(folder: Path) -> Claim:
    """Become the only process that inspects and takes leases.

    Raises:
        DeviceError: The file system has no locks.
    """
    lease = claim_lease(folder / "guard", wait=True)
    assert lease is not None
    return lease


def wanted_before(folder: Path, ticket: str, names: set[str]) -> Iterator[set[str]]:
    """Yield the set of devices that each earlier ticket waits for; without a ticket all tickets are earlier.

    A ticket is a file in ``queue`` whose name sorts by time, locked while its owner waits. A run that does not
    want to wait has no ticket and comes after all runs that have one; otherwise a stream of small runs would keep
    a run that needs many GPUs waiting for ever. Call this under the guard.

    Args:
        folder: The folder of leases.
        ticket: Name of the ticket, or "".
        names: Devices that the caller wants. An unreadable ticket may want the same ones, so they are assumed for
            it.
    """
    queue = folder / "queue"
    for path in sorted(queue.iterdir()) if queue.is_dir() else ():
        if ticket and path.name >= ticket:
            return
        with suppress(DeviceError):  # not a regular file, so nobody's ticket
            if (text := _held_text(path)) is None:  # its owner is gone
                path.unlink(missing_ok=True)
                continue
            try:
                yield read_json(text, set[str])
            except ForeignDataError:
                yield names


POLL_S = 0.2
BACK_S = 2.0
"""Longest wait for the memory of a device that is given back while the run goes on, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that holds a lease.

    Attributes:
        pid: Its process id.
        experiment: Its experiment; empty for none.
        since: Time when it took the lease, as ``2026-01-31T12:00:00``.
        host: Its machine, or container.
    """

    pid: int
    experiment: str
    since: str
    host: str

    def __str__(self) -> str:
        """Return text such as ``'name' (pid 4711 since 2026-01-31 12:00:00)``."""
        whose = f"'{self.experiment}'" if self.experiment else "a program"
        elsewhere = "" if self.host == socket.gethostname() else f" in {self.host}"
        return f"{whose} (pid {self.pid}{elsewhere} since {self.since.replace('T', ' ')})"


class LeaseSet:
    """Context manager for devices that this process holds until it releases them or ends."""

    def __init__(
        self, devices: Sequence[inventory.Device], claims: Mapping[inventory.Device, Claim] | None = None
    ) -> None:
        self.devices = list(devices)
        self._claims = dict(claims or {})

    @classmethod
    def acquire(
        cls,
        devices: Sequence[inventory.Device],
        wait: bool = False,
        *,
        count: int | None = None,
        experiment: str = "",
        on_wait: Callable[[str], None] | None = None,
        how_to_wait: str = "execution.wait_for_devices=true",
    ) -> LeaseSet:
        """Take devices, all or none. CPU slots, and GPUs that Ray chooses, need no lease.

        Args:
            devices: Devices to choose from, the best first.
            wait: Whether to queue, first come first served, while others hold them; otherwise fail.
            count: Number of devices to take; None for all.
            experiment: Name of the experiment, for the messages that other runs show.
            on_wait: Called once with whom it waits for.
            how_to_wait: Words to add to a command in order to wait, for messages; "" if there are none.

        Raises:
            DeviceError: Others hold too many of the devices. The message names the holders.
        """
        count = len(devices) if count is None else count
        if all(device.uuid is None for device in devices):
            return cls(devices[:count])
        if count > len(devices):
            raise DeviceError(f"{count} GPUs asked for, but there are {len(devices)} to choose from")
        now = datetime.now().isoformat(timespec="seconds")
        holder = Holder(pid=os.getpid(), experiment=experiment, since=now, host=socket.gethostname())
        folder, names = lease_dir(), set(map(_name, devices))
        path, ticket = folder / "queue" / f"{time.time_ns():020d}-{os.getpid()}", None
        try:
            while True:
                with guard(folder):
                    earlier = wanted_before(folder, path.name if ticket else "", names)
                    is_next = not any(names & wanted for wanted in earlier)
                    if is_next and (taken := _take(folder, devices, count, holder)):
                        return cls(list(taken), taken)
                    busy = _refusal(folder, devices, count)
                    if not wait:
                        later = how_to_wait and f", or wait for them with {how_to_wait}"
                        raise DeviceError(f"{busy}. Ask for fewer or for others{later}.")
                    if is_new := ticket is None:
                        ticket = claim_lease(path)
                        assert ticket is not None
                        ticket.write(json.dumps(sorted(names)))
                if is_new and on_wait:
                    on_wait(busy)
                time.sleep(POLL_S)
        finally:
            if ticket is not None:
                ticket.release()

    def release(self) -> None:
        """Release all devices; calling it again does nothing."""
        for device in list(self._claims):
            self.give_back(device)

    def add(self, other: LeaseSet) -> None:
        """Hold the devices of another set, too."""
        self._claims |= other._claims

    def give_back(self, device: inventory.Device) -> None:
        """Release one device."""
        if claimed := self._claims.pop(device, None):
            claimed.release()

    def __enter__(self) -> Self:
        """Return the set itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release all devices."""
        self.release()


def holders(devices: Sequence[inventory.Device]) -> dict[str, Holder]:
    """Return UUID -> holder for the given devices that someone holds."""
    folder = lease_dir()
    with guard(folder):
        return {device.uuid: holder for device in devices if device.uuid and (holder := _read(folder, device))}


def _take(
    folder: Path, devices: Sequence[inventory.Device], count: int, holder: Holder
) -> dict[inventory.Device, Claim]:
    """Take `count` of the given devices, or none."""
    taken: dict[inventory.Device, Claim] = {}
    for device in devices:
        if len(taken) < count and (lease := claim_lease(_path(folder, device))) is not None:
            taken[device] = lease
            lease.write(json.dumps(asdict(holder)))
    if len(taken) == count:
        return taken
    for lease in taken.values():
        lease.release()
    return {}


def _refusal(folder: Path, devices: Sequence[inventory.Device], count: int) -> str:
    taken: dict[tuple[int, str, str], tuple[Holder, list[inventory.Device]]] = {}
    for device in sorted(devices, key=_position):
        if holder := _read(folder, device):
            taken.setdefault((holder.pid, holder.host, holder.experiment), (holder, []))[1].append(device)
    total = sum(len(theirs) for _, theirs in taken.values())
    who = "; ".join(f"{holder} has {_labels(theirs)}" for holder, theirs in taken.values())
    if len(devices) - total >= count:
        return f"{count} of {_labels(devices)} wanted, but others queued for them first"
    return f"{count} of {_labels(devices)} wanted, but {total} of these {len(devices)} are leased: {who}"


def _position(device: inventory.Device) -> tuple[int, int]:
    return device.index, device.slice_index or 0


def _labels(devices: Sequence[inventory.Device]) -> str:
    """Return text such as ``GPU 0, 2, 3``."""
    numbers = [device.label.removeprefix("GPU ") for device in sorted(devices, key=_position)]
    return f"GPU {', '.join(numbers)}"


def _read(folder: Path, device: inventory.Device) -> Holder | None:
    """Return the holder of a device, or None. Call this under the guard."""
    text = _held_text(_path(folder, device))
    try:
        return None if text is None else read_json(text, Holder)
    except ForeignDataError:
        return Holder(pid=0, experiment="a run that does not say", since="?", host=socket.gethostname())


def _name(device: inventory.Device) -> str:
    return device.uuid or device.label


def _path(folder: Path, device: inventory.Device) -> Path:
    return folder / f"{_name(device).replace('/', '_')}.lock"


@dataclass(kw_only=True)
class Held:
    """The devices of a run by their index in its layout: more may come, and some may be given back.

    Attributes:
        devices: The devices, also those that were given back.
        levels: UUID of a GPU -> its memory in use before the run; none of those that were given back.
        on_back: Called with the index of a device once no process of the run is on it.
    """

    devices: list[inventory.Device]
    levels: dict[str, int]
    on_back: Callable[[int], None]

    def take(self, index: int, device: inventory.Device) -> None:
        """Add a device, or have one again."""
        self.devices[index : index + 1] = [device]
        self.levels |= inventory.read_levels([device])

    def give_back(self, index: int) -> list[str]:
        """Give a device back once its memory is free; return a message if that does not become so soon."""
        words = inventory.wait_until_free(self.devices[index : index + 1], self.levels, BACK_S)
        self.levels.pop(self.devices[index].uuid or "", None)
        self.on_back(index)
        return words


# -- ranking -----------------------------------------------------------------------------------------------------
# Ranking: order the GPUs that suit a job. Filters come first, then an order; a pure function of what NVML
# reported. The order is nvitop's: most free memory, lowest utilisation, highest index, which leaves GPU 0 to
# interactive use.


_ALIKE_BYTES = 2**30
"""GPUs whose free memory differs by less than this count as equally free: a display takes some MB of one of them.
"""


def rank(devices: Sequence[inventory.Device], usage: Mapping[str, inventory.GpuUsage]) -> list[inventory.Device]:
    """Order devices, the best first."""
    places = {device: position for position, device in enumerate(devices)}

    def badness(device: inventory.Device) -> tuple[int, int, int]:
        use = usage[device.uuid or ""]
        return (-(use.free_bytes // _ALIKE_BYTES), use.utilization or 0, -places[device])

    return sorted(devices, key=badness)


def pick(
    devices: Sequence[inventory.Device],
    usage: Mapping[str, inventory.GpuUsage],
    count: int | None = None,
    min_free_bytes: int = 0,
) -> list[inventory.Device]:
    """Choose the best GPUs.

    Args:
        devices: Devices to choose from, in the order of their numbers.
        usage: UUID -> its current use.
        count: Number of GPUs to choose; None takes all that pass.
        min_free_bytes: Memory that must be free.

    Returns:
        The chosen GPUs in the order of `devices`.

    Raises:
        DeviceError: Fewer pass than `count`, or none.
    """
    free = {device: usage[device.uuid or ""].free_bytes for device in devices}
    passing = [device for device in rank(devices, usage) if free[device] >= min_free_bytes]
    wanted = 1 if count is None else count
    if len(passing) < wanted:
        seen = ", ".join(f"{device.label} has {free[device] / 2**30:.1f} GiB free" for device in devices)
        raise DeviceError(
            f"{wanted} GPU{'s' if wanted != 1 else ''} asked for, but {len(passing)} of {len(devices)} will do"
            + (f": {seen}" if seen else "")
            + ". Ask for fewer, or for less of each; `python -m pipeline gpus` shows all."
        )
    return [device for device in devices if device in passing[:count]]


WORKER_MEMORY_BYTES = int(0.7 * 2**30)
"""Memory of a CPU worker once torch and transformers are imported and a small model is loaded."""


@dataclass(frozen=True, kw_only=True)
class DeviceRequest:
    """A request for devices; fields are None where the user left them open.

    Attributes:
        device: Kind of device; `auto` means GPUs if there are any.
        num_gpus: Number of GPUs.
        gpu_ids: Exactly these GPUs, as positions in the visible set.
        names: Names under which the user knows `num_gpus` and `gpu_ids`, for messages.
        without: Setting for a run without GPUs, for messages.
    """

    device: DeviceChoice = DeviceChoice.auto
    num_gpus: int | None = None
    gpu_ids: Sequence[int] | None = None
    names: tuple[str, str] = ("num_gpus", "gpu_ids")
    without: str = "device=cpu"


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Devices that would do, the best first, and the number that is wanted.

    Attributes:
        devices: The devices, in order of preference.
        count: The number wanted.
        order: The visible set; the chosen devices go to workers in this order.
    """

    devices: tuple[inventory.Device, ...]
    count: int
    order: tuple[inventory.Device, ...]

    def best(self) -> list[inventory.Device]:
        """Return the devices to take if all were free, in the order of the environment."""
        return sorted(self.devices[: self.count], key=self.order.index)

    def lease(self, **how: Any) -> LeaseSet:
        """Lease `count` of the devices, in the same order, until they are released or this process ends.

        Args:
            how: Options of `LeaseSet.acquire`.

        Raises:
            DeviceError: Others hold the devices that are needed.
        """
        lease = LeaseSet.acquire(self.devices, count=self.count, **how)
        lease.devices.sort(key=self.order.index)
        return lease


def candidates(
    request: DeviceRequest,
    environment: Mapping[str, str],
    *,
    workers: int | None = None,
    threads: int = 1,
) -> Candidates:
    """Return the devices of a run, one per worker, with alternatives in case another run holds some of the best.

    Args:
        request: The request.
        environment: Environment in which CUDA_VISIBLE_DEVICES is looked up.
        workers: Number of workers; None for one on each device.
        threads: Threads of a worker on a CPU slot.

    Raises:
        DeviceError: The request cannot be met; the message gives what was asked for and what exists.
    """
    count, ids, (count_name, ids_name) = request.num_gpus, request.gpu_ids, request.names
    typed = f"{count_name}={count}" if ids is None else f"{ids_name}={list(ids)}"
    if count is not None and ids is not None and count != len(ids):
        raise DeviceError(f"{count_name}={count}, but {typed}: make them agree, or give one alone.")
    if (count is not None and count < 1) or (ids is not None and not ids):
        raise DeviceError(f"{typed} is no GPU. For a run without GPUs use {request.without}; null leaves it open.")
    if request.device is DeviceChoice.cpu:
        return _slots(workers, threads)
    visible, machine = inventory.look(environment)
    if not visible:
        if count is None and ids is None and request.device is not DeviceChoice.cuda:
            return _slots(workers, threads)
        typed, mask = typed if count or ids else "device=cuda", environment.get(inventory.VISIBLE)
        why = "NVML found none" if mask is None else f"{inventory.VISIBLE}={mask!r} hides them, or NVML found none"
        raise DeviceError(
            f"{typed}, but there is no usable GPU: {why}. Check `nvidia-smi`, or use {request.without}."
        )
    devices = rank(visible, machine.usage) if ids is None else gpus_of_ids(ids, visible, environment, typed)
    wanted = count or len(devices)
    for name, number, have in ((count_name, wanted, len(devices)), ("execution.workers", workers or 0, wanted)):
        if number > have:
            raise DeviceError(
                f"{name}={number}, but there are {have} usable GPUs: {_listed(visible, environment)}; each worker "
                f"has one of its own. Use {name}={have} or less, or {request.without}."
            )
    return Candidates(devices=tuple(devices), count=workers or wanted, order=tuple(visible))


def gpus_of_ids(
    ids: Sequence[int], visible: Sequence[inventory.Device], environment: Mapping[str, str], typed: str = ""
) -> list[inventory.Device]:
    """Return the GPUs at some positions of the visible set.

    Args:
        ids: The positions.
        visible: The visible set.
        environment: Environment that tells whether the visible set is a part of the machine's GPUs.
        typed: Name of the request in messages; ``gpu_ids=[...]`` if left out.

    Raises:
        DeviceError: A position does not exist, or is given twice.
    """
    typed = typed or f"gpu_ids={list(ids)}"
    unknown = sorted({number for number in ids if not 0 <= number < len(visible)})
    if unknown:
        raise DeviceError(
            f"{typed}: there is no GPU {', '.join(map(str, unknown))}. "
            + (f"Ids are {_listed(visible, environment)}." if visible else "This process sees no GPU at all.")
        )
    if len(set(ids)) != len(ids):
        raise DeviceError(f"{typed} names a GPU twice")
    return [visible[number] for number in ids]


def named(name: str, devices: Sequence[inventory.Device]) -> inventory.Device:
    """Return a device by its number as runs show it, or by its UUID or the beginning of that.

    Raises:
        DeviceError: None has that name, or several have.
    """
    fits = [
        device
        for device in devices
        if (name == str(device.index) and device.slice_index is None)
        or (device.uuid is not None and len(name) > len("GPU-") and device.uuid.startswith(name))
    ]
    if len(fits) != 1:
        there = ", ".join(device.label for device in devices) or "none"
        raise DeviceError(f"{name[:80]!r} names {'several devices' if fits else 'no device'} of these: {there}")
    return fits[0]


def more_of(name: str, known: Sequence[inventory.Device], environment: Mapping[str, str]) -> inventory.Device:
    """Return a device that a run which goes on may take; whether others hold it is not looked at.

    Args:
        name: See `named`.
        known: Devices that the run has or had. One of these or another visible GPU is returned; or the next one,
            of CPU slots and of GPUs that Ray chooses.
        environment: Environment in which CUDA_VISIBLE_DEVICES is looked up.

    Raises:
        DeviceError: There is none, or it is broken.
    """
    if known[0].uuid is None:
        return named(name, [*known, replace(known[0], index=len(known))])
    visible, machine = inventory.look(environment)
    broken = {str(index): uuid for index, uuid in enumerate(machine.uuids) if uuid in machine.broken}
    if (uuid := broken.get(name, name)) in machine.broken:
        raise DeviceError(f"GPU {name} is broken: {machine.broken[uuid]}")
    return named(name, visible)


def _listed(visible: Sequence[inventory.Device], environment: Mapping[str, str]) -> str:
    if environment.get(inventory.VISIBLE) is None and all(gpu.index == at for at, gpu in enumerate(visible)):
        return f"0 to {len(visible) - 1}" if len(visible) > 1 else "0"
    pairs = ", ".join(f"{at} ({gpu.label})" for at, gpu in enumerate(visible))
    return f"{pairs}, counted within what CUDA_VISIBLE_DEVICES shows"


def _slots(count: int | None, threads: int) -> Candidates:
    """Return CPU slots: `count` of them, or one for each `threads` cores as far as memory allows."""
    most = min(inventory.usable_cores() // threads, memory_available_bytes() // WORKER_MEMORY_BYTES)
    devices = inventory.cpu_slots(count or max(1, most))
    return Candidates(devices=tuple(devices), count=len(devices), order=tuple(devices))


def devices_of(
    choice: DeviceChoice, workers: int | None, distributed: DistributedConfig | None = None, *, threads: int = 1
) -> Candidates:
    """Return the devices of a run, one per worker, without taking a lease.

    Args:
        choice: Kind of device.
        workers: Number of workers, or None for one on every GPU, or for as many CPU slots as cores and memory
            allow.
        distributed: Which GPUs the configuration asks for.
        threads: Threads of a worker on a CPU slot.

    Raises:
        DeviceError: The request cannot be met.
    """
    distributed = distributed or DistributedConfig()
    ids = "gpu_ids" if distributed.gpu_list is None else "gpu_list"
    request = DeviceRequest(
        device=choice,
        num_gpus=distributed.num_gpus,
        gpu_ids=distributed.ids,
        names=("distributed.num_gpus", f"distributed.{ids}"),
    )
    return candidates(request, os.environ, workers=workers, threads=threads)


def planned_gpus(distributed: DistributedConfig, workers: int | None = None) -> list[inventory.Device]:
    """Return the GPUs that a request is planned for where they need not be here; none if it names no kind.

    Args:
        distributed: Their number, the kind and its memory.
        workers: Number of workers, if fewer are to be used.
    """
    name, gib = distributed.planned_gpu, distributed.planned_gpu_gib
    count = distributed.num_gpus or 1
    if name is None or gib is None or distributed.ids is not None or (workers or count) > count:
        return []
    return [
        inventory.Device(kind="cuda", index=index, uuid=None, name=name, memory_total_bytes=int(gib * 2**30))
        for index in range(workers or count)
    ]


# -- layout ------------------------------------------------------------------------------------------------------
# The devices of a run as places for jobs: how many jobs each device runs at once, and how much memory they may
# take.
#
#     worker = one slot of one device;  worker i is on device i modulo the number of devices at the beginning
#     free   = what of a GPU's memory was free when the run began
#     usable = what of that several jobs may take together: 0.9 x free - 1 GB, as in `learning.memory.fit`


AUTO_SLOTS = 4
"""Most jobs per GPU with `jobs_per_device=auto`. With more, kernels only queue behind each other, while each job
still takes a core, a CUDA context of about 0.5 GB and the host memory of another process."""
_MB = 2**20


@dataclass(frozen=True, kw_only=True)
class Place:
    """A device as a place for jobs.

    Attributes:
        label: Name for messages.
        free_mb: MiB that one job could have; None where memory is not tracked (a CPU slot).
        usable_mb: MiB that several jobs could have together; None likewise.
        node: Machine of the device. All devices of one job are on one machine.
    """

    label: str
    free_mb: int | None = None
    usable_mb: int | None = None
    node: int = 0


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The devices of a run and the workers on them.

    Attributes:
        places: The devices.
        slots: Workers on each device.
        vouched: Whether the user asserts that this many jobs fit. Then a job of unknown need counts as an equal
            share of the memory; otherwise it has a device to itself.
        begun: Number of devices that the run began with; 0 for all. Workers of later ones follow device by device.
    """

    places: tuple[Place, ...]
    slots: int = 1
    vouched: bool = True
    begun: int = 0

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.places) * self.slots

    def device_of(self, worker: int) -> int:
        """Return the index in `places` of a worker's device."""
        begun = self.begun or len(self.places)
        late = worker - begun * self.slots
        return worker % begun if late < 0 else begun + late // self.slots

    def node_of(self, device: int) -> int:
        """Return the machine that a device is on."""
        return self._nodes[device]

    @cached_property
    def _nodes(self) -> list[int]:
        return [place.node for place in self.places]

    def most_together(self, devices: Collection[int]) -> int:
        """Return how many of some devices one job could have: the largest number on one machine."""
        if len(self.devices_by_node) <= 1:
            return len(devices)
        return max(Counter(map(self.node_of, devices)).values(), default=0)

    @cached_property
    def devices_by_node(self) -> dict[int, list[int]]:
        """Machine -> its devices."""
        by_node: dict[int, list[int]] = {}
        for device, place in enumerate(self.places):
            by_node.setdefault(place.node, []).append(device)
        return by_node

    def workers_of(self, device: int) -> range:
        """Return the indices of the workers on a device."""
        begun = self.begun or len(self.places)
        if device < begun:
            return range(device, begun * self.slots, begun)
        return range(device * self.slots, (device + 1) * self.slots)


def plain_layout(devices: int) -> Layout:
    """Return a layout with one worker on each device and no memory tracking."""
    return Layout(places=tuple(Place(label=f"device {index}") for index in range(devices)))


def make_layout(
    devices: Sequence[inventory.Device],
    execution: ExecutionConfig,
    usage: Mapping[str, inventory.GpuUsage] | None = None,
) -> Layout:
    """Return the layout of a run.

    Args:
        devices: Its devices; the inline backend uses the first alone.
        execution: Settings that say how many jobs each device runs at once.
        usage: UUID -> the current use of a GPU; the driver is queried if None.
    """
    if execution.backend is Backend.inline:
        return Layout(places=_places(devices[:1], usage))
    per_device = execution.jobs_per_device
    if isinstance(per_device, int):
        return Layout(places=_places(devices, usage), slots=per_device)
    # On a CPU there is nothing to measure: `execution.workers` alone decides.
    gpus = any(device.kind == "cuda" for device in devices)
    slots = AUTO_SLOTS if gpus else 1
    return Layout(places=_places(devices, usage), slots=slots, vouched=per_device != AUTO)


def _places(
    devices: Sequence[inventory.Device], usage: Mapping[str, inventory.GpuUsage] | None
) -> tuple[Place, ...]:
    if usage is None:
        usage = inventory.read_machine().usage if any(device.kind == "cuda" for device in devices) else {}
    return tuple(_layout_place(device, usage.get(device.uuid or "")) for device in devices)


def _layout_place(device: inventory.Device, use: inventory.GpuUsage | None) -> Place:
    if device.kind == "cpu":
        return Place(label=device.label, node=device.node)
    free = device.memory_total_bytes if use is None else use.free_bytes
    label = f"{device.label} ({device.name})"
    return Place(label=label, free_mb=free // _MB, usable_mb=usable_bytes(free) // _MB, node=device.node)
