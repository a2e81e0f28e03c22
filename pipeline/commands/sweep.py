"""``python -m pipeline sweep``: many trials of settings, several runs by one command, and looking at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.launch import parse_ids
from pipeline.commands.typed import AsJson, Attempt, Every, LastLines, Raw, answering, examples, refuse_both
from pipeline.config.schema import LONGEST_S, DeviceChoice
from pipeline.terminal.console import make_console

app = typer.Typer(no_args_is_help=True, help="Search settings with many trials, and look at them.")

OutputDir = Annotated[Path, typer.Option(help="Folder of all runs and sweeps.")]
Name = Annotated[str, typer.Argument(help="The sweep.")]
Agents = Annotated[
    int | None, typer.Option(min=1, help="The most trials at the same time; all that have devices.")
]
Each = Annotated[
    int | None, typer.Option("--gpus-per-agent", min=1, help="GPUs of each trial, where the file has no num_gpus.")
]
GpuList = Annotated[str | None, typer.Option(help="These GPUs, as 0,1,2,3; ids as in `pipeline gpus`.")]
DeviceKind = Annotated[DeviceChoice, typer.Option(help="cpu: trials run without GPUs.")]
Grace = Annotated[
    int, typer.Option(min=1, max=LONGEST_S, help="Seconds to end in before a trial or run is killed.")
]
Count = Annotated[
    int | None, typer.Option(min=1, help="The most trials: of the sweep, or that this agent begins.")
]
OUTPUTS = Path("outputs")
# What does the work is imported late: it takes time to load, which the help need not wait for.


@app.command(epilog=examples("pipeline sweep status", "pipeline sweep status lr --watch"))
def status(
    name: Annotated[str | None, typer.Argument(help="The sweep; all if left out.")] = None,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show one again and again.")] = False,
    every: Every = 2.0,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Show where sweeps stand: all of them, or one with its trials."""
    from pipeline.commands import sweep_look

    with answering():
        if watch:
            refuse_both(watch="--watch", json="--json" if as_json else "", all="" if name else "all sweeps")
            sweep_look.watch_status(output_dir, name or "", make_console(), every)
        else:
            sweep_look.status(output_dir, name, make_console(), as_json=as_json)


