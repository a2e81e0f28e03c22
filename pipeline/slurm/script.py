"""Jobs of Slurm: options of sbatch, the text of a script, and what hangs in one.

What it is built on, as Slurm does none of it by itself:

    srun            Slurm tells a job that its time is nearly up, or that it is preempted, by a signal to the steps
                    that srun has started; the script itself hears of it when it is too late
    --signal        without it nobody is told before the time is up
    143             what a run, an agent or a launch answers that was told to stop, and has saved what it needs
    scontrol        a job that ends is over for Slurm; `--requeue` is for those that it has ended itself
"""

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.engine.devices.inventory import NOTHING, VISIBLE
from pipeline.errors import ConfigError
from pipeline.files import open_plain
from pipeline.terminal.console import Check, failed, passed, warned

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
    """Read options up to the first word that is none; which there are, and which need a value, sbatch says.

    Args:
        words: Of a command line, or of a line. The word behind an option is its value, unless it is an option too.
        ends: Words that are no value of any.
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
    """Write a line for an option; "" is a flag, and a value is any text on one line."""
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
    """Nodes of a job, the most of a range; as many as its tasks need where it does not say."""
    tasks, per_node = number(options.get("ntasks")), number(options.get("ntasks-per-node"))
    return number(options.get("nodes", "").rpartition("-")[2]) or -(-(tasks or 1) // (per_node or tasks or 1))


def gpus_of(options: Mapping[str, str]) -> int:
    """GPUs of each node, of all types together, by whichever option asks for them."""

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
        Seconds; None where there is no bound.

    Raises:
        ConfigError: It is no time.
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
"""Seconds before the end of its time at which a job is told, where there are that many."""
LEAST_NOTICE_S = 60
"""Slurm looks once a minute or so, and may tell a minute early."""
CPUS_PER_GPU = 8
"""CPUs of a job that does not say how many it wants; without a GPU as many as for one."""
MOST_RESTARTS = 100
"""How often a script puts its job back into the queue: one that is stopped over and over gets nowhere."""
STOPPED = 143
ORIGIN = "# Written by `python -m pipeline slurm write`."
_GRACE_KEY, _GRACE_SHARE = "execution.stop_grace_s", 0.8
"""The share of the notice that a run may take to save; what is left is for Slurm and for the run itself."""
_PORT = "$((20000 + SLURM_JOB_ID % 10000))"
"""Below those that the system gives to whoever asks for any."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job of Slurm, with one task on each node.

    Attributes:
        command: What it runs: the words of ``run``, ``sweep`` or ``launch`` of this package.
        name: Of the job, where its options name none.
        options: Of sbatch, long name -> value, "" for a flag.
        notice_s: Seconds before the end of its time at which it is told to save and stop; None for what is usual.
        srun: Words that srun is given before what it starts.
        setup: Lines of shell that come first, as ``module load cuda``.
        ray: Whether it brings up a Ray cluster on its nodes, and runs on that.
        widest: Devices that the widest job of a run takes.
        on_cpu: Whether a run is on CPUs, whatever there is.
        watch: A command that shows how far it is; "" for none.
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
        """Whether it goes back into the queue when it was told to stop, preempted, or its node was lost."""
        return "no-requeue" not in self.options

    @property
    def notice(self) -> int:
        """Seconds before its end at which it is told; 0 for never. Of a short job it is a quarter of its time.

        A program that is launched is told only where that was asked for, since a signal that it does not expect
        ends it.
        """
        if self.notice_s is not None:
            return self.notice_s
        if self.command[0] == "launch" or not self.requeue:
            return 0
        seconds = seconds_of(self.options.get("time", "infinite"))
        return NOTICE_S if seconds is None else max(LEAST_NOTICE_S, min(NOTICE_S, seconds // 4))


def check_request(request: JobRequest) -> None:
    """Refuse what would not do what was meant; what Slurm alone can tell, sbatch says.

    Raises:
        ConfigError: The first thing that is wrong.
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
        yield f"--nodes {nodes}: a run has its workers, and an agent its trials, on one machine. Use {ways}"
    if array is not None and (kind != "sweep" or array.partition("%")[0].isdigit()):
        yield f"--array {array}: an array is for several agents of a sweep, as --array 0-3 ... sweep agent NAME"
    if request.ray and not gpus and not request.on_cpu:
        yield "--ray without GPUs: ask for those of each node by --gres gpu:8, or run on its CPUs by device=cpu"
    if gpus and not request.on_cpu and request.widest > gpus:
        wide = f"a job takes {request.widest} GPUs (training.gpus_per_job, generation.gpus_per_job) of one node"
        yield f"{wide}, and a node has {gpus}: ask for --gres gpu:{request.widest}, or for fewer a job"


def interpreter(executable: str, folder: Path) -> str:
    """Return how to call an interpreter from a folder: by a relative path if it is below it."""
    path = Path(os.path.abspath(executable))  # noqa: PTH100 - not resolved: a link says which environment it is
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


_OTHER_PYTHON = re.compile(
    r"\b(?:conda|mamba|micromamba)\s+activate\b|(?:\bsource|^\.)\s+\S*activate\b|\bmodule\s+load\b.*(?:python|conda|torch)"
)


def script_text(request: JobRequest, python: str, file: str) -> str:
    """Write a batch script for a job.

    Args:
        request: The job, checked.
        python: The interpreter, as it is called from the folder of submission. Where the job sets up an
            environment or has a container of its own, `python` is the one that is there.
        file: What the script is going to be called.
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


# -- what hangs --------------------------------------------------------------------------------------------------
# What would hang, idle or be lost in a job of Slurm: in a batch script, or in the job of this process.
#
# Slurm grants GPUs, CPUs and tasks; a launcher turns them into ranks. Which numbers are right depends on who
# starts them:
#
#     ranks started by                               tasks on each node   the program is started by
#     itself (this engine, torchrun, our `launch`)   1                    python, or srun with one task a node
#     Slurm: one rank a task (Lightning, MPI)        as many as GPUs      srun
#
# Most wrong combinations do not fail: they hang, or train on one GPU. What sbatch refuses it says itself.


_LARGEST = 4 << 20
"""Bytes of a script that sbatch takes, unless it was told otherwise."""
_STARTS_RANKS = (
    *("vllm", "sglang", "torchrun", "torch.distributed", "pipeline", "run_parallel.py", "accelerate", "deepspeed"),
)


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """What a job asks for or was given.

    Attributes:
        own: Whether its program starts the ranks itself, rather than taking a task for a rank.
        nodes: Machines.
        gpus: GPUs on each node.
        here: Tasks on each node.
        mask: CUDA_VISIBLE_DEVICES; None where it is not set.
        in_step: Whether srun has started this process, or is going to start the program.
    """

    own: bool = True
    nodes: int = 1
    gpus: int = 0
    here: int = 1
    mask: str | None = None
    in_step: bool = False


# -- in a job ----------------------------------------------------------------------------------------------------


def faults_of_job(job: SlurmJob) -> Iterator[Check]:
    """Check what a job asks for against what its program needs."""
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
    """Check the job that this process runs in, as one that runs this engine; nothing outside of Slurm.

    Args:
        environment: Variables of this process.
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
        What is wrong with it, or one check that passed.

    Raises:
        ConfigError: It cannot be read, or is no batch script.
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
"""A text that the script writes into another file: ``cat <<EOF > FILE``."""


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
    """Find what leaves ranks alone, or ends them, in the commands of a script, each on one line."""
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
    """Read the lines for sbatch into ``options``, and tell those that it does not read.

    A line counts if it begins with the word, in the first column, before the first command. Nothing is expanded.
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
