"""What a GPU does with this package, beside what an H200 did or should do: a table, and a JSON to send.

    python -m benchmarks.gpu                                  # all of it, some 25 minutes on an H200
    python -m benchmarks.gpu decoding training --json out.json
    python -m benchmarks.gpu --device cpu --tiny              # that it runs; its figures mean nothing

Models have random weights in the shapes of Llama (8B, 1B) and SmolLM2 (135M); nothing is downloaded. Predictions
are for one H200: what it did (docs/gpus.md), or what is likely by sources and launches where that was not asked.
An experiment that fails or does not fit says so in its row, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import pipeline
from benchmarks.gpu_decoding import DECODING
from benchmarks.gpu_measures import Bench, Experiment, Figure
from benchmarks.gpu_training import TRAINING
from pipeline.engine.devices.inventory import FIXED, ON_GPUS

EXPERIMENTS: dict[str, Experiment] = {**DECODING, **TRAINING}
WIDTH = 140


def measured(name: str, bench: Bench) -> list[Figure]:
    """What an experiment finds, and how long it took; what it raises is a row."""
    start = time.perf_counter()
    try:
        found = EXPERIMENTS[name](bench)
    except Exception as error:  # whatever it is: the others are to be measured all the same
        found = [Figure(name, f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}")]
    finally:
        bench.settle()
    return [*found, Figure("took", round(time.perf_counter() - start, 1), "s")]


def machine(device: str) -> dict[str, Any]:
    """What the figures are of."""
    about: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "pipeline": pipeline.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "transformers")},
    }
    if device.startswith("cuda"):
        card = torch.cuda.get_device_properties(torch.device(device))
        libraries: Any = torch.backends
        cudnn = libraries.cudnn.version()
        about |= {"gpu": card.name, "gib": card.total_memory >> 30, "cuda": torch.version.cuda, "cudnn": cudnn}
    return about


def _commit() -> str | None:
    here = Path(__file__).parent
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def shown(results: dict[str, list[Figure]], about: dict[str, Any]) -> Table:
    """All figures, each with what was predicted of a GPU."""
    on_gpu = "gpu" in about
    title = ", ".join(str(about[name]) for name in ("gpu", "torch", "commit", "date") if about.get(name))
    table = Table("experiment", "figure", "measured", *(("predicted", "") if on_gpu else ()), title=title)
    for name, figures in results.items():
        for place, figure in enumerate(figures):
            expected = (figure.predicted, figure.verdict) if on_gpu else ()
            table.add_row("" if place else name, figure.name, figure.text, *expected)
    return table


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="experiment", help=f"of {', '.join(EXPERIMENTS)}; all if none")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="shapes so small that all of it runs on a CPU")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="where to write the figures")
    given = parser.parse_args(words)
    if unknown := sorted(set(given.names) - EXPERIMENTS.keys()):
        parser.error(f"there is no experiment {', '.join(unknown)}. There are {', '.join(EXPERIMENTS)}")
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch sees no GPU here. --device cpu --tiny runs all of it on a CPU, to see that it runs")
    if given.device.startswith("cuda"):
        for name, value in {**FIXED, **ON_GPUS}.items():
            os.environ.setdefault(name, value)  # as workers have it, and before CUDA begins
    bench, about = Bench(given.device, tiny=given.tiny), machine(given.device)
    console, results = Console(width=max(WIDTH, Console().width)), dict[str, list[Figure]]()
    for name in given.names or EXPERIMENTS:
        console.print(f"{name} ...", highlight=False)
        results[name] = measured(name, bench)
        # Written after each, so that a crash of the driver leaves what there is.
        whole = {
            "about": about,
            "tiny": given.tiny,
            "results": {at: list(map(asdict, of)) for at, of in results.items()},
        }
        given.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    console.print(shown(results, about))
    asked = "please send them with an issue" if "gpu" in about else "of a CPU, so they say nothing of a GPU"
    console.print(f"Figures are in {given.json}; {asked}.", highlight=False)


if __name__ == "__main__":
    main()
