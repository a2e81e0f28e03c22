"""Find what hangs, idles or is lost in a Slurm job: in a batch script, or in the job of this process.

Slurm grants GPUs, CPUs and tasks; a launcher turns them into ranks. Which numbers are right depends on who starts
them:

    ranks started by                               tasks on each node   the program is started by
    itself (this engine, torchrun, our `launch`)   1                    python, or srun with one task a node
    Slurm: one rank a task (Lightning, MPI)        as many as GPUs      srun

Most wrong combinations do not fail: they hang, or train on one GPU. What sbatch refuses it says itself.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.devices.inventory import NOTHING, VISIBLE
from pipeline.errors import ConfigError
from pipeline.files import open_plain
from pipeline.slurm.script import MARK, gpus_of, nodes_of, number, options_of
from pipeline.terminal.console import Check, failed, passed, warned

_LARGEST = 4 << 20
"""Bytes of a script that sbatch accepts by default."""
_STARTS_RANKS = (
    *("vllm", "sglang", "torchrun", "torch.distributed", "pipeline", "run_parallel.py", "accelerate", "deepspeed"),
)


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """The resources that a job requests or was given.

    Attributes:
        own: Whether its program starts the ranks itself, rather than using each task as a rank.
        nodes: Machines.
        gpus: GPUs on each node.
        here: Tasks on each node.
        mask: CUDA_VISIBLE_DEVICES; None if it is not set.
        in_step: Whether srun has started this process, or the script starts the program by srun.
    """

    own: bool = True
    nodes: int = 1
    gpus: int = 0
    here: int = 1
    mask: str | None = None
    in_step: bool = False


def faults_of_job(job: SlurmJob) -> Iterator[Check]:
    """Yield what is wrong in the resources of a job, given how its program starts ranks."""
    here, gpus, own = job.here, job.gpus, job.own
    seen = f"tasks on a node: {here}, GPUs: {gpus}"
    launched = "start it by `python -m pipeline launch -- ...`, which hides SLURM_NTASKS"
    one_task = f"#SBATCH --gres=gpu:{max(gpus, here)} with --ntasks-per-node=1, and {launched}"
    if gpus and here > gpus:
        yield failed("Slurm: fewer GPUs than tasks", f"{seen}: tasks wait for GPUs that do not exist", one_task)
    elif own and here > 1:
        detail = "but the program starts its ranks itself: copies of it fight for the same GPUs and port"
        yield failed("Slurm: several copies", f"{seen}, {detail}", one_task)
    elif not own and here < gpus:
        hint = f"{launched}; or #SBATCH --ntasks-per-node={gpus} with --gres=gpu:{gpus}, and `srun python ...`"
        yield warned("Slurm: idle GPUs", f"{seen}: with a rank a task, GPUs idle without an error", hint)
    if not job.in_step and (job.nodes > 1 or (here > 1 and not own)):
        why = "a batch script runs once, on the first node, and its ranks wait for others that nobody starts"
        remedy = (
            "put `srun` before the program; `python -m pipeline slurm write launch -- ...` writes such a script"
        )
        yield failed("Slurm: no srun", f"nodes: {job.nodes}, {seen}, and no srun: {why}", remedy)
    named = 0 if job.mask is None or job.mask.strip() in NOTHING else job.mask.count(",") + 1
    if gpus and job.mask is not None and named != gpus:
        what = "ranks wait for what is not there, as CUDA drops it without a word; what is not named idles"
        remedy = f"leave {VISIBLE} to Slurm, which sets it; or ask for #SBATCH --gres=gpu:{named}"
        mask = f"{VISIBLE}={job.mask} names {named} GPUs, but the job has {gpus}: {what}"
        yield (failed if named > gpus else warned)("Slurm: mask of its own", mask, remedy)


def slurm_checks(environment: Mapping[str, str]) -> list[Check]:
    """Check the Slurm job of this process, for running this engine in it. Outside of Slurm there are no checks.

    Args:
        environment: Environment variables of this process.
    """
    if "SLURM_JOB_ID" not in environment:
        return []

    def first(*names: str) -> int | None:
        matches = [re.match(r"\d+", environment.get(name, "")) for name in names]  # as in "8(x2)"
        return next((int(match[0]) for match in matches if match), None)

    listed = environment.get("SLURM_JOB_GPUS") or environment.get("SLURM_STEP_GPUS")
    nodes = first("SLURM_NNODES", "SLURM_JOB_NUM_NODES") or 1
    job = SlurmJob(
        nodes=nodes,
        gpus=first("SLURM_GPUS_ON_NODE") or (len(listed.split(",")) if listed else 0),
        # A job that said nothing has it for the tasks of this node.
        here=first("SLURM_NTASKS_PER_NODE") or -(-(first("SLURM_NTASKS", "SLURM_NPROCS") or nodes) // nodes),
        mask=environment.get(VISIBLE),
        in_step=environment.get("SLURM_STEP_ID", "").isdigit(),
    )
    return [*faults_of_job(job)] or [passed("Slurm", _seen(job))]


def _seen(job: SlurmJob) -> str:
    return f"nodes: {job.nodes}; on each, tasks: {job.here}, GPUs: {job.gpus}"


# -- in a script --------------------------------------------------------------------------------------------------


def check_script(path: Path) -> list[Check]:
    """Check a batch script.

    Args:
        path: The script.

    Returns:
        A check for each fault, or one check that passed.

    Raises:
        ConfigError: The file cannot be read, or is no batch script.
    """
    try:
        with open_plain(path, follow=True) as file:
            text = file.read(_LARGEST).decode(errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    if MARK.lower() not in text.lower().replace("# ", "#"):
        raise ConfigError(f"{path} has no #SBATCH line. Give the file that you would give to sbatch.")
    return check_text(text)


_ELSEWHERE = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1[^\n]*\n.*?^\s*\2[ \t]*$", re.DOTALL | re.MULTILINE)
"""Text that the script writes into another file: ``cat <<EOF > FILE``."""


def check_text(text: str) -> list[Check]:
    """Check the text of a batch script; see `check_script`."""
    text = _ELSEWHERE.sub(lambda match: "\n" * match[0].count("\n"), text)
    lines = text.replace("\r\n", "\n").split("\n")
    options: dict[str, str] = {}
    faults = [*_read_header(lines, options)]
    commands = "\n".join(line for line in lines if not line.lstrip().startswith("#")).replace("\\\n", " ")
    job = _job_of(commands, options)
    return [*faults, *_faults_of_commands(commands, job), *faults_of_job(job)] or [passed("Slurm", _seen(job))]


_RANKS = r"\$\{?(SLURM_(?:PROCID|NODEID|LOCALID))\b"
_EARLY = re.compile(rf"\bsrun\b[^\n]*?(?<!\\){_RANKS}|^\s*(?:export\s+)?\w+=[\"']?{_RANKS}", re.MULTILINE)
_TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b")
_MEETING = re.compile(r"--(?:rdzv|master)[_-](?:endpoint|addr)\b|\bPET_(?:RDZV|MASTER)")


def _faults_of_commands(commands: str, job: SlurmJob) -> Iterator[Check]:
    """Yield what makes ranks wait for ever, or kills them, in the commands of a script (one per line)."""
    several = job.nodes * job.here > 1
    ranks = "RANK|LOCAL_RANK" if several else "RANK|LOCAL_RANK|WORLD_SIZE"  # that of several counts the tasks
    if match := re.search(rf"^\s*export\s+({ranks})=", commands, re.MULTILINE):
        what = f"{match[1]} is set: frameworks take it for a sign that the ranks exist already"
        yield failed("Slurm: ranks by hand", what, "leave it out; the launcher sets it")
    if several and _EARLY.search(re.sub(r"'[^'\n]*'", "", commands)):
        what = "the shell of the script puts the rank in, which is 0 there, before srun starts the tasks"
        how = "srun bash -c '... --machine_rank $SLURM_PROCID ...', in single quotes"
        yield failed("Slurm: one rank for all", what, how)
    if re.search(r"(?<!&)&[ \t]*$", commands, re.MULTILINE) and not re.search(r"\bwait\b", commands):
        what = "what & starts in the background is killed when the script ends, which is at once"
        yield failed("Slurm: nobody waits", what, "`wait` in the last line, or no &")
    if job.nodes > 1 and _TORCHRUN.search(commands) and not _MEETING.search(commands):
        what = f"torchrun on {job.nodes} nodes without --rdzv-endpoint or --master-addr: each waits by itself"
        how = '--nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-endpoint="$(hostname):29500"'
        yield failed("Slurm: nowhere to meet", what, how)


def _job_of(commands: str, options: Mapping[str, str]) -> SlurmJob:
    """Return the resources that a script requests."""
    nodes, tasks = nodes_of(options), number(options.get("ntasks"))
    # Programs that share out the GPUs of the job start no ranks: `CUDA_VISIBLE_DEVICES=$i python ... &`.
    apart = re.search(rf"\b{VISIBLE}=\S+\s+[^\n]*&\s*$", commands, re.MULTILINE)
    masks = re.findall(rf"^\s*export\s+{VISIBLE}=[\"']?([^\s\"']*)", commands, re.MULTILINE)
    return SlurmJob(
        own=apart is not None or any(word in commands for word in _STARTS_RANKS),
        nodes=nodes,
        gpus=gpus_of(options),
        here=number(options.get("ntasks-per-node")) or -(-(tasks or nodes) // nodes),
        mask=masks[-1] if masks else None,
        in_step=re.search(r"(?:^|[\s;&|(])srun\s", commands, re.MULTILINE) is not None,
    )


_ALMOST = re.compile(r"\s+#SBATCH\b|\s*#\s+SBATCH\s+-|\s*#(?!SBATCH)(?i:sbatch)\s+-")


def _read_header(lines: Sequence[str], options: dict[str, str]) -> Iterator[Check]:
    """Read the lines for sbatch into ``options``, and yield those that sbatch ignores.

    Sbatch reads lines that begin with ``#SBATCH`` in the first column, before the first command, as they stand.
    """
    began = False
    for at, line in enumerate(lines, 1):
        if _ALMOST.match(line) or (began and line.startswith(MARK)):
            where = "begin it with #SBATCH, in the first column, before the first command"
            seen = f"line {at}, {line.strip()!r}, is a remark to sbatch"
            yield failed("Slurm: not read", seen, f"{where}; or ##SBATCH where it is not meant to count")
        elif line.startswith(MARK):
            with suppress(ConfigError, ValueError):
                options.update(options_of(shlex.split(line.removeprefix(MARK), comments=True))[0])
        else:
            began = began or (line.strip() != "" and not line.lstrip().startswith("#"))
    folder = Path(options.get("output", "")).parent
    if "%" not in str(folder) and not (Path(options.get("chdir", ".")) / folder).is_dir():
        detail = f"--output={options['output']}: there is no folder {folder}, and Slurm makes none: the job fails"
        yield warned("Slurm: no folder for the output", f"{detail} without a word", f"mkdir -p {folder}")
