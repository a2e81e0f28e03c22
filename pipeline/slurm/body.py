"""The commands of a batch script, looked at line by line: what breaks them, and how they start the program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pipeline.terminal.check import Check, failed, warned

_EXPORT = re.compile(r"^\s*export\s+([A-Z_]+)=(\S*)")
_SETS_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_REMARK_BEHIND = re.compile(r"\\\s+(#.*)?$")
_STEP = re.compile(r"(?:^|[\s;&|(])srun\s", re.MULTILINE)
_CPUS = re.compile(r"SRUN_CPUS_PER_TASK|\bsrun\b[^\n;|&]*\s(?:-c\s*\S|--cpus-per-task)")


def commands_of(lines: Sequence[str]) -> str:
    """The commands, without remarks that have a line of their own."""
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


_HERE = re.compile(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1")
_SHELL = re.compile(r"\b(bash|sh|zsh|ssh)\b[^|;]*$")


def without_texts(lines: Sequence[str]) -> list[str]:
    """The lines, with empty ones in the place of texts that the script writes elsewhere (``cat <<EOF > FILE``).

    What a shell is given in this way is left: it runs in this job.
    """
    found: list[str] = []
    end, kept = "", False
    for line in lines:
        if end:
            end = "" if line.strip() == end else end
            found.append(line if kept else "")
        else:
            found.append(line)
            if (match := _HERE.search(line)) and not line.lstrip().startswith("#"):
                end, kept = match[2], _SHELL.search(line[: match.start()]) is not None
    return found


def exports(lines: Sequence[str]) -> dict[str, str]:
    """Variables that are set for programs."""
    return {match[1]: match[2].strip("\"'") for line in lines if (match := _EXPORT.match(line))}


def has_step(commands: str) -> bool:
    """Whether srun starts something."""
    return _STEP.search(commands) is not None


def passes_cpus(commands: str) -> bool:
    """Whether srun is told how many CPUs a task has."""
    return _CPUS.search(commands.replace("\\\n", " ")) is not None


_TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b")
_SEVERAL = re.compile(r"--nnodes\b|\bPET_NNODES\b")
_MEETING = re.compile(r"--(?:rdzv|master)[_-](?:endpoint|addr)\b|\bPET_(?:RDZV_ENDPOINT|MASTER_ADDR)\b")


def faults_of_torchrun(commands: str, nodes: int) -> Iterator[Check]:
    """What keeps the torchruns of several nodes from finding each other.

    Args:
        commands: Of the script.
        nodes: How many it asks for.
    """
    if nodes < 2 or not _TORCHRUN.search(commands) or _MEETING.search(commands):
        return
    if _SEVERAL.search(commands):
        yield failed(
            "Slurm: nowhere to meet",
            f"torchrun on {nodes} nodes without --rdzv-endpoint or --master-addr: each waits for the others on "
            "its own node until it gives up",
            '--rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$(hostname):29500"; or start the '
            "program by `python -m pipeline launch`, as `slurm write` does",
        )
    else:
        yield warned(
            "Slurm: nodes by themselves",
            f"torchrun without --nnodes on {nodes} nodes: each is a training of its own, and all write the same "
            "checkpoints",
            "--nnodes=$SLURM_NNODES with --rdzv-endpoint, unless you mean one training on each node",
        )


def traps(commands: str, signal: str) -> bool:
    """Whether the shell does something of its own at a signal."""
    return re.search(rf"\btrap\s.*\b(?:SIG)?{re.escape(signal)}\b", commands) is not None


def faults_of_lines(lines: Sequence[str], *, several: bool) -> Iterator[Check]:
    """What is wrong with single lines.

    Args:
        lines: Of the script.
        several: Whether a step has several tasks, which then are the ranks that a WORLD_SIZE counts.
    """
    continued = False
    for number, line in enumerate(lines, 1):
        bare = line.strip()
        if continued and bare.startswith("#"):
            yield failed(
                "Slurm: broken command",
                f"line {number} is a remark in the middle of a command, which ends there: what follows is lost",
                "put the remark before the command",
            )
        if _REMARK_BEHIND.search(line) and not bare.startswith("#"):
            yield failed(
                "Slurm: broken command",
                f"line {number} has something after its backslash, so the command ends there and the rest is lost",
                "let the backslash be the very last character; put remarks on lines of their own",
            )
        if (
            (match := _EXPORT.match(line))
            and match[1] in _SETS_RANKS
            and not (several and match[1] == "WORLD_SIZE")
        ):
            yield failed(
                "Slurm: ranks by hand",
                f"line {number} sets {match[1]}: frameworks take it for a sign that the ranks exist already",
                "leave it out; the launcher sets it",
            )
        continued = line.endswith("\\") and not bare.startswith("#")


# -- what only a look at all commands shows ---------------------------------------------------------------------

_BEHIND = re.compile(r"(?<![&>|])&\s*(?:done|fi|\)|\})?\s*;?\s*$")
_IDLE = re.compile(r"(?:done|fi|esac|\}|\)|else|echo\b.*|date\b.*|exit\b.*|sleep \d{1,3}|:)?\s*;?")
_PIPED = re.compile(
    r"(?:^|[\s;&(])(?:srun|python3?|torchrun|accelerate|deepspeed)\s[^\n;]*[^|]\|\s*tee\b", re.MULTILINE
)
_ACTIVATE = re.compile(r"^\s*(conda|mamba|micromamba)\s+activate\b", re.MULTILINE)
_SET_UP = re.compile(
    r"conda\.sh|shell[. ](?:bash )?(?:hook|bash)|shell\.posix|\.bashrc|bash_profile|profile\.d|\bmodule\s+load"
)
_RANKS = r"SLURM_(?:PROCID|NODEID|LOCALID)"
_EARLY = re.compile(rf"\bsrun\b[^\n]*?(?<!\\)\$\{{?({_RANKS})\b")
_EARLY_EXPORT = re.compile(rf"^\s*(?:export\s+)?\w+=[\"']?\$\{{?({_RANKS})\b", re.MULTILINE)
_HOOKS = {"micromamba": "shell hook -s bash", "mamba": "shell hook --shell bash"}
_IN_SINGLE = re.compile(r"'[^'\n]*'")
_PORT = re.compile(r"\bMASTER_PORT=[\"']?\d+|--(?:master|main_process)[_-]port[= ]\d+")
_RUN_ID = re.compile(r"\bWANDB_RUN_ID=[\"']?[\w-]+[\"']?(?=[\s;]|$)", re.MULTILINE)
_MASK = re.compile(r"\bCUDA_VISIBLE_DEVICES=[\"']?(\d+)\b(?!,)")


def shares_out_gpus(commands: str) -> bool:
    """Whether each of several commands is given GPUs of its own, as by ``CUDA_VISIBLE_DEVICES=$i ... &``."""
    masked = re.findall(r"\bCUDA_VISIBLE_DEVICES=\S+\s+[^\n]*&\s*$", commands.replace("\\\n", " "), re.MULTILINE)
    return bool(masked)


def faults_of_commands(lines: Sequence[str], *, several: bool, array: bool, gpus: int) -> Iterator[Check]:
    """What loses a program, its exit code, its environment or its place.

    Args:
        lines: Of the script.
        several: Whether a step has several tasks.
        array: Whether the job is one.
        gpus: GPUs of a node.
    """
    commands = commands_of(lines).replace("\\\n", " ")
    work = [line.strip() for line in commands.split("\n") if not _IDLE.fullmatch(line.strip())]
    if work and _BEHIND.search(work[-1]) and not re.search(r"\bwait\b", commands):
        yield failed(
            "Slurm: nobody waits",
            "the last program is started in the background (&) and nothing waits for it: the script ends, and "
            "Slurm kills what it has started",
            "leave out the &, or let `wait` be the last line",
        )
    if _PIPED.search(commands) and not re.search(r"\bpipefail\b|PIPESTATUS", commands):
        yield warned(
            "Slurm: exit code of tee",
            "a program that fails in front of `| tee` counts as done: the job is COMPLETED, and what depends on "
            "it starts",
            "`set -o pipefail` before it; or leave out tee, as --output keeps what is printed",
        )
    if (found := _ACTIVATE.search(commands)) and not _SET_UP.search(commands) and not _is_login(lines):
        yield warned(
            "Slurm: no environment",
            f"`{found[1]} activate` needs a function that a batch script has not: it fails, and the script goes "
            "on with another Python",
            f'eval "$({found[1]} {_HOOKS.get(found[1], "shell.bash hook")})" before it',
        )
    if several:
        yield from _early(_IN_SINGLE.sub("", commands))
    if array and _PORT.search(commands):
        yield warned(
            "Slurm: one port for all",
            "a port is written out, and tasks of the array that share a node cannot both have it",
            "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
        )
    if array and _RUN_ID.search(commands):
        yield failed(
            "Slurm: one run for all",
            "WANDB_RUN_ID is written out: all tasks of the array write into one run of W&B",
            "leave it out, or WANDB_RUN_ID=$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID",
        )
    if gpus == 1 and (found := _MASK.search(commands)):
        yield warned(
            "Slurm: a GPU by its number",
            f"{found[0]}: Slurm sets it to the GPU of this job. Where a cluster does not hide the others, "
            f"{found[1]} may be somebody else's, and tasks of an array on one node take the same one",
            "leave it out",
        )


def _early(commands: str) -> Iterator[Check]:
    for pattern in (_EARLY, _EARLY_EXPORT):
        if found := pattern.search(commands):
            yield failed(
                "Slurm: one rank for all",
                f"${found[1]} is replaced by the shell of the script, in which it is 0, before srun starts the "
                "tasks: each takes itself for the first",
                "have a shell of each task replace it: srun bash -c '... --machine_rank $SLURM_PROCID ...', in "
                "single quotes",
            )
            return


def _is_login(lines: Sequence[str]) -> bool:
    return bool(lines) and re.search(r"^#!.*\s(-l|--login)\b", lines[0]) is not None
