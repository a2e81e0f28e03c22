"""Run the program of one trial, as a process: take devices, start it, clear up, tell the result.

    agent (chooses devices)  ->  this process (holds their leases)  ->  the program, or torchrun and its ranks
    Handle(order)                Order -> ... -> Result
    side_by_side(...)            slots that run one order after the other, as several runs and agents of W&B

A lease lives as long as this process, which ends when nothing of the program is left and its memory is seen free.
It is told to stop by a signal, and also ends the program when the agent is gone. Nothing is left behind.
"""

import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from pipeline import arithmetic
from pipeline.engine import launch as launching
from pipeline.engine.devices import inventory
from pipeline.engine.devices.inventory import LOOPBACK, Device, held_port, is_of_launcher, is_of_other_run
from pipeline.engine.devices.select import holders
from pipeline.engine.launch_agent import SIGNALLED
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import DeviceError, PipelineError, WorkerError
from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, converted, read_json
from pipeline.machine import children, descendants
from pipeline.machine.children import Channel, Child
from pipeline.machine.descendants import Reaper, begin
from pipeline.sweeps.command import as_ranks
from pipeline.sweeps.reporting import VARIABLE

MODULE = "pipeline.sweeps.trial_process"


@dataclass(frozen=True, kw_only=True)
class Order:
    """Order of an agent: a command to run.

    Attributes:
        words: The command.
        gpus: Positions of its GPUs in the visible set; None for the CPU.
        slots: Number of CPU slots, without GPUs.
        cores: Cores that its processes share.
        leases: Whether the program takes its devices itself: it sees all that this process does.
        launcher: Way to start it on several devices.
        holder: Name of the holder of the devices, for messages to others.
        variables: Environment variables, besides those of this process.
        folder: Folder in which it starts.
        log: File for its output.
        start: File for the facts on its start.
        grace_s: Seconds that it has to end.
    """

    words: list[str]
    gpus: list[int] | None = None
    slots: int = 1
    cores: int = 1
    leases: bool = False
    launcher: str = "torchrun"
    holder: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    folder: str = "."
    log: str
    start: str
    grace_s: int = 30


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result that this process sends to its agent.

    Attributes:
        busy: Why nothing can be started now: who has a device, or what the machine is short of.
        refused: Why the program cannot be started at all.
        exit_code: Exit code of the program, as a shell has it.
    """

    busy: str = ""
    refused: str = ""
    exit_code: int | None = None


def main() -> int:
    """Carry out the order of the agent that has started this process."""
    settings = begin(signal.SIGTERM)
    channel = Channel.inherited(settings.pop("fd"))
    # Until something runs that has to be ended, a request to stop ends this process.
    order = converted(settings["order"], Order)
    try:
        result = _carry_out(order)
    except DeviceError as error:
        result = Result(busy=str(error).partition(". Ask for ")[0])
    except (PipelineError, OSError, ValueError) as error:  # the last of a word that the locale has not
        result = Result(refused=str(error))
    channel.send(msgspec.json.encode(result))
    return 0


def _carry_out(order: Order) -> Result:
    on_cpu = launching.LaunchRequest(program=order.words, nproc=order.slots)
    request = on_cpu if order.gpus is None else launching.LaunchRequest(program=order.words, gpus=order.gpus)
    with ExitStack() as stack:
        lease = stack.enter_context(launching.take_devices(request, order.holder, os.environ, lambda _text: None))
        devices = list(lease.devices)
        if order.leases:
            lease.release()
        result = _run(order, devices, stack)
        if order.leases and result.exit_code == 2 and (others := holders(devices)):
            return Result(busy="; ".join(map(str, others.values())))
        return result


def _run(order: Order, devices: list[Device], stack: ExitStack) -> Result:
    environment = {**_base(order, devices), **order.variables}
    words, server, ranks = order.words, None, None
    if len(devices) > 1 and not order.leases and order.launcher == "torchrun":
        ranks = as_ranks(order.words)
    if ranks is not None:
        program = launching.find_program(ranks, Path(order.folder))
        server = stack.enter_context(launching.listen(None))
        port = server.getsockname()[1]
        grace_s = max(1, order.grace_s)
        words, environment = launching.ranks_command(_as_rank(program), len(devices), environment, grace_s, server)
    else:
        port = stack.enter_context(held_port(None))
        environment |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
    levels = inventory.read_levels(devices)
    began: list[int] = []
    # Later ones are for `supervise`; after the end of the program, nothing that came of it is to be lost.
    signal.signal(signal.SIGTERM, lambda number, _frame: None if began else os._exit(SIGNALLED + number))

    def on_start(pid: int) -> None:
        began.append(pid)
        tell(pid=pid)

    with _started(order, devices, environment, port) as tell, Path(order.log).open("ab", buffering=0) as log:
        code = launching.supervise(
            words,
            environment,
            order.grace_s,
            server=server,
            output=log.fileno(),
            folder=Path(order.folder),
            on_start=on_start,
            own=ranks is not None,
        )
        tell(exit_code=code)
    inventory.wait_until_free(devices, levels, inventory.FREE_TIMEOUT_S)
    return Result(exit_code=code)


def _as_rank(program: launching.Program) -> list[str]:
    """Return the program for torchrun; of several Python ranks only the first writes to a tracker."""
    if program.flags == ("--no-python",):
        return program.words
    module = ["-m"] if program.flags else []
    return ["--module", "pipeline.sweeps.rank_zero", *module, program.name, *program.arguments]


def _base(order: Order, devices: list[Device]) -> dict[str, str]:
    """Return the environment of a program, without its own variables."""
    variables = arithmetic.outside(os.environ).items()
    base = {name: value for name, value in variables if name != VARIABLE and not is_of_other_run(name)}
    if order.leases:
        return {name: value for name, value in base.items() if not is_of_launcher(name)}
    return launching.rank_environment(base, devices, order.cores, alone=True)


@contextmanager
def _started(
    order: Order, devices: list[Device], environment: dict[str, str], port: int
) -> Iterator[Callable[..., None]]:
    """Write down how it was started, what is told of it meanwhile, and when it ended."""
    own = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    record: dict[str, object] = {
        "command": order.words,
        "folder": order.folder,
        "environment": {name: value for name, value in own.items() if name not in ("PYTHONPATH", "PIPELINE_TAGS")},
        "devices": [asdict(device) for device in devices],
        "port": port,
        "started": round(time.time(), 3),
    }

    def tell(**more: object) -> None:
        record.update(more)
        write_whole(Path(order.start), json_text(record, indent=1) + "\n", durable=False)

    tell()
    try:
        yield tell
    finally:
        tell(ended=round(time.time(), 3))


# -- as its agent sees it ----------------------------------------------------------------------------------------

_LOOK_S = 1.0
"""Longest wait of `heard`; between waits come what others write, and deadlines."""
_MARGIN_S = 15.0
"""Seconds for the process to clear up, on top of the grace of its program."""


class Handle:
    """A process that carries out an order.

    Attributes:
        order: The order.
        began: Its start, by `time.monotonic`.
        result: Result from its end; empty before, and where it was killed.
    """

    def __init__(self, order: Order, tag: str) -> None:
        """Start it.

        Args:
            order: The order.
            tag: Tag by which its processes are found should it be gone.

        Raises:
            WorkerError: No process can be started.
        """
        self.order, self.began, self.result = order, time.monotonic(), Result()
        self._end_s = math.inf
        try:
            self._child = Child(
                MODULE,
                descendants.with_tag(os.environ, tag),
                {"order": msgspec.to_builtins(order)},
                max_bytes=1 << 20,
                send_timeout_s=5.0,
                own_group=True,
            )
        except OSError as error:
            raise WorkerError(f"{order.holder} cannot be started: {error}") from error

    def fileno(self) -> int:
        """Readable when it has said something, or has ended."""
        return self._child.channel.fileno()

    def is_over(self) -> bool:
        """Return whether it has ended with all its processes; kills them if they take too long to end."""
        if time.monotonic() >= self._end_s:
            self.kill()
        try:
            for line in self._child.channel.receive():
                self.result = read_json(line, Result)
            over = self._child.channel.closed
        except (WorkerError, ForeignDataError):
            over = True
        if over:
            self.kill()
            self._child.wait()
        return over

    @property
    def told_to_end(self) -> bool:
        """Whether it was told to end."""
        return self._end_s < math.inf

    def ask_to_end(self) -> None:
        """Have it end its program; from the first time on its time runs."""
        if not self.told_to_end:
            self._end_s = time.monotonic() + self.order.grace_s + _MARGIN_S
            self._child.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it now, with everything that it has started."""
        children.end([self._child])


