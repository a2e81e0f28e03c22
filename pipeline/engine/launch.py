"""Launch a program: lease devices, start the agent in a clean environment, clean up.

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
from pipeline.errors import ConfigError
from pipeline.machine import children, descendants

# -- request -----------------------------------------------------------------------------------------------------
# The launch request, and the checks that need nothing but the request itself.


LAST_PORT = 65535
_OUTER_LAUNCHER = ("RANK", "TORCHELASTIC_RUN_ID")


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """A launch request: one command line.

    Attributes:
        program: The program and its arguments.
        gpus: Exactly these GPUs, in this order, as positions in the visible set.
        num_gpus: The idlest GPUs, this many; None without `gpus` takes every visible one.
        nproc: Number of processes without GPUs; None for one on each GPU.
        nnodes: Number of machines.
        node_rank: Index of this machine; None takes it from Slurm.
        master_addr: Address of machine 0.
        master_port: Port on machine 0 where the processes meet.
        wait: Whether to queue for GPUs that others hold.
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
    """The program that each process runs, in torchrun's terms.

    Attributes:
        flags: Flags of torchrun.
        name: A script, a module or an executable.
        arguments: Arguments of the program.
    """

    flags: tuple[str, ...]
    name: str
    arguments: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """The program as torchrun takes it."""
        return [*self.flags, self.name, *self.arguments]


@dataclass(frozen=True)
class Meeting:
    """Address where the processes find each other.

    Attributes:
        nnodes: Number of machines.
        node_rank: Index of this machine.
        address: Address of machine 0.
        port: Port on machine 0; None lets the system choose one. Several machines need a given port.
    """

    nnodes: int
    node_rank: int
    address: str
    port: int | None

    def __str__(self) -> str:
        """Return text such as ``node 1 of 2, meeting at 10.0.0.4:29500``."""
        node = f"node {self.node_rank} of {self.nnodes}, " if self.nnodes > 1 else ""
        return f"{node}meeting at {self.address}:{self.port}"


def find_program(words: Sequence[str], folder: Path) -> Program:
    """Parse the program: a script, ``-m MODULE``, or an executable.

    Args:
        words: Everything after the options.
        folder: Working directory of the program.

    Raises:
        ConfigError: The program does not exist, or starts processes of its own.
    """
    usage = "Give it last, after --: pipeline launch --gpus 0,1 -- train.py --lr 1e-3"
    if not words or words == ["-m"] or (words[0].startswith("-") and words[0] != "-m"):
        unknown = f", nor such an option of launch: {' '.join(words)}" if words else ""
        raise ConfigError(f"there is no program to start{unknown}. {usage}")
    first, *rest = words
    if first == "-m":
        # The first part alone: looking for submodules would import it.
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
    """Return where the processes meet: the options, else MASTER_ADDR and MASTER_PORT, else a free port.

    Args:
        request: The launch request.
        environ: The environment. Variables that an outer launcher left in it are ignored.

    Raises:
        ConfigError: A value is missing, or out of range.
    """
    inherited = {} if any(name in environ for name in _OUTER_LAUNCHER) else environ
    port, text = request.master_port, inherited.get("MASTER_PORT")
    if port is None and text:
        if not text.isdigit() or not 1 <= int(text) <= LAST_PORT:
            raise ConfigError(f"MASTER_PORT={text} is no port: a number from 1 to {LAST_PORT}, or unset it")
        port = int(text)
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
# Run one process to its end on behalf of the caller: pass signals on, and leave no process behind that it started.
# The process has its own session, so Ctrl-C in a terminal reaches only the caller. Orphans become children of the
# caller (their "subreaper"), which returns when none is left.


_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASS_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that Slurm may be asked to send before an allocation ends; passed on to the program."""
MARGIN_S = 5.0
"""Seconds that the starter of ranks needs in addition to the grace period of the ranks."""


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
    """Run a command; return once it and all processes that it started are gone.

    Args:
        words: The command line.
        environment: Its complete environment.
        grace_s: Seconds between a request to stop and killing it.
        server: A socket that it inherits, and that is closed here.
        output: Descriptor for its standard output and error; its standard input is empty then. None lets it
            inherit those of this process.
        folder: Its working directory.
        on_start: Called with its process id.
        own: Whether the program is ours: it ends by itself with this process, and passes requests to stop on to
            its children. For any other program, the kernel ends it with this process, and its process group is
            signalled.

    Returns:
        Its exit code; 128 + n after signal n, including a signal that this process received before the command
        ended.
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
                for child in descendants.below(process.pid):
                    if child.parent == process.pid:  # a rank
                        os.kill(child.pid, number)

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal received, end_s
        if number in _STOP:
            if process is not None and process.poll() is not None:
                return  # it has ended by itself, so its own exit code counts
            if received:  # a second one: at once; when a terminal closes, both its shell and the kernel send one
                end_s = end_s if number == signal.SIGHUP else 0
                return
            received, end_s = number, time.monotonic() + grace_s + (MARGIN_S if own else 0)
        pass_on(number)

    # `nohup` ignores SIGHUP on purpose.
    taken = [sig for sig in (*_STOP, *_PASS_ON) if (sig, signal.getsignal(sig)) != (signal.SIGHUP, signal.SIG_IGN)]
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
        if received:  # a signal that came before it could be passed on
            pass_on(received)
        try:
            while process.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
                if time.monotonic() >= end_s:
                    process.kill()  # without effect on a process that has ended
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
    """Run a program on each of the requested devices.

    Args:
        request: The launch request.
        say: Called with a line about what was started, and while waiting.

    Returns:
        The exit code of the rank that failed first; 128 + n after signal n.

    Raises:
        PipelineError: The request cannot be met; nothing was started.
    """
    program = find_program(request.program, Path.cwd())
    meeting = find_meeting(request, os.environ)
    with ExitStack() as stack:
        server = None
        if meeting.nnodes == 1:
            server = stack.enter_context(listen(meeting.port))
            meeting = replace(meeting, port=server.getsockname()[1])
        elif meeting.port is not None and meeting.node_rank == 0:
            listen(meeting.port, "").close()  # the agent binds it again, once torch is imported
        lease = stack.enter_context(take_devices(request, f"launch {Path(program.name).name}", os.environ, say))
        say(describe(lease.devices, meeting))
        environment = rank_environment(
            arithmetic.outside(os.environ), lease.devices, inventory.usable_cores(), alone=meeting.nnodes == 1
        )
        levels = inventory.read_levels(lease.devices)
        words, environment = ranks_command(
            program.words, len(lease.devices), environment, request.grace_s, server, meeting
        )
        code = supervise(words, environment, request.grace_s, server=server)
        for held_memory in inventory.wait_until_free(lease.devices, levels, inventory.FREE_TIMEOUT_S):
            say(held_memory)
        return code


