"""Carry out a launch: take the devices, start the agent in a clean environment, clear up.

this process (leases, no torch)  ->  agent (torchrun)  ->  ranks  ->  whatever they start
"""

import importlib.machinery
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from pipeline import arithmetic
from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices import inventory
from pipeline.engine.devices.inventory import LOOPBACK, ON_LOOPBACK, is_of_launcher
from pipeline.engine.devices.select import DeviceRequest, LeaseSet, candidates
from pipeline.engine.launch_agent import SIGNALLED
from pipeline.errors import ConfigError, DeviceError
from pipeline.machine import children, descendants

# -- request -----------------------------------------------------------------------------------------------------
# What a launch was asked for, and the checks that need nothing but the request itself.


LAST_PORT = 65535
_OUTER_LAUNCHER = ("RANK", "TORCHELASTIC_RUN_ID")


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """One command line.

    Attributes:
        program: The program and its arguments.
        gpus: Exactly these GPUs, in this order, as positions in the visible set.
        num_gpus: So many, the idlest; None with no `gpus` takes every visible one.
        nproc: Processes without GPUs; None for one on each GPU.
        nnodes: Machines.
        node_rank: Which of them this is; None leaves it to Slurm.
        master_addr: Address of machine 0.
        master_port: Port on machine 0 where the processes meet.
        wait: Queue for GPUs that others hold.
        grace_s: Seconds that processes have to end before they are killed.
    """

    program: Sequence[str]
    gpus: Sequence[int] | None = None
    num_gpus: int | None = None
    nproc: int | None = None
    nnodes: int = 1
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    wait: bool = False
    grace_s: int = 8


@dataclass(frozen=True)
class Program:
    """What each process runs, as torchrun takes it.

    Attributes:
        flags: Of torchrun.
        name: A script, a module or an executable.
        arguments: Of the program.
    """

    flags: tuple[str, ...]
    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Meeting:
    """Where the processes find each other.

    Attributes:
        nnodes: Machines.
        node_rank: Which of them this is.
        address: Of machine 0.
        port: On machine 0; None lets the system choose one. Several machines have to be told.
    """

    nnodes: int
    node_rank: int
    address: str
    port: int | None

    def torchrun(self) -> list[str]:
        """As arguments of torchrun."""
        assert self.port is not None
        return [
            f"--nnodes={self.nnodes}",
            f"--node-rank={self.node_rank}",
            f"--master-addr={self.address}",
            f"--master-port={self.port}",
        ]

    def __str__(self) -> str:
        """As in ``node 1 of 2, meeting at 10.0.0.4:29500``."""
        node = f"node {self.node_rank} of {self.nnodes}, " if self.nnodes > 1 else ""
        return f"{node}meeting at {self.address}:{self.port}"


def find_program(words: Sequence[str], folder: Path) -> Program:
    """Understand the program: a script, ``-m MODULE``, or an executable.

    Args:
        words: Everything after the options.
        folder: Where it would start.

    Raises:
        ConfigError: It does not exist, or starts processes of its own.
    """
    usage = "Give it last, after --: pipeline launch --gpus 0,1 -- train.py --lr 1e-3"
    if not words or words == ["-m"] or (words[0].startswith("-") and words[0] != "-m"):
        unknown = f", nor such an option of launch: {' '.join(words)}" if words else ""
        raise ConfigError(f"there is no program to start{unknown}. {usage}")
    first, *rest = words
    if first == "-m":
        # The first part alone: looking for the others would import it.
        top = rest[0].partition(".")[0]
        if importlib.machinery.PathFinder.find_spec(top, [str(folder), *sys.path]) is None:
            raise ConfigError(f"there is no module {rest[0]}: '{top}' is not installed and not in {folder}")
        return Program(("--module",), rest[0], tuple(rest[1:]))
    if Path(first).name == "run_parallel.py":
        raise ConfigError("run_parallel.py starts a process on each GPU by itself: run it without launch")
    if first.endswith(".py"):
        if not (folder / first).is_file():
            raise ConfigError(f"there is no file {first} in {folder}. {usage}")
        return Program((), first, tuple(rest))
    executable = shutil.which(first, path=None) or shutil.which(str(folder / first))
    if executable is None:
        raise ConfigError(f"there is no program {first}: neither a file ending in .py nor an executable. {usage}")
    return Program(("--no-python",), executable, tuple(rest))


