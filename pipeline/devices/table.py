"""Tables for the terminal: the GPUs of this machine with who uses them, and how a model fits on them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table

from pipeline.devices.fit import Fit, Trial
from pipeline.devices.inventory import Device, Machine, Usage, read_machine, visible_gpus
from pipeline.devices.lease import Holder, holders
from pipeline.devices.memory import GB

_UUID_SHOWN = 12


def gpu_table(environ: Mapping[str, str] | None = None) -> Table:
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
    table = _empty("GPUs")
    for name in ("id", "GPU"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("uuid", "name"):
        table.add_column(name, no_wrap=True)
    for name in ("used", "total", "busy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("held by")
    table.add_column("processes")
    for device in devices:
        number = str(visible.index(device)) if device in visible else "hidden"
        table.add_row(*_gpu_row(number, device, machine, held.get(device.uuid or "")))
    for place, uuid in enumerate(machine.uuids):
        if uuid in machine.broken:
            table.add_row("", str(place), "", machine.broken[uuid], "", "", "", "", "", style="red")
    if not machine.uuids:
        table.caption = "no GPU: there is no NVIDIA driver; runs take CPU slots"
    elif len(visible) < len(devices):
        table.caption = "hidden: not in CUDA_VISIBLE_DEVICES"
    return table


def _gpu_row(number: str, device: Device, machine: Machine, holder: Holder | None) -> list[str]:
    use = machine.usage[device.uuid or ""]
    return [
        number,
        device.label.removeprefix("GPU "),
        (device.uuid or "")[:_UUID_SHOWN],
        device.name,
        f"{use.used_bytes / 2**30:.1f}",
        f"{use.total_bytes / 2**30:.1f} GiB",
        "?" if use.utilization is None else f"{use.utilization}%",
        str(holder) if holder else "",
        _processes(use),
    ]


def _processes(use: Usage) -> str:
    if use.processes is None:
        return "?"
    return ", ".join(
        str(one.pid) + (f" ({one.memory_bytes / 2**30:.1f} GiB)" if one.memory_bytes is not None else "")
        for one in use.processes
    )


def fit_table(fit: Fit) -> Table:
    """How a training fits: a row for each strategy, with what takes the memory of each GPU."""
    table = _empty(f"{fit.shape.name}: {fit.shape.parameters / 1e9:.2f}B parameters, GB on each GPU")
    table.add_column("strategy", no_wrap=True)
    for name in ("weights", "grads", "optim", "work", "activ", "logits", "all", "usable", "host"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
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
        style = "green" if trial is fit.chosen else "" if trial.fits else "dim"
        verdict = "taken" if trial is fit.chosen else _short(trial)
        table.add_row(trial.label, *(f"{size / GB:.1f}" for size in sizes), verdict, style=style)
    work = fit.work
    what = "all weights" if work.lora_rank is None else f"adapters of rank {work.lora_rank}"
    table.caption = (
        f"{work.batch} x {work.tokens} tokens, {work.precision.name}, {work.optimizer.name}, {what}, "
        f"checkpointing {'on' if work.checkpointing else 'off'}; an estimate"
    )
    return table


def _short(trial: Trial) -> str:
    if trial.short:
        return f"{trial.short / GB:.1f} GB short"
    return f"{trial.host_short / GB:.1f} GB of host memory short" if trial.host_short else "fits"


def _empty(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        caption_justify="left",
        box=SIMPLE_HEAD,
    )
