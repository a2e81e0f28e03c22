"""``python -m pipeline gpus``: the GPUs of this machine, and which way of training a model fits on them."""

import os
from collections.abc import Callable
from typing import Annotated

import typer

from pipeline.commands.typed import examples
from pipeline.config.schema import DType, Optimizer, Sharding, Strategy
from pipeline.engine.devices.inventory import GpuUsage, read_machine, visible_gpus
from pipeline.engine.devices.select import holders, pick
from pipeline.errors import ConfigError, DeviceError
from pipeline.gpus import get_gpu_info
from pipeline.learning.memory import fit as memory
from pipeline.machine.memory import memory_available_bytes, usable_bytes
from pipeline.terminal.columns import EXTRA, Column, FittedTable
from pipeline.terminal.console import make_console, print_json, say

app = typer.Typer(
    epilog=examples("pipeline gpus", "pipeline gpus --json", "pipeline gpus fit HuggingFaceTB/SmolLM2-135M")
)
GB = memory.GB
_MOST, _MOST_GPUS = 1_000_000, 10_000
"""Largest inputs: far above real ones, and far below an overflow."""
_UUID_SHOWN = 12
_LEAST_NAME = 8
_LEAST_HOLDER = 16


def gpu_table() -> FittedTable:
    """Return a table of every GPU of the machine: its use, the run that holds it, other processes.

    Raises:
        DeviceError: The driver does not work, or CUDA_VISIBLE_DEVICES names what does not exist.
    """
    machine = read_machine()
    visible = visible_gpus(machine, os.environ)
    devices = list(machine.devices.values())
    holder_of = holders(devices) if devices else {}
    columns = [
        Column(heading="id", right=True),
        Column(heading="GPU", right=True, rank=8),
        Column(heading="uuid", rank=EXTRA),
        Column(heading="name", rank=6, least=_LEAST_NAME),
        Column(heading="used", right=True, rank=1),
        Column(heading="total", right=True, rank=2),
        Column(heading="busy", right=True, rank=3),
        Column(heading="held by", rank=4, least=_LEAST_HOLDER),
        Column(heading="processes", rank=5),
    ]
    table = FittedTable(columns, title="GPUs")
    for device in devices:
        uuid = device.uuid or ""
        use, holder = machine.usage[uuid], holder_of.get(uuid)
        table.add_row(
            str(visible.index(device)) if device in visible else "hidden",
            device.label.removeprefix("GPU "),
            uuid[:_UUID_SHOWN],
            device.name,
            f"{use.used_bytes / 2**30:.1f}",
            f"{use.total_bytes / 2**30:.1f} GiB",
            "?" if use.utilization is None else f"{use.utilization}%",
            str(holder or ""),
            _processes(use),
        )
    notes = []
    for index, uuid in enumerate(machine.uuids):
        if uuid in machine.broken:
            table.add_row("broken", str(index), style="bold red")
            notes.append(f"GPU {index} is broken: {machine.broken[uuid]}")
    if not machine.uuids:
        notes.append("no GPU: there is no NVIDIA driver; runs take CPU slots")
    if len(visible) < len(devices):
        notes.append("hidden: not in CUDA_VISIBLE_DEVICES")
    table.notes = "\n".join(notes)
    return table


def _processes(use: GpuUsage) -> str:
    """Return each process with its memory."""
    if use.processes is None:
        return "?"
    sizes = {process.pid: process.memory_bytes for process in use.processes}
    return ", ".join(
        str(pid) if size is None else f"{pid} ({size / 2**30:.1f} GiB)" for pid, size in sizes.items()
    )


@app.callback(invoke_without_command=True)
def gpus(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print plain JSON; ids and memory in MB.")] = False,
) -> None:
    """Show every GPU with its memory, its load, who holds it and what runs there."""
    if context.invoked_subcommand is None:
        print_json(get_gpu_info()) if as_json else make_console().print(gpu_table())


# -- fit ---------------------------------------------------------------------------------------------------------


@app.command(
    help="Reckon which strategy trains MODEL on which GPUs, from its config.json alone.",
    epilog=examples(
        "pipeline gpus fit ./models/Qwen3-0.6B",
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
    dtype: Annotated[DType, typer.Option(help="What is computed in: system.dtype.")] = DType.bfloat16,
    optimizer: Annotated[Optimizer, typer.Option(help="What takes the steps.")] = Optimizer.adamw,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Recompute activations.")] = False,
    lora_rank: Annotated[int, typer.Option(min=0, max=_MOST, help="Train adapters of this rank alone.")] = 0,
    rows: Annotated[int, typer.Option(min=1, max=_MOST, help="Texts that are written at once.")] = 32,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=_MOST_GPUS, help="Plan for so many GPUs that need not exist ...")
    ] = None,
    memory_gib: Annotated[
        float | None, typer.Option("--memory", min=1, max=_MOST, help="... with so many GiB each.")
    ] = None,
) -> None:
    """Show what fits, why the others do not, and the figures behind it."""
    from pipeline.learning.memory.shape import read_shape  # imports torch

    console, (available, free_bytes) = make_console(), gpus_to_fit(gpus, memory_gib)
    work = memory.Workload(
        batch=batch,
        tokens=tokens,
        dtype=dtype,
        optimizer=optimizer,
        checkpointing=checkpointing,
        lora_rank=lora_rank,
    )
    fitted = memory.fit(
        read_shape(model),
        work,
        range(1, available + 1),
        free_bytes,
        host_bytes=memory_available_bytes(),
        strategy=strategy,
        sharding=sharding,
        offload=cpu_offload,
    )
    console.print(fit_table(fitted))
    say(console, of_writing(fitted.shape, rows, work, available, free_bytes))
    say(console, summary(fitted, effective_batch))


