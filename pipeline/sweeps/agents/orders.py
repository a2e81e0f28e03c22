"""From a trial and its devices to what their process is told to run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.engine.devices.inventory import Device, usable_cores
from pipeline.errors import StoreError
from pipeline.files import json_text, write_whole
from pipeline.sweeps.agents.own_runs import is_own, own_command
from pipeline.sweeps.agents.pool import AgentPool
from pipeline.sweeps.agents.trial_process import Order
from pipeline.sweeps.agents.wandb_run import WANDB_DIR, wandb_variables, write_parameters_for_wandb
from pipeline.sweeps.folder import SweepFolder, TrialFolder
from pipeline.sweeps.reading.command import prepare_command, trial_command
from pipeline.sweeps.reading.parameters import SPLIT
from pipeline.sweeps.reporting import VARIABLE
from pipeline.sweeps.space import nested
from pipeline.sweeps.spec import Sweep
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
        write_parameters_for_wandb(place, nested(sweep.parameters, trial.parameters))
    except OSError as error:
        raise StoreError(f"cannot write {place.path}: {error.strerror}") from error


class Orders:
    """What the processes of one agent are told to run."""

    def __init__(self, sweep: Sweep, folder: SweepFolder, pool: AgentPool, grace_s: int) -> None:
        """Prepare.

        Args:
            sweep: The sweep.
            folder: Where it is.
            pool: Devices of the agent.
            grace_s: Seconds that a program has to end once it was told to.
        """
        self._sweep, self._folder, self._pool, self._grace_s = sweep, folder, pool, grace_s
        self._own = is_own(sweep)

    def trial(self, trial: Trial, attempt: int, devices: Sequence[Device]) -> Order:
        """An attempt at a trial; `write_parameters` was called."""
        place = self._folder.trial(trial.number)
        if self._own:
            words = self._run(trial, devices, f"{SPLIT}=validation")
            return self._order(words, place, attempt, devices, f"trial {trial.number}")
        json_file = place.parameters.absolute()
        words = trial_command(self._sweep, trial.parameters, json_file, num_gpus=trial.num_gpus)
        order = self._order(words, place, attempt, devices, f"trial {trial.number}")
        given = {**os.environ, **self._sweep.options.environment}
        return replace(order, variables={**order.variables, **wandb_variables(place, self._folder.name, given)})

    def prepare(self, first: Trial, devices: Sequence[Device]) -> Order:
        """What is run before the first trial: what that needs of datasets is there when trials ask for it.

        Of a run of ours that is what the first trial needs alone. One with another dataset makes its own in the
        same job of its plan, which the store lets one run do while the others wait; and which datasets a search
        will choose is not known, so preparing them all could take hours for what is never asked for.
        """
        words = prepare_command(self._sweep)
        if own := not words:
            words = self._run(first, devices, f"{SPLIT}=validation", "stage=prepare")
        order = self._order(words, self._folder.preparing, 1, devices, "preparing")
        variables = {name: value for name, value in order.variables.items() if name != VARIABLE}
        return replace(order, leases=own, variables=variables)

    def winner(self, best: Trial, devices: Sequence[Device]) -> Order:
        """The best trial once more, evaluated on the test split."""
        words = self._run(best, devices, f"{SPLIT}=test")
        return self._order(words, self._folder.winner, 1, devices, f"test of trial {best.number}")

    def _run(self, trial: Trial, devices: Sequence[Device], *more: str) -> list[str]:
        cores = self._cores(devices)
        parameters, places = trial.parameters, self._pool.places
        return own_command(self._sweep, self._folder, parameters, devices, places, workers=cores, more=more)

    def _cores(self, devices: Sequence[Device]) -> int:
        return max(1, usable_cores() * len(devices) // len(self._pool.devices))

    def _order(
        self, words: list[str], place: TrialFolder, attempt: int, devices: Sequence[Device], what: str
    ) -> Order:
        places = [self._pool.places[device.uuid or ""] for device in devices if device.kind == "cuda"]
        return Order(
            words=words,
            gpus=places or None,
            slots=len(devices),
            cores=self._cores(devices),
            leases=self._own,
            launcher=self._sweep.options.launcher,
            holder=f"sweep {self._folder.name}, {what}",
            variables={
                **self._sweep.options.environment,
                VARIABLE: str(place.metrics(attempt).absolute()),
                WANDB_DIR: str(place.path.absolute()),
            },
            folder=str(self._sweep.folder),
            log=str(place.log(attempt).absolute()),
            start=str(place.start(attempt).absolute()),
            grace_s=self._grace_s,
        )


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
