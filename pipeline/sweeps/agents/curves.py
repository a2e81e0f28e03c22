"""What trials have logged of the metric, be they another agent's: by it they are compared while they run."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.sweeps.agents.running import Curve
from pipeline.sweeps.folder import SweepFolder
from pipeline.sweeps.spec import Metric
from pipeline.sweeps.trials import Trial


class Curves:
    """Those of one sweep; what was read once is not read again."""

    def __init__(self, folder: SweepFolder, metric: Metric | None) -> None:
        self._folder, self._metric = folder, metric
        self._known: dict[tuple[int, int], Curve] = {}

    def curve(self, number: int, attempt: int) -> Curve:
        """That of one attempt at a trial, as far as it was read."""
        if (number, attempt) not in self._known:
            self._known[number, attempt] = Curve(self._folder.trial(number), attempt, self._metric)
        return self._known[number, attempt]

    def of(self, trial: Trial) -> list[float | None]:
        """What the last attempt at a trial has logged up to now, in order; None for what is no finite number."""
        curve = self.curve(trial.number, trial.attempts)
        curve.refresh()
        return curve.judged

    def of_all(self, trials: Iterable[Trial]) -> dict[int, list[float | None]]:
        """The same of all that were ever begun, by number."""
        return {trial.number: self.of(trial) for trial in trials if trial.attempts}