def heard(signals: StopSignals, processes: Iterable[Handle]) -> bool:
    """Return whether a signal has come; waits a moment for one, or for output of a process."""
    poll = select.poll()
    for descriptor in (signals.fileno(), *(process.fileno() for process in processes)):
        poll.register(descriptor, select.POLLIN)
    if signals.fileno() not in dict(poll.poll(_LOOK_S * 1000)):
        return False
    signals.drain()
    return True


@contextmanager
def family() -> Iterator[str]:
    """Have nothing that is started with a tag outlive this process; yields the tag."""
    descendants.adopt_orphans()
    reaper, tag = Reaper(), descendants.new_tag()
    try:
        reaper.watch("tag", tag)
        yield tag
        reaper.forget("tag", tag)
    finally:
        reaper.close()


_H = TypeVar("_H", bound=Handle)


def work(
    running: list[_H],
    signals: StopSignals,
    turn: Callable[[str, bool], bool],
    ended: Callable[[_H], None],
    stop: Callable[[_H], None],
    say: Callable[[str], None],
) -> str:
    """Carry out orders until there are none.

    Args:
        running: Processes that run.
        signals: The first one asks what runs to end, a second one kills it.
        turn: Adds what comes next, started with this tag, unless it is to stop; whether there may be more.
        ended: Told of each that has ended.
        stop: Asks one to end.
        say: Told a line when a signal has come.

    Returns:
        Name of the signal that has ended it before, or "".

    Raises:
        PipelineError: As `turn`. What runs has been ended.
    """
    stopped = ""
    with family() as tag:
        try:
            while turn(tag, bool(stopped)) or running:
                if heard(signals, running):
                    if running and not stopped:
                        names = "; ".join(process.order.holder for process in running)
                        say(f"stopping on {signals.received}: waiting for {names} to end; once more kills")
                    for process in running:
                        process.kill() if stopped else stop(process)
                    stopped = signals.received or "a signal"
                for process in [process for process in running if process.is_over()]:
                    running.remove(process)
                    ended(process)
        finally:
            for process in running:
                process.kill()
    return stopped


