"""The text of a batch script: plain, as a person would write it and keep it.

What it is built on, as Slurm does none of it by itself:

    srun            Slurm tells a job that its time is nearly up, or that it is preempted, by a signal to the steps
                    that srun has started; the script itself hears of it when it is too late
    --signal        without it nobody is told before the time is up
    143             what a run, an agent or a launch answers that was told to stop, and has saved what it needs
    scontrol        a job that ends is over for Slurm; `--requeue` is for those that it has ended itself
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.slurm.header import written
from pipeline.slurm.request import JobRequest, Kind

CPUS_PER_GPU = 8
"""CPUs of a job that does not say how many it wants; without a GPU as many as for one."""
MOST_RESTARTS = 100
"""How often a script puts its job back into the queue: one that is stopped over and over gets nowhere."""
STOPPED = 143
ORIGIN = "# Written by `python -m pipeline slurm write`."
_WHAT = {
    Kind.run: "An experiment",
    Kind.sweep: "An agent of a sweep",
    Kind.launch: "A program on every GPU",
}
_OUTPUT, _ARRAY_OUTPUT = "slurm-%j.out", "slurm-%A_%a.out"
_PORT = "$((20000 + SLURM_JOB_ID % 10000))"
"""Below those that the system gives to whoever asks for any."""
_PLAIN = re.compile(r"[\w./:=,@%+-]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_GRACE_KEY = "execution.stop_grace_s"
_GRACE_SHARE = 0.8
"""Of the notice that a run may take to save; what is left is for Slurm and for the run itself."""


def script_text(request: JobRequest, python: str, file: str) -> str:
    """A batch script for a job.

    Args:
        request: The job, checked.
        python: The interpreter, as it is called from the folder of submission.
        file: What the script is going to be called.
    """
    agents = " for each index of the array" if request.array else ""
    agents += " on a Ray cluster that lives as long as the job" if request.ray else ""
    return "\n".join(
        [
            "#!/bin/bash",
            ORIGIN,
            f"# {_WHAT[request.kind]}{agents}. From the folder of the project: sbatch {shell_word(file)}",
            *_header(request),
            "",
            *_body(request, python),
            "",
        ]
    )


def interpreter(executable: str, folder: Path) -> str:
    """How an interpreter is called from a folder: by a relative path where it is below it."""
    path = Path(os.path.abspath(executable))  # noqa: PTH100 - not resolved: a link says which environment it is
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


_OTHER_PYTHON = re.compile(
    r"\b(?:conda|mamba|micromamba)\s+activate\b|(?:\bsource|^\.)\s+\S*activate\b|\bmodule\s+load\b.*(?:python|conda|torch)"
)


def has_own_python(request: JobRequest) -> bool:
    """Whether a job runs in an environment or container of its own, whose `python` is the one to take."""
    words = [*request.others, *(word.lstrip("-") for word in request.srun)]
    return any(map(_OTHER_PYTHON.search, request.setup)) or any(
        word.startswith("container-image") for word in words
    )


def shell_word(text: str) -> str:
    """A word of a command as bash reads it, on one line whatever is in it."""
    if _PLAIN.fullmatch(text):
        return text
    if _CONTROL.search(text):
        escaped = re.sub(r"([\\'])", r"\\\1", text)
        return "$'" + _CONTROL.sub(lambda found: _octal(found[0]), escaped) + "'"
    return "'" + text.replace("'", "'\\''") + "'"


def _octal(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in char.encode(errors="surrogateescape"))


def _words(words: Sequence[str]) -> str:
    return " ".join(map(shell_word, words))


def output_of(request: JobRequest) -> str:
    """The file of what a job prints, as a pattern of sbatch."""
    return request.output or (_ARRAY_OUTPUT if request.array else _OUTPUT)


def cpus_of(request: JobRequest) -> int:
    """CPUs of each node."""
    return request.cpus_per_task or CPUS_PER_GPU * max(1, request.gpus)


# -- lines for sbatch ------------------------------------------------------------------------------------------


def _header(request: JobRequest) -> Iterator[str]:
    lines = {
        "job-name": request.name,
        "account": request.account,
        "partition": request.partition,
        "qos": request.qos,
        "nodes": str(request.nodes),
        "ntasks-per-node": "1",
        "gres": request.gres,
        "cpus-per-task": str(cpus_of(request)),
        "mem": request.mem,
        "time": request.time,
        "array": request.array,
        "constraint": request.constraint,
        "nodelist": request.nodelist,
        "exclude": request.exclude,
        "output": output_of(request),
        "open-mode": "append",
        **request.others,
    }
    for name, value in lines.items():
        if value is not None:
            yield written(name, value)
    if request.notice:
        yield written("signal", f"USR2@{request.notice}")
    yield written("requeue" if request.requeue else "no-requeue")


# -- commands --------------------------------------------------------------------------------------------------


def _body(request: JobRequest, python: str) -> Iterator[str]:
    yield from request.setup
    if request.setup:
        yield ""
    yield "# srun does not take this over by itself."
    yield 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"'
    if request.ray:
        yield from _ray(request, shell_word(python), _of_srun(request))
    else:
        yield from _broken([f"srun {_of_srun(request)}{shell_word(python)} -m pipeline", *_command(request)])
        yield from ["code=$?"] if request.requeue else []
    if request.requeue:
        yield from _AGAIN
    if request.requeue or request.ray:
        yield 'exit "$code"'


def _of_srun(request: JobRequest) -> str:
    return "".join(f"{shell_word(word)} " for word in request.srun)


def _ray(request: JobRequest, python: str, srun: str) -> Iterator[str]:
    yield from _RAY.format(python=python, srun=srun).split("\n")
    yield from _broken([f"srun {srun}{_FIRST} \\\n    {python} -m pipeline", *_command(request)])
    yield "code=$?"
    yield "end_ray"
    yield "trap - EXIT"
    if request.requeue:
        yield "# This script itself is told when the job is cancelled, or when Slurm puts it back."
        yield '[ -z "${over:-}" ] || exit "$code"'


_FIRST = '--overlap --export=ALL --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME"'
_RAY = """\

