"""Which settings are tried next, and which trials are not worth their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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
