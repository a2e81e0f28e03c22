"""How much device memory jobs took, remembered beside the store: lets later runs put several jobs on one GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pipeline.results.paths import write_whole

FILE = ".hints/memory.json"


def read_peaks(store: Path) -> dict[str, int]:
    """MiB by `Job.memory_kind`; empty where nothing was measured or the file cannot be read."""
    try:
        loaded = json.loads((store / FILE).read_bytes())
        return {str(name): int(value) for name, value in loaded.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        # Only placement rests on this file: without it jobs are measured again.
        return {}


def update_peaks(store: Path, measured: Mapping[str, int]) -> None:
    """Remember new measurements over older ones of the same name."""
    if measured:
        merged = {**read_peaks(store), **measured}
        (store / FILE).parent.mkdir(parents=True, exist_ok=True)
        write_whole(store / FILE, json.dumps(merged, indent=1, sort_keys=True) + "\n")