# Where the head of Ray listens: on this node, the first one, at a port that follows from the number of the job.
# Without Ray in this environment the job ends here, and says what to install.
address="$({python} -m pipeline slurm ray address)" || exit
# Whoever has this may use the cluster. It is in the environment of its processes, and nowhere else.
RAY_AUTH_TOKEN="$(od -An -tx1 -N32 /dev/urandom | tr -d ' \\n')"
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token

# Slurm tells all steps when the job is to end. Ray does not listen, so that the run can save what it needs. It
# ends at SIGUSR1, as this script does, with all that it has started and with its files.
srun {srun}{first} \\
    {python} -m pipeline slurm ray start --head --address="$address" \\
    --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${{SLURM_GPUS_ON_NODE:-0}}" &
ray=($!)
if [ "$SLURM_NNODES" -gt 1 ]; then
    srun {srun}{others} \\
        {python} -m pipeline slurm ray start --address="$address" \\
        --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${{SLURM_GPUS_ON_NODE:-0}}" &
    ray+=($!)
fi
end_ray() {{ kill -USR1 "${{ray[@]}}"; wait "${{ray[@]}}"; }} 2>/dev/null
trap end_ray EXIT
trap 'over=yes' TERM
{python} -m pipeline slurm ray wait --address="$address" --head-pid="${{ray[0]}}" || exit
""".replace("{first}", _FIRST).replace(
    "{others}",
    "--overlap --export=ALL --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) \\\n"
    '        --exclude="$SLURMD_NODENAME" --kill-on-bad-exit=0 --wait=0',
)


_AGAIN = f"""\

# {STOPPED}: it was told to stop, as its time is nearly up or others come first, and has saved what it needs.
# Slurm takes a job that ends for done, so put it back into the queue.
if [ "$code" -eq {STOPPED} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {MOST_RESTARTS} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi\
""".split("\n")


def _command(request: JobRequest) -> list[str]:
    """The words of the command, as a shell reads them; a line for each."""
    first, *rest = request.command
    if request.kind is Kind.launch:
        meeting = f'--nnodes "$SLURM_NNODES" --master-addr "$(hostname)" --master-port "{_PORT}"'
        options, program = _options_and_program(rest)
        return [
            first,
            *([meeting] if request.nodes > 1 else []),
            *([_words(options)] if options else []),
            f"-- {_words(program)}",
        ]
    words = [shell_word(word) for word in rest]
    if request.kind is Kind.sweep:
        return [" ".join([first, *words])]
    if request.requeue and not any(word.startswith(f"{_GRACE_KEY}=") for word in rest):
        words.append(f"{_GRACE_KEY}={int(_GRACE_SHARE * request.notice)}")
    if request.ray:
        words += ["execution.backend=ray", 'execution.ray.address="$address"']
    return [first, *words]


def _options_and_program(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before ``--`` and what after it."""
    at = list(words).index("--")
    return list(words[:at]), list(words[at + 1 :])


def _broken(parts: Sequence[str]) -> Iterator[str]:
    """One command over several lines; on one where there is little of it."""
    parts = [f"{parts[0]} {parts[1]}", *parts[2:]]
    for number, part in enumerate(parts):
        indent, more = "    " if number else "", " \\" if number < len(parts) - 1 else ""
        yield f"{indent}{part}{more}"
