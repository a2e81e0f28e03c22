"""``python -m pipeline gpus``: the GPUs of this machine, and which way of training a model fits on them."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.commands.typed import Every, Watch, answering, examples, refuse_both
from pipeline.config.schema import Optimizer, Sharding, Strategy
from pipeline.learning.memory.training import Precision, Workload
from pipeline.terminal.console import make_console

app = typer.Typer(
    help="Show the GPUs of this machine; `gpus fit` says how a model can be trained on them.",
    epilog=examples("pipeline gpus", "pipeline gpus --watch", "pipeline gpus fit HuggingFaceTB/SmolLM2-135M"),
)
_MOST, _MOST_GPUS = 1_000_000, 10_000
"""Far above what there is, and far below where the reckoning has no numbers any more."""


@app.callback(invoke_without_command=True)
def gpus(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print plain JSON; ids and memory in MB.")] = False,
    watch: Watch = False,
    every: Every = 2.0,
) -> None:
    """Show every GPU with its memory, its load, who holds it and what runs there."""
    if context.invoked_subcommand is not None:
        return
    from pipeline.commands.gpus import show_gpus, watch_gpus

    with answering():
        if watch:
            refuse_both(watch="--watch", json="--json" if as_json else "")
            watch_gpus(make_console(), every)
        else:
            show_gpus(make_console(), as_json=as_json)


@app.command(
    help="Reckon which strategy trains MODEL on which GPUs, from its config.json alone.",
    epilog=examples(
        "pipeline gpus fit ./models/SmolLM2-135M-Instruct",
        "pipeline gpus fit Qwen/Qwen2.5-7B --gpus 8 --memory 80 --tokens 2048",
    ),
)
def fit(
    model: Annotated[str, typer.Argument(help="A folder with a config.json, or the id of a model on the hub.")],
    strategy: Annotated[Strategy, typer.Option(help="Which to try; auto tries all, the simplest first.")] = (
        Strategy.auto
    ),
    sharding: Annotated[Sharding, typer.Option(help="What fsdp spreads.")] = Sharding.full_shard,
    cpu_offload: Annotated[bool, typer.Option("--cpu-offload", help="fsdp keeps that in host memory.")] = False,
    batch: Annotated[int, typer.Option(min=1, max=_MOST, help="Sequences of a micro-batch on each GPU.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, max=_MOST, help="Tokens of a sequence.")] = 1024,
    effective_batch: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST, help="Sequences of an optimizer step; says how many steps to accumulate."),
    ] = None,
    precision: Annotated[Precision, typer.Option(help="Of weights and optimizer state.")] = Precision.mixed,
    optimizer: Annotated[Optimizer, typer.Option(help="What takes the steps.")] = Optimizer.adamw,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Recompute activations.")] = False,
    eager: Annotated[bool, typer.Option("--eager", help="Attention that stores its scores.")] = False,
    lora_rank: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="Train adapters of this rank alone.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=_MOST, help="Texts that are written at once.")] = 32,
    num_gpus: Annotated[int | None, typer.Option(min=1, max=_MOST_GPUS, help="Exactly so many.")] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=_MOST_GPUS, help="Plan for so many GPUs that need not exist ...")
    ] = None,
    memory: Annotated[float | None, typer.Option(min=1, max=_MOST, help="... with so many GiB each.")] = None,
) -> None:
    """Show what fits, why the others do not, and the figures behind it."""
    from pipeline.commands.gpus import show_fit

    with answering():
        work = Workload(
            batch=batch,
            tokens=tokens,
            precision=precision,
            optimizer=optimizer,
            checkpointing=checkpointing,
            flash=not eager,
            lora_rank=lora_rank,
        )
        show_fit(
            model,
            work,
            make_console(),
            strategy=strategy,
            sharding=sharding,
            offload=cpu_offload,
            rows=rows,
            effective_batch=effective_batch,
            num_gpus=num_gpus,
            imagined=(gpus, memory),
        )
