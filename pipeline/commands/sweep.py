"""``python -m pipeline sweep``: many trials of settings, and looking at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.launch import parse_ids
from pipeline.commands.typed import Every, answering, examples, refuse_both
from pipeline.config.schema import DeviceChoice
from pipeline.terminal.console import make_console

app = typer.Typer(no_args_is_help=True, help="Search settings with many trials, and look at them.")

OutputDir = Annotated[Path, typer.Option(help="Folder of all runs and sweeps.")]


@app.command(
    help="Show where sweeps stand: all of them, or one with its trials.",
    epilog=examples(
        "pipeline sweep status", "pipeline sweep status lr --watch", "pipeline sweep status lr --json"
    ),
)
def status(
    name: Annotated[str | None, typer.Argument(help="The sweep; all if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print plain JSON, nothing cut off.")] = False,
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


Agents = Annotated[int | None, typer.Option(help="The most trials at the same time; as many as have devices.")]
Each = Annotated[
    int | None, typer.Option("--gpus-per-agent", help="GPUs of each trial, where the file has no num_gpus.")
]
GpuList = Annotated[str | None, typer.Option(help="These GPUs, as 0,1,2,3; ids as in `pipeline gpus`.")]
DeviceKind = Annotated[DeviceChoice, typer.Option(help="cpu: trials run without GPUs.")]
Grace = Annotated[int, typer.Option(min=1, help="Seconds that a trial has to end before it is killed.")]


@app.command(
    "run",
    help="Begin a sweep, or go on with it: sweep run FILE [KEY=VALUE ...].",
    epilog=examples(
        "pipeline sweep run lr.yaml --agents 4 --gpus-per-agent 2",
        "pipeline sweep run lr.yaml --gpu-list 0,1,2,3 --count 20",
        "pipeline sweep run lr.yaml --device cpu --agents 2 epochs=3",
    ),
)
def run_(
    file: Annotated[Path, typer.Argument(help="The sweep file, as W&B has it.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings of every trial: KEY=VALUE ...")] = None,
    name: Annotated[str, typer.Option(help="Of the sweep; that in the file, or the file's, if left out.")] = "",
    agents: Agents = None,
    each: Each = None,
    gpu_list: GpuList = None,
    device: DeviceKind = DeviceChoice.auto,
    count: Annotated[int | None, typer.Option(min=1, help="The most trials of the sweep.")] = None,
    grace: Grace = 30,
    output_dir: OutputDir = Path("outputs"),
) -> None:
    """Run a sweep."""
    from pipeline.commands import sweep_run

    with answering():
        code = sweep_run.run(
            file,
            overrides or [],
            output_dir,
            make_console(),
            name=name,
            device=device,
            agents=agents,
            each=each,
            ids=None if gpu_list is None else parse_ids(gpu_list),
            count=count,
            grace_s=grace,
        )
        raise typer.Exit(code)


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

    with answering():
        code = sweep_run.agent(
            name,
            output_dir,
            make_console(),
            device=device,
            agents=agents,
            each=each,
            ids=None if gpu_list is None else parse_ids(gpu_list),
            count=count,
            grace_s=grace,
        )
        raise typer.Exit(code)


Name = Annotated[str, typer.Argument(help="The sweep.")]


def _tell(word: str, name: str, output_dir: Path) -> None:
    from pipeline.commands import sweep_run
    from pipeline.sweeps.halting import Word

    with answering():
        sweep_run.tell(name, output_dir, Word[word], make_console())


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
    help="Let a sweep go on that was paused, stopped or cancelled; what has failed gets another chance.",
    epilog=examples("pipeline sweep resume lr"),
)
def resume(name: Name, output_dir: OutputDir = Path("outputs")) -> None:
    """Resume a sweep."""
    _tell("resume", name, output_dir)
