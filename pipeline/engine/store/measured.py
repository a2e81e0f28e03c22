"""What earlier runs measured of jobs, remembered beside the store: how long they took, how much device memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.hints import recall, remember

DURATIONS = "durations.json"
PEAKS = ".hints/memory.json"
_LONGEST_S = 1e7
_MOST_MIB = 1 << 30
_Seconds = Annotated[float, Meta(ge=0, le=_LONGEST_S)]
_Mebibytes = Annotated[int, Meta(ge=0, le=_MOST_MIB)]


def read_durations(store: Path) -> dict[str, float]:
    """Seconds by name: per sample of a job, or of loading; empty where nothing was measured or can be used."""
    # Only an estimate rests on this file: without it the algorithms' own rough figures are used.
    return recall(store / DURATIONS, dict[str, _Seconds]) or {}


def update_durations(store: Path, measured: Mapping[str, float]) -> None:
    """Remember new measurements over older ones of the same name."""
    kept = {name: float(f"{value:.4g}") for name, value in measured.items() if 0 <= value <= _LONGEST_S}
    if kept:
        remember(store / DURATIONS, {**read_durations(store), **kept})


def read_peaks(store: Path) -> dict[str, int]:
    """MiB by `Job.memory_kind`; empty where nothing was measured or the file cannot be used."""
    # Only placement rests on this file: without it jobs are measured again.
    return recall(store / PEAKS, dict[str, _Mebibytes]) or {}


def update_peaks(store: Path, measured: Mapping[str, int]) -> None:
    """Remember new measurements over older ones of the same name."""
    kept = {name: peak for name, peak in measured.items() if 0 <= peak <= _MOST_MIB}
    if kept:
        remember(store / PEAKS, {**read_peaks(store), **kept})
