"""From a trial and its devices to what their process is told to run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.engine.devices.inventory import Device
from pipeline.errors import StoreError
from pipeline.files import json_text, write_whole
from pipeline.sweeps.command import trial_command
from pipeline.sweeps.folder import SweepFolder, TrialFolder
from pipeline.sweeps.own_runs import is_own, own_command
from pipeline.sweeps.reporting import VARIABLE
from pipeline.sweeps.space import nested
from pipeline.sweeps.spec import Sweep
from pipeline.sweeps.trial_process import Order
from pipeline.sweeps.trials import Trial


def write_parameters(sweep: Sweep, folder: SweepFolder, trial: Trial) -> None:
    """Make the folder of a trial, with its settings in it.

    Raises:
        StoreError: It cannot be written.
    """
    place = folder.trial(trial.number)
    try:
        place.path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(nested(sweep.parameters, trial.parameters), indent=1)
        write_whole(place.parameters, text + "\n")
    except OSError as error:
        raise StoreError(f"cannot write {place.path}: {error.strerror}") from error


def order_of(
    sweep: Sweep,
    folder: SweepFolder,
    trial: Trial,
    attempt: int,
    devices: Sequence[Device],
    places: Mapping[str, int],
    *,
    cores: int,
    grace_s: int,
) -> Order:
    """What is run for an attempt at a trial.

    Args:
        sweep: The sweep.
        folder: Where it is.
        trial: The trial; `write_parameters` was called.
        attempt: Which attempt, from 1.
        devices: Where it is to run.
        places: UUID -> position in the visible set.
        cores: That its processes share.
        grace_s: Seconds that it has to end.
    """
    place = folder.trial(trial.number)
    own = is_own(sweep)
    if own:
        words = own_command(sweep, folder, trial.parameters, devices, places, workers=cores)
    else:
        json_file = place.parameters.absolute()
        words = trial_command(sweep, trial.parameters, json_file, num_gpus=trial.num_gpus)
    return Order(
        words=words,
        gpus=[places[device.uuid or ""] for device in devices] if devices[0].kind == "cuda" else None,
        slots=len(devices),
        cores=cores,
        leases=own,
        launcher=sweep.options.launcher,
        holder=f"sweep {folder.name}, trial {trial.number}",
        variables=variables_of(sweep, place, attempt),
        folder=str(sweep.folder),
        log=str(place.log(attempt).absolute()),
        start=str(place.start(attempt).absolute()),
        grace_s=grace_s,
    )


def variables_of(sweep: Sweep, place: TrialFolder, attempt: int) -> dict[str, str]:
    """What the environment of a trial has of its own."""
    return {
        **sweep.options.environment,
        VARIABLE: str(place.metrics(attempt).absolute()),
        "WANDB_DIR": str(place.path.absolute()),
    }


def as_written(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as the fields of `TrialCreated`: JSON has no number for one that is infinite."""
    fields: dict[str, Any] = {"parameters": dict(parameters)}
    if not _all_finite(parameters):
        fields |= {"exact": json.dumps(parameters), "parameters": json.loads(json_text(parameters))}
    return fields


def _all_finite(value: Any) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case Mapping():
            return all(map(_all_finite, value.values()))
        case list() | tuple():
            return all(map(_all_finite, value))
    return True
