"""What scripts of ``slurm write --ray`` call."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from pipeline.commands.typed import answering, examples

app = typer.Typer(
    no_args_is_help=True,
    help="Inside of a job: what a script of `slurm write --ray` calls.",
    epilog=examples("pipeline slurm write --ray --nodes 2 --gres gpu:8 run experiment.name=compare"),
)
Address = Annotated[str, typer.Option(help="HOST:PORT of the head.")]


@app.command(
    help="On the first node: print where the head of Ray is going to be.",
    epilog=examples("pipeline slurm ray address"),
)
def address() -> None:
    """Print it."""
    from pipeline.slurm.ray_nodes import head_address
    from pipeline.terminal.console import make_console, say

    with answering():
        say(make_console(), head_address(os.environ))


@app.command(
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


@app.command(
    help="On the first node: wait until all nodes of the job have joined, and name those that have not.",
    epilog=examples("pipeline slurm ray wait --address 10.0.0.7:20041 --within 600"),
)
def wait(
    address: Address,
    within: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds that they are given.")] = 300,
    head_pid: Annotated[int | None, typer.Option(help="Process of this node that has the head.")] = None,
) -> None:
    """Wait for them."""
    from pipeline.slurm.ray_nodes import is_alive, wait_for_nodes
    from pipeline.terminal.console import make_console, say

    with answering():
        there, missing = wait_for_nodes(
            address, os.environ, within, lambda: head_pid is None or is_alive(head_pid)
        )
        say(make_console(), f"Ray has {', '.join(there)}")
        if missing:
            say(
                make_console(stderr=True),
                f"warn: Ray has no {', '.join(missing)} after {within:g} s; the run begins on the others, and "
                "takes these when they come",
                "bold",
            )
