"""The first estimate of runs that are over against what they took: as if nothing had been timed before.

    python benchmarks/estimates.py outputs            # the runs below a folder, those that computed something

For each run the plan is made anew from its configuration without any measured duration, and its journal is
replayed: how long it is said to take at its begin, and which time left is told at a quarter, half and three
quarters.
Runs that had the machine for themselves are worth comparing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from rich.console import Console

from pipeline.config.load import config_from_plain
from pipeline.engine.journal import read_event, whole_lines
from pipeline.engine.run_folder import RunFolder
from pipeline.errors import PipelineError
from pipeline.files import open_plain
from pipeline.plan.build import build_plan
from pipeline.plan.graph import Plan
from pipeline.plan.models import count_weights, read_models, read_sources
from pipeline.runs.progress import LiveRun
from pipeline.runs.report.format import duration
from pipeline.terminal.columns import Column, FittedTable

PARTS = (0.0, 0.25, 0.5, 0.75)
LEAST_S = 20.0
"""Shorter runs are mostly loading."""


def main(given: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outputs", type=Path, help="folder of runs")
    outputs: Path = parser.parse_args(given).outputs
    if not outputs.is_dir():
        parser.error(f"argument outputs: there is no folder {outputs}")
    columns = [Column(heading="run"), *(Column(heading=each, right=True) for each in ("jobs", "took", "estimate"))]
    columns += [Column(heading=f"at {part:.0%}", right=True) for part in PARTS]
    table = FittedTable(columns, title="first estimate, and time left that was told / that was left")
    for folder in sorted(outputs.glob("*/*")):
        if not folder.is_symlink() and (folder / "journal.jsonl").is_file():
            for row in _row(RunFolder(folder)):
                table.add_row(*row)
    if not table.texts:
        parser.exit(1, f"no run in {outputs} is over, computed something and took {LEAST_S:g} s or more\n")
    Console(width=140).print(table)


def _row(folder: RunFolder) -> Iterator[tuple[str, ...]]:
    with open_plain(folder.journal) as file:
        events = [read_event(line) for line in whole_lines(file)]
    ran = {event["job"] for event in events if event["event"] == "JobFinished"}
    took_s = events[-1]["time"] - events[0]["time"]
    if not ran or took_s < LEAST_S or events[-1]["event"] != "RunFinished" or events[-1].get("interrupted"):
        return
    try:
        plan = _plan(folder)
    except (PipelineError, OSError) as error:
        print(f"{folder.path}: {error}")
        return
    if not ran <= set(plan.jobs):
        print(f"{folder.path}: planned otherwise now")
        return
    told = _replay(plan, events, ran)
    ratios = [f"{told[part] / max(took_s * (1 - part), 1e-9):.2f}" for part in PARTS]
    yield f"{folder.experiment} {folder.stamp}", str(len(ran)), duration(took_s), duration(told[0.0]), *ratios


def _plan(folder: RunFolder) -> Plan:
    config = config_from_plain(yaml.safe_load(folder.config.read_text()))
    weights = {name: count_weights(model) for name, model in config.models.items()}
    return build_plan(config, None, read_sources(config), read_models(config), weights=weights)


def _replay(plan: Plan, events: list[dict[str, object]], ran: set[str]) -> dict[float, float]:
    """Seconds left as the live view would have told them, at parts of the run's time."""
    workers = {event["worker"] for event in events if event["event"] == "WorkerStarted"}
    live = LiveRun(plan, set(plan.jobs) - ran, workers=len(workers))
    times = [float(str(event["time"])) for event in events]
    moments = {times[0] + part * (times[-1] - times[0]): part for part in PARTS}
    told, waiting = {}, list(events)
    for moment, part in sorted(moments.items()):
        while waiting and float(str(waiting[0]["time"])) <= moment:
            event = waiting.pop(0)
            live.take(event)
            live.tick(float(str(event["time"])))
        live.tick(moment)
        told[part] = live.remaining_s
    return told


if __name__ == "__main__":
    main()
