"""How far a grid of atoms is off where it is used at another strength than it was made for.

A label on [0, 1] is split between the two atoms beside it so that ``E[exp(rate * label)]`` is kept, the rate
being the width of the range of rewards over eta (`learning.training.losses.atom_weights`). At another rate what is
kept is not what is asked for. The error for any distribution of rewards is at most that for the worst single
reward.
"""

from __future__ import annotations

import math

MOST_GRID_ERROR = 0.1
"""Nats: odds that are off by a tenth, less than by what two fits of one value model differ."""
LARGEST_ATOMS = 10_000
SMALLEST_STEP = 1e-6
"""Rate times the distance of atoms: below it, keeping the mean is the same, and the split would lose digits."""
_PLACES = 64
"""Places between two atoms that are looked at."""


def grid_error(count: int, rate: float, other: float) -> float:
    """The largest error of ``log E[exp(other * label)]``, in nats.

    Args:
        count: Atoms, at least 2.
        rate: What labels were split for.
        other: What is asked for.
    """
    made, asked = rate / (count - 1), other / (count - 1)
    return max(_error(place / _PLACES, made, asked) for place in range(1, _PLACES))


def least_atoms(rate: float, other: float) -> int | None:
    """The smallest number of atoms with which no error is larger; None where there is no such number."""
    if grid_error(LARGEST_ATOMS, rate, other) > MOST_GRID_ERROR:
        return None
    low, high = 2, LARGEST_ATOMS
    while low < high:  # the error falls with the distance of atoms
        middle = (low + high) // 2
        low, high = (middle + 1, high) if grid_error(middle, rate, other) > MOST_GRID_ERROR else (low, middle)
    return low


def _error(share: float, made: float, asked: float) -> float:
    upper = _split(share, made)
    # log(1 - upper + upper * exp(asked)), which cannot overflow in this form.
    found = asked + math.log(upper + (1 - upper) * math.exp(-asked))
    return abs(found - share * asked)


def _split(share: float, step: float) -> float:
    if step < SMALLEST_STEP:
        return share
    return math.exp((share - 1) * step) * math.expm1(-share * step) / math.expm1(-step)
