"""Which settings are tried next, and which trials are not worth their end."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pipeline.sweeps.space import Parameter
from pipeline.sweeps.trials import Trial


class Search(Protocol):
    """Chooses settings. It keeps nothing that cannot be made again from the trials so far.

    So whoever holds the sweep's lock can make one, ask it, and forget it, and a killed agent loses nothing.
    """

    def ask(self, trials: Sequence[Trial]) -> Mapping[str, Any] | None:
        """Parameters of the next new trial, by dotted name; None where there is none left.

        Args:
            trials: All that were chosen so far, in their order, whatever became of them.
        """
        ...

    def stops(self, trial: Trial, values: Mapping[int, Sequence[float]]) -> str | None:
        """Why a running trial is to be ended now; None to let it go on.

        Args:
            trial: The trial.
            values: Number of each trial -> what it has logged of the metric so far, in order.
        """
        ...


# -- random search -----------------------------------------------------------------------------------------------
# Random search: every value drawn by its distribution, by W&B's rule, and the same again for the same trial.


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
