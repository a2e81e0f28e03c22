"""How long jobs took, remembered beside the store: orders the next plan and estimates its time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pipeline.results.paths import write_whole


def read_durations(store: Path) -> dict[str, float]:
    """Seconds per sample by name; empty where nothing was measured or the file cannot be read."""
    try:
        loaded = json.loads((store / "durations.json").read_bytes())
        return {str(name): float(value) for name, value in loaded.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        # Only an estimate rests on this file: without it the algorithms' own rough figures are used.
        return {}


def update_durations(store: Path, measured: Mapping[str, float]) -> None:
    """Remember new measurements over older ones of the same name."""
    if measured:
        merged = {
            **read_durations(store),
            **{name: float(f"{value:.4g}") for name, value in measured.items()},
        }
        write_whole(store / "durations.json", json.dumps(merged, indent=1, sort_keys=True) + "\n")
