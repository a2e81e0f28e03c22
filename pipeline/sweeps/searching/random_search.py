"""Random search: every value drawn by its distribution, by W&B's rule, and the same again for the same trial."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pipeline.sweeps.space import Parameter

_BITS = 52


def draw(parameters: Mapping[str, Parameter], seed: int, number: int) -> dict[str, Any]:
    """Parameters of a trial, by dotted name.

    A draw is a hash of seed, trial and name, so it depends neither on the trials before nor on other parameters.

    Args:
        parameters: Of the sweep.
        seed: Of the search.
        number: Of the trial.
    """
    return {
        name: parameter.distribution.at(share(f"{seed}/{number}/{name}")) for name, parameter in parameters.items()
    }


def share(text: str) -> float:
    """A number above 0 and below 1 that looks as if drawn at random."""
    drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - _BITS)
    return (drawn + 0.5) / (1 << _BITS)  # in the middle of its part, so never 0 or 1; see `LEAST_SHARE`
