"""``python -m pipeline sweep``: many trials of settings, several runs by one command, and looking at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.launch import parse_ids
from pipeline.commands.typed import AsJson, Attempt, Every, LastLines, Raw, answering, examples, refuse_both
from pipeline.config.bases import LONGEST_S
from pipeline.config.schema import DeviceChoice
from pipeline.terminal.console import make_console

app = typer.Typer(no_args_is_help=True, help="Search settings with many trials, and look at them.")

OutputDir = Annotated[Path, typer.Option(help="Folder of all runs and sweeps.")]
Name = Annotated[str, typer.Argument(help="The sweep.")]


@app.command(
    help="Show where sweeps stand: all of them, or one with its trials.",
    epilog=examples(
        "pipeline sweep status", "pipeline sweep status lr --watch", "pipeline sweep status lr --json"
    ),
)
def status(
    name: Annotated[str | None, typer.Argument(help="The sweep; all if left out.")] = None,
    as_json: AsJson = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", "-w", help="Show it again and again: one sweep until it is over, without NAME until Ctrl-C."
        ),
    ] = False,
    every: Every = 2.0,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Show the state of sweeps."""
    from pipeline.commands import sweep_look

    with answering():
        if watch:
            refuse_both(watch="--watch", json="--json" if as_json else "")
            sweep_look.watch_status(output_dir, name, make_console(), every)
        else:
            sweep_look.status(output_dir, name, make_console(), as_json=as_json)


Agents = Annotated[
    int | None, typer.Option(min=1, help="The most trials at the same time; as many as have devices.")
]
Each = Annotated[
    int | None, typer.Option("--gpus-per-agent", min=1, help="GPUs of each trial, where the file has no num_gpus.")
]
GpuList = Annotated[str | None, typer.Option(help="These GPUs, as 0,1,2,3; ids as in `pipeline gpus`.")]
DeviceKind = Annotated[DeviceChoice, typer.Option(help="cpu: trials run without GPUs.")]
Grace = Annotated[
    int, typer.Option(min=1, max=LONGEST_S, help="Seconds that a trial or run has to end before it is killed.")
]


