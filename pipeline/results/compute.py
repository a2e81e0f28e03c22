"""What results took to make, as the store remembers it: tokens and device time by chain and round.

Device time depends on the machine, so none of this is in ``results.json``; it goes to ``compute.json``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.plan.job import Job
from pipeline.results.paths import json_text, write_whole
from pipeline.results.store import Store

FILE = "compute.json"
EVALUATION = ("evaluate", "metrics")
_Amount = Annotated[float, Meta(ge=0, le=1e18)]

log = logging.getLogger("pipeline")


@dataclass(frozen=True, order=True)
class ComputeRow:
    """What the stages of one round of a chain took.

    Attributes:
        dataset: Name of the dataset.
        model: Name of the model.
        reference: Seed of the reference that the chain rests on; None where there is no such seed.
        algo: Algorithm, ``reference``, or ``dataset`` for its preparation.
        seed: Seed of the chain; None for work that all seeds share.
        round: Of the chain.
        stage: Of the round.
        tokens: Generated or trained on.
        device_s: Seconds that a device was held, loading included, without attempts that failed; a job on several
            devices holds all of them, and one that shares a device counts as if it did not.
        load_s: Seconds of them spent loading.
    """

    dataset: str
    model: str
    reference: int | None = field(default=None, kw_only=True)
    algo: str
    seed: int | None
    round: int
    stage: str
    tokens: Annotated[int, Meta(ge=0, le=10**18)]
    device_s: _Amount
    load_s: _Amount


@dataclass(frozen=True, kw_only=True)
class _Table:
    rows: list[ComputeRow]


def collect_compute(store: Store, jobs: Iterable[Job]) -> list[ComputeRow]:
    """Add up the shards of every stage whose outputs are stored."""
    sums: dict[tuple[int | None, tuple[str, str, str, int | None, int, str]], list[float]] = {}
    for job in jobs:
        cost = store.cost(job.key)
        if not cost or not store.has(job.key, checksums=False):
            continue  # an interrupted run
        where = (job.dataset, job.model, job.algo, job.seed, job.round, job.stage)
        total = sums.setdefault((job.reference, where), [0, 0.0, 0.0])
        for place, name in enumerate(("tokens", "run_s", "load_s")):
            total[place] += cost.get(name, 0) * (1 if name == "tokens" else job.devices)
    rows = [
        ComputeRow(*where, int(tokens), round(run_s, 3), round(load_s, 3), reference=reference)
        for (reference, where), (tokens, run_s, load_s) in sums.items()
    ]
    return sorted(rows, key=lambda row: tuple(str(value) for value in asdict(row).values()))


def write_compute(folder: Path, rows: Iterable[ComputeRow]) -> None:
    """Write ``compute.json`` to the folder of a run."""
    write_whole(folder / FILE, json_text({"rows": [asdict(row) for row in rows]}, indent=1) + "\n")


def read_compute(folder: Path) -> list[ComputeRow]:
    """Read ``compute.json`` of a run; empty where it has none that can be used, as it is for people only."""
    path = folder / FILE
    try:
        return read_json_file(path, _Table, follow=True).rows
    except FileNotFoundError:
        return []
    except (ForeignDataError, OSError) as error:
        log.warning("%s is passed over: %s", path, error)
        return []
