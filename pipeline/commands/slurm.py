"""``python -m pipeline slurm``: batch scripts written, looked through and handed to Slurm."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pipeline.commands.check import print_checks
from pipeline.commands.typed import answering, examples
from pipeline.config.checks import check_config
from pipeline.config.load import load_config
from pipeline.engine.launch.request import find_program
from pipeline.errors import ConfigError, unknown_name
from pipeline.files import write_whole
from pipeline.slurm.header import KNOWN, Unreadable, options_of, split_words
from pipeline.slurm.lint import check_script, check_text
from pipeline.slurm.request import JobRequest, Kind, check_request
from pipeline.slurm.rules import Starter
from pipeline.slurm.script import ORIGIN, interpreter, output_of, script_text
from pipeline.slurm.submit import submit as hand_over
from pipeline.terminal.check import Check, Verdict
from pipeline.terminal.console import make_console, say

app = typer.Typer(
    no_args_is_help=True,
    help="Batch scripts for Slurm: write one, look one through, hand one over.",
    epilog=examples(
        "pipeline slurm write --gres gpu:8 --time 24:00:00 run experiment.name=compare profile=a100_80gb",
        "pipeline slurm lint compare.sbatch",
        "pipeline slurm submit --partition long compare.sbatch",
    ),
)
_WORDS = {"allow_extra_args": True, "allow_interspersed_args": False}
_ANY_OPTION = {**_WORDS, "ignore_unknown_options": True}
Parsable = Annotated[bool, typer.Option("--parsable", help="Print the id of the job and nothing else.")]


@app.command(
    context_settings=_WORDS,
    help="Write a batch script for a command of this program; options are those of sbatch.",
    epilog=examples(
        "pipeline slurm write --gres gpu:8 --time 24:00:00 run experiment.name=compare profile=a100_80gb",
        "pipeline slurm write --gres gpu:2 --array 0-3 --time 12:00:00 sweep agent lr",
        "pipeline slurm write --nodes 2 --gres gpu:8 launch -- train.py --lr 1e-3",
    ),
)
def write(
    command: Annotated[
        list[str] | None, typer.Argument(help="run SETTINGS, sweep agent NAME or launch -- PROGRAM.")
    ] = None,
    job_name: Annotated[str | None, typer.Option("--job-name", "-J", help="As of what it runs by itself.")] = None,
    account: Annotated[str | None, typer.Option("--account", "-A", help="Who pays.")] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="Where it waits.")] = None,
    qos: Annotated[str | None, typer.Option("--qos", "-q", help="With which priority and limits.")] = None,
    time: Annotated[str | None, typer.Option("--time", "-t", help="How long: 90, 24:00:00, 2-12.")] = None,
    gres: Annotated[str | None, typer.Option(help="Devices of each node: gpu:8, gpu:h200:8.")] = None,
    cpus: Annotated[
        int | None, typer.Option("--cpus-per-task", "-c", help="CPUs of each node; 8 for each GPU if left out.")
    ] = None,
    mem: Annotated[str | None, typer.Option(help="Memory of each node: 200G.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", "-N", help="Machines; several for launch alone.")] = 1,
    array: Annotated[
        str | None, typer.Option("--array", "-a", help="Agents of a sweep: 0-3, or 0-15%4 for 4 at once.")
    ] = None,
    exclude: Annotated[str | None, typer.Option("--exclude", "-x", help="Not these nodes: n1,n[4-7].")] = None,
    nodelist: Annotated[str | None, typer.Option("--nodelist", "-w", help="These nodes.")] = None,
    constraint: Annotated[str | None, typer.Option("--constraint", "-C", help="Features of the nodes.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="File for what it prints; slurm-%j.out if left out.")
    ] = None,
    notice: Annotated[
        int | None, typer.Option(help="Seconds before its end at which it is told to save and stop.")
    ] = None,
    requeue: Annotated[
        bool, typer.Option("--requeue/--no-requeue", help="Whether it goes back into the queue and on from there.")
    ] = True,
    option: Annotated[
        list[str] | None, typer.Option(help="Another option of sbatch, once for each: licenses=matlab.")
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option(help="A line of shell that comes first, once for each: 'module load cuda'.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write, '-' to print; JOB-NAME.sbatch if left out.")
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Hand it to Slurm at once.")] = False,
    parsable: Parsable = False,
) -> None:
    """Write a script."""
    with answering():
        words = command or []
        request = JobRequest(
            command=words,
            name=job_name if job_name is not None else _name_of(words),
            account=account,
            partition=partition,
            qos=qos,
            time=time,
            gres=gres,
            cpus_per_task=cpus,
            mem=mem,
            nodes=nodes,
            array=array,
            exclude=exclude,
            nodelist=nodelist,
            constraint=constraint,
            output=output,
            notice_s=notice,
            requeue=requeue,
            others=dict(map(_other, option or [])),
            setup=tuple(setup or ()),
        )
        check_request(request)
        if submit and str(out) == "-":
            raise ConfigError("--out - prints the script; with --submit it needs a file")
        file = Path(f"{_plain(request.name)}.sbatch")
        if str(out) == "-":
            _print(request, file)
        else:
            _write(request, out or file, submit=submit, parsable=parsable)


@app.command(
    help="Say what is wrong with a batch script.",
    epilog=examples("pipeline slurm lint compare.sbatch", "pipeline slurm lint train.sbatch --ranks slurm"),
)
def lint(
    script: Path,
    ranks: Annotated[
        Starter | None, typer.Option(help="Who starts the ranks of its program; guessed if left out.")
    ] = None,
) -> None:
    """Look a script through."""
    with answering():
        raise typer.Exit(print_checks(check_script(script, ranks), "sbatch may have it."))


@app.command(
    context_settings=_ANY_OPTION,
    help="Look a batch script through and hand it to Slurm: [OPTIONS OF SBATCH] SCRIPT [ITS ARGUMENTS].",
    epilog=examples(
        "pipeline slurm submit compare.sbatch",
        "pipeline slurm submit --partition long --exclude n7 compare.sbatch",
    ),
)
def submit(
    words: Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS] SCRIPT [ARGUMENTS]...")] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also with faults that would stop it.")] = False,
    parsable: Parsable = False,
) -> None:
    """Hand a script over."""
    with answering():
        options, script, arguments = _split(words or [])
        faults = [check for check in check_script(script, None, dict(options_of(options))) if _wrong(check)]
        _tell(faults, parsable=parsable)
        if any(check.verdict is Verdict.FAIL for check in faults) and not anyway:
            raise ConfigError(
                f"{script} would not do what is meant, see above; --anyway hands it over all the same"
            )
        job = hand_over(script, options, arguments)
        _tell_job(job, parsable=parsable)


# -- writing ---------------------------------------------------------------------------------------------------


def _name_of(words: Sequence[str]) -> str:
    """What a job is called by what it runs, which is checked as far as can be told here.

    Raises:
        ConfigError: It is no command for a job.
    """
    if not words:
        raise ConfigError(f"what is the job to run? {_USAGE}")
    first, *rest = words
    if first not in {kind.value for kind in Kind}:
        raise ConfigError(f"{unknown_name('command for a job', first, [kind.value for kind in Kind])} {_USAGE}")
    return {Kind.run: _run_name, Kind.sweep: _sweep_name, Kind.launch: _launch_name}[Kind(first)](rest)


_USAGE = "Give it last: pipeline slurm write --gres gpu:8 run experiment.name=NAME KEY=VALUE ..."


def _run_name(settings: Sequence[str]) -> str:
    if any(word.startswith("-") for word in settings):  # Hydra's own flags are the run's to judge
        found = [word.partition("=")[2] for word in settings if word.startswith("experiment.name=")]
        return found[-1] if found else "run"
    config = load_config(settings)
    check_config(config)
    return config.experiment.name


def _sweep_name(words: Sequence[str]) -> str:
    if len(words) < 2 or words[0] not in ("agent", "run"):
        raise ConfigError("a job of a sweep is an agent of it: pipeline slurm write --array 0-3 sweep agent NAME")
    named = [word for word in words[1:] if not word.startswith("-")]
    return Path(named[0]).stem if named else "sweep"


def _launch_name(words: Sequence[str]) -> str:
    program = words[words.index("--") + 1 :] if "--" in words else list(words)
    return Path(find_program(program, Path.cwd()).name).stem


def _other(text: str) -> tuple[str, str]:
    name, _, value = text.removeprefix("--").partition("=")
    return name, value


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "job"


def _text(request: JobRequest, file: Path) -> str:
    return script_text(request, interpreter(sys.executable, Path.cwd()), file.name)


def _print(request: JobRequest, file: Path) -> None:
    text = _text(request, file)
    _tell(filter(_wrong, check_text(text)), parsable=True)
    sys.stdout.write(text)


def _write(request: JobRequest, file: Path, *, submit: bool, parsable: bool) -> None:
    text = _text(request, file)
    _refuse_foreign(file)
    try:
        write_whole(file, text)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error
    _tell(filter(_wrong, check_text(text)), parsable=parsable)
    if not parsable:
        say(make_console(), f"wrote {file}")
    if submit:
        _tell_job(hand_over(file), output_of(request), parsable=parsable)
    elif not parsable:
        say(make_console(), "submit it by", copy=f"python -m pipeline slurm submit {file}")


def _refuse_foreign(file: Path) -> None:
    """Leave alone what somebody has written by hand."""
    try:
        begin = file.read_text(errors="replace").split("\n")[:2]
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error
    if ORIGIN not in begin:
        raise ConfigError(f"there is a file {file} that this command has not written; give another by --out")


# -- handing over ------------------------------------------------------------------------------------------------


def _split(words: Sequence[str]) -> tuple[list[str], Path, list[str]]:
    """Options of sbatch, the script and its arguments.

    Raises:
        ConfigError: There is no script, an option is none of sbatch's, or stands where it would not be one.
    """
    try:
        options, rest = split_words(words)
        unknown = [name for name, _ in options_of(options) if name not in KNOWN]
    except Unreadable as problem:
        raise ConfigError(f"{problem}. First the options of sbatch, then the script: {_SUBMIT}") from problem
    if unknown:
        raise ConfigError(f"sbatch has no option --{unknown[0]}")
    if not rest:
        raise ConfigError(f"which script? {_SUBMIT}")
    late = [word for word in rest[1:] if word.startswith("--") and word[2:].partition("=")[0] in KNOWN]
    if late:
        raise ConfigError(f"{late[0]} comes after the script, to which it would be given: {_SUBMIT}")
    return options, Path(rest[0]), rest[1:]


_SUBMIT = "pipeline slurm submit --partition long compare.sbatch"


def _wrong(check: Check) -> bool:
    return check.verdict is not Verdict.PASS


def _tell(faults: Iterable[Check], *, parsable: bool) -> None:
    console = make_console(stderr=parsable)
    for check in faults:
        say(console, f"{check.verdict.name.lower()}: {check.name}: {check.detail}. Try: {check.remedy}", "bold")


def _tell_job(job: str, output: str = "", *, parsable: bool) -> None:
    console: Console = make_console()
    if parsable:
        say(console, job)
        return
    say(console, f"submitted job {job}", "bold")
    if output:
        say(console, f"what it prints: {output.replace('%j', job).replace('%A', job)}")
    say(console, "where it stands:", copy=f"squeue --job {job}")