def fit_table(fit: memory.Fit) -> FittedTable:
    """Return a table of how a training fits: a row per strategy, with the memory of each GPU by purpose."""
    work = fit.work
    what = f"adapters of rank {work.lora_rank}" if work.lora_rank else "all weights"
    ranks = {"weights": 11, "grads": 14, "optim": 12, "work": 15, "activ": 13, "logits": 16}
    ranks |= {"all": 2, "usable": 3, "host": 4}
    table = FittedTable(
        [
            Column(heading="strategy"),
            *(Column(heading=heading, right=True, rank=rank) for heading, rank in ranks.items()),
            Column(heading="verdict", rank=1),
        ],
        title=f"{fit.shape.name}: {fit.shape.size} parameters, GB on each GPU",
        caption=f"{work.batch} x {work.tokens} tokens, {work.dtype.name}, {work.optimizer.name}, {what}, "
        f"checkpointing {'on' if work.checkpointing else 'off'}; an estimate",
    )
    for trial in fit.shown():
        need = trial.need
        shared = need.buckets + need.gathered
        sizes = [need.weights, need.gradients, need.optimizer, shared, need.activations, need.logits]
        sizes += [need.total, trial.usable, need.host]
        host = f"host: {trial.host_short / GB:.1f} GB short" if trial.host_short else "fits"
        verdict = f"{trial.short / GB:.1f} GB short" if trial.short else host
        chosen = trial is fit.chosen
        cells = [f"{size / GB:.1f}" for size in sizes]
        table.add_row(trial.label, *cells, "taken" if chosen else verdict, style="bold green" if chosen else "")
    return table


def of_writing(
    shape: memory.ModelShape, rows: int, work: memory.Workload, available: int, free_bytes: Callable[[int], int]
) -> str:
    """Say on how few GPUs a model can generate text, in one line.

    Args:
        shape: The model.
        rows: Texts at once.
        work: Tokens of each text, and the type.
        available: GPUs there are.
        free_bytes: From a number of GPUs to what is free on the fullest of the best so many.
    """
    for width in (width for width in shape.widths if width <= available):
        need = memory.writing_footprint(shape, rows, work.tokens, work.dtype, width)
        total, usable = sum(need.values()), usable_bytes(free_bytes(width))
        verdict = f"it fits by generation.gpus_per_job={width}; a value model comes on top, whole"
        if total <= usable:
            break
        verdict = f"it does not fit into the {usable / GB:.1f} GB that are usable; it can be split over "
        verdict += " or ".join(map(str, shape.widths))
    parts = ", ".join(f"{name} {size / GB:.1f}" for name, size in need.items())
    share = f"{total / GB:.1f} GB of each of {width} GPUs"
    text = f"Writing {rows} texts of {work.tokens} tokens at once takes {share}"
    return f"{text} ({parts}): {verdict}."


def gpus_to_fit(count: int | None, memory_gib: float | None) -> tuple[int, Callable[[int], int]]:
    """Return the number of GPUs to fit a model on, and a function for the free memory of the best n of them.

    Args:
        count: GPUs to imagine, with `memory_gib` each; None takes those that are visible here, of which the idlest
            of one model are best.
        memory_gib: Memory of an imagined GPU.

    Raises:
        DeviceError: Only one of the two is given.
    """
    if count is not None and memory_gib is not None:
        return count, lambda _: int(memory_gib * 2**30)
    if count is not None or memory_gib is not None:
        raise DeviceError("for other GPUs than those of this machine give number and memory: --gpus 8 --memory 80")
    machine = read_machine()
    visible, usage = visible_gpus(machine, os.environ), machine.usage
    return len(visible), lambda wanted: min(
        usage[gpu.uuid or ""].free_bytes for gpu in pick(visible, usage, wanted)
    )


def summary(fitted: memory.Fit, effective_batch: int | None) -> str:
    """Return advice in a line or two.

    Args:
        fitted: Every way that was tried.
        effective_batch: Sequences of an optimizer step; None for whatever comes out.

    Raises:
        DeviceError: Nothing fits.
        ConfigError: The effective batch is smaller than what the GPUs take at once.
    """
    chosen = fitted.require()
    ranks, micro = chosen.gpus, fitted.work.batch
    at_once = ranks * micro
    if effective_batch is None:
        return f"{chosen.label}: {at_once} sequences a step ({micro} x {ranks} GPUs), times accumulation."
    if effective_batch < at_once:
        less = f"use --batch {max(1, effective_batch // ranks)} or fewer GPUs"
        raise ConfigError(f"--effective-batch {effective_batch}: {ranks} GPUs take {at_once} at once: {less}")
    steps = -(-effective_batch // at_once)
    real = steps * at_once
    note = "" if real == effective_batch else f" rather than {effective_batch}, which they do not divide"
    return f"{chosen.label}: accumulate {steps} steps: {micro} x {ranks} GPUs x {steps} = {real} sequences{note}."
