"""Bring up a Ray cluster on the nodes of a Slurm job: the commands of its batch script.

    address   once, on the first node: print the address of the head
    start     on each node: Ray, until SIGUSR1
    wait      once: until Slurm's nodes are Ray's

Slurm tells every process of a step that the job is to end, and those of Ray would end at once, before the run
has saved what it needs. So they are started with such signals held back, which they hand on to all they start in
turn; workers of a run let them through again. SIGKILL, by which Slurm ends what does not end by itself, nobody
holds back.
"""

import importlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.errors import ConfigError, WorkerError, has_package, install_command
from pipeline.machine import descendants

JOIN_S = 300.0
"""Seconds a node has to join: Python and Ray may come from a disk that all nodes read at once."""
_FIRST_PORT, _PAIRS = 20_000, 5_000
"""Below those that the system gives to whoever asks for any."""
_HELD = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
_POLL_S = 0.5
_ASK_S = 10.0
_SLURM_S = 60.0
_LAST_LINES = 12
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}
_OPTIONS = (
    "--block",
    "--disable-usage-stats",
    "--include-log-monitor=false",
    # The least that Ray takes: no message of a run is put there.
    f"--object-store-memory={80 << 20}",
    # 0 is any free port. Nodes of other jobs may be on this machine.
    "--min-worker-port=0",
    "--max-worker-port=0",
    "--dashboard-agent-listen-port=0",
)


def _of_job(environ: Mapping[str, str], name: str) -> str:
    if value := environ.get(name):
        return value
    raise ConfigError(f"{name} is not set, so this is no job of Slurm: scripts of `slurm write --ray` call this")


def _check_installed() -> None:
    if not has_package("ray"):
        raise ConfigError(f"a job with --ray needs Ray, which {sys.executable} has not: {install_command('ray')}")


def _scontrol(*words: str) -> str:
    """Return the output of scontrol; "" if it fails."""
    program = shutil.which("scontrol") or "scontrol"
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=_SLURM_S, check=True)
        return done.stdout
    return ""


# -- address ---------------------------------------------------------------------------------------------------


def head_address(environ: Mapping[str, str]) -> str:
    """Return the address for the Ray head: the first node by Slurm's name, and a port derived from the job.

    Raises:
        ConfigError: This is not the first node of a job, Ray is not installed, or no port is free.
    """
    job, node = _of_job(environ, "SLURM_JOB_ID"), _of_job(environ, "SLURMD_NODENAME")
    _check_installed()
    match = re.search(r"\bNodeAddr=(\S+)", _scontrol("--oneliner", "show", "node", node))
    name = match[1] if match else node
    try:
        host = socket.gethostbyname(name)
    except OSError as error:
        raise ConfigError(f"nobody knows the address of {name}, as Slurm calls node {node}: {error}") from error
    return f"{host}:{free_port(int(job))}"


def free_port(job: int) -> int:
    """Return a port that is free here, as is the next one, which Ray may use for clients."""
    for at in range(_PAIRS):
        port = _FIRST_PORT + 2 * ((job + at) % _PAIRS)
        if all(map(_is_free, (port, port + 1))):
            return port
    raise ConfigError(f"no port from {_FIRST_PORT} on is free on {socket.gethostname()}")


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
        return True


# -- start -----------------------------------------------------------------------------------------------------


def keep_node(address: str, environ: Mapping[str, str], words: Sequence[str], *, head: bool) -> None:
    """Be a node of Ray until SIGUSR1; nothing of it is left on this machine then.

    Args:
        address: Address of the head, from `head_address`.
        environ: Environment of the job, with the token of the cluster.
        words: Further options of `ray start`, which win.
        head: Whether this is the head.

    Raises:
        ConfigError: This is no job of Slurm, or Ray is not installed here.
        WorkerError: There is no head, or Ray ends by itself; its last words.
    """
    node, parent = _of_job(environ, "SLURMD_NODENAME"), os.getpid()
    _check_installed()
    host, _, port = address.rpartition(":")
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    descendants.adopt_orphans()
    if not head and not _is_head_there(host, int(port), node):
        return
    where = [f"--node-ip-address={host}", f"--port={port}", f"--ray-client-server-port={int(port) + 1}"]
    of_head = ["--head", *where, "--include-dashboard=false"]
    with (
        # In /tmp, as the paths of sockets may have some hundred characters.
        tempfile.TemporaryDirectory(prefix="ppl-slurm-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        (Path(folder) / "said").open("w+b") as output,
    ):
        options = [*(of_head if head else [f"--address={address}"]), f"--node-name={node}", f"--temp-dir={folder}"]
        try:
            ray = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *_OPTIONS, *options, *words],
                env={**environ, **_QUIET},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=lambda: descendants.die_with_parent(parent),
            )
            while ray.poll() is None:
                if _is_told():
                    return
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
            raise WorkerError(f"Ray on {node} has ended by itself: {' / '.join(lines) or 'it has said nothing'}")
        finally:
            descendants.end_own()


def _is_told() -> bool:
    """Return whether SIGUSR1 has come, or comes within a moment."""
    return signal.sigtimedwait({signal.SIGUSR1}, _POLL_S) is not None


def _is_head_there(host: str, port: int, node: str) -> bool:
    """Wait for the head; False if this node is told to end before."""
    give_up = time.monotonic() + JOIN_S
    while not _is_told():
        with suppress(OSError):
            socket.create_connection((host, port), timeout=_ASK_S).close()
            return True
        if time.monotonic() >= give_up:
            raise WorkerError(f"{node} has found no head of Ray at {host}:{port} within {JOIN_S:g} s")
    return False


# -- wait ------------------------------------------------------------------------------------------------------


def wait_for_nodes(
    address: str, environ: Mapping[str, str], within_s: float = JOIN_S, lives: Callable[[], bool] = lambda: True
) -> tuple[list[str], list[str]]:
    """Wait until every node of a job is one of Ray's.

    Args:
        address: Address of the head.
        environ: Environment of the job.
        within_s: Seconds that they are given.
        lives: Whether the head may still come.

    Returns:
        The names of those that have joined, and of those that have not.

    Raises:
        ConfigError: This is no job of Slurm.
        WorkerError: The head has not, so there is nothing to begin with; or Slurm does not answer.
    """
    wanted = _scontrol("show", "hostnames", _of_job(environ, "SLURM_JOB_NODELIST")).split()
    if not wanted:
        raise WorkerError("scontrol does not say which nodes the job has")
    give_up = time.monotonic() + within_s
    while not set(wanted) <= (there := _nodes(address)) and time.monotonic() < give_up:
        if not lives():
            raise WorkerError("the head of Ray has ended, for the reason above")
        time.sleep(_POLL_S)
    if not there:
        raise WorkerError(f"there is no head of Ray at {address} after {within_s:g} s")
    return [name for name in wanted if name in there], [name for name in wanted if name not in there]


def _nodes(address: str) -> set[str]:
    """Nodes of a cluster, asked for as `ray symmetric-run` does: a driver would have workers started for it."""
    try:
        client = importlib.import_module("ray._raylet").GcsClient(address=address)
        return {node.node_name for node in client.get_all_node_info(timeout=_ASK_S).values() if not node.state}
    except Exception:  # Ray has errors of many kinds for what is not there yet
        return set()