def take_devices(request: LaunchRequest, holder: str, environ: Mapping[str, str], say: Say) -> LeaseSet:
    """Lease the devices of a request; the first one is for LOCAL_RANK 0.

    Args:
        request: The launch request.
        holder: Name of the holder, for the messages that other programs show.
        environ: Environment in which CUDA_VISIBLE_DEVICES is looked up.
        say: Called with a line while waiting.

    Raises:
        DeviceError: There are no such devices, or others hold them.
    """
    if request.nproc is not None:
        return LeaseSet(inventory.cpu_slots(request.nproc))
    wanted = DeviceRequest(
        device=DeviceChoice.cuda,
        num_gpus=request.num_gpus,
        gpu_ids=request.gpus,
        names=_NAMES,
        without="--device cpu --nproc N",
    )
    choice = candidates(wanted, environ)
    inventory.refuse_slices(choice.devices[: choice.count])
    lease = choice.lease(wait=request.wait, experiment=holder, on_wait=say, how_to_wait="--wait")
    if request.gpus is not None:
        lease.devices.sort(key=choice.devices.index)
    return lease


def rank_environment(
    base: Mapping[str, str], devices: Sequence[inventory.Device], cores: int, *, alone: bool
) -> dict[str, str]:
    """Return the environment of every rank: LOCAL_RANK i computes on ``devices[i]``, which is its ``cuda:i``.

    Args:
        base: Environment of this process; ranks and meeting points of other launchers are left out.
        devices: Devices in rank order.
        cores: Usable cores, divided among the ranks unless OMP_NUM_THREADS is set.
        alone: Whether this is the only machine, so that no rank has to listen for other machines.
    """
    environment = {name: value for name, value in base.items() if not is_of_launcher(name)}
    gpus = [device.uuid or str(device.index) for device in devices if device.kind == "cuda"]
    environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", inventory.VISIBLE: ",".join(gpus), "PYTHONUNBUFFERED": "1"}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // len(devices))))
    return {**ON_LOOPBACK, **environment} if alone else environment


def describe(devices: Sequence[inventory.Device], meeting: Meeting) -> str:
    """Describe in one line what is started."""
    many = f"{len(devices)} process{'es' if len(devices) != 1 else ''}"
    if devices[0].kind == "cpu":
        return f"{many} on the CPU, {meeting}"
    places = ", ".join(f"{rank}={device.label}" for rank, device in enumerate(devices))
    return f"{many} (LOCAL_RANK {places}), {meeting}"


def listen(port: int | None, host: str = LOOPBACK) -> socket.socket:
    """Open the socket where ranks meet; no other machine can reach one on the loopback interface.

    Args:
        port: Its port, or None for a free one.
        host: Address to listen on.

    Raises:
        ConfigError: The port is in use.
    """
    try:
        return socket.create_server((host, port or 0))
    except OSError as error:
        problem = f"port {port}: {os.strerror(error.errno or 0)}. Give another by --master-port"
        raise ConfigError(
            f"{problem}; on a single machine none at all (and no MASTER_PORT): a free one is found"
        ) from error


def ranks_command(
    program: Sequence[str],
    ranks: int,
    environment: Mapping[str, str],
    grace_s: int,
    server: socket.socket | None,
    meeting: Meeting | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of the process that starts and watches ranks.

    Args:
        program: The program of each rank, as torchrun takes it.
        ranks: Number of ranks on this machine.
        environment: Environment of every rank.
        grace_s: Seconds that ranks have to end.
        server: Socket where ranks meet if they are all on this machine.
        meeting: Where they meet; None for the socket.
    """
    fds = [server.fileno()] if server else []
    words, environment = children.command(
        "pipeline.engine.launch_agent", environment, grace_s=grace_s, listeners=fds
    )
    at = meeting or Meeting(1, 0, LOOPBACK, server.getsockname()[1] if server else None)
    where = [f"--nnodes={at.nnodes}", f"--node-rank={at.node_rank}", f"--master-addr={at.address}"]
    return [*words, *where, f"--master-port={at.port}", f"--nproc-per-node={ranks}", *program], environment


def say_to_stderr(text: str) -> None:
    """Print a line to standard error, apart from the program's output."""
    from pipeline.terminal.console import make_console  # and Rich, which the process of a trial does not import
    from pipeline.terminal.console import say as say_on

    say_on(make_console(stderr=True), f"launch: {text}")