def find_meeting(request: LaunchRequest, environ: Mapping[str, str]) -> Meeting:
    """Where the processes meet: the options, else MASTER_ADDR and MASTER_PORT, else a free port.

    Args:
        request: What was asked for.
        environ: The environment. What an outer launcher left in it counts for nothing.

    Raises:
        ConfigError: Something is missing, or out of its range.
    """
    inherited = {} if any(name in environ for name in _OUTER_LAUNCHER) else environ
    port, given = request.master_port, inherited.get("MASTER_PORT")
    if port is None and given:
        if not given.isdigit() or not 1 <= int(given) <= LAST_PORT:
            raise ConfigError(f"MASTER_PORT={given} is no port: a number from 1 to {LAST_PORT}, or unset it")
        port = int(given)
    if request.nnodes == 1:
        if request.node_rank is not None or request.master_addr is not None:
            raise ConfigError("--node-rank and --master-addr are for several machines: give --nnodes too")
        return Meeting(1, 0, LOOPBACK, port)
    address, rank = request.master_addr or inherited.get("MASTER_ADDR"), request.node_rank
    if rank is None and environ.get("SLURM_NODEID", "").isdigit():
        rank = int(environ["SLURM_NODEID"])
    if not address or port is None or rank is None or not 0 <= rank < request.nnodes:
        raise ConfigError(
            f"--nnodes {request.nnodes} needs --master-addr, the address of machine 0, --master-port, a port that "
            f"is free there, both the same on each, and --node-rank, 0 to {request.nnodes - 1}, another on each"
        )
    return Meeting(request.nnodes, rank, address, port)


# -- supervise ---------------------------------------------------------------------------------------------------
# Runs one process to its end for somebody else: passes signals on, and leaves nothing behind that it has
# started. The process is in a session of its own, so Ctrl-C in a terminal reaches this one alone. What is
# orphaned becomes a child of this process (it is their "subreaper"), which ends when nothing is left.


