"""Batch scripts for Slurm: options of sbatch, and the text of a script.

Why a script needs these parts:

    srun        Slurm sends the signal for "the time is nearly up" and "preempted" to steps that srun has started;
                the script itself gets it too late
    --signal    without it, Slurm sends no signal before the time is up
    143         the exit code of a run, agent or launch that was told to stop and has saved its state
    scontrol    Slurm does not requeue a job that has ended by itself, whatever `--requeue` says
"""

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import ConfigError

MARK = "#SBATCH"
_LETTERS = (
    "A:account a:array b:begin B:extra-node-info C:constraint c:cpus-per-task d:dependency D:chdir e:error "
    "F:nodefile G:gpus i:input J:job-name L:licenses M:clusters m:distribution N:nodes n:ntasks o:output "
    "p:partition q:qos S:core-spec t:time w:nodelist x:exclude H:hold I:immediate k:no-kill O:overcommit "
    "Q:quiet s:oversubscribe v:verbose V:version W:wait"
)
_SHORT = dict(pair.split(":") for pair in _LETTERS.split())


def options_of(
    words: Sequence[str], ends: Collection[str] = (), taking: Collection[str] = ()
) -> tuple[list[tuple[str, str]], list[str]]:
    """Read options up to the first word that is none. Sbatch itself checks names and values.

    Args:
        words: Words of a command line, or of a line. The word behind an option is its value, unless it is one too.
        ends: Words that are never the value of an option.
        taking: Options that take the word behind them, whatever it is.

    Returns:
        Long names and values, "" for none; and the words from the first one on that is no option.

    Raises:
        ConfigError: There is no such letter.
    """
    options, rest = [], list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word[2:].partition("=")
        if not word.startswith("--"):
            if word[1:2] not in _SHORT:
                raise ConfigError(f"{word}: sbatch has no such option")
            name, equals, value = _SHORT[word[1]], word[2:], word[2:]
        if not equals and rest and (name in taking or not (rest[0].startswith("-") or rest[0] in ends)):
            value = rest.pop(0)
        options.append((name, value))
    return options, rest


def written(name: str, value: str = "") -> str:
    """Return the line of a script for an option. The value "" makes a flag; others are any text on one line."""
    if not re.fullmatch(r"[\w./:=,@%+\[\]-]*", value):
        value = '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    return f"{MARK} --{name}" + (f"={value}" if value else "")


# -- numbers -----------------------------------------------------------------------------------------------------

_GPUS = re.compile(
    r"(?:^|,)(?:gres[:/])?gpu(?::(?=[^:,(=]*[A-Za-z])\w[^:,(=]*)?(?:[:=](\d{1,9}))?(?=$|[,(])", re.ASCII
)
"""A type may begin with a digit, as that of a part of a GPU: gpu:1g.10gb:2."""
_TIME = re.compile(r"(?:(\d{1,6})-)?(\d{1,8})(?::(\d{1,8}))?(?::(\d{1,8}))?", re.ASCII)


