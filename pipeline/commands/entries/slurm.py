"""Commands about Slurm: batch scripts written, checked and submitted."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from pipeline.commands.typed import answering, examples
from pipeline.errors import ConfigError
from pipeline.slurm.lint import Starter

app = typer.Typer(
    no_args_is_help=True,
    help="Batch scripts for Slurm: write one, check one, submit one.",
    epilog=examples(
        "pipeline slurm write --gres gpu:8 --time 24:00:00 run experiment.name=compare profile=a100_80gb",
        "pipeline slurm lint compare.sbatch",
        "pipeline slurm submit --partition long compare.sbatch",
    ),
)
ray_app = typer.Typer(
    no_args_is_help=True,
    help="Inside of a job: what a script of `slurm write --ray` calls.",
    epilog=examples("pipeline slurm write --ray --nodes 2 --gres gpu:8 run experiment.name=compare"),
)
app.add_typer(ray_app, name="ray")
Sbatch = Annotated[list[str] | None, typer.Option(hidden=True)]
Parsable = Annotated[bool, typer.Option("--parsable", help="Print the id of the job and nothing else.")]
Address = Annotated[str, typer.Option(help="HOST:PORT of the head.")]


class _WithSbatch(TyperCommand):
    """A command that takes every option of sbatch beside its own, as ``--sbatch NAME=VALUE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Click does."""
        from pipeline.slurm.options import options_of

        own = {"help": "help"}
        for each in self.params:
            value = "" if getattr(each, "is_flag", False) else "="
            own |= {name[2:]: name[2:] + value for name in each.opts if name.startswith("--")}
        with answering():
            given, rest = options_of(args, own.values())
        words = [
            (f"--{name}={value}" if own[name].endswith("=") else f"--{name}")
            if name in own
            else f"--sbatch={name}={value}"
            for name, value in given
        ]
        return super().parse_args(ctx, [*words, "--", *rest])


def _options(given: list[str] | None) -> dict[str, str]:
    return {name: value for name, _, value in (each.partition("=") for each in given or [])}


@app.command(
    cls=_WithSbatch,
    help="Write a batch script for a command of this program. Options of sbatch come first, as sbatch has them: "
    "--gres, --time, --partition, --account, --mem, --nodes, --array, --no-requeue, ...",
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
    ray: Annotated[
        bool, typer.Option("--ray", help="Bring up a Ray cluster on all nodes, and run on that.")
    ] = False,
    notice: Annotated[
        int | None,
        typer.Option(min=60, max=65_535, help="Seconds before its end at which it is told to save and stop."),
    ] = None,
    srun: Annotated[
        list[str] | None,
        typer.Option(help="Options of srun, once or several times: '--mpi=pmix --cpu-bind=none'."),
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option(help="A line of shell that comes first, once for each: 'module load cuda'.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write, '-' to print; JOB-NAME.sbatch if left out.")
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Submit it at once.")] = False,
    parsable: Parsable = False,
    sbatch: Sbatch = None,
) -> None:
    """Write a script."""
    from pipeline.commands import slurm
    from pipeline.commands.job_command import checked
    from pipeline.slurm.script import JobRequest

    with answering():
        known = checked(command or [], ray=ray)
        request = JobRequest(
            command=known.words,
            name=known.name,
            options=_options(sbatch),
            notice_s=notice,
            srun=[word for words in srun or () for word in _words_of_srun(words)],
            setup=setup or (),
            ray=ray,
            widest=known.widest,
            on_cpu=known.on_cpu,
        )
        slurm.write(request, out, submit=submit, parsable=parsable)


def _words_of_srun(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--srun {shlex.quote(text)}: {error}") from error
    if not words or not words[0].startswith("-"):
        raise ConfigError(f"--srun {shlex.quote(text)}: must be options of srun, as --srun=--mpi=pmix")
    return words


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
    """Check a script."""
    from pipeline.commands.check import print_checks
    from pipeline.slurm.lint import check_script

    with answering():
        raise typer.Exit(print_checks(check_script(script, ranks), "sbatch may have it."))


@app.command(
    cls=_WithSbatch,
    help="Check a batch script and submit it: [OPTIONS OF SBATCH] SCRIPT [ITS ARGUMENTS].",
    epilog=examples(
        "pipeline slurm submit compare.sbatch",
        "pipeline slurm submit --partition long --exclude n7 compare.sbatch",
    ),
)
def submit(
    words: Annotated[list[str] | None, typer.Argument(metavar="SCRIPT [ARGUMENTS]...")] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also with faults that would stop it.")] = False,
    parsable: Parsable = False,
    sbatch: Sbatch = None,
) -> None:
    """Submit a script."""
    from pipeline.commands import slurm

    with answering():
        slurm.submit(words or [], _options(sbatch), anyway=anyway, parsable=parsable)


# -- inside of a job ---------------------------------------------------------------------------------------------


@ray_app.command(
    help="On the first node: print where the head of Ray is going to be.",
    epilog=examples("pipeline slurm ray address"),
)
def address() -> None:
    """Print it."""
    from pipeline.slurm.ray_nodes import head_address

    with answering():
        typer.echo(head_address(os.environ))


@ray_app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help="On each node: be a node of Ray, by `ray start`, until SIGUSR1; leave nothing behind.",
    epilog=examples("pipeline slurm ray start --head --address 10.0.0.7:20041 --num-cpus=64 --num-gpus=8"),
)
def start(
    address: Address,
    words: Annotated[list[str] | None, typer.Argument(help="Further options of `ray start`.")] = None,
    head: Annotated[bool, typer.Option("--head", help="Whether this is the first node.")] = False,
) -> None:
    """Be a node."""
    from pipeline.slurm.ray_nodes import keep_node

    with answering():
        keep_node(address, os.environ, words or [], head=head)


@ray_app.command(
    help="On the first node: wait until all nodes of the job have joined, and name those that have not.",
    epilog=examples("pipeline slurm ray wait --address 10.0.0.7:20041 --within 600"),
)
def wait(
    address: Address,
    within: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds that they are given.")] = 300,
    head_pid: Annotated[int | None, typer.Option(help="Process of this node that has the head.")] = None,
) -> None:
    """Wait for them."""
    import psutil

    from pipeline.slurm.ray_nodes import wait_for_nodes

    with answering():
        there, missing = wait_for_nodes(
            address, os.environ, within, lambda: head_pid is None or psutil.pid_exists(head_pid)
        )
        typer.echo(f"Ray has {', '.join(there)}")
        if missing:
            typer.echo(
                f"warn: Ray has no {', '.join(missing)} after {within:g} s; the run begins on the others, and "
                "takes these when they come",
                err=True,
            )
