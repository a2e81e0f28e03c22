"""The search that a sweep file asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.errors import ConfigError
from pipeline.sweeps.searching.hyperband import why_stop
from pipeline.sweeps.searching.optuna_search import check_installed, suggest
from pipeline.sweeps.searching.search import Search, draw
from pipeline.sweeps.space import Choice, Constant, Parameter, Quantized, Uniform, WholeUniform, fingerprint
from pipeline.sweeps.spec import Method, Sweep
from pipeline.sweeps.trials import Trial

# -- grid --------------------------------------------------------------------------------------------------------
# A grid: every combination of the values, in W&B's order, counted rather than listed.


class Grid:
    """The points of a grid. Names are sorted, and the last one changes fastest."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._names = list(parameters)
        ordered = sorted(parameters.values(), key=lambda parameter: parameter.path)
        self._axes = {parameter.name: _axis(parameter) for parameter in ordered}

    @property
    def size(self) -> int:
        """How many points there are."""
        return math.prod(axis.size for axis in self._axes.values())

    def point(self, number: int) -> dict[str, Any]:
        """The point of a number, from 0: dotted name -> value."""
        found = {}
        for name, axis in reversed(self._axes.items()):
            number, place = divmod(number, axis.size)
            found[name] = axis.value(place)
        return {name: found[name] for name in self._names}

    def number(self, point: Mapping[str, Any]) -> int | None:
        """The number of a point; None for one that is not of this grid."""
        number = 0
        for name, axis in self._axes.items():
            place = axis.place(point[name]) if name in point else None
            if place is None:
                return None
            number = number * axis.size + place
        return number

    def missing(self, points: Sequence[Mapping[str, Any]]) -> Iterator[int]:
        """Numbers of the points that are not among these, ascending."""
        seen = {self.number(point) for point in points}
        return (number for number in range(self.size) if number not in seen)


# -- the values of one parameter ---------------------------------------------------------------------------------


class _Axis(Protocol):
    @property
    def size(self) -> int: ...

    def value(self, place: int) -> Any: ...

    def place(self, value: Any) -> int | None: ...


def _axis(parameter: Parameter) -> _Axis:
    match parameter.distribution:
        case WholeUniform(min=low, max=high):
            return _Whole(low, high - low + 1)
        case Quantized(of=Uniform(min=low, max=high), q=q):
            whole = all(isinstance(number, int) for number in (low, high, q))
            return _Steps(low if whole else float(low), q, math.ceil((high - low) / q))
        case Choice(values=values):
            return _Listed(values)
        case Constant(value=value):
            return _Listed((value,))
        case other:
            raise ValueError(f"{parameter.name}: {other} has no values that can be gone through")


@dataclass(frozen=True)
class _Whole:
    low: int
    size: int

    def value(self, place: int) -> int:
        return self.low + place

    def place(self, value: Any) -> int | None:
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value - self.low < self.size
        return value - self.low if fits else None


@dataclass(frozen=True)
class _Steps:
    """As ``numpy.arange``, which W&B uses: without the upper bound, and whole numbers only of three whole ones."""

    low: float
    q: float
    size: int

    def value(self, place: int) -> float:
        return self.low + place * ((self.low + self.q) - self.low)  # numpy's own step, to the last bit

    def place(self, value: Any) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        place = round((value - self.low) / self.q)
        return place if 0 <= place < self.size and self.value(place) == value else None


class _Listed:
    """Each value once: where the first of equal ones stands, as the last of them is written; so has W&B them."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = {fingerprint(value): value for value in values}
        self._order = list(self._values)
        self._places = {mark: place for place, mark in enumerate(self._order)}

    @property
    def size(self) -> int:
        return len(self._order)

    def value(self, place: int) -> Any:
        return self._values[self._order[place]]

    def place(self, value: Any) -> int | None:
        return self._places.get(fingerprint(value))


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