_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASS_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""What Slurm may be asked to send before the end of an allocation; for the program to make of it what it likes."""
MARGIN_S = 5.0
"""What whoever starts ranks needs on top of the grace that it gives them."""


def supervise(
    words: Sequence[str],
    environment: Mapping[str, str],
    grace_s: float,
    *,
    server: socket.socket | None = None,
    output: int | None = None,
    folder: Path | None = None,
    on_start: Callable[[int], None] = lambda _pid: None,
    own: bool = True,
) -> int:
    """Run a command; return once it and everything that it has started are gone.

    Args:
        words: The command.
        environment: All that it finds in its environment.
        grace_s: Seconds that it has to end after a request to stop, before it is killed.
        server: A socket that it inherits, and that is closed here.
        output: Descriptor where its standard output and error go; nothing is read from standard input then. None
            leaves it those of this process.
        folder: Where it starts.
        on_start: Told its process id.
        own: Whether it is ours: it ends by itself with this process, and passes requests to stop on to those that
            it has started. Of any other the kernel sees to the one, and its group is told the other.

    Returns:
        Its exit code; 128 + n after signal n, be it one that came to this process before its end.
    """
    descendants.adopt_orphans()
    parent, received, end_s = os.getpid(), 0, math.inf
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int) -> None:
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            if not own:
                os.killpg(process.pid, number)
            elif number in _STOP:
                process.send_signal(number)
            else:
                for one in descendants.below(process.pid):
                    if one.parent == process.pid:  # a rank
                        os.kill(one.pid, number)

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal received, end_s
        if number in _STOP:
            if process is not None and process.poll() is not None:
                return  # it has ended by itself, which is what its exit code is to say
            if received:  # a second one: at once; of a closed terminal both its shell and the kernel tell
                end_s = end_s if number == signal.SIGHUP else 0
                return
            received, end_s = number, time.monotonic() + grace_s + (MARGIN_S if own else 0)
        pass_on(number)

    # `nohup` ignores SIGHUP, and means it.
    taken = [one for one in (*_STOP, *_PASS_ON) if (one, signal.getsignal(one)) != (signal.SIGHUP, signal.SIG_IGN)]
    before = {number: signal.signal(number, handle) for number in taken}
    try:
        process = subprocess.Popen(
            words,
            env=environment,
            cwd=folder,
            start_new_session=True,
            pass_fds=[server.fileno()] if server else [],
            stdin=None if output is None else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=None if own else lambda: descendants.die_with_parent(parent),
        )
        if server:
            server.close()  # so that the port is closed when the process ends
        on_start(process.pid)
        if received:  # before it could be told
            pass_on(received)
        try:
            while process.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
                if time.monotonic() >= end_s:
                    process.kill()  # which does nothing to one that has ended
        finally:
            descendants.end_own(MARGIN_S)
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
    if received:
        return SIGNALLED + received
    return process.returncode if process.returncode >= 0 else SIGNALLED - process.returncode


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
            listen(meeting.port, "").close()  # the agent opens it anew, once torch is imported
        lease = held.enter_context(take_devices(request, f"launch {Path(program.name).name}", os.environ, say))
        say(describe(lease.devices, meeting))
        arguments = [*meeting.torchrun(), f"--nproc-per-node={len(lease.devices)}", *program.flags]
        environment = rank_environment(
            arithmetic.outside(os.environ), lease.devices, inventory.usable_cores(), alone=meeting.nnodes == 1
        )
        levels = inventory.read_levels(lease.devices)
        arguments = [*arguments, program.name, *program.arguments]
        words, environment = ranks_command(arguments, environment, request.grace_s, server)
        code = supervise(words, environment, request.grace_s, server=server)
        for held_memory in inventory.wait_until_free(lease.devices, levels, inventory.FREE_TIMEOUT_S):
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
        return LeaseSet(inventory.cpu_slots(request.nproc))
    asked = DeviceRequest(
        device=DeviceChoice.cuda,
        num_gpus=request.num_gpus,
        gpu_ids=request.gpus,
        names=_NAMES,
        without="--device cpu --nproc N",
    )
    found = candidates(asked, environ)
    _refuse_slices(found.devices[: found.count])
    lease = found.lease(wait=request.wait, experiment=holder, on_wait=say, how_to_wait="--wait")
    if request.gpus is not None:
        lease.devices.sort(key=found.devices.index)
    return lease


def _refuse_slices(devices: Sequence[inventory.Device]) -> None:
    slices = [device.label for device in devices if device.slice_index is not None]
    if slices and len(devices) > 1:
        raise DeviceError(
            f"{', '.join(slices)}: CUDA shows a process one MIG slice and nothing else, so ranks cannot work "
            "together on slices. Give --gpus one of them, or whole GPUs."
        )


def rank_environment(
    base: Mapping[str, str], devices: Sequence[inventory.Device], cores: int, *, alone: bool
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
    environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", inventory.VISIBLE: ",".join(gpus), "PYTHONUNBUFFERED": "1"}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // len(devices))))
    return {**ON_LOOPBACK, **environment} if alone else environment


def describe(devices: Sequence[inventory.Device], meeting: Meeting) -> str:
    """One line about what is started."""
    many = f"{len(devices)} process{'es' if len(devices) != 1 else ''}"
    if devices[0].kind == "cpu":
        return f"{many} on the CPU, {meeting}"
    places = ", ".join(f"{rank}={device.label}" for rank, device in enumerate(devices))
    return f"{many} (LOCAL_RANK {places}), {meeting}"


def listen(port: int | None, host: str = LOOPBACK) -> socket.socket:
    """The socket where ranks meet; of one on the loopback interface no other machine knows.

    Args:
        port: Its port, or None for a free one.
        host: Where it listens.

    Raises:
        ConfigError: The port is in use.
    """
    try:
        return socket.create_server((host, port or 0))
    except OSError as error:
        said = f"port {port}: {os.strerror(error.errno or 0)}. Give another by --master-port"
        raise ConfigError(
            f"{said}; on a single machine none at all (and no MASTER_PORT): a free one is found"
        ) from error


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
        "pipeline.engine.launch_agent", environment, grace_s=grace_s, listeners=fds
    )
    return [*words, *arguments], environment


def say_to_stderr(text: str) -> None:
    """Print a line where it does not mix with the program's output."""
    from pipeline.terminal.console import make_console  # and Rich, which the process of a trial does without
    from pipeline.terminal.console import say as say_on

    say_on(make_console(stderr=True), f"launch: {text}")
