"""Carry out a launch: take the devices, start the agent in a clean environment, pass signals on, clear up.

    this process (leases, no torch)  ->  agent (torchrun)  ->  ranks  ->  whatever they start

Each rank is in a session of its own, so Ctrl-C in a terminal reaches this process alone, which passes it on. What
is orphaned becomes a child of this process (it is their "subreaper"), which ends when nothing is left.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from pipeline import arithmetic
from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices.inventory import Device, cpu_slots, find_gpus, usable_cores
from pipeline.engine.devices.lease import LeaseSet
from pipeline.engine.devices.locks import LockFile, lease_dir
from pipeline.engine.devices.mask import VISIBLE
from pipeline.engine.devices.memory_reclaim import FREE_TIMEOUT_S, read_levels, wait_until_all_free
from pipeline.engine.devices.resolve import DeviceRequest, Inventory, candidates
from pipeline.engine.devices.worker_env import ON_LOOPBACK, is_of_launcher
from pipeline.engine.launch.agent import SIGNALLED
from pipeline.engine.launch.request import (
    LOOPBACK,
    LaunchRequest,
    Meeting,
    check_request,
    find_meeting,
    find_program,
)
from pipeline.errors import ConfigError, DeviceError
from pipeline.machine import children, descendants
from pipeline.terminal.console import make_console, say

_NAMES = ("--num-gpus", "--gpus")
_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASS_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""What Slurm may be asked to send before the end of an allocation; for the program to make of it what it likes."""
_MARGIN_S = 5.0
"""What the agent needs on top of the grace that it gives the ranks."""

Say = Callable[[str], None]


def launch(request: LaunchRequest, say: Say) -> int:
    """Run a program on each of some devices.

    Args:
        request: What was asked for.
        say: Told one line about what was started, and about waiting.

    Returns:
        The program's exit code: that of the rank that failed first. 128 + n after signal n.

    Raises:
        PipelineError: The request cannot be met; nothing was started.
    """
    check_request(request)
    program = find_program(request.program, Path.cwd())
    meeting = find_meeting(request, os.environ)
    with ExitStack() as held:
        server = None
        if meeting.nnodes == 1:
            server = held.enter_context(listen(meeting.port))
            meeting = replace(meeting, port=server.getsockname()[1])
        elif meeting.port is not None and meeting.node_rank == 0:
            held.enter_context(hold_port(meeting.port))
        lease = held.enter_context(take_devices(request, Path(program.name).name, os.environ, say))
        say(describe(lease.devices, meeting))
        arguments = [*meeting.torchrun(), f"--nproc-per-node={len(lease.devices)}", *program.flags]
        environment = rank_environment(
            arithmetic.outside(os.environ), lease.devices, usable_cores(), alone=meeting.nnodes == 1
        )
        levels = read_levels(lease.devices)
        arguments = [*arguments, program.name, *program.arguments]
        code = _run_agent(arguments, environment, request.grace_s, server)
        for words in wait_until_all_free(lease.devices, levels, FREE_TIMEOUT_S):
            say(words)
        return code


def take_devices(request: LaunchRequest, name: str, environ: Mapping[str, str], say: Say) -> LeaseSet:
    """Lease the devices of a request; that of LOCAL_RANK 0 first.

    Raises:
        DeviceError: There are none such, or others hold them.
    """
    if request.on_cpu:
        return LeaseSet(cpu_slots(request.nproc or 1), {})
    if not find_gpus(environ):
        hidden = f": {VISIBLE}={environ[VISIBLE]!r} hides them, or there is none" if VISIBLE in environ else ""
        raise DeviceError(
            f"there is no usable GPU{hidden}. `python -m pipeline check` says more; for processes without GPUs "
            "use --device cpu --nproc N."
        )
    asked = DeviceRequest(
        device=DeviceChoice.cuda,
        num_gpus=request.num_gpus,
        gpu_ids=request.gpus,
        names=_NAMES,
        without="--device cpu --nproc N",
    )
    found = candidates(asked, environ, Inventory())
    if request.gpus is None and request.num_gpus is None:
        found = type(found)(devices=found.order, count=len(found.order), order=found.order)
    _refuse_slices(found.devices[: found.count])
    lease = LeaseSet.acquire(
        found.devices,
        request.wait,
        count=found.count,
        experiment=f"launch {name}",
        on_wait=say,
        how_to_wait="--wait",
    )
    if request.gpus is None:
        lease.devices = found.sorted(lease.devices)
    return lease


def _refuse_slices(devices: Sequence[Device]) -> None:
    slices = [device.label for device in devices if device.slice_index is not None]
    if slices and len(devices) > 1:
        raise DeviceError(
            f"{', '.join(slices)}: CUDA shows a process one MIG slice and nothing else, so ranks cannot work "
            "together on slices. Give --gpus one of them, or whole GPUs."
        )


