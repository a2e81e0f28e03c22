"""What earlier runs measured of jobs, remembered beside the outputs: time and device memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.foreign import recall, remember
from pipeline.plan.durations import LONGEST_S, Durations, Seconds, Timed

DURATIONS = "durations.json"
PEAKS = ".hints/memory.json"
_MOST_MIB = 1 << 30
_Mebibytes = Annotated[int, Meta(ge=0, le=_MOST_MIB)]


def read_durations(store: Path) -> Durations:
    """What was measured of jobs and of loading; nothing where nothing was, or where it cannot be used."""
    # Only an estimate rests on this file: without it the algorithms' own rough figures are used.
    found = recall(store / DURATIONS, dict[str, Seconds | list[Timed]]) or {}
    return Durations(
        jobs={name: timed for name, timed in found.items() if isinstance(timed, list)},
        seconds={name: seconds for name, seconds in found.items() if not isinstance(seconds, list)},
    )


def update_durations(store: Path, measured: Durations) -> None:
    """Remember new measurements over older ones of the same name and size."""
    sound = Durations(
        jobs={
            name: kept
            for name, timed in measured.jobs.items()
            if (kept := [Timed(_brief(each.size_s), _brief(each.took_s)) for each in timed if _is_sound(each)])
        },
        seconds={name: _brief(value) for name, value in measured.seconds.items() if 0 <= value <= LONGEST_S},
    )
    if sound.jobs or sound.seconds:
        every = read_durations(store).updated(sound)
        jobs = {name: [asdict(each) for each in timed] for name, timed in every.jobs.items()}
        remember(store / DURATIONS, {**every.seconds, **jobs})


def _is_sound(timed: Timed) -> bool:
    return 0 <= timed.size_s <= LONGEST_S and 0 <= timed.took_s <= LONGEST_S


def _brief(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def read_peaks(store: Path) -> dict[str, int]:
    """MiB by `Job.memory_kind`; empty where nothing was measured or the file cannot be used."""
    # Only placement rests on this file: without it jobs are measured again.
    return recall(store / PEAKS, dict[str, _Mebibytes]) or {}


def update_peaks(store: Path, measured: Mapping[str, int]) -> None:
    """Remember new measurements over older ones of the same name."""
    kept = {name: peak for name, peak in measured.items() if 0 <= peak <= _MOST_MIB}
    if kept:
        remember(store / PEAKS, {**read_peaks(store), **kept})
