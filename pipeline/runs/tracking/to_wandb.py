"""wandb: offline a file for every chain, written anew from the first batch on whenever it is begun; online a run.

    offline   the file counts only when it was finished, so a new one takes the place of those before. All of them
              are of the same run: whoever has sent one before sends the same rows again.
    online    wandb says how many rows it has, and is told the others.

The steps of wandb number the rows as they were first sent, since it takes no row with a smaller one. What numbers
are drawn over are the rounds, and the steps of trainings.

Under ``wandb agent`` one more run, that of the agent, has what the trial is judged by.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from pipeline.files import remove_tree
from pipeline.runs.tracking.batches import COLUMNS, ROUND, STEP, Batch, TrackedChain
from pipeline.runs.tracking.trackers import TrackerPlace
from pipeline.runs.tracking.wandb_sweep import JudgedRound, SweepTrial


class Wandb:
    """Hands runs to wandb, which has a process of its own."""

    def __init__(self, place: TrackerPlace) -> None:
        self._place = place

    def begin(self, chain: TrackedChain, name: str) -> _Run:
        """See `Tracker.begin`."""
        return _Run(self._place, chain, name)

    def begin_trial(self, trial: SweepTrial, experiment: str) -> TrialRun:
        """The run by which a sweep at W&B hears of this one."""
        return TrialRun(self._place, trial, experiment)

    def close(self) -> None:
        """End wandb's own process."""
        wandb.teardown()


class _Run:
    """A chain as a run of wandb."""

    def __init__(self, place: TrackerPlace, chain: TrackedChain, name: str) -> None:
        pattern = f"offline-run-*-{chain.id}"
        self._earlier = [] if place.is_online else sorted(place.folder.glob(pattern))
        self._run: Any = wandb.init(
            project=place.project,
            entity=place.entity,
            id=chain.id,
            name=name,
            group=chain.experiment,
            config=dict(chain.settings),
            dir=str(place.folder.parent),  # to which wandb adds `wandb`
            mode="online" if place.is_online else "offline",
            resume="allow" if place.is_online else None,
            reinit="create_new",
            settings=_SETTINGS,
        )
        self._has = int(self._run.step) if self._run.resumed else 0
        for axis, parts in {STEP: ("train",), ROUND: ("eval", "interval", "time")}.items():
            self._run.define_metric(axis, hidden=True)  # it is no chart of its own
            for part in parts:
                self._run.define_metric(f"{part}/*", step_metric=axis)

    def add(self, batch: Batch, first_row: int, /) -> None:
        """See `TrackerRun.add`."""
        rows: list[dict[str, Any]] = []
        for row in batch.rows:
            axis = {STEP: row.at} if row.axis == STEP else {}
            rows.append({**row.values, ROUND: row.round, **axis, "_timestamp": batch.time})
        if batch.samples and rows:
            rows[-1]["samples"] = _table(batch)
        for step, values in enumerate(rows, first_row):
            if step >= self._has:
                self._run.log(values, step=step)

    def keep(self) -> bool:
        """See `TrackerRun.keep`: nobody says what wandb's own process has written so far."""
        return False

    def close(self) -> None:
        """See `TrackerRun.close`."""
        folder = Path(self._run.dir).parent
        self._run.finish()
        for path in self._earlier:
            if path != folder:
                remove_tree(path)


class TrialRun:
    """The run that W&B's agent has named: what a trial is judged by, round by round."""

    def __init__(self, place: TrackerPlace, trial: SweepTrial, experiment: str) -> None:
        self._run: Any = wandb.init(
            project=trial.project or place.project,
            entity=trial.entity or place.entity,
            id=trial.id,
            group=experiment,
            dir=str(place.folder.parent),
            mode="online" if place.is_online else "offline",
            reinit="create_new",
            settings=wandb.Settings(**_QUIET, sweep_id=trial.sweep),
        )

    def add(self, judged: JudgedRound) -> None:
        """Tell what a round has reached."""
        self._run.log({**judged.values, ROUND: judged.round})

    def close(self) -> None:
        """Nothing more follows."""
        self._run.finish()


def _table(batch: Batch) -> Any:
    return wandb.Table(
        columns=list(COLUMNS), data=[[sample[name] for name in COLUMNS] for sample in batch.samples]
    )


_QUIET: Mapping[str, Any] = {
    "console": "off",
    "silent": True,
    "disable_code": True,
    "disable_git": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""Rows and settings alone: neither what stands on the screen nor what it runs on."""
_SETTINGS = wandb.Settings(**_QUIET)
