"""Distributions of W&B's sweep files: what a value is at a share of the probability, by W&B's own rules.

Every one is its inverse distribution function, as W&B samples by these, so a search needs no more than shares of
[0, 1]. The quantized ones round a value of another to a multiple of `q`, which may lead out of its range.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import NormalDist
from typing import Any, Protocol

LEAST_SHARE = 2.0**-53
"""The nearest to 0, and to 1, that a share comes: there a normal distribution would end in infinity."""


class Distribution(Protocol):
    """Values that a parameter may have, with their probabilities."""

    def at(self, share: float) -> Any:
        """The value that is reached with this share of the probability below it.

        Args:
            share: From `LEAST_SHARE` to 1 less that.
        """
        ...

    def below(self, value: Any) -> float:
        """The share of the probability up to a value: `at` turned round, as far as it can be."""
        ...


@dataclass(frozen=True)
class Parameter:
    """A parameter of a sweep.

    Attributes:
        path: Names from the outermost table to it; most have one.
        distribution: What it may be.
    """

    path: tuple[str, ...]
    distribution: Distribution

    @property
    def name(self) -> str:
        """Dotted."""
        return ".".join(self.path)


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


# -- one of several ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constant:
    """One value."""

    value: Any

    def at(self, share: float) -> Any:  # noqa: ARG002 - it is the same everywhere
        """The value."""
        return self.value

    def below(self, value: Any) -> float:  # noqa: ARG002
        """Nothing is to be told apart."""
        return 0.5


@dataclass(frozen=True)
class Choice:
    """One of several values.

    Attributes:
        values: Any plain data.
        probabilities: Of each, with the sum 1; None for equal ones.
    """

    values: tuple[Any, ...]
    probabilities: tuple[float, ...] | None = None

    def at(self, share: float) -> Any:
        """The value whose part of [0, 1] the share lies in."""
        if self.probabilities is None:
            return self.values[_nth(share, len(self.values))]
        sums = list(accumulate(self.probabilities))
        # The sum may fall short of 1 by rounding.
        return self.values[min(bisect_right(sums, share), self._last)]

    def below(self, value: Any) -> float:
        """The middle of the value's part."""
        place = self.position(value)
        weights = self.probabilities or (1 / len(self.values),) * len(self.values)
        return min(1.0, sum(weights[:place]) + weights[place] / 2)

    def position(self, value: Any) -> int:
        """Where a value stands, the first of equal ones; ``True`` and ``1`` are two.

        Raises:
            ValueError: It is none of them.
        """
        place = self._places.get(fingerprint(value))
        if place is None:
            raise ValueError(f"{value!r} is none of the values")
        return place

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {fingerprint(value): place for place, value in reversed(list(enumerate(self.values)))}

    @property
    def _last(self) -> int:
        return max(place for place, weight in enumerate(self.probabilities or (1.0,)) if weight > 0)


def fingerprint(value: Any) -> str:
    """What tells values apart, as for W&B: ``1`` and ``1.0`` are one value, ``True`` is another."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, sort_keys=True)


@dataclass(frozen=True)
class WholeUniform:
    """Whole numbers, all as likely.

    Attributes:
        min: The least.
        max: The largest.
    """

    min: int
    max: int

    def at(self, share: float) -> int:
        """The whole number whose part of [0, 1] the share lies in."""
        return self.min + _nth(share, self.max - self.min + 1)

    def below(self, value: Any) -> float:
        """The middle of the number's part."""
        return _within((int(value) - self.min + 0.5) / (self.max - self.min + 1))


def _nth(share: float, count: int) -> int:
    """As ``scipy.stats.randint.ppf``, by which W&B draws: at an edge the lower one."""
    numerator, denominator = share.as_integer_ratio()  # exact however large the count is
    return min(max(-(-numerator * count // denominator) - 1, 0), count - 1)


# -- of a range --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Uniform:
    """Numbers of a range, all as likely."""

    min: float
    max: float

    def at(self, share: float) -> float:
        """The number so far along the range."""
        return min(max(self.min + share * (self.max - self.min), self.min), self.max)

    def below(self, value: Any) -> float:
        """How far along the range a number is."""
        return _within((value - self.min) / (self.max - self.min))


@dataclass(frozen=True)
class LogUniform:
    """Numbers of a range above zero whose logarithms are all as likely."""

    min: float
    max: float

    def at(self, share: float) -> float:
        """The number so far along the range of logarithms."""
        low, high = math.log(self.min), math.log(self.max)
        return min(max(math.exp(low + share * (high - low)), self.min), self.max)

    def below(self, value: Any) -> float:
        """How far along the range of logarithms a number is."""
        if value <= self.min:
            return 0.0
        low, high = math.log(self.min), math.log(self.max)
        return _within((math.log(value) - low) / (high - low))


@dataclass(frozen=True)
class Normal:
    """Normally distributed numbers, without bounds."""

    mu: float
    sigma: float

    def at(self, share: float) -> float:
        """So many standard deviations from the mean."""
        return NormalDist(self.mu, self.sigma).inv_cdf(share)

    def below(self, value: Any) -> float:
        """The share of numbers up to this one."""
        return NormalDist(self.mu, self.sigma).cdf(value)


@dataclass(frozen=True)
class LogNormal:
    """Numbers above zero whose natural logarithms are normally distributed."""

    mu: float
    sigma: float

    def at(self, share: float) -> float:
        """The exponential of the normal one."""
        return math.exp(NormalDist(self.mu, self.sigma).inv_cdf(share))

    def below(self, value: Any) -> float:
        """The share of numbers up to this one."""
        return NormalDist(self.mu, self.sigma).cdf(math.log(value)) if value > 0 else 0.0


@dataclass(frozen=True)
class Beta:
    """Numbers from 0 to 1 by the beta distribution."""

    a: float
    b: float

    def at(self, share: float) -> float:
        """The inverse of the regularized incomplete beta function."""
        from scipy.special import betaincinv

        return float(betaincinv(self.a, self.b, share))

    def below(self, value: Any) -> float:
        """The regularized incomplete beta function."""
        from scipy.special import betainc

        return float(betainc(self.a, self.b, _within(value)))


@dataclass(frozen=True)
class Quantized:
    """Another distribution, rounded to multiples of a number.

    Attributes:
        of: The other one.
        q: The number; where it is whole, so are the values.
    """

    of: Distribution
    q: float

    def at(self, share: float) -> float:
        """The multiple that is nearest to the other's value; an even one if two are."""
        value: float = self.of.at(share)
        return round(value / self.q) * self.q

    def below(self, value: Any) -> float:
        """The other's."""
        return self.of.below(value)


def _within(share: float) -> float:
    return min(max(share, 0.0), 1.0)