@app.command(
    "run",
    epilog=examples(
        "pipeline sweep run lr.yaml --agents 4 --gpus-per-agent 2",
        "pipeline sweep run lr.yaml --device cpu --agents 2 epochs=3",
        "pipeline sweep run lr.yaml balanced 27 2 --dry-run",
    ),
)
def run_(
    file: Annotated[Path, typer.Argument(help="The sweep file, as W&B has it.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="AGENTS DEVICES, or a strategy and its numbers; then settings of every trial: KEY=VALUE."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Of the sweep; that in the file, or the file's, if left out.")] = "",
    agents: Agents = None,
    each: Each = None,
    gpu_list: GpuList = None,
    device: DeviceKind = DeviceChoice.auto,
    count: Count = None,
    grace: Grace = 30,
    wandb: Annotated[bool, typer.Option("--wandb", help="Let W&B search; its agents run trials here.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be tried, and begin nothing.")
    ] = False,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Begin a sweep, or go on with it: sweep run FILE [KEY=VALUE ...]."""
    from pipeline.commands.sweep_run import SweepRequest, run, run_online
    from pipeline.sweeps.plan import DevicesAsked

    with answering():
        ids = None if gpu_list is None else parse_ids(gpu_list, "--gpu-list")
        request = SweepRequest(
            file=file,
            words=words or [],
            output_dir=output_dir,
            where=DevicesAsked(device=device, agents=agents, each=each, ids=ids),
            name=name,
            count=count,
            grace_s=grace,
            dry_run=dry_run,
        )
        raise typer.Exit((run_online if wandb else run)(request, make_console()))


@app.command(epilog=examples("pipeline sweep agent lr", "pipeline sweep agent lr --gpu-list 4,5,6,7 --count 10"))
def agent(
    name: Name,
    agents: Agents = None,
    each: Each = None,
    gpu_list: GpuList = None,
    device: DeviceKind = DeviceChoice.auto,
    count: Count = None,
    grace: Grace = 30,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Work on a sweep that was begun, beside those who do already: on other GPUs, or another machine."""
    from pipeline.commands import sweep_run
    from pipeline.sweeps.plan import DevicesAsked

    with answering():
        ids = None if gpu_list is None else parse_ids(gpu_list, "--gpu-list")
        where = DevicesAsked(device=device, agents=agents, each=each, ids=ids)
        raise typer.Exit(sweep_run.agent(name, output_dir, make_console(), where, count, grace))


def _order(word: str, about: str) -> None:
    """Make the command that tells a sweep one word."""

    @app.command(word, help=about, epilog=examples(f"pipeline sweep {word} lr"))
    def tell(name: Name, output_dir: OutputDir = OUTPUTS) -> None:
        from pipeline.commands import sweep_run

        with answering():
            sweep_run.tell(word, name, output_dir, make_console())


_order("stop", "Begin no more trials; those under way go on.")
_order("cancel", "Give a sweep up: end its trials now.")
_order("pause", "Begin no more trials until `sweep resume`.")
_order("resume", "Let a sweep go on; what has failed gets another chance.")


@app.command(epilog=examples("pipeline sweep best lr", "pipeline sweep best lr --json"))
def best(name: Name, as_json: AsJson = False, output_dir: OutputDir = OUTPUTS) -> None:
    """Show the best trial: what it reached, and its settings."""
    from pipeline.commands import sweep_look

    with answering():
        sweep_look.best(output_dir, name, make_console(), as_json=as_json)


@app.command(epilog=examples("pipeline sweep export lr --to lr.csv", "pipeline sweep export lr --to lr.json"))
def export(
    name: Name,
    to: Annotated[Path | None, typer.Option(help="*.csv or *.json; standard output if left out.")] = None,
    as_json: AsJson = False,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Write all trials as a table for other programs."""
    from pipeline.commands import sweep_look

    with answering():
        sweep_look.export(output_dir, name, to, make_console(), as_json=as_json)


@app.command(epilog=examples("pipeline sweep logs lr 7", "pipeline sweep logs lr -f"))
def logs(
    name: Name,
    trial: Annotated[
        int | None, typer.Argument(min=0, help="Its number; the one that began last if left out.")
    ] = None,
    attempt: Attempt = None,
    lines: LastLines = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the trial is over.")] = False,
    raw: Raw = False,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Print what a trial printed."""
    from pipeline.commands import sweep_look

    with answering():
        sweep_look.logs(output_dir, name, trial, attempt=attempt, lines=lines, follow=follow, raw=raw)


@app.command(epilog=examples("pipeline sweep report lr", "pipeline sweep report lr --out lr.html"))
def report(
    name: Name,
    out: Annotated[Path | None, typer.Option(help="File to write; report.html of the sweep if left out.")] = None,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Write the page of a sweep: history, parameters, importance, front."""
    from pipeline.commands import sweep_look

    with answering():
        sweep_look.report(output_dir, name, out, make_console())


@app.command(
    epilog=examples(
        "pipeline sweep multi my_sweep 4 2 8 rounds_of_training=3",
        "pipeline sweep multi my_sweep 1 2 device=cpu training.grad_clip=0.5,2",
    ),
)
def multi(
    name: Annotated[str, typer.Argument(help="What the names of the experiments begin with.")],
    gpus_per_run: Annotated[int, typer.Argument(help="GPUs of each; CPU slots with device=cpu.")],
    num_runs: Annotated[int, typer.Argument(help="How many runs.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="TOTAL_GPUS, if not all; settings of all runs, or KEY=V1,V2,... with a value for each.",
            metavar="[TOTAL_GPUS] [KEY=VALUE]...",
        ),
    ] = None,
    queue: Annotated[bool, typer.Option("--queue", help="Let runs wait for GPUs that others have.")] = False,
    grace: Grace = 30,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Run several experiments side by side, NAME.run1 and so on, each on GPUs of its own."""
    from pipeline.commands.sweep_run import multi as several

    with answering():
        raise typer.Exit(
            several(
                name, gpus_per_run, num_runs, words or [], output_dir, make_console(), queue=queue, grace_s=grace
            )
        )
