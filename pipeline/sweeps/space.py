"""Parameters of a sweep file: which values they may have, for a grid, for Optuna's samplers, and in W&B's words.

Optuna samples a distribution that it has as such. Of every other one it samples a share of the probability,
from 0 to 1, of which W&B's rule (`Parameter.value`) makes the value: the inverse of the distribution function,
and for the quantized ones the nearest multiple of `q`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LEAST_SHARE = 2.0**-53
"""The nearest to 0, and to 1, that a share comes: there a normal distribution would end in infinity."""
_MOST_LABELS = 1_000
"""Values of a choice that are told apart; of more, no search learns which is best."""
DEPRECATED = {
    "log_uniform": "log_uniform_values",
    "q_log_uniform": "q_log_uniform_values",
    "inv_log_uniform": "inv_log_uniform_values",
}
"""Distributions whose bounds are exponents of e -> those that W&B has put in their place."""
_INFERRED = {"probabilities": "categorical_w_probabilities", "values": "categorical", "value": "constant"}


def kind_of(given: Mapping[str, Any]) -> str:
    """Name of a parameter's distribution: as it says, or as W&B infers it; ``parameters`` of a table of more."""
    if "distribution" in given:
        return str(given["distribution"])
    kind = next((kind for key, kind in {"parameters": "parameters", **_INFERRED}.items() if key in given), None)
    return kind or ("int_uniform" if all(_is_whole(given.get(key)) for key in ("min", "max")) else "uniform")


def _is_whole(value: object) -> bool:
    """Whether a value is a whole number as it is written: ``1``, and neither ``1.0`` nor ``true``."""
    return isinstance(value, int) and not isinstance(value, bool)


def fingerprint(value: Any) -> str:
    """What tells values apart, as for W&B: ``1`` and ``1.0`` are one value, ``True`` is another."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, sort_keys=True)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a sweep.

    Attributes:
        path: Names from the outermost table to it; most have one.
        kind: Name of its distribution, of those that have bounds as values.
        given: What the file says, with such bounds.
    """

    path: tuple[str, ...]
    kind: str
    given: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Dotted."""
        return ".".join(self.path)

    @cached_property
    def values(self) -> Sequence[Any] | None:
        """What a grid goes through, in W&B's order; None for a distribution that is no list."""
        match self.kind:
            case "constant":
                return [self.given["value"]]
            case "categorical":  # of equal ones the last, where the first stands
                return list({fingerprint(value): value for value in self.given["values"]}.values())
            case "int_uniform":
                return range(self.given["min"], self.given["max"] + 1)
            case "q_uniform":
                import numpy as np

                return list(np.arange(self.given["min"], self.given["max"], self.given.get("q", 1.0)).tolist())
        return None

    @cached_property
    def distribution(self) -> BaseDistribution:
        """As Optuna samples it."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self._labels:
            return CategoricalDistribution(self._labels)
        if self._shares:
            return FloatDistribution(0.0, 1.0)
        low, high = self.given["min"], self.given["max"]
        if self.kind == "int_uniform":
            return IntDistribution(low, high)
        return FloatDistribution(low, high, log=self.kind != "uniform")

    def value(self, sampled: Any) -> Any:
        """What a program is given where Optuna has sampled this."""
        if self._labels:
            return self.given["values"][self._labels.index(sampled)]
        return self.at(sampled) if self._shares else sampled

    def at(self, share: float) -> Any:
        """The value that is reached with this share of the probability below it.

        Raises:
            OverflowError: It is too large for a number.
        """
        given, share = self.given, min(max(share, LEAST_SHARE), 1 - LEAST_SHARE)
        kind = self.kind.removeprefix("q_")
        if kind.startswith("categorical"):
            values = given["values"]
            sums = list(accumulate(given.get("probabilities", [1 / len(values)] * len(values))))
            # The sum may fall short of 1 by rounding: then the last that has a probability.
            return values[next((at for at, most in enumerate(sums) if share < most), sums.index(sums[-1]))]
        if kind == "int_uniform":
            return given["min"] + int(share * (given["max"] - given["min"] + 1))
        found = self._of_range(kind, share)
        return round(found / given.get("q", 1.0)) * given.get("q", 1.0) if kind != self.kind else found

    def _of_range(self, kind: str, share: float) -> float:
        given = self.given
        match kind:
            case "normal" | "log_normal":
                drawn = NormalDist(given.get("mu", 0.0), given.get("sigma", 1.0)).inv_cdf(share)
                return math.exp(drawn) if kind == "log_normal" else drawn
            case "beta":
                from scipy.special import betaincinv

                return float(betaincinv(given.get("a", 1), given.get("b", 1), share))
            case "uniform":
                found = given["min"] + share * (given["max"] - given["min"])
            case _:
                low, high = math.log(given["min"]), math.log(given["max"])
                found = math.exp(low + share * (high - low))
        return float(min(max(found, given["min"]), given["max"]))

    @cached_property
    def _labels(self) -> list[str]:
        """Names of the values of a choice: ``True`` and ``1`` are equal for Optuna, and tables are none of its."""
        values = self.given["values"] if self.kind == "categorical" else []
        plain = [str(value) for value in values] if len(values) <= _MOST_LABELS else []
        return plain if len(set(plain)) == len(plain) else [f"{at}: {each}" for at, each in enumerate(plain)]

    @property
    def _shares(self) -> bool:
        if self.kind == "int_uniform":
            return bool(max(abs(self.given["min"]), abs(self.given["max"])) > 1 << 53)
        return self.kind not in ("uniform", "log_uniform_values", "inv_log_uniform_values") and not self._labels


def made(path: tuple[str, ...], given: Mapping[str, Any]) -> Parameter:
    """The parameter of a block without faults; exponents become the bounds that they stand for."""
    return Parameter(path, DEPRECATED.get(kind_of(given), kind_of(given)), as_values(given))


def as_values(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A block whose bounds are exponents of e, with the values in their place; any other as it is."""
    if (kind := kind_of(given)) not in DEPRECATED:
        return given
    sign = -1 if kind.startswith("inv") else 1
    low, high = sorted(math.exp(sign * given[bound]) for bound in ("min", "max"))
    return {**given, "distribution": DEPRECATED[kind], "min": low, "max": high}


def nested(parameters: Mapping[str, Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted name as the tables that the file has.

    Args:
        parameters: Of the sweep, by dotted name.
        values: Of one trial, likewise.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        *outer, last = parameters[name].path if name in parameters else (name,)
        table = found
        for each in outer:
            table = table.setdefault(each, {})
        table[last] = value
    return found
