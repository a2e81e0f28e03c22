"""The sweep as W&B is given it: the file without what only this program knows, and without what W&B misreads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pipeline.sweeps.reading.parameters import DEPRECATED
from pipeline.sweeps.reading.schema import kind_of
from pipeline.sweeps.spec import Sweep

Given = Mapping[str, Any]


def wandb_config(sweep: Sweep) -> dict[str, Any]:
    """What ``wandb.sweep`` takes, with the name of the sweep and the settings of the command line.

    Numbers are numbers, and the distribution of every range is named, as W&B refuses one from a whole number to
    another kind. Distributions that W&B has given up, whose bounds are exponents, are those that took their place.

    Args:
        sweep: The sweep.
    """
    found = {"name": sweep.name, **sweep.given, "parameters": _block(sweep.given["parameters"])}
    if "metric" in found:
        found["metric"] = _metric(found["metric"])
    return found


def _metric(block: Given) -> dict[str, Any]:
    """W&B has the text ``false`` where a file may say so in YAML."""
    return {key: "false" if value is False else value for key, value in block.items()}


def _block(block: Given) -> dict[str, Any]:
    return {name: _parameter(given) for name, given in block.items()}


def _parameter(given: Given) -> dict[str, Any]:
    kind = kind_of(given)
    if kind == "parameters":
        return {"parameters": _block(given["parameters"])}
    if kind in DEPRECATED:
        sign = -1 if kind.startswith("inv") else 1
        low, high = sorted(math.exp(sign * given[bound]) for bound in ("min", "max"))
        return {**given, "distribution": DEPRECATED[kind], "min": low, "max": high}
    return {**given, "distribution": kind} if "min" in given else dict(given)
