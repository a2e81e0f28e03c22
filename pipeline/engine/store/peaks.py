"""How much device memory jobs took, remembered beside the store: lets later runs put several jobs on one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.hints import recall, remember

FILE = ".hints/memory.json"
_MOST_MIB = 1 << 30
_Mebibytes = Annotated[int, Meta(ge=0, le=_MOST_MIB)]


def read_peaks(store: Path) -> dict[str, int]:
    """MiB by `Job.memory_kind`; empty where nothing was measured or the file cannot be used."""
    # Only placement rests on this file: without it jobs are measured again.
    return recall(store / FILE, dict[str, _Mebibytes]) or {}


def update_peaks(store: Path, measured: Mapping[str, int]) -> None:
    """Remember new measurements over older ones of the same name."""
    kept = {name: peak for name, peak in measured.items() if 0 <= peak <= _MOST_MIB}
    if kept:
        remember(store / FILE, {**read_peaks(store), **kept})