def number(text: str | None) -> int | None:
    """Read a whole number; None for anything else."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 9 else None


def nodes_of(options: Mapping[str, str]) -> int:
    """Return the number of nodes: the largest of a range, or as many as the tasks need if none is given."""
    tasks, per_node = number(options.get("ntasks")), number(options.get("ntasks-per-node"))
    return number(options.get("nodes", "").rpartition("-")[2]) or -(-(tasks or 1) // (per_node or tasks or 1))


def gpus_of(options: Mapping[str, str]) -> int:
    """Return the GPUs of each node, of all types together, whichever option asks for them."""

    def named(text: str) -> int:
        return sum(int(match[1] or 1) for match in _GPUS.finditer(text))

    def counted(name: str) -> int:
        return named(",".join(f"gpu:{part}" for part in options[name].split(","))) if name in options else 0

    nodes = nodes_of(options)
    here = number(options.get("ntasks-per-node")) or -(-(number(options.get("ntasks")) or nodes) // nodes)
    return (
        named(options.get("gres", ""))
        or counted("gpus-per-node")
        or -(-counted("gpus") // nodes)
        or (counted("gpus-per-task") or named(options.get("tres-per-task", ""))) * here
    )


def seconds_of(time: str) -> int | None:
    """Read a time as sbatch does: ``90`` are minutes, ``1:30`` minutes and seconds, ``1-12`` days and hours.

    Returns:
        Seconds; None if there is no limit.

    Raises:
        ConfigError: The text is not a time.
    """
    if time.lower() in ("infinite", "unlimited"):
        return None
    if not (match := _TIME.fullmatch(time)):
        raise ConfigError(f"--time {time}: as 90 (minutes), 1:30:00 (hours), 2-12 (days and hours) or 2-12:30:00")
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] is None and match[4] is None:
        return first * 60 + second
    return days * 86_400 + first * 3600 + second * 60 + third


# -- the script ---------------------------------------------------------------------------------------------------

NOTICE_S = 300
"""Seconds between the signal and the end of a job's time, if the job has that many."""
LEAST_NOTICE_S = 60
"""Slurm checks about once a minute, and may send the signal a minute early."""
CPUS_PER_GPU = 8
"""CPUs per GPU of a job that does not set them; a job without GPUs gets as many as for one."""
MOST_RESTARTS = 100
"""Times that a script puts its job back into the queue: a job that is stopped more often makes no progress."""
STOPPED = 143
ORIGIN = "# Written by `python -m pipeline slurm write`."
_GRACE_KEY, _GRACE_SHARE = "execution.stop_grace_s", 0.8
"""Share of the notice in which a run may save; the rest is for Slurm, and for the run to end."""
_PORT = "$((20000 + SLURM_JOB_ID % 10000))"
"""Below the ports that the system hands out itself."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A Slurm job to write, with one task on each node.

    Attributes:
        command: Words of ``run``, ``sweep`` or ``launch`` of this package.
        name: Name of the job, unless the options name it.
        options: Options of sbatch, long name -> value, "" for a flag.
        notice_s: Seconds between the signal to save and stop and the end of the job's time; None for the default.
        srun: Options of srun.
        setup: Shell lines at the start of the script, such as ``module load cuda``.
        ray: Whether to start a Ray cluster on the nodes, and run on it.
        widest: Devices that the widest job of the run takes.
        on_cpu: Whether the run uses CPUs even if there are GPUs.
        watch: A command that shows the progress of the run; "" for none.
    """

    command: Sequence[str]
    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    notice_s: int | None = None
    srun: Sequence[str] = ()
    setup: Sequence[str] = ()
    ray: bool = False
    widest: int = 1
    on_cpu: bool = False
    watch: str = ""

    @property
    def requeue(self) -> bool:
        """Return whether the job is queued again when it was told to stop, was preempted, or lost its node."""
        return "no-requeue" not in self.options

    @property
    def notice(self) -> int:
        """Return the seconds between the signal and the end, a quarter of a short job's time; 0 for no signal.

        A launched program gets a signal only if that was asked for, since an unexpected signal ends it.
        """
        if self.notice_s is not None:
            return self.notice_s
        if self.command[0] == "launch" or not self.requeue:
            return 0
        seconds = seconds_of(self.options.get("time", "infinite"))
        return NOTICE_S if seconds is None else max(LEAST_NOTICE_S, min(NOTICE_S, seconds // 4))


def check_request(request: JobRequest) -> None:
    """Refuse a request that would not do what was meant. What Slurm alone can tell, sbatch checks.

    Raises:
        ConfigError: The first problem.
    """
    for problem in _problems(request):
        raise ConfigError(problem)


def _problems(request: JobRequest) -> Iterator[str]:
    kind, options = request.command[0], request.options
    nodes, gpus, array = nodes_of(options), gpus_of(options), options.get("array")
    lines = [("job-name", request.name), *options.items(), *(("setup", line) for line in request.setup)]
    for word in (*request.command, *request.srun):
        if not word.isprintable():
            yield f"{word!r}: a word of a script is one line without control characters"
    for name, value in lines:
        if not value.replace("\t", "").isprintable() or value.lstrip().startswith(MARK):
            yield f"--{name} {value!r}: one line without control characters, and no line for sbatch"
        if name in ("ntasks", "ntasks-per-node", "open-mode", "signal", "wrap"):
            yield f"--{name}: the script has a line of its own for it, or none; see --help"
    seconds = seconds_of(options.get("time", "infinite"))
    if seconds is not None and request.notice and seconds < request.notice + 2 * LEAST_NOTICE_S:
        longer = "Give it more time, a shorter --notice, or --no-requeue"
        yield f"--time {options['time']} with a notice of {request.notice} s: it would stop once begun. {longer}"
    if request.ray and kind != "run":
        yield f"--ray is for an experiment; {kind} needs no Ray. Leave it out"
    if nodes > 1 and kind != "launch" and not request.ray:
        ways = "--ray for a run, an array of agents (--array 0-3) for a sweep, or launch"
        yield f"--nodes {nodes}: the workers of a run, and the trials of an agent, are on one machine. Use {ways}"
    if array is not None and (kind != "sweep" or array.partition("%")[0].isdigit()):
        yield f"--array {array}: an array is for several agents of a sweep, as --array 0-3 ... sweep agent NAME"
    if request.ray and not gpus and not request.on_cpu:
        yield "--ray without GPUs: ask for those of each node by --gres gpu:8, or run on its CPUs by device=cpu"
    if gpus and not request.on_cpu and request.widest > gpus:
        wide = f"a job takes {request.widest} GPUs (training.gpus_per_job, generation.gpus_per_job) of one node"
        yield f"{wide}, and a node has {gpus}: ask for --gres gpu:{request.widest}, or for fewer a job"


def interpreter(executable: str, folder: Path) -> str:
    """Return the path of an interpreter as called from a folder: relative if it is below it."""
    path = Path(os.path.abspath(executable))  # noqa: PTH100 - not resolved: a link says which environment it is
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


_OTHER_PYTHON = re.compile(
    r"\b(?:conda|mamba|micromamba)\s+activate\b|(?:\bsource|^\.)\s+\S*activate\b|\bmodule\s+load\b.*(?:python|conda|torch)"
)


def script_text(request: JobRequest, python: str, file: str) -> str:
    """Return the text of a batch script.

    Args:
        request: The job, checked.
        python: The interpreter, as called from the folder of submission. A job that sets up an environment or uses
            a container calls the `python` found there instead.
        file: File name of the script.
    """
    if (
        any(map(_OTHER_PYTHON.search, request.setup))
        or "container-image" in request.options
        or any(word.startswith("--container-image") for word in request.srun)
    ):
        python = "python"
    what = {"run": "An experiment", "sweep": "An agent of a sweep", "launch": "A program on every GPU"}
    what_more = " for each index of the array" if "array" in request.options else ""
    what_more += " on a Ray cluster that lives as long as the job" if request.ray else ""
    header = {"job-name": request.name, "nodes": "1", "ntasks-per-node": "1"} | dict(request.options)
    header.setdefault("cpus-per-task", str(CPUS_PER_GPU * max(1, gpus_of(request.options))))
    header.setdefault("output", "slurm-%A_%a.out" if "array" in request.options else "slurm-%j.out")
    header["open-mode"] = "append"
    header |= {"signal": f"USR2@{request.notice}"} if request.notice else {}
    header |= {"requeue": ""} if request.requeue else {}
    lines = [
        "#!/bin/bash",
        ORIGIN,
        f"# {what[request.command[0]]}{what_more}. From the folder of the project: sbatch {shlex.quote(file)}",
        *(written(name, value) for name, value in header.items()),
        "",
        *request.setup,
        *([""] if request.setup else []),
        "# srun does not read --cpus-per-task of the batch script.",
        'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',
    ]
    python, srun = shlex.quote(python), "".join(f"{shlex.quote(word)} " for word in request.srun)
    if request.ray:
        lines += _RAY.format(python=python, srun=srun).split("\n")
        lines += _broken([f"srun {srun}{_FIRST} \\\n    {python} -m pipeline", *_command(request)])
        lines += ["code=$?", "end_ray", "trap - EXIT"]
    else:
        lines += _broken([f"srun {srun}{python} -m pipeline", *_command(request)])
        lines += ["code=$?"] if request.requeue else []
    if request.requeue:
        lines += (_CANCELLED if request.ray else "").split("\n")[:-1] + _AGAIN.split("\n")
    if request.requeue or request.ray:
        lines.append('exit "$code"')
    return "\n".join([*lines, ""])


def _command(request: JobRequest) -> list[str]:
    """Return the words of the command, quoted for a shell, one per line."""
    first, *rest = request.command
    words = [shlex.quote(word) for word in rest]
    if first == "launch":
        at = rest.index("--")
        meeting = f'--nnodes "$SLURM_NNODES" --master-addr "$(hostname)" --master-port "{_PORT}"'
        parts = [meeting if nodes_of(request.options) > 1 else "", " ".join(words[:at]), " ".join(words[at:])]
        return [first, *filter(None, parts)]
    if first == "sweep":
        return [" ".join([first, *words])]
    if request.requeue and not any(word.startswith(f"{_GRACE_KEY}=") for word in rest):
        words.append(f"{_GRACE_KEY}={int(_GRACE_SHARE * request.notice)}")
    if request.ray:
        words += ["execution.backend=ray", 'execution.ray.address="$address"']
    return [first, *words]


def _broken(parts: Sequence[str]) -> list[str]:
    """Format one command over several lines, or on one line if it is short."""
    first, *more = [f"{parts[0]} {parts[1]}", *parts[2:]]
    return " \\\n    ".join([first, *more]).split("\n")


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
_CANCELLED = """\
# This script itself is told when the job is cancelled, or when Slurm puts it back.
[ -z "${over:-}" ] || exit "$code"
"""
_AGAIN = f"""
# {STOPPED}: Slurm asked the run to stop (time limit or preemption), and the run has saved its state.
# To Slurm the job is now done, so put it back into the queue.
if [ "$code" -eq {STOPPED} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {MOST_RESTARTS} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi"""
