"""How long jobs took, remembered beside the store: orders the next plan and estimates its time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.hints import recall, remember

_LONGEST_S = 1e7
_Seconds = Annotated[float, Meta(ge=0, le=_LONGEST_S)]


def read_durations(store: Path) -> dict[str, float]:
    """Seconds by name: per sample of a job, or of loading; empty where nothing was measured or can be used."""
    # Only an estimate rests on this file: without it the algorithms' own rough figures are used.
    return recall(store / "durations.json", dict[str, _Seconds]) or {}


def update_durations(store: Path, measured: Mapping[str, float]) -> None:
    """Remember new measurements over older ones of the same name."""
    kept = {name: float(f"{value:.4g}") for name, value in measured.items() if 0 <= value <= _LONGEST_S}
    if kept:
        remember(store / "durations.json", {**read_durations(store), **kept})