@app.command(
    "run",
    help="Begin a sweep, or go on with it: sweep run FILE [KEY=VALUE ...].",
    epilog=examples(
        "pipeline sweep run lr.yaml --agents 4 --gpus-per-agent 2",
        "pipeline sweep run lr.yaml --gpu-list 0,1,2,3 --count 20",
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
    strategy: Annotated[
        str,
        typer.Option(
            help="The same: simple, balanced, spread, efficient, auto, explore or continuous, with numbers."
        ),
    ] = "",
    name: Annotated[str, typer.Option(help="Of the sweep; that in the file, or the file's, if left out.")] = "",
    agents: Agents = None,
    each: Each = None,
    gpu_list: GpuList = None,
    device: DeviceKind = DeviceChoice.auto,
    count: Annotated[int | None, typer.Option(min=1, help="The most trials of the sweep.")] = None,
    grace: Grace = 30,
    wandb: Annotated[bool, typer.Option("--wandb", help="Let W&B search; its agents run trials here.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be tried, how and where, and begin nothing.")
    ] = False,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Run a sweep."""
    from pipeline.commands.sweep_run import SweepRequest, run, run_online
    from pipeline.sweeps.plan import DevicesAsked

    with answering():
        ids = None if gpu_list is None else parse_ids(gpu_list, "--gpu-list")
        request = SweepRequest(
            file=file,
            words=[*strategy.split(), *(words or [])],
            output_dir=output_dir,
            where=DevicesAsked(device=device, agents=agents, each=each, ids=ids),
            name=name,
            count=count,
            grace_s=grace,
            dry_run=dry_run,
        )
        raise typer.Exit((run_online if wandb else run)(request, make_console()))


@app.command(
    help="Work on a sweep that was begun, beside those who do already: on other GPUs, or another machine.",
    epilog=examples("pipeline sweep agent lr", "pipeline sweep agent lr --gpu-list 4,5,6,7 --count 10"),
)
def agent(
    name: Annotated[str, typer.Argument(help="The sweep.")],
    agents: Agents = None,
    each: Each = None,
    gpu_list: GpuList = None,
    device: DeviceKind = DeviceChoice.auto,
    count: Annotated[int | None, typer.Option(min=1, help="The most trials that this agent begins.")] = None,
    grace: Grace = 30,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Join a sweep."""
    from pipeline.commands import sweep_run
    from pipeline.sweeps.plan import DevicesAsked

    with answering():
        ids = None if gpu_list is None else parse_ids(gpu_list, "--gpu-list")
        where = DevicesAsked(device=device, agents=agents, each=each, ids=ids)
        raise typer.Exit(sweep_run.agent(name, output_dir, make_console(), where, count, grace))


def _tell(word: str, name: str, output_dir: Path) -> None:
    from pipeline.commands import sweep_run

    with answering():
        sweep_run.tell(word, name, output_dir, make_console())


@app.command(help="Begin no more trials; those under way go on.", epilog=examples("pipeline sweep stop lr"))
def stop(name: Name, output_dir: OutputDir = Path("outputs")) -> None:
    """Stop a sweep."""
    _tell("stop", name, output_dir)


@app.command(help="Give a sweep up: end its trials now.", epilog=examples("pipeline sweep cancel lr"))
def cancel(name: Name, output_dir: OutputDir = Path("outputs")) -> None:
    """Cancel a sweep."""
    _tell("cancel", name, output_dir)


@app.command(help="Begin no more trials until `sweep resume`.", epilog=examples("pipeline sweep pause lr"))
def pause(name: Name, output_dir: OutputDir = Path("outputs")) -> None:
    """Pause a sweep."""
    _tell("pause", name, output_dir)


@app.command(
    help="Let a sweep go on that was paused, stopped or cancelled; what has failed gets another chance, also in a "
    "finished one.",
    epilog=examples("pipeline sweep resume lr"),
)
def resume(name: Name, output_dir: OutputDir = Path("outputs")) -> None:
    """Resume a sweep."""
    _tell("resume", name, output_dir)


@app.command(
    help="Show the best trial: what it reached, and its settings.",
    epilog=examples("pipeline sweep best lr", "pipeline sweep best lr --json"),
)
def best(
    name: str,
    as_json: Annotated[bool, typer.Option("--json", help="Print plain JSON.")] = False,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Print one trial."""
    from pipeline.commands import sweep_look

    with answering():
        sweep_look.best(output_dir, name, make_console(), as_json=as_json)


@app.command(
    help="Write all trials as a table for other programs.",
    epilog=examples("pipeline sweep export lr --to lr.csv", "pipeline sweep export lr --to lr.json"),
)
def export(
    name: str,
    to: Annotated[
        Path | None, typer.Option(help="File to write, *.csv or *.json; standard output if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON rather than CSV.")] = False,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Write trials."""
    from pipeline.commands import sweep_look

    with answering():
        sweep_look.export(output_dir, name, to, make_console(), as_json=as_json)


@app.command(
    help="Print what a trial printed.",
    epilog=examples("pipeline sweep logs lr 7", "pipeline sweep logs lr -f"),
)
def logs(
    name: str,
    trial: Annotated[
        int | None, typer.Argument(min=0, help="Number of the trial; the one that began last if left out.")
    ] = None,
    attempt: Attempt = None,
    lines: LastLines = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the trial is over.")] = False,
    raw: Raw = False,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Print a log."""
    from pipeline.commands import sweep_look

    with answering():
        sweep_look.logs(output_dir, name, trial, attempt=attempt, lines=lines, follow=follow, raw=raw)


@app.command(
    help="Write the page of a sweep: history, parameters, importance, front.",
    epilog=examples("pipeline sweep report lr", "pipeline sweep report lr --out lr.html"),
)
def report(
    name: str,
    out: Annotated[Path | None, typer.Option(help="File to write; report.html of the sweep if left out.")] = None,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Write a page for a browser."""
    from pipeline.commands import sweep_look

    with answering():
        sweep_look.report(output_dir, name, out, make_console())


@app.command(
    help="Run several experiments side by side, NAME.run1 and so on, each on GPUs of its own.",
    epilog=examples(
        "pipeline sweep multi my_sweep 2 4",
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
            help="GPUs to be shared out, if not all: TOTAL_GPUS; then settings of all runs: KEY=VALUE, or "
            "KEY=V1,V2,... with a value for each.",
            metavar="[TOTAL_GPUS] [KEY=VALUE]...",
        ),
    ] = None,
    queue: Annotated[bool, typer.Option("--queue", help="Let runs wait for GPUs that others have.")] = False,
    grace: Grace = 30,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Run several experiments on disjoint sets of GPUs."""
    from pipeline.commands.sweep_run import multi as several

    with answering():
        raise typer.Exit(
            several(
                name, gpus_per_run, num_runs, words or [], output_dir, make_console(), queue=queue, grace_s=grace
            )
        )
