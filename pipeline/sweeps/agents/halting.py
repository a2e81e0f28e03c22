"""Telling a sweep to stop, to be given up, to pause, or to go on: its agents read it from the journal."""

from __future__ import annotations

from enum import Enum

from pipeline.errors import ConfigError
from pipeline.runs.report.format import count
from pipeline.sweeps.agents.owner import note_lost
from pipeline.sweeps.folder import SweepFolder
from pipeline.sweeps.record import Record
from pipeline.sweeps.trials import TrialState


class Word(Enum):
    """What a sweep is told."""

    stop = "SweepStopped"
    cancel = "SweepCancelled"
    pause = "SweepPaused"
    resume = "SweepResumed"


_HAS = {Word.stop: "stopped", Word.cancel: "cancelled", Word.pause: "paused"}


def tell(folder: SweepFolder, word: Word) -> str:
    """Write it to the journal.

    Returns:
        What follows, for the user.

    Raises:
        ConfigError: It makes no sense now.
        StoreError: The journal cannot be written.
    """
    record = Record(folder)
    with record.turn():
        note_lost(record)
        _refuse_needless(record, word)
        record.write(word.value, **({} if word is Word.resume else {"reason": "asked for"}))
    return _what_follows(record, word)


def _refuse_needless(record: Record, word: Word) -> None:
    name, halted = record.name, record.view.halted
    if word is Word.resume:
        if not halted:
            raise ConfigError(f"sweep {name} is neither paused nor stopped: there is nothing to resume")
        return
    if halted == "finished" or halted == _HAS[word]:
        raise ConfigError(
            f"sweep {name} is {halted} already" + (f": {record.view.reason}" if record.view.reason else "")
        )
    if word is Word.pause and halted:
        raise ConfigError(f"sweep {name} is {halted}: there is nothing to pause")


def _what_follows(record: Record, word: Word) -> str:
    running = count(len(record.view.having(TrialState.running)), "trial")
    joins = f", once an agent works on it: `python -m pipeline sweep agent {record.name}`"
    return {
        Word.stop: f"sweep {record.name} begins no more trials; {running} under way go on to their end",
        Word.cancel: f"sweep {record.name} is given up; {running} under way are ended",
        Word.pause: f"sweep {record.name} begins no more trials until it is resumed; {running} under way go on",
        Word.resume: f"sweep {record.name} goes on{'' if record.view.agents else joins}",
    }[word]
