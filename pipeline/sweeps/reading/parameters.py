"""From the block ``parameters:`` of a sweep file to distributions, and what no schema can say of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.values import brief
from pipeline.sweeps.reading.malformed import fits
from pipeline.sweeps.reading.schema import DISTRIBUTIONS, NUMBER, WHOLE, kind_of
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


@dataclass(frozen=True)
class Entry:
    """A parameter as a file has it, which may be wrong.

    Attributes:
        place: Where it stands.
        path: Names from the outermost table to it.
        kind: Name of its distribution, which may be none.
        given: What the file says.
        right: Of that, what belongs to its distribution and is right by itself.
    """

    place: Place
    path: tuple[str, ...]
    kind: str
    given: Given
    right: Given

    @property
    def name(self) -> str:
        """Dotted."""
        return ".".join(self.path)

    @property
    def certain(self) -> bool:
        """Whether its distribution is the one that was meant: a bound that is wrong leaves open which."""
        return self.kind in DISTRIBUTIONS and (
            "distribution" in self.given or self.kind != "uniform" or self.has_bounds
        )

    @property
    def has_bounds(self) -> bool:
        """Whether it has two bounds that can be compared."""
        a_bound = WHOLE if self.kind == "int_uniform" else NUMBER
        return all(fits(self.given.get(key), a_bound) for key in ("min", "max"))


def entries_of(block: Given, place: Place = ("parameters",), path: tuple[str, ...] = ()) -> Iterator[Entry]:
    """Parameters of a block that may have any faults, in the order of the file, those of tables inside it too."""
    for name, given in block.items():
        table = given if isinstance(given, Mapping) else {}
        kind, here = kind_of(table) if table else "", ((*place, name), (*path, name))
        inside = table.get("parameters")
        if kind != "parameters":
            keys = _schemas(kind).items()
            right = {key: table[key] for key, schema in keys if key in table and fits(table[key], schema)}
            yield Entry(*here, kind, table, right)
        elif isinstance(inside, Mapping):
            yield from entries_of(inside, (*here[0], "parameters"), here[1])


def _schemas(kind: str) -> Given:
    """Of the values of a distribution."""
    required, optional = DISTRIBUTIONS.get(kind, ({}, {}))
    return {**required, **optional}


def parameter_faults(entry: Entry) -> Iterator[Fault]:
    """What is wrong with the values of a parameter that no schema can say, each with its place."""
    if entry.kind not in DISTRIBUTIONS:
        return
    found = [*_probability_faults(entry.right), *_range_faults(entry)]
    if not found and _is_complete(entry):
        found = [*_extreme_faults(_MAKERS[entry.kind](entry.right))]
    yield from ((entry.place, said) for said in found)


def _is_complete(entry: Entry) -> bool:
    """Whether a distribution can be made of it."""
    required, optional = DISTRIBUTIONS[entry.kind]
    return {*required, *(key for key in optional if key in entry.given)} <= entry.right.keys()


def _probability_faults(right: Given) -> Iterator[str]:
    if "probabilities" not in right or "values" not in right:
        return
    values, probabilities = right["values"], right["probabilities"]
    total = math.fsum(probabilities)
    if len(values) != len(probabilities):
        yield f"{len(values)} values and {len(probabilities)} probabilities: there must be one for each value"
    if abs(total - 1) > _TOLERANCE:
        yield f"the sum of the probabilities is {total:.6g}, and must be 1"


def _range_faults(entry: Entry) -> Iterator[str]:
    if not entry.has_bounds or "min" not in _schemas(entry.kind):
        return
    kind, low, high = entry.kind, entry.given["min"], entry.given["max"]
    if low >= high:
        said = f"min {brief(low)} is not below max {brief(high)}"
        yield f"{said}: for one value write `value: {brief(low)}`" if low == high else said
    if kind in DEPRECATED and max(abs(low), abs(high)) > _LARGEST_EXPONENT:
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
        # Of 0 to 1, though a beta distribution hardly comes near them: W&B rounds what it draws to these as well.
        low, high = (0.0, 1.0) if isinstance(of, Beta) else (of.at(LEAST_SHARE), of.at(1 - LEAST_SHARE))
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


# -- own ---------------------------------------------------------------------------------------------------------
# Sweeps of runs of this package: what their parameters may not be.


PROGRAM = "run_parallel.py"
SPLIT = "evaluation.split"
RESERVED = (
    "experiment.name",
    "output_dir",
    "stage",
    "dry_run",
    "device",
    "distributed.gpu_ids",
    "distributed.gpu_list",
    "distributed.num_gpus",
)
"""Settings of a run that its sweep decides."""
_SHOWN = 20
"""Values of a list that a message writes out."""
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def is_of_package(words: Iterable[str]) -> bool:
    """Whether a command runs this package."""
    return any(Path(word).name == PROGRAM for word in words)


def own_faults(data: Mapping[str, Any], entry: Entry) -> Iterator[Fault]:
    """Why a parameter cannot be one of a run of this package.

    Args:
        data: The file.
        entry: The parameter.
    """
    command = data.get("command")
    words = [data.get("program"), *(command if isinstance(command, list) else ())]
    if not is_of_package(word for word in words if isinstance(word, str)):
        return
    if entry.name in RESERVED:
        yield (
            entry.place,
            (
                "the sweep decides it for each of its runs. Leave it out; the name of the sweep, --output-dir, "
                "--device, --gpu-list and num_gpus say it"
            ),
        )
    if entry.name == SPLIT:
        yield (
            entry.place,
            (
                "trials are compared on validation prompts, and the test split would no longer be held out. Leave "
                "it out: the best trial is evaluated on the test split at the end"
            ),
        )
    values = entry.right.get("values", [])
    if any(isinstance(each, int | float) for each in values) and _is_list(entry.name):
        lists = [each if each is None or isinstance(each, list) else [each] for each in values[:_SHOWN]]
        shown = json.dumps(lists, default=str)
        yield (
            (*entry.place, "values"),
            f"a trial is given one of these, and {entry.name} is a list: write `values: {shown}`",
        )
    if not _KEY.fullmatch(entry.name):
        yield (
            entry.place,
            (
                f"{brief(entry.name)} is no setting of {PROGRAM}, which is given its parameters as KEY=VALUE: "
                "letters, digits, '_', '.' and '-', beginning with a letter or '_'. Programs of your own may have "
                "any name"
            ),
        )


def _is_list(key: str) -> bool:
    """Whether a setting that ships is a list."""
    from pipeline.config.meaning import shipped_meanings  # what no sweep of another program has a use for

    meaning = shipped_meanings().get(key)
    return meaning is not None and meaning.type.startswith("list")
