"""Telling a sweep to stop, to be given up, to pause, or to go on: its agents read it from the journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from pipeline.errors import ConfigError
from pipeline.runs.report.format import count
from pipeline.sweeps.agents import turn
from pipeline.sweeps.agents.owner import note_lost
from pipeline.sweeps.folder import SweepFolder
from pipeline.sweeps.record import Record
from pipeline.sweeps.trials import Trial, TrialState


class SweepOrder(Enum):
    """What a sweep is told."""

    stop = "SweepStopped"
    cancel = "SweepCancelled"
    pause = "SweepPaused"
    resume = "SweepResumed"


_HAS = {SweepOrder.stop: "stopped", SweepOrder.cancel: "cancelled", SweepOrder.pause: "paused"}


def tell(folder: SweepFolder, word: SweepOrder, say: Callable[[str], None] = lambda _text: None) -> str:
    """Write it to the journal.

    Args:
        folder: Of the sweep.
        word: What it is told.
        say: Told a line where an agent keeps the lock of the sweep for long.

    Returns:
        What follows, for the user.

    Raises:
        ConfigError: It makes no sense now.
        StoreError: The journal cannot be written.
    """
    record = Record(folder, say)
    with record.turn():
        note_lost(record)
        _refuse_needless(record, word)
        record.write(word.value, **({} if word is SweepOrder.resume else {"reason": "asked for"}))
    return _what_follows(record, word)


def _refuse_needless(record: Record, word: SweepOrder) -> None:
    name, halted = record.name, record.view.halted
    running = record.view.having(TrialState.running)
    if word is SweepOrder.resume:
        if not halted:
            raise ConfigError(f"sweep {name} is neither paused nor stopped: there is nothing to resume")
        if halted == "finished" and not _something_is_left(record):
            raise ConfigError(
                f"sweep {name} is finished{_because(record)}: nothing is left to try. Where its search has "
                "more, `python -m pipeline sweep run FILE` goes on with a higher run_cap, a higher --count where "
                "there is none, or another target"
            )
        return
    if word is SweepOrder.stop and halted == "stopped" and running:
        raise ConfigError(
            f"sweep {name} is stopping already: {_go_on(running)}. `python -m pipeline sweep cancel {name}` ends "
            "what runs now"
        )
    if halted == "finished" or halted == _HAS[word]:
        raise ConfigError(f"sweep {name} is {halted} already{_because(record)}")
    if word is SweepOrder.pause and halted:
        raise ConfigError(f"sweep {name} is {halted}: there is nothing to pause")


def _because(record: Record) -> str:
    return f" ({record.view.reason})" if record.view.reason else ""


def _something_is_left(record: Record) -> bool:
    """Whether a finished sweep has something to go on with: what has failed, or more trials than there were."""
    view, asked = record.view, record.asked
    if asked is None or turn.reached(view, asked.metric):
        return False
    if view.having(TrialState.waiting, TrialState.lost, TrialState.failed, TrialState.cancelled):
        return True
    return record.most is None or len(view.trials) < record.most


def _go_on(running: Sequence[Trial]) -> str:
    ends = "goes on to its end" if len(running) == 1 else "go on to their end"
    return f"{count(len(running), 'trial')} under way {ends}"


def _what_follows(record: Record, word: SweepOrder) -> str:
    name, running = record.name, record.view.having(TrialState.running)
    go_on = f"; {_go_on(running)}" if running else ""
    ended = f"; {count(len(running), 'trial')} under way {'is' if len(running) == 1 else 'are'} ended"
    joins = f", once an agent works on it: `python -m pipeline sweep agent {name}`"
    return {
        SweepOrder.stop: f"sweep {name} begins no more trials{go_on}",
        SweepOrder.cancel: f"sweep {name} is given up{ended if running else ''}",
        SweepOrder.pause: f"sweep {name} begins no more trials until it is resumed{go_on}",
        SweepOrder.resume: f"sweep {name} goes on{'' if record.view.agents else joins}",
    }[word]
