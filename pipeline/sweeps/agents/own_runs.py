"""Trials that are runs of this package: what ``run_parallel.py`` is told, so that they share a store and a name.

Such a run leases its devices itself, and tells the sweep what every round has reached; see `commands/trial.py`. It
is judged on validation prompts: the winner alone is evaluated on the others, once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.engine.devices.inventory import Device
from pipeline.sweeps.agents.turn import NUM_GPUS
from pipeline.sweeps.folder import SweepFolder
from pipeline.sweeps.reading.command import overrides_of
from pipeline.sweeps.reading.parameters import PROGRAM, is_of_package
from pipeline.sweeps.spec import Sweep

_WORKERS = "execution.workers"


def is_own(sweep: Sweep) -> bool:
    """Whether the trials of a sweep are runs of this package."""
    return is_of_package((sweep.program, *sweep.command))


def own_command(
    sweep: Sweep,
    folder: SweepFolder,
    parameters: Mapping[str, Any],
    devices: Sequence[Device],
    places: Mapping[str, int],
    *,
    workers: int,
    more: Sequence[str],
) -> list[str]:
    """The command of one run.

    Args:
        sweep: The sweep.
        folder: Where it is; runs are beside it.
        parameters: Of the trial.
        devices: Where the run computes.
        places: UUID -> position in the visible set.
        workers: How many it has without GPUs.
        more: Further settings.
    """
    given = {name: value for name, value in parameters.items() if name != NUM_GPUS}
    if devices[0].kind == "cuda":
        where = [f"distributed.gpu_ids=[{','.join(str(places[device.uuid or '']) for device in devices)}]"]
    else:
        where = ["device=cpu", *([] if _WORKERS in given else [f"{_WORKERS}={workers}"])]
    output_dir = folder.path.parent.parent.absolute()
    named = overrides_of({"experiment.name": folder.name, "output_dir": str(output_dir)})
    program = next(word for word in (sweep.program, *sweep.command) if Path(word).name == PROGRAM)
    return [sys.executable, program, *overrides_of(given), *named, *where, *more]
