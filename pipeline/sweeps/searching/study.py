"""The sweep for Optuna's tools: a journal of its own, ``optuna.log``, which ``optuna-dashboard`` opens.

Nothing is read from it by this program, and it can be made again of the sweep's own journal: an attempt that has
ended is a line. Values are as the program got them, also where the search chose shares of the probability.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pipeline.sweeps.searching.optuna_search import Axis, installed, quiet, searched, shown_axis
from pipeline.sweeps.spec import Metric, Sweep
from pipeline.sweeps.trials import Trial, TrialState, is_number

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages.journal import JournalFileOpenLock
    from optuna.trial import FrozenTrial

log = logging.getLogger("pipeline")

Curves = Mapping[int, Sequence[float | None]]
_MOST_STEPS = 200
"""Values of a curve that are kept, evenly chosen."""
_ENDED = {
    TrialState.done: "COMPLETE",
    TrialState.stopped: "PRUNED",
    TrialState.failed: "FAIL",
    TrialState.cancelled: "FAIL",
    TrialState.lost: "FAIL",
}


def open_study_log(path: Path, sweep: Sweep) -> StudyLog | None:
    """Go on with the log of a sweep, or begin it; None without Optuna, or without a metric.

    Args:
        path: The file. Only who holds the lock of the sweep may have it open.
        sweep: The sweep.
    """
    return StudyLog(path, sweep, sweep.metric) if sweep.metric is not None and installed() else None


class StudyLog:
    """Appends what has ended. A log that cannot be written costs a warning, and nothing of the sweep."""

    def __init__(self, path: Path, sweep: Sweep, metric: Metric) -> None:
        self._path, self._sweep, self._metric = path, sweep, metric
        self._study: Study | None = None
        self._seen: set[tuple[int, float | None]] = set()
        self._axes: Mapping[str, Axis] = {}
        self._given_up = False

    def update(self, trials: Iterable[Trial], curves: Curves | None = None) -> None:
        """Append the attempts that have ended and are not there yet.

        Args:
            trials: All of the sweep.
            curves: Number of a trial -> what it has logged of the metric, in order.
        """
        new = [
            trial for trial in trials if trial.state in _ENDED and (trial.number, trial.started) not in self._seen
        ]
        if not new or self._given_up:
            return
        try:
            with quiet():
                self._append(new, curves or {})
        except Exception as error:  # of Optuna's, which reads what anybody may have changed
            self._given_up = True
            log.warning("%s, for Optuna's tools, is not written any more: %s", self._path, error)

    def _append(self, new: Sequence[Trial], curves: Curves) -> None:
        study = self._study or self._open()
        self._seen = {(each.get("trial", -1), each.get("started")) for each in _attributes_of(study)}
        for trial in new:  # other agents may have written some of them meanwhile
            if (trial.number, trial.started) not in self._seen:
                study.add_trial(self._frozen(trial, curves.get(trial.number, ())))
                self._seen.add((trial.number, trial.started))

    def _open(self) -> Study:
        self._axes = {name: shown_axis(each) for name, each in searched(self._sweep).items()}
        cut_to_whole_lines(self._path)
        try:
            self._study = self._load()
            _attributes_of(self._study)
        except Exception:  # made again: it holds nothing that the sweep's own journal does not have
            self._path.unlink()
            self._study = self._load()
        return self._study

    def _load(self) -> Study:
        import optuna
        from optuna.storages.journal import JournalFileBackend

        backend = JournalFileBackend(os.fspath(self._path), cast("JournalFileOpenLock", _HeldAlready()))
        return optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name=self._sweep.name,
            direction=self._metric.goal.value,
            load_if_exists=True,
        )

    def _frozen(self, trial: Trial, curve: Sequence[float | None]) -> FrozenTrial:
        from optuna.trial import FrozenTrial, TrialState

        told = {name: axis.told(trial.parameters.get(name)) for name, axis in self._axes.items()}
        known = {name: value for name, value in told.items() if value is not None}
        state = TrialState[_ENDED[trial.state]]
        if state is TrialState.COMPLETE and not is_number(trial.value):
            state = TrialState.FAIL
        return FrozenTrial(
            number=-1,
            trial_id=-1,
            state=state,
            value=trial.value if state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
            datetime_start=_date(trial.started or trial.ended),
            datetime_complete=_date(trial.ended or trial.started),
            params=known,
            distributions={name: self._axes[name].distribution for name in known},
            user_attrs=_attributes(trial),
            system_attrs={},
            intermediate_values=_thinned(curve),
        )


class _HeldAlready:
    """For Optuna's lock of its journal: who writes holds that of the sweep, which a killed process lets go."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return None


def _attributes_of(study: Study) -> list[dict[str, Any]]:
    return [each.user_attrs for each in study.get_trials(deepcopy=False)]


def cut_to_whole_lines(path: Path) -> None:
    """Cut off what a killed writer left of a line; Optuna reads no further than to that."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


def _date(seconds: float | None) -> datetime:
    return datetime.fromtimestamp(seconds or 0.0)


def _attributes(trial: Trial) -> dict[str, Any]:
    found = {"trial": trial.number, "attempt": trial.attempts, "started": trial.started, "reason": trial.reason}
    return {name: value for name, value in found.items() if value != ""}


def _thinned(curve: Sequence[float | None]) -> dict[int, float]:
    """Step, from 1, -> value; of a long curve some, the last one among them."""
    steps = range(len(curve) - 1, -1, -max(1, -(-len(curve) // _MOST_STEPS)))
    found = {step + 1: curve[step] for step in reversed(steps)}
    return {step: value for step, value in found.items() if value is not None and is_number(value)}
