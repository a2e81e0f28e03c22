"""Tables for the terminal: the GPUs of this machine with who uses them, and how a model fits on them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from pipeline.engine.devices.inventory import Device, GpuUsage, Machine, read_machine, visible_gpus
from pipeline.engine.devices.lease import Holder, holders
from pipeline.learning.memory.fit import Fit, TriedLayout
from pipeline.learning.memory.training import GB
from pipeline.terminal.columns import EXTRA, Cell, Column, FittedTable

_UUID_SHOWN = 12
_LEAST_NAME = 8
_LEAST_HOLDER = 16


def gpu_table(environ: Mapping[str, str] | None = None) -> FittedTable:
    """Every GPU of the machine: what it does, which run holds it, who else computes there.

    Args:
        environ: Where CUDA_VISIBLE_DEVICES is looked up, which decides the ids; `os.environ` if None.

    Raises:
        DeviceError: The driver does not work, or CUDA_VISIBLE_DEVICES names what does not exist.
    """
    machine = read_machine()
    visible = visible_gpus(machine, os.environ if environ is None else environ)
    devices = list(machine.devices.values())
    held = holders(devices) if devices else {}
    table = FittedTable(_gpu_columns(), title="GPUs")
    for device in devices:
        number = str(visible.index(device)) if device in visible else "hidden"
        table.add_row(*_gpu_row(number, device, machine, held.get(device.uuid or "")))
    notes = []
    for place, uuid in enumerate(machine.uuids):
        if uuid in machine.broken:
            table.add_row("broken", str(place), style="bold red")
            notes.append(f"GPU {place} is broken: {machine.broken[uuid]}")
    if not machine.uuids:
        notes.append("no GPU: there is no NVIDIA driver; runs take CPU slots")
    if len(visible) < len(devices):
        notes.append("hidden: not in CUDA_VISIBLE_DEVICES")
    table.about = "\n".join(notes)
    return table


def _gpu_columns() -> Iterator[Column]:
    yield Column(heading="id", right=True)
    yield Column(heading="GPU", right=True, rank=8)
    yield Column(heading="uuid", rank=EXTRA)
    yield Column(heading="name", rank=6, least=_LEAST_NAME)
    yield Column(heading="used", right=True, rank=1)
    yield Column(heading="total", right=True, rank=2)
    yield Column(heading="busy", right=True, rank=3)
    yield Column(heading="held by", rank=4, least=_LEAST_HOLDER)
    yield Column(heading="processes", rank=5)


def _gpu_row(number: str, device: Device, machine: Machine, holder: Holder | None) -> list[Cell]:
    use = machine.usage[device.uuid or ""]
    return [
        number,
        device.label.removeprefix("GPU "),
        (device.uuid or "")[:_UUID_SHOWN],
        device.name,
        f"{use.used_bytes / 2**30:.1f}",
        f"{use.total_bytes / 2**30:.1f} GiB",
        "?" if use.utilization is None else f"{use.utilization}%",
        holder.words() if holder else "",
        _processes(use),
    ]


def _processes(use: GpuUsage) -> tuple[str, ...]:
    """Each with its memory."""
    if use.processes is None:
        return ("?",)
    each = [
        (str(one.pid), f"({one.memory_bytes / 2**30:.1f} GiB)")
        if one.memory_bytes is not None
        else (str(one.pid),)
        for one in use.processes
    ]
    separated = [(*words[:-1], f"{words[-1]},") for words in each[:-1]] + each[-1:]
    return tuple(word for words in separated for word in words)


def fit_table(fit: Fit) -> FittedTable:
    """How a training fits: a row for each strategy, with what takes the memory of each GPU."""
    work = fit.work
    what = "all weights" if work.lora_rank is None else f"adapters of rank {work.lora_rank}"
    table = FittedTable(
        _fit_columns(),
        title=f"{fit.shape.name}: {fit.shape.size} parameters, GB on each GPU",
        caption=f"{work.batch} x {work.tokens} tokens, {work.precision.name}, {work.optimizer.name}, {what}, "
        f"checkpointing {'on' if work.checkpointing else 'off'}; an estimate",
    )
    for trial in fit.shown():
        need = trial.need
        sizes = (
            need.weights,
            need.gradients,
            need.optimizer,
            need.buckets + need.gathered,
            need.activations,
            need.logits,
            need.total,
            trial.usable,
            need.host,
        )
        style = "bold green" if trial is fit.chosen else ""
        verdict = "taken" if trial is fit.chosen else _short(trial)
        table.add_row(trial.label, *(f"{size / GB:.1f}" for size in sizes), verdict, style=style)
    return table


def _fit_columns() -> Iterator[Column]:
    yield Column(heading="strategy")
    parts = {"weights": 1, "grads": 4, "optim": 2, "work": 5, "activ": 3, "logits": 6}
    for heading, place in parts.items():
        yield Column(heading=heading, right=True, rank=EXTRA + place)
    yield Column(heading="all", right=True, rank=2)
    yield Column(heading="usable", right=True, rank=3)
    yield Column(heading="host", right=True, rank=4)
    yield Column(heading="verdict", rank=1)


def _short(trial: TriedLayout) -> str:
    if trial.short:
        return f"{trial.short / GB:.1f} GB short"
    return f"host: {trial.host_short / GB:.1f} GB short" if trial.host_short else "fits"
