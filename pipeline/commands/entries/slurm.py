"""Commands about Slurm: batch scripts written, looked through and handed over."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from pipeline.commands.entries.slurm_ray import app as ray_app
from pipeline.commands.typed import answering, examples
from pipeline.errors import ConfigError
from pipeline.slurm.job import Starter

app = typer.Typer(
    no_args_is_help=True,
    help="Batch scripts for Slurm: write one, look one through, hand one over.",
    epilog=examples(
        "pipeline slurm write --gres gpu:8 --time 24:00:00 run experiment.name=compare profile=a100_80gb",
        "pipeline slurm lint compare.sbatch",
        "pipeline slurm submit --partition long compare.sbatch",
    ),
)
app.add_typer(ray_app, name="ray")
_WORDS = {"allow_extra_args": True, "allow_interspersed_args": False}
_ANY_OPTION = {**_WORDS, "ignore_unknown_options": True}
Output = Annotated[
    str | None, typer.Option("--output", "-o", help="File for what it prints; slurm-%j.out if left out.")
]
Notice = Annotated[int | None, typer.Option(help="Seconds before its end at which it is told to save and stop.")]
Options = Annotated[
    list[str] | None,
    typer.Option(help="Another option of sbatch: licenses=matlab; --licenses=matlab by itself is the same."),
]
Srun = Annotated[
    list[str] | None, typer.Option(help="Options of srun, once or several times: '--mpi=pmix --cpu-bind=none'.")
]
Setup = Annotated[
    list[str] | None, typer.Option(help="A line of shell that comes first, once for each: 'module load cuda'.")
]
Out = Annotated[Path | None, typer.Option(help="File to write, '-' to print; JOB-NAME.sbatch if left out.")]
Cpus = Annotated[
    int | None, typer.Option("--cpus-per-task", "-c", help="CPUs of each node; 8 for each GPU if left out.")
]
Array = Annotated[
    str | None, typer.Option("--array", "-a", help="Agents of a sweep: 0-3, or 0-15%4 for 4 at once.")
]
Ray = Annotated[bool, typer.Option("--ray", help="Bring up a Ray cluster on all nodes, and run on that.")]
Parsable = Annotated[bool, typer.Option("--parsable", help="Print the id of the job and nothing else.")]


class _AnyOption(TyperCommand):
    """A command that takes every option of sbatch: what it has not itself is given to ``--option``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Click does."""
        own = {name: each for each in self.params for name in (*each.opts, *each.secondary_opts)}
        words, left = [], list(args)
        while left and left[0].startswith("-") and left[0] not in ("-", "--"):
            word = left.pop(0)
            name, equals, _ = word.partition("=")
            known = own.get(name) or own.get(name[:2] if not name.startswith("--") else "")
            if known or name in ("--help", "-h"):
                words.append(word)
                takes = known is not None and not getattr(known, "is_flag", False) and not equals
                words += [left.pop(0)] if takes and name in own and left else []
            else:
                words += ["--option", _of_sbatch(word, left)]
        return super().parse_args(ctx, [*words, *left])


def _of_sbatch(word: str, left: list[str]) -> str:
    """An option as ``--option`` takes it; its value is taken from the words that follow.

    Raises:
        typer.BadParameter: It is none of Slurm's, and it cannot be told whether a value follows.
    """
    from pipeline.slurm.header import KNOWN, Unreadable, is_misspelt, no_option, options_of

    long = word[2:].partition("=")[0] if word.startswith("--") else ""
    if long and "=" not in word and not any(each.startswith(long) for each in KNOWN):
        plugins = "" if is_misspelt(long) else f"; one of a plugin is written --{long}=VALUE"
        raise typer.BadParameter(f"{no_option(long)}{plugins}")
    try:
        ((name, value),) = options_of([word])
    except Unreadable:
        following = [left.pop(0)] if left else []
        try:
            ((name, value),) = options_of([word, *following])
        except (Unreadable, ValueError) as problem:
            raise typer.BadParameter(str(problem)) from problem
    return f"{name}={value}" if value else name


@app.command(
    cls=_AnyOption,
    context_settings=_WORDS,
    help="Write a batch script for a command of this program; options are those of sbatch.",
    epilog=examples(
        "pipeline slurm write --gres gpu:8 --time 24:00:00 run experiment.name=compare profile=a100_80gb",
        "pipeline slurm write --gres gpu:2 --array 0-3 --time 12:00:00 sweep agent lr",
        "pipeline slurm write --nodes 2 --gres gpu:8 launch -- train.py --lr 1e-3",
        "pipeline slurm write --ray --nodes 4 --gres gpu:8 --time 24:00:00 run experiment.name=compare",
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
    cpus: Cpus = None,
    mem: Annotated[str | None, typer.Option(help="Memory of each node: 200G.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", "-N", help="Machines; several for launch, or with --ray.")] = 1,
    ray: Ray = False,
    array: Array = None,
    exclude: Annotated[str | None, typer.Option("--exclude", "-x", help="Not these nodes: n1,n[4-7].")] = None,
    nodelist: Annotated[str | None, typer.Option("--nodelist", "-w", help="These nodes.")] = None,
    constraint: Annotated[str | None, typer.Option("--constraint", "-C", help="Features of the nodes.")] = None,
    output: Output = None,
    notice: Notice = None,
    requeue: Annotated[
        bool, typer.Option("--requeue/--no-requeue", help="Whether it goes back into the queue and on from there.")
    ] = True,
    option: Options = None,
    srun: Srun = None,
    setup: Setup = None,
    out: Out = None,
    submit: Annotated[bool, typer.Option("--submit", help="Hand it to Slurm at once.")] = False,
    parsable: Parsable = False,
) -> None:
    """Write a script."""
    from pipeline.commands import slurm
    from pipeline.commands.job_command import checked
    from pipeline.slurm.request import JobRequest

    with answering():
        known = checked(command or [], ray=ray)
        request = JobRequest(
            command=known.words,
            name=known.name if job_name is None else job_name,
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
            srun=tuple(word for words in srun or () for word in _words_of_srun(words)),
            setup=tuple(setup or ()),
            ray=ray,
            needs=known.needs,
        )
        slurm.write(request, out, submit=submit, parsable=parsable)


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
    from pipeline.commands.check import print_checks
    from pipeline.slurm.lint import check_script

    with answering():
        raise typer.Exit(print_checks(check_script(script, ranks), "sbatch may have it."))


@app.command(
    context_settings=_ANY_OPTION,
    help="Look a batch script through and hand it to Slurm: [OPTIONS OF SBATCH] SCRIPT [ITS ARGUMENTS].",
    epilog=examples(
        "pipeline slurm submit compare.sbatch",
        "pipeline slurm submit --partition long --exclude n7 compare.sbatch",
        "pipeline slurm submit --ray --nodes 4 --gres gpu:8 --time 24:00:00 run experiment.name=compare",
    ),
)
def submit(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS] SCRIPT [ARGUMENTS]...")] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also with faults that would stop it.")] = False,
    parsable: Parsable = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="In place of a script, the words of `write --ray`: it is written first.")
    ] = False,
) -> None:
    """Hand a script over."""
    from pipeline.commands import slurm

    if ray or "--ray" in (words or []):
        _write_and_submit(context, [*(["--parsable"] if parsable else []), *(words or [])])
        return
    with answering():
        slurm.submit(words or [], anyway=anyway, parsable=parsable)


def _write_and_submit(context: typer.Context, words: list[str]) -> None:
    command: Any = get_command(app)
    command = command.commands["write"]
    with command.make_context("write", ["--ray", "--submit", *words], parent=context.parent) as own:
        command.invoke(own)


def _words_of_srun(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--srun {shlex.quote(text)}: {error}") from error
    if not words or not words[0].startswith("-"):
        raise ConfigError(f"--srun {shlex.quote(text)}: must be options of srun, as --srun=--mpi=pmix")
    return words


def _other(text: str) -> tuple[str, str]:
    name, _, value = text.removeprefix("--").partition("=")
    if not name:
        raise ConfigError(f"--option {shlex.quote(text)}: must be an option of sbatch, as licenses=matlab")
    return name, value
