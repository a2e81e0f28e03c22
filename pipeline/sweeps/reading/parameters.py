"""From the block ``parameters:`` of a sweep file to distributions, and what no schema can say of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipeline.config.values import brief
from pipeline.sweeps.reading.schema import kind_of
from pipeline.sweeps.reading.yaml_file import Fault, Place
from pipeline.sweeps.space import (
    LEAST_SHARE,
    Beta,
    Choice,
    Constant,
    Distribution,
    LogNormal,
    LogUniform,
    Normal,
    Parameter,
    Quantized,
    Uniform,
    WholeUniform,
)

Given = Mapping[str, Any]

DEPRECATED = {
    "log_uniform": "log_uniform_values",
    "q_log_uniform": "q_log_uniform_values",
    "inv_log_uniform": "inv_log_uniform_values",
}
"""Distributions whose bounds are exponents -> those that W&B has put in their place."""


def read_parameters(
    block: Given, place: Place = ("parameters",), path: tuple[str, ...] = ()
) -> Iterator[Parameter]:
    """Parameters of a block that has no faults, in the order of the file, those of tables inside it too."""
    for name, given in block.items():
        if kind_of(given) == "parameters":
            yield from read_parameters(given["parameters"], (*place, name, "parameters"), (*path, name))
        else:
            yield Parameter((*path, name), _MAKERS[kind_of(given)](given))


def parameter_faults(block: Given, place: Place = ("parameters",)) -> Iterator[Fault]:
    """What is wrong with the values of single parameters, each with its place.

    Args:
        block: It has no faults by the schema.
        place: Of the block.
    """
    for name, given in block.items():
        kind, here = kind_of(given), (*place, name)
        if kind == "parameters":
            yield from parameter_faults(given["parameters"], (*here, "parameters"))
        else:
            yield from ((here, said) for said in _faults(kind, given))


def _faults(kind: str, given: Given) -> Iterator[str]:
    found = [*_probability_faults(given), *_range_faults(kind, given)]
    yield from found
    if not found:
        yield from _extreme_faults(_MAKERS[kind](given))


def _probability_faults(given: Given) -> Iterator[str]:
    if "probabilities" not in given:
        return
    values, probabilities = given["values"], given["probabilities"]
    total = math.fsum(probabilities)
    if len(values) != len(probabilities):
        yield f"{len(values)} values and {len(probabilities)} probabilities: there must be one for each value"
    elif abs(total - 1) > _TOLERANCE:
        yield f"the sum of the probabilities is {total:.6g}, and must be 1"


def _range_faults(kind: str, given: Given) -> Iterator[str]:
    if "min" not in given:
        return
    low, high = given["min"], given["max"]
    if low >= high:
        said = f"min {brief(low)} is not below max {brief(high)}"
        yield f"{said}: for one value write `value: {brief(low)}`" if low == high else said
    elif kind in DEPRECATED and max(abs(low), abs(high)) > _LARGEST_EXPONENT:
        yield (
            f"min {brief(low)} and max {brief(high)} are exponents of e with {kind}, and numbers go up to e^709: "
            f"for values themselves use {DEPRECATED[kind]}"
        )
    elif kind != "int_uniform" and math.isinf(float(high) - float(low)):
        yield f"the range from {brief(low)} to {brief(high)} is too large for numbers"


def _extreme_faults(distribution: Distribution) -> Iterator[str]:
    """Of the values at both ends of a distribution."""
    q = distribution.q if isinstance(distribution, Quantized) else None
    of = distribution.of if isinstance(distribution, Quantized) else distribution
    if isinstance(of, Constant | Choice | WholeUniform):
        return
    try:
        low, high = of.at(LEAST_SHARE), of.at(1 - LEAST_SHARE)
    except OverflowError:
        low = high = math.inf
    if not math.isfinite(high - low):
        yield "its values would be too large for numbers"
    elif q is not None and q > (high - low) * _ROUNDING and not isinstance(of, Normal | LogNormal):
        yield f"q {brief(q)} is larger than the range of the values, {high - low:.6g}: it is the step between them"
    elif q is not None and max(abs(low), abs(high)) / q > _MOST_STEPS:
        yield f"q {brief(q)} is so small that numbers cannot tell its steps apart"


_TOLERANCE = 1.001e-5
"""Of a sum of probabilities, as W&B's ``numpy.isclose``."""
_LARGEST_EXPONENT = 700
_MOST_STEPS = 2**53
_ROUNDING = 1.000001


# -- making them -------------------------------------------------------------------------------------------------


def _mu(given: Given) -> float:
    return float(given.get("mu", 0.0))


def _sigma(given: Given) -> float:
    return float(given.get("sigma", 1.0))


def _of_exponents(given: Given) -> LogUniform:
    return LogUniform(math.exp(given["min"]), math.exp(given["max"]))


def _of_inverse_exponents(given: Given) -> LogUniform:
    return LogUniform(math.exp(-given["max"]), math.exp(-given["min"]))


def _quantized(make: Callable[[Given], Distribution]) -> Callable[[Given], Quantized]:
    return lambda given: Quantized(make(given), given.get("q", 1.0))


def _uniform(given: Given) -> Uniform:
    return Uniform(given["min"], given["max"])


def _log_uniform(given: Given) -> LogUniform:
    return LogUniform(given["min"], given["max"])


def _normal(given: Given) -> Normal:
    return Normal(_mu(given), _sigma(given))


def _log_normal(given: Given) -> LogNormal:
    return LogNormal(_mu(given), _sigma(given))


def _beta(given: Given) -> Beta:
    return Beta(float(given.get("a", 1)), float(given.get("b", 1)))


_MAKERS: Mapping[str, Callable[[Given], Distribution]] = {
    "constant": lambda given: Constant(given["value"]),
    "categorical": lambda given: Choice(tuple(given["values"])),
    "categorical_w_probabilities": lambda given: Choice(tuple(given["values"]), tuple(given["probabilities"])),
    "int_uniform": lambda given: WholeUniform(given["min"], given["max"]),
    "uniform": _uniform,
    "log_uniform": _of_exponents,
    "log_uniform_values": _log_uniform,
    "inv_log_uniform": _of_inverse_exponents,
    "inv_log_uniform_values": _log_uniform,  # as W&B carries it out
    "normal": _normal,
    "log_normal": _log_normal,
    "beta": _beta,
    "q_uniform": _quantized(_uniform),
    "q_log_uniform": _quantized(_of_exponents),
    "q_log_uniform_values": _quantized(_log_uniform),
    "q_normal": _quantized(_normal),
    "q_log_normal": _quantized(_log_normal),
    "q_beta": _quantized(_beta),
}
