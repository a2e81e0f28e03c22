"""Carry out a launch: take the devices, start the agent in a clean environment, clear up.

this process (leases, no torch)  ->  agent (torchrun)  ->  ranks  ->  whatever they start
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from pipeline import arithmetic
from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices.inventory import (
    FREE_TIMEOUT_S,
    VISIBLE,
    Device,
    cpu_slots,
    find_gpus,
    read_levels,
    usable_cores,
    wait_until_free,
)
from pipeline.engine.devices.lease import LeaseSet, LockFile, lease_dir
from pipeline.engine.devices.select import DeviceRequest, candidates
from pipeline.engine.devices.worker_env import ON_LOOPBACK, is_of_launcher
from pipeline.engine.launch.request import (
    LOOPBACK,
    LaunchRequest,
    Meeting,
    find_meeting,
    find_program,
)
from pipeline.engine.launch.supervise import supervise
from pipeline.errors import ConfigError, DeviceError
from pipeline.machine import children

_PORTS, _TRIES = (20_000, 32_768), 200
"""Below those that the kernel gives to connections, which would come and go."""
_NAMES = ("--num-gpus", "--gpus")
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
    program = find_program(request.program, Path.cwd())
    meeting = find_meeting(request, os.environ)
    with ExitStack() as held:
        server = None
        if meeting.nnodes == 1:
            server = held.enter_context(listen(meeting.port))
            meeting = replace(meeting, port=server.getsockname()[1])
        elif meeting.port is not None and meeting.node_rank == 0:
            _refuse_used("", meeting.port).close()  # the agent opens it anew, once torch is imported
        lease = held.enter_context(take_devices(request, f"launch {Path(program.name).name}", os.environ, say))
        say(describe(lease.devices, meeting))
        arguments = [*meeting.torchrun(), f"--nproc-per-node={len(lease.devices)}", *program.flags]
        environment = rank_environment(
            arithmetic.outside(os.environ), lease.devices, usable_cores(), alone=meeting.nnodes == 1
        )
        levels = read_levels(lease.devices)
        arguments = [*arguments, program.name, *program.arguments]
        words, environment = ranks_command(arguments, environment, request.grace_s, server)
        code = supervise(words, environment, request.grace_s, server=server)
        for held_memory in wait_until_free(lease.devices, levels, FREE_TIMEOUT_S):
            say(held_memory)
        return code


def take_devices(request: LaunchRequest, holder: str, environ: Mapping[str, str], say: Say) -> LeaseSet:
    """Lease the devices of a request; that of LOCAL_RANK 0 first.

    Args:
        request: What was asked for.
        holder: Who takes them, for the messages of others.
        environ: Where CUDA_VISIBLE_DEVICES is looked up.
        say: Told about waiting.

    Raises:
        DeviceError: There are none such, or others hold them.
    """
    if request.nproc is not None:
        return LeaseSet(cpu_slots(request.nproc), {})
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
    found = candidates(asked, environ)
    if request.gpus is None and request.num_gpus is None:
        found = type(found)(devices=found.order, count=len(found.order), order=found.order)
    _refuse_slices(found.devices[: found.count])
    lease = LeaseSet.acquire(
        found.devices,
        request.wait,
        count=found.count,
        experiment=holder,
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
    with _refuse_used(LOOPBACK, port or 0) as server:
        yield server


def _refuse_used(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise ConfigError(
            f"port {port}: {os.strerror(error.errno or 0)}{listener(port)}. Give another by --master-port, or "
            "none at all (and no MASTER_PORT) on a single machine: a free one is found."
        ) from error


@contextmanager
def own_port() -> Iterator[int]:
    """A port for a program that opens it later: free now, and given to nobody else who asks here until this ends.

    Raises:
        DeviceError: None is free.
    """
    chosen = random.SystemRandom()
    for _ in range(_TRIES):
        port = chosen.randrange(*_PORTS)
        with LockFile(lease_dir() / f"port-{port}.lock") as file:
            if file.try_lock():
                try:
                    socket.create_server((LOOPBACK, port)).close()
                except OSError:
                    continue
                yield port
                return
    raise DeviceError(f"no port from {_PORTS[0]} to {_PORTS[1] - 1} is free, of {_TRIES} that were tried")


def listener(port: int) -> str:
    """Who listens on a port, as in `` by python (pid 4711)``; empty where the system does not tell."""
    import psutil

    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return ""


def ranks_command(
    arguments: Sequence[str], environment: Mapping[str, str], grace_s: int, server: socket.socket | None
) -> tuple[list[str], dict[str, str]]:
    """What starts ranks and watches them: a command line, and an environment.

    Args:
        arguments: Of torchrun.
        environment: That of every rank.
        grace_s: Seconds that ranks have to end.
        server: Where those of this machine alone meet.
    """
    fds = [server.fileno()] if server else []
    words, environment = children.command(
        "pipeline.engine.launch.agent", environment, grace_s=grace_s, listeners=fds
    )
    return [*words, *arguments], environment


def say_to_stderr(text: str) -> None:
    """Print a line where it does not mix with the program's output."""
    from pipeline.terminal.console import make_console  # and Rich, which the process of a trial does without
    from pipeline.terminal.console import say as say_on

    say_on(make_console(stderr=True), f"launch: {text}")