def rank_environment(
    base: Mapping[str, str], devices: Sequence[Device], cores: int, *, alone: bool
) -> dict[str, str]:
    """The environment of every rank: LOCAL_RANK i computes on ``devices[i]``, which is its ``cuda:i``.

    Args:
        base: What this process has; the ranks and meeting points of other launchers are left out.
        devices: In the order of ranks.
        cores: Usable cores, which the ranks divide unless OMP_NUM_THREADS says otherwise.
        alone: Whether no other machine takes part, so that no rank has to listen for one.
    """
    environment = {name: value for name, value in base.items() if not is_of_launcher(name)}
    gpus = [device.uuid or str(device.index) for device in devices if device.kind == "cuda"]
    environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE: ",".join(gpus), "PYTHONUNBUFFERED": "1"}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // len(devices))))
    return {**ON_LOOPBACK, **environment} if alone else environment


def describe(devices: Sequence[Device], meeting: Meeting) -> str:
    """One line about what is started."""
    many = f"{len(devices)} process{'es' if len(devices) != 1 else ''}"
    if devices[0].kind == "cpu":
        return f"{many} on the CPU, {meeting}"
    places = ", ".join(f"{rank}={device.label}" for rank, device in enumerate(devices))
    return f"{many} (LOCAL_RANK {places}), {meeting}"


@contextmanager
def listen(port: int | None) -> Iterator[socket.socket]:
    """The socket where the ranks of this machine alone meet; no other machine reaches it.

    Args:
        port: Its port, or None for a free one.

    Raises:
        ConfigError: The port is in use.
    """
    with _refused(port or 0):
        server = socket.create_server((LOOPBACK, port or 0))
    with server:
        yield server


@contextmanager
def hold_port(port: int) -> Iterator[None]:
    """Be the only launch that meets other machines at a port of this one.

    The agent opens it seconds later, once torch is imported; until then a lock keeps other launches away.

    Raises:
        ConfigError: Another launch has it, or any other program.
    """
    with LockFile(lease_dir() / f"port-{port}.lock") as file:
        if not file.try_lock():
            raise ConfigError(f"port {port} is held by another launch of yours. {_OTHER_PORT}")
        with _refused(port):
            socket.create_server(("", port)).close()
        yield


@contextmanager
def _refused(port: int) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise ConfigError(f"port {port} is for the system's own services. {_OTHER_PORT}") from error
    except OSError as error:
        raise ConfigError(f"port {port} is in use{listener(port)}. {_OTHER_PORT}") from error


_OTHER_PORT = (
    "Give another by --master-port, or none at all (and no MASTER_PORT) on a single machine: a free one is found."
)


def listener(port: int) -> str:
    """Who listens on a port, as in `` by python (pid 4711)``; empty where the system does not tell."""
    import psutil

    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return ""


def _run_agent(
    arguments: Sequence[str], environment: Mapping[str, str], grace_s: int, server: socket.socket | None
) -> int:
    descendants.adopt_orphans()
    fds = [server.fileno()] if server else []
    words, env = children.command("pipeline.engine.launch.agent", environment, grace_s=grace_s, listeners=fds)
    with _Signals(grace_s) as signals:
        agent = subprocess.Popen([*words, *arguments], env=env, start_new_session=True, pass_fds=fds)
        if server:
            server.close()  # so that the port is closed when the agent ends
        signals.to(agent)
        try:
            while (code := _wait(agent)) is None:
                if signals.overdue():
                    agent.kill()
        finally:
            descendants.end_own(_MARGIN_S)
        if signals.received:
            return SIGNALLED + signals.received
    return code if code >= 0 else SIGNALLED - code


def _wait(agent: subprocess.Popen[bytes]) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return agent.wait(0.5)
    return None


class _Signals:
    """While entered, passes signals on to an agent, and remembers the first request to stop.

    Attributes:
        received: Its number; 0 for none.
    """

    def __init__(self, grace_s: int) -> None:
        self.received = 0
        self._grace_s = grace_s
        self._end = float("inf")
        self._agent: subprocess.Popen[bytes] | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> _Signals:
        for number in (*_STOP, *_PASS_ON):
            # `nohup` ignores SIGHUP, and means it.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)  # type: ignore[arg-type]

    def to(self, agent: subprocess.Popen[bytes]) -> None:
        """Whom to pass them on to; one that came before is passed on now."""
        self._agent = agent
        if self.received:
            agent.send_signal(self.received)

    def overdue(self) -> bool:
        """Whether the time to stop is over."""
        return time.monotonic() >= self._end

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number in _PASS_ON:
            self._to_ranks(number)
            return
        if self.received:  # a second one: at once; of a closed terminal both its shell and the kernel tell
            if number != signal.SIGHUP:
                self._end = 0
            return
        self.received = number
        self._end = time.monotonic() + self._grace_s + _MARGIN_S
        if self._agent is not None:
            self._agent.send_signal(number)

    def _to_ranks(self, number: int) -> None:
        import psutil

        if self._agent is not None:
            with suppress(psutil.Error):
                for rank in psutil.Process(self._agent.pid).children():
                    rank.send_signal(number)


def say_to_stderr(text: str) -> None:
    """Print a line where it does not mix with the program's output."""
    say(make_console(stderr=True), f"launch: {text}")