def side_by_side(
    slots: int,
    signals: StopSignals,
    following: Callable[[int], Order | None],
    ended: Callable[[int, Handle], float],
    say: Callable[[str], None],
) -> str:
    """Have slots take orders until there are none.

    Args:
        slots: Number of slots.
        signals: As for `work`.
        following: The next order of a slot; None where it has none at this moment.
        ended: Told of each end, by slot; seconds for which the slot is to rest.
        say: Told a line when a signal has come.

    Returns:
        Name of the signal that has ended it before, or "".

    Raises:
        WorkerError: No process can be started. Those that run have been ended.
    """
    running, places = list[Handle](), dict[int, int]()
    rests = dict.fromkeys(range(slots), 0.0)

    def turn(tag: str, stopping: bool) -> bool:
        now = time.monotonic()
        for slot in () if stopping else rests.keys() - places.values():
            if rests[slot] <= now and (order := following(slot)) is not None:
                running.append(Handle(order, tag))
                places[id(running[-1])] = slot
        return not stopping and any(rest > now for rest in rests.values())

    def over(handle: Handle) -> None:
        slot = places.pop(id(handle))
        rests[slot] = time.monotonic() + ended(slot, handle)

    return work(running, signals, turn, over, Handle.ask_to_end, say)


if __name__ == "__main__":
    sys.exit(main())
