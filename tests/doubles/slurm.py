"""A real Slurm of two nodes with four GPUs each, on this machine alone; a GPU is a link to some device.

    the tests  -- a pipe -->  guard  ->  munged, slurmctld, slurmd n1, slurmd n2  ->  jobs

The guard adopts orphans, so whatever daemons and jobs have started is below it and ends with it: when it is told
to, and when the other end of the pipe closes, which the kernel sees to where the tests are killed. All is in one
folder; daemons listen on the loopback interface alone, and know each other by a key of their own.
"""

import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.machine import descendants

NODES, GPUS, CPUS = ("n1", "n2"), 4, 8
DEVICES = ("null", "zero", "full", "urandom")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel", "sinfo", "srun")
OVER = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
"""States in which a job stays. What is preempted is put back, and has several names until it is."""
READY = "ready"
_ATTEMPTS = 3
"""Another program may take a port between its choice and its use."""
_WAIT_S = 600.0
"""For what would never come."""
_START_S = 60.0

# Jobs of `main` are preempted by those of `urgent`: told so, given time, and put into the queue again. There they
# wait as long as what authorises a start is good for (`cred_expire`), which has to do on a busy machine.
_CONFIGURATION = """\
ClusterName=fake
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=10
CryptoType=crypto/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/ctld.pid
SlurmctldLogFile={folder}/ctld.log
StateSaveLocation={folder}/ctld
SlurmdSpoolDir={folder}/d-%n
SlurmdPidFile={folder}/d-%n.pid
SlurmdLogFile={folder}/d-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
ReturnToService=2
MailProg=/bin/true
KillWait=30
MessageTimeout=100
BatchStartTimeout=300
SlurmdTimeout=0
InactiveLimit=0
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=DEFAULT CPUs={cpus} RealMemory=16000 Gres=gpu:{gpus} State=UNKNOWN
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=600
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""


def why_not() -> str:
    """Why there can be no Slurm here, or ""."""
    lost = [name for name in PROGRAMS if _program(name) is None]
    return f"not installed: {', '.join(lost)} (Debian: slurm-wlm and munge)" if lost else ""


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass(frozen=True)
class Slurm:
    """A Slurm that runs.

    Attributes:
        folder: Where its files are.
        environment: Of its commands, and so of jobs.
    """

    folder: Path
    environment: Mapping[str, str]

    def command(self, *words: str, cwd: Path | None = None, check: bool = True) -> str:
        """What one of its commands prints."""
        done = subprocess.run(
            words, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=_WAIT_S, check=False
        )
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout + ("" if check else done.stderr)

    def submit(self, *words: str, cwd: Path) -> str:
        """Id of a new job."""
        return self.command("sbatch", "--parsable", *words, cwd=cwd).strip()

    def job(self, job_id: str) -> dict[str, str]:
        """What Slurm says of a job."""
        said = self.command("scontrol", "--oneliner", "show", "job", job_id)
        # Values may have spaces.
        return {name: value.strip() for name, value in re.findall(r"(\S+?)=(.*?)(?= [\w/:.]+=|$)", said.strip())}

    def state(self, job_id: str) -> str:
        """Of a job, as RUNNING."""
        return self.job(job_id)["JobState"]

    def until(self, condition: Callable[[], bool], job_id: str = "") -> None:
        """Wait until something is so, which comes before the end of a job if one is named."""
        give_up = time.monotonic() + _WAIT_S
        while not condition():
            assert time.monotonic() < give_up, "waited too long:\n" + self.command("squeue", "--long")
            state = self.state(job_id) if job_id else ""
            assert state not in OVER, f"{state}: {self.printed(job_id)}"
            time.sleep(0.1)

    def printed(self, job_id: str) -> str:
        """What a job has printed."""
        return Path(self.job(job_id)["StdOut"]).read_text()

    def until_over(self, job_id: str) -> str:
        """Wait for the end of a job; its state then."""
        self.until(lambda: self.state(job_id) in OVER)
        return self.state(job_id)


@contextmanager
def two_nodes() -> Iterator[Slurm]:
    """A Slurm of its own; nothing of it is left afterwards."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
    # Short, as the path of a socket has room for a hundred characters; and Slurm's files take no space.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    guard = subprocess.Popen(
        [sys.executable, __file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        text=True,
        start_new_session=True,  # Ctrl-C is for the tests
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        said = guard.stdout.readline().strip()
        assert said == READY, said
        yield Slurm(folder, {**environment, "SLURM_CONF": str(folder / "slurm.conf")})
    finally:
        guard.stdin.close()
        guard.wait()
        guard.stdout.close()


# -- the guard -------------------------------------------------------------------------------------------------


def guard(folder: Path) -> None:
    """Keep a Slurm until the pipe closes."""
    descendants.adopt_orphans()
    try:
        print(_started(folder), flush=True)
        sys.stdin.read()
    finally:
        descendants.end_own()
        shutil.rmtree(folder, ignore_errors=True)


def _started(folder: Path) -> str:
    """`READY`, or why there is none."""
    said = ""
    for attempt in range(_ATTEMPTS):
        home = folder / str(attempt)
        _configure(home)
        _start(home)
        if _answers(home):
            (folder / "slurm.conf").symlink_to(home / "slurm.conf")
            return READY
        descendants.end_own()
        said = (home / "said").read_text().replace("\n", " / ")
    return f"Slurm does not start: {said}"


def _configure(home: Path) -> None:
    for name in ("ctld", *(f"d-{node}" for node in NODES)):
        (home / name).mkdir(parents=True)
    for number, device in enumerate(DEVICES):  # they have to be devices, whatever kind of
        (home / f"gpu{number}").symlink_to(f"/dev/{device}")
    (home / "munge.key").write_bytes(os.urandom(64))
    (home / "munge.key").chmod(0o600)
    home.chmod(0o755)
    text = _CONFIGURATION.format(
        host=socket.gethostname(), user=getpass.getuser(), folder=home, ports=_free_ports(), cpus=CPUS, gpus=GPUS
    )
    (home / "slurm.conf").write_text(text)
    (home / "gres.conf").write_text(f"AutoDetect=off\nNodeName=n[1-2] Name=gpu File={home}/gpu[0-{GPUS - 1}]\n")


def _free_ports() -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(1 + len(NODES))]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def _start(home: Path) -> None:
    munge = [f"--{name}-file={home}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    _daemon(home, "munged", "--foreground", "--force", f"--socket={home}/munge.sock", *munge)
    give_up = time.monotonic() + _START_S
    while not (home / "munge.sock").exists() and time.monotonic() < give_up:
        time.sleep(0.02)
    _daemon(home, "slurmctld", "-D")
    for node in NODES:
        _daemon(home, "slurmd", "-D", "-N", node)


def _daemon(home: Path, name: str, *words: str) -> None:
    program, parent = _program(name), os.getpid()
    assert program is not None
    with (home / "said").open("a") as said:
        subprocess.Popen(
            [program, *words],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**os.environ, "SLURM_CONF": str(home / "slurm.conf")},
            preexec_fn=lambda: descendants.die_with_parent(parent),
        )


def _answers(home: Path) -> bool:
    """Whether all nodes are idle before long."""
    give_up = time.monotonic() + _START_S
    environment = {**os.environ, "SLURM_CONF": str(home / "slurm.conf")}
    while time.monotonic() < give_up:
        words = ["sinfo", "--noheader", "--partition=main", "--Node", "--format=%T"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if done.stdout.split() == ["idle"] * len(NODES):
            return True
        time.sleep(0.05)
    return False


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
