"""What would hang, idle or be lost in a job of Slurm: in a batch script, or in the job of this process.

Slurm grants GPUs, CPUs and tasks; a launcher turns them into ranks. Which numbers are right depends on who starts
them:

    ranks started by                 tasks on each node    the program is started by
    itself (this engine, torchrun,   1                     python, or srun with one task a node
    `python -m pipeline launch`)
    Lightning, which looks for       as many as GPUs       srun
    SLURM_NTASKS
    Slurm (MPI, one rank a task)     as many as GPUs       srun

Most wrong combinations do not fail: they hang, or train on one GPU.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pipeline.engine.devices.mask import NOTHING, VISIBLE, entries_of
from pipeline.errors import ConfigError
from pipeline.files import open_plain
from pipeline.slurm.options import KNOWN, MARK, gpus_of, nodes_of, number, options_of
from pipeline.terminal.check import Check, Verdict, failed, passed, warned

_LARGEST = 4 << 20
"""Bytes of a script that sbatch takes, unless it was told otherwise."""
_STARTS_RANKS = (
    *("vllm", "sglang", "torchrun", "torch.distributed", "pipeline", "run_parallel.py", "accelerate", "deepspeed"),
)


class Starter(Enum):
    """Who starts the ranks of a program."""

    itself = "itself"  # this engine, torchrun, accelerate, `python -m pipeline launch`
    lightning = "lightning"  # PyTorch Lightning's Trainer, which takes SLURM_NTASKS for ranks that exist
    slurm = "slurm"  # one rank a task, started by srun


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """What a job asks for or was given; None where it does not say.

    Attributes:
        starter: Who starts the ranks.
        guessed: Whether that is a guess of ours.
        nodes: Machines.
        gpus: GPUs on each node.
        here: Tasks on each node.
        cpus: CPUs of each task.
        bound: The option by which each task sees GPUs of its own alone.
        mask: CUDA_VISIBLE_DEVICES.
        in_step: Whether srun has started this process, or is going to start the program.
        visible: GPUs that NVML lists on this node.
        loaders: Data-loader processes of each rank.
        on_cpu: Whether its program says that it runs on CPUs.
        ray: Whether it brings up a Ray cluster on its nodes.
    """

    starter: Starter = Starter.itself
    guessed: bool = False
    nodes: int = 1
    gpus: int | None = None
    here: int = 1
    cpus: int | None = None
    bound: str = ""
    mask: str | None = None
    in_step: bool = False
    visible: int | None = None
    loaders: int = 0
    on_cpu: bool = False
    ray: bool = False


def _bound(gpus_per_task: str | None, gpu_bind: str | None) -> str:
    if gpu_bind not in (None, "none", "verbose", "verbose,none"):
        return f"--gpu-bind={gpu_bind}"
    return f"--gpus-per-task={gpus_per_task}" if gpus_per_task else ""


# -- a job -------------------------------------------------------------------------------------------------------


def check_job(job: SlurmJob) -> list[Check]:
    """Check what a job asks for against what its program needs: its faults, or one check that passed."""
    return list(_faults_of_job(job)) or [passed("Slurm", _described(job))]


def _described(job: SlurmJob) -> str:
    gpus = f"{job.gpus} GPU{'s' if job.gpus != 1 else ''}" if job.gpus else "no GPU"
    nodes = f"{job.nodes} nodes, each with " if job.nodes > 1 else ""
    if job.ray:
        return f"{nodes}{gpus}, as one Ray cluster: right for a run with execution.backend=ray"
    right = f"{nodes}{job.here} task{'s' if job.here != 1 else ''} and {gpus}: right for this engine"
    if job.starter is Starter.itself and job.here == 1 and (job.gpus or 0) > 1:
        # The same numbers are wrong for a program that counts tasks, so say it where they are right.
        right += " and `python -m pipeline launch`; Lightning by itself would train on one GPU"
    return right


def _faults_of_job(job: SlurmJob) -> Iterator[Check]:
    here, gpus, own = job.here, job.gpus or 0, job.starter is Starter.itself
    if_known = warned if job.guessed else failed
    one_task = (
        f"#SBATCH --gres=gpu:{max(gpus, here)} with --ntasks-per-node=1, and start it by `python -m pipeline "
        "launch -- ...`"
    )
    task_per_gpu = f"#SBATCH --ntasks-per-node={gpus} with --gres=gpu:{gpus}, and `srun python ...`"
    if gpus and here > gpus:
        yield failed(
            "Slurm: fewer GPUs than tasks",
            f"{here} tasks on a node with {gpus} GPU{'s' if gpus != 1 else ''}: each is a process that waits for "
            f"a GPU of its own, so they hang at 'MEMBER: 1/{here}'",
            one_task,
        )
    elif own and here > 1:
        yield failed(
            "Slurm: several copies",
            f"{here} tasks on a node, but the program starts its ranks itself: srun would start {here} copies of "
            "it, which fight for the same GPUs and port",
            one_task,
        )
    if job.starter is Starter.lightning and here == 1 and gpus > 1:
        yield if_known(
            "Slurm: one GPU of several",
            f"one task with {gpus} GPUs: Lightning sees SLURM_NTASKS, takes the task for the only rank that there "
            "is, and trains on one GPU without an error; so does a script that starts no ranks",
            f"start it by `python -m pipeline launch -- ...`, which hides SLURM_NTASKS; or {task_per_gpu}",
        )
    if not own and 1 < here < gpus:
        yield if_known(
            "Slurm: tasks and GPUs differ",
            f"{here} tasks on a node with {gpus} GPUs: a rank a task leaves GPUs idle, or is refused",
            task_per_gpu,
        )
    if job.nodes > 1 and not job.in_step:
        yield failed(
            "Slurm: no srun",
            f"{job.nodes} nodes, but the program is not started by srun: a batch script runs on the first node "
            f"alone, and its ranks wait for the others ('1/{job.nodes * (gpus or 1)} clients joined')",
            "put `srun` before the program"
            + (
                ": srun --ntasks-per-node=1 python -m pipeline launch --nnodes $SLURM_NNODES --master-addr "
                "$(hostname) --master-port 29500 -- train.py"
                if own
                else ""
            ),
        )
    elif not own and here > 1 and not job.in_step:
        yield failed(
            "Slurm: ranks need srun",
            f"{here} tasks, but without srun only one process starts and waits for {here - 1} others",
            "put `srun` before the program, or use one task and `python -m pipeline launch -- ...`",
        )
    if here > 1 and job.bound:
        yield warned(
            "Slurm: bound GPUs",
            f"{job.bound} shows each task its own GPU as cuda:0: `cuda:LOCAL_RANK` does not exist, and NCCL loses "
            "direct copies between GPUs",
            f"#SBATCH --gres=gpu:{gpus or here} with --gpu-bind=none",
        )
    ranks = gpus or 1 if here == 1 else 1
    if job.cpus is not None and job.cpus < ranks * (1 + job.loaders):
        loaders = f" and {job.loaders} loader processes each" if job.loaders else ""
        yield warned(
            "Slurm: few CPUs",
            f"{job.cpus} CPUs for a task with {ranks} ranks{loaders}: GPUs wait for data",
            f"#SBATCH --cpus-per-task={ranks * (1 + job.loaders)} or more",
        )
    named = 0 if job.mask is None or job.mask.strip() in NOTHING else len(entries_of(job.mask)[0])
    if gpus and job.mask is not None and named != gpus:
        yield (failed if named > gpus else warned)(
            "Slurm: mask of its own",
            f"{VISIBLE}={job.mask} names {named} GPUs, but the job has {gpus}: CUDA drops what is not there "
            "without a word, and ranks wait for it; what is not named idles",
            f"leave {VISIBLE} to Slurm, which sets it; or ask for #SBATCH --gres=gpu:{named}",
        )
    if job.mask is None and job.gpus is not None and (job.visible or 0) > job.gpus:
        yield warned(
            "Slurm: GPUs of others",
            f"the job has {job.gpus} GPUs, but all {job.visible} of the node can be used",
            f"choose by distributed.num_gpus={job.gpus} or --num-gpus {job.gpus}; others may use the rest",
        )
    if not gpus and not job.visible and not job.on_cpu:
        yield warned(
            "Slurm: no GPU", "the job has no GPU", "#SBATCH --gres=gpu:N, unless you mean to run on the CPU"
        )


def slurm_checks(environment: Mapping[str, str], *, visible: int) -> list[Check]:
    """Check the job that this process runs in, as one that runs this engine; nothing outside of Slurm.

    Args:
        environment: Variables of this process.
        visible: GPUs that NVML lists.
    """
    if "SLURM_JOB_ID" not in environment:
        return []

    def first(*names: str) -> int | None:
        found = [re.match(r"\d+", environment.get(name, "")) for name in names]  # as in "8(x2)"
        return next((int(each[0]) for each in found if each), None)

    listed = environment.get("SLURM_JOB_GPUS") or environment.get("SLURM_STEP_GPUS")
    gpus, nodes = first("SLURM_GPUS_ON_NODE"), first("SLURM_NNODES", "SLURM_JOB_NUM_NODES") or 1
    job = SlurmJob(
        nodes=nodes,
        gpus=len(listed.split(",")) if gpus is None and listed else gpus,
        # A job that said nothing has it for the tasks of this node.
        here=first("SLURM_NTASKS_PER_NODE") or -(-(first("SLURM_NTASKS", "SLURM_NPROCS") or nodes) // nodes),
        cpus=first("SLURM_CPUS_PER_TASK"),
        bound=_bound(environment.get("SLURM_GPUS_PER_TASK"), environment.get("SLURM_GPU_BIND")),
        mask=environment.get(VISIBLE),
        in_step=environment.get("SLURM_STEP_ID", "").isdigit(),
        visible=visible,
    )
    return check_job(job)


# -- a script ----------------------------------------------------------------------------------------------------


def check_script(
    path: Path, starter: Starter | None = None, given: Mapping[str, str] | None = None
) -> list[Check]:
    """Check a batch script.

    Args:
        path: The script.
        starter: Who starts the ranks of its program; None guesses from the command, Lightning unless it names a
            launcher and there is more than one GPU or task.
        given: Options of the command line of sbatch, which win over those of the script.

    Returns:
        What is wrong with it, or one check that passed.

    Raises:
        ConfigError: It cannot be read, or is no batch script.
    """
    try:
        with open_plain(path, follow=True) as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > _LARGEST:
        raise ConfigError(f"{path} is larger than {_LARGEST:,} bytes, which sbatch does not take")
    text = data.decode(errors="replace")
    if MARK.lower() not in text.lower().replace("# ", "#"):
        raise ConfigError(f"{path} has no #SBATCH line. Give the file that you would give to sbatch.")
    return check_text(text, starter, given)


_ELSEWHERE = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1[^\n]*\n.*?^\s*\2[ \t]*$", re.DOTALL | re.MULTILINE)
"""A text that the script writes into another file: ``cat <<EOF > FILE``."""


def check_text(text: str, starter: Starter | None = None, given: Mapping[str, str] | None = None) -> list[Check]:
    """Check the text of a batch script; see `check_script`."""
    text = _ELSEWHERE.sub(lambda found: "\n" * found[0].count("\n"), text)
    lines = text.replace("\r\n", "\n").split("\n")
    options: dict[str, str] = {}
    faults = [*_read_header(lines, options)]
    options |= given or {}
    body = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    job = _job_of(body, options, starter)
    faults += [*_faults_of_options(options), *_faults_of_lines(lines, several=job.nodes * job.here > 1)]
    faults += [*_faults_of_commands(body.replace("\\\n", " "), lines[0], options, job)]
    of_job = check_job(job)
    return [*faults, *(check for check in of_job if check.verdict is not Verdict.PASS)] if faults else of_job


def _job_of(body: str, options: Mapping[str, str], starter: Starter | None) -> SlurmJob:
    """What a script asks for."""
    nodes, gpus, tasks = nodes_of(options), gpus_of(options), number(options.get("ntasks"))
    per_gpu, each = number(options.get("ntasks-per-gpu")), number(options.get("ntasks-per-node"))
    here = each or (per_gpu or 0) * gpus or -(-(tasks or nodes) // nodes)
    of_gpu = number(options.get("cpus-per-gpu"))
    # Programs that share out the GPUs of the job start no ranks: `CUDA_VISIBLE_DEVICES=$i python ... &`.
    apart = re.search(rf"\b{VISIBLE}=\S+\s+[^\n]*&\s*$", body.replace("\\\n", " "), re.MULTILINE)
    own = apart or any(word in body for word in _STARTS_RANKS)
    loaders = re.findall(r"num_workers[= ]([0-9]+)", body)
    masks = re.findall(rf"^\s*export\s+{VISIBLE}=[\"']?([^\s\"']*)", body, re.MULTILINE)
    return SlurmJob(
        starter=starter or (Starter.itself if own else Starter.lightning),
        guessed=starter is None and not own and "lightning" not in body.lower(),
        nodes=nodes,
        gpus=gpus,
        here=here,
        cpus=number(options.get("cpus-per-task")) or (of_gpu * gpus if of_gpu and here == 1 else None),
        bound=_bound(options.get("gpus-per-task"), options.get("gpu-bind")),
        mask=masks[-1] if masks else None,
        in_step=_STEP.search(body) is not None,
        loaders=(number(loaders[-1]) if loaders else None) or 0,
        on_cpu=re.search(r"\bdevice=cpu\b", body) is not None,
        ray=re.search(r"\bray\s+start\b", body) is not None,
    )


_STEP = re.compile(r"(?:^|[\s;&|(])srun\s", re.MULTILINE)
_ALMOST = re.compile(r"\s+#SBATCH\b|\s*#\s+SBATCH\s+-|\s*#(?!SBATCH)(?i:sbatch)\s+-")


def _read_header(lines: Sequence[str], options: dict[str, str]) -> Iterator[Check]:
    """Read the lines for sbatch into ``options``, and tell those that it does not read, or not as they are meant.

    A line counts if it begins with the word, in the first column, before the first command. Nothing is expanded.
    """
    began = False
    for at, line in enumerate(lines, 1):
        bare = line.strip()
        if _ALMOST.match(line):
            yield failed(
                "Slurm: not read",
                f"line {at}, {bare!r}, is a remark to sbatch: it reads lines that begin with #SBATCH, so written "
                "and in the first column",
                "write it so; or ##SBATCH where it is not meant to count",
            )
        elif not line.startswith(MARK):
            began = began or (bare != "" and not bare.startswith("#"))
        elif began:
            yield failed(
                "Slurm: late line",
                f"line {at}, {bare!r}, comes after a command, so sbatch ignores it",
                "move it up",
            )
        else:
            try:
                words = shlex.split(bare.removeprefix(MARK).rstrip("\\"), comments=True)
                given, rest = options_of(words)
                if rest:
                    raise ConfigError(f"{rest[0]!r} is no option")
            except (ConfigError, ValueError) as problem:
                yield failed("Slurm: refused line", f"line {at}: {problem}", "see man sbatch")
                continue
            options.update(given)
            for name, value in given:
                if not any(known.startswith(name) for known in KNOWN):
                    yield warned(
                        "Slurm: unknown option",
                        f"line {at}: Slurm itself has no option --{name}; sbatch takes it where a plugin does",
                        "see sbatch --help on the cluster",
                    )
                if name in ("account", "chdir", "error", "output") and re.search(r"\$\w|\$\{|^~", value):
                    yield warned(
                        "Slurm: no shell",
                        f"line {at}: sbatch takes {value!r} as it stands, since no shell reads it",
                        "write it out, or give it on the command line of sbatch; file names may have %j, %u",
                    )


def _faults_of_options(options: Mapping[str, str]) -> Iterator[Check]:
    """Values that sbatch takes and that hardly anybody means."""
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        if 0 < (number(options.get(name)) or 0) < 1024:
            yield failed(
                "Slurm: megabytes",
                f"--{name}={options[name]} are {options[name]} megabytes, in which no training begins",
                f"#SBATCH --{name}={options[name]}G",
            )
    if (found := re.fullmatch(r"(\d+):(\d+)", options.get("time", ""))) and found[1].strip("0"):
        yield warned(
            "Slurm: minutes",
            f"--time={found[0]} are {found[1]} minutes and {found[2]} seconds",
            f"--time={found[0]}:00 for hours and minutes; --time={found[1]} if minutes are meant",
        )
    folder = Path(options.get("output", "")).parent
    if "%" not in str(folder) and not (Path(options.get("chdir", ".")) / folder).is_dir():
        yield warned(
            "Slurm: no folder for the output",
            f"--output={options['output']}: there is no folder {folder}, and Slurm makes none: the job would fail "
            "without a word",
            f"mkdir -p {folder}",
        )


def _faults_of_lines(lines: Sequence[str], *, several: bool) -> Iterator[Check]:
    """Single lines that end a command too early, or say what the launcher says.

    Args:
        lines: Of the script.
        several: Whether a step has several tasks, which then are the ranks that a WORLD_SIZE counts.
    """
    continued = False
    for at, line in enumerate(lines, 1):
        remark = line.lstrip().startswith("#")
        if (continued and remark) or (re.search(r"\\\s+(#.*)?$", line) and not remark):
            yield failed(
                "Slurm: broken command",
                f"line {at} has a remark or a space where the command goes on: it ends there, the rest is lost",
                "let the backslash be the very last character, and put remarks before the command",
            )
        continued = line.endswith("\\") and not remark
        found = re.match(r"\s*export\s+(RANK|LOCAL_RANK|WORLD_SIZE)=", line)
        if found and not (several and found[1] == "WORLD_SIZE"):
            yield failed(
                "Slurm: ranks by hand",
                f"line {at} sets {found[1]}: frameworks take it for a sign that the ranks exist already",
                "leave it out; the launcher sets it",
            )


_RANKS = r"\$\{?(SLURM_(?:PROCID|NODEID|LOCALID))\b"
_EARLY = re.compile(rf"\bsrun\b[^\n]*?(?<!\\){_RANKS}|^\s*(?:export\s+)?\w+=[\"']?{_RANKS}", re.MULTILINE)
_IDLE = re.compile(r"(?:done|fi|esac|\}|\)|else|echo\b.*|date\b.*|exit\b.*|sleep \d{1,3}|:)?\s*;?")
_BEHIND = re.compile(r"(?<![&>|])&\s*(?:done|fi|\)|\})?\s*;?\s*$")
_SET_UP = re.compile(
    r"^#!.*\s(?:-l|--login)\b|conda\.sh|shell[. ](?:bash )?(?:hook|bash)"
    r"|shell\.posix|\.bashrc|bash_profile|profile\.d|\bmodule\s+load"
)


def _faults_of_commands(
    commands: str, interpreter: str, options: Mapping[str, str], job: SlurmJob
) -> Iterator[Check]:
    """What loses a program, its environment, its place, or what it would have saved.

    Args:
        commands: Of the script, each on one line.
        interpreter: Its first line; a login shell sets up what `conda activate` needs.
        options: Of sbatch.
        job: What it asks for.
    """

    def says(pattern: str) -> bool:
        return re.search(pattern, commands, re.MULTILINE) is not None

    work = [line.strip() for line in commands.split("\n") if not _IDLE.fullmatch(line.strip())]
    if work and _BEHIND.search(work[-1]) and not says(r"\bwait\b"):
        yield failed(
            "Slurm: nobody waits",
            "the last program is started in the background (&) and nothing waits for it: the script ends, and "
            "Slurm kills what it has started",
            "leave out the &, or let `wait` be the last line",
        )
    if says(r"^\s*(conda|mamba|micromamba)\s+activate\b") and not _SET_UP.search(f"{interpreter}\n{commands}"):
        yield warned(
            "Slurm: no environment",
            "`conda activate` needs a function that a batch script has not: it fails, and the script goes on with "
            "another Python",
            'eval "$(conda shell.bash hook)" before it; of mamba `mamba shell hook --shell bash`',
        )
    several = job.nodes * job.here > 1 or ("nodes" not in options and "SLURM_NNODES" in commands)
    if several and _EARLY.search(re.sub(r"'[^'\n]*'", "", commands)):
        yield failed(
            "Slurm: one rank for all",
            "the rank of a task is replaced by the shell of the script, in which it is 0, before srun starts the "
            "tasks: each takes itself for the first",
            "have a shell of each task replace it: srun bash -c '... --machine_rank $SLURM_PROCID ...', in single "
            "quotes",
        )
    torchrun = says(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b")
    if job.nodes > 1 and torchrun and not says(r"--(?:rdzv|master)[_-](?:endpoint|addr)\b|\bPET_(?:RDZV|MASTER)"):
        yield failed(
            "Slurm: nowhere to meet",
            f"torchrun on {job.nodes} nodes without --rdzv-endpoint or --master-addr: with --nnodes each waits "
            "for the others on its own node; without, each is a training of its own over the same checkpoints",
            '--nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-endpoint="$(hostname):29500"; or start the program '
            "by `python -m pipeline launch`, as `slurm write` does",
        )
    if "array" in options and says(r"\bWANDB_RUN_ID=[\"']?[\w-]+[\"']?(?:[\s;]|$)"):
        yield failed(
            "Slurm: one run for all",
            "WANDB_RUN_ID is written out: all tasks of the array write into one run of W&B",
            "leave it out, or WANDB_RUN_ID=$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID",
        )
    if job.in_step and "cpus-per-task" in options and not says(r"SRUN_CPUS|\bsrun\b[^\n;|&]*\s(?:-c|--cpus-per)"):
        yield warned(
            "Slurm: one CPU for a step",
            "srun does not take --cpus-per-task over from the job (since Slurm 22.05): the step has one CPU",
            'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" before srun',
        )
    if not (notice := re.fullmatch(r"(B:)?(?:SIG)?(\w+)(?:@\d+)?", options.get("signal", ""), re.ASCII)):
        return
    deaf = notice[1] and not says(rf"\btrap\s.*\b(?:SIG)?{notice[2]}\b|^\s*exec\s")
    if deaf or not (notice[1] or job.in_step):
        yield failed(
            "Slurm: nobody is told",
            f"--signal={notice[0]} goes to "
            + ("the shell of the script, which it ends" if deaf else "what srun has started, and nothing is")
            + ": the program is killed before it has saved",
            "start the program by srun, and leave out B:",
        )
    if "requeue" in options and not says(r"scontrol\s+requeue\b"):
        yield warned(
            "Slurm: not put back",
            "--requeue puts a job back that was preempted or whose node was lost, not one that has ended since "
            "its time was up",
            'end the script by: if it was told to stop (exit code 143), scontrol requeue "$SLURM_JOB_ID"',
        )
