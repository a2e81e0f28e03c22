"""The search that a sweep file asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.errors import ConfigError
from pipeline.sweeps.searching.grid import Grid
from pipeline.sweeps.searching.hyperband import why_stop
from pipeline.sweeps.searching.optuna_search import check_installed, suggest
from pipeline.sweeps.searching.random_search import draw
from pipeline.sweeps.searching.search import Search
from pipeline.sweeps.spec import Method, Sweep
from pipeline.sweeps.trials import Trial

_Ask = Callable[[Sequence[Trial]], Mapping[str, Any] | None]


def make_search(sweep: Sweep) -> Search:
    """The search of a sweep, and its rule of early stopping.

    Raises:
        ConfigError: It needs what is not installed.
    """
    asks: Mapping[Method, Callable[[Sweep], _Ask]] = {
        Method.grid: _grid,
        Method.random: _random,
        Method.bayes: _bayes,
    }
    return SweepSearch(sweep, asks[sweep.method](sweep))


class SweepSearch:
    """See `Search`."""

    def __init__(self, sweep: Sweep, ask: _Ask) -> None:
        self._sweep = sweep
        self._ask = ask

    def ask(self, trials: Sequence[Trial]) -> Mapping[str, Any] | None:
        """See `Search`."""
        return self._ask(trials)

    def stops(self, trial: Trial, values: Mapping[int, Sequence[float]]) -> str | None:
        """See `Search`."""
        rule, metric = self._sweep.early_terminate, self._sweep.metric
        if rule is None or metric is None:
            return None
        return why_stop(rule, metric.goal, trial.number, values)


def most_trials(sweep: Sweep) -> int | None:
    """How many trials a sweep has at most; None for no bound."""
    bounds = [sweep.run_cap] if sweep.run_cap is not None else []
    if sweep.method is Method.grid:
        bounds.append(Grid(sweep.parameters).size)
    return min(bounds, default=None)


def _grid(sweep: Sweep) -> _Ask:
    grid = Grid(sweep.parameters)

    def ask(trials: Sequence[Trial]) -> Mapping[str, Any] | None:
        number = next(grid.missing([trial.parameters for trial in trials]), None)
        return None if number is None else grid.point(number)

    return ask


def _random(sweep: Sweep) -> _Ask:
    return lambda trials: draw(sweep.parameters, sweep.options.seed, len(trials))


def _bayes(sweep: Sweep) -> _Ask:
    check_installed()
    metric = sweep.metric
    if metric is None:
        raise ConfigError("bayes searches by a metric, and the file names none")
    return lambda trials: suggest(sweep, metric, trials)
