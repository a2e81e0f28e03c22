"""How long a sweep will still take, as far as its trials so far tell. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from pipeline.sweeps.trials import Trial, TrialState

_ENDED = (TrialState.done, TrialState.stopped)
_GIVEN_UP = (TrialState.failed, TrialState.cancelled)


def remaining_s(trials: Sequence[Trial], most: int | None, now: float) -> float | None:
    """Seconds until so many trials have ended, if those to come take as long and as many run at the same time.

    Args:
        trials: All so far.
        most: How many there will be; None where nobody knows.
        now: Seconds since 1970.

    Returns:
        None where nothing tells: none has ended, none runs, or nobody knows how many there will be.
    """
    taken = [
        trial.ended - trial.started
        for trial in trials
        if trial.state in _ENDED and trial.started is not None and trial.ended is not None
    ]
    running = [
        now - trial.started for trial in trials if trial.state is TrialState.running and trial.started is not None
    ]
    if most is None or not taken or not running:
        return None
    each = fmean(taken)
    settled = sum(trial.state in (*_ENDED, *_GIVEN_UP) for trial in trials)
    already = sum(min(each, max(0.0, so_far)) for so_far in running)
    return max(0.0, each * (most - settled) - already) / len(running)
