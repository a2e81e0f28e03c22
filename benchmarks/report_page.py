"""What the page of a large run takes: 5,410 jobs on 8 devices, 101,136 completions of 150 tokens, 301 trainings.

    python benchmarks/report_page.py             writes the run and its page, and opens it in a Chromium
    python benchmarks/report_page.py --out DIR   keeps the run and the page there

The run is made up; the page is written as `python -m pipeline report` does, and opened as a user does.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pipeline.commands.results import write_report
from pipeline.engine.store.store import Store
from pipeline.outputs.formats import TrainingStep, write_curve
from pipeline.plan.graph import Job, Plan
from tests.doubles.browser import CHROMIUM, browser
from tests.doubles.runs import WrittenRun

METHODS, SEEDS, ROUNDS, SHARDS, DEVICES = 20, 3, 5, 8, 8
COMPLETIONS, WORDS_EACH, STEPS = 42, 130, 400
"""Of a shard, of a completion, and of a training."""
OPENINGS = 5
SECONDS = {"generate": 20.0, "train": 240.0, "evaluate": 12.0, "metrics": 2.0}
WORDS = ["the", "value", "of", "policies", "is", "what", "they", "earn", "when", "nobody", "looks"]


def jobs(rng: random.Random) -> Iterator[Job]:
    """The jobs of the run, in the order in which they run."""
    chains: list[tuple[str, int | None, int]] = [("reference", None, 0)]
    chains += [
        (f"Method{at:02d}", seed, turn)
        for turn in range(1, ROUNDS + 1)
        for at in range(METHODS)
        for seed in range(SEEDS)
    ]
    for algo, seed, turn in chains:
        for stage in SECONDS:
            if stage == "generate" and turn == 0:
                continue
            for shard in range(SHARDS) if stage in ("generate", "evaluate") else [None]:
                yield _job(rng, algo, seed, turn, stage, shard)


def _job(rng: random.Random, algo: str, seed: int | None, turn: int, stage: str, shard: int | None) -> Job:
    chain = "math/qwen/reference" if seed is None else f"math/qwen/s{seed}/{algo}/r{turn}"
    place: dict[str, Any] = {"algo": algo, "dataset": "math", "model": "qwen", "seed": seed, "round": turn}
    return Job(
        id=f"{chain}/{stage}" + ("" if shard is None else f"/{shard:03d}"),
        key=f"{rng.getrandbits(160):040x}",
        entry="m:f",
        payload={},
        stage=stage,
        shard=shard,
        samples=COMPLETIONS,
        **place,
    )


def write_outputs(job: Job, folder: Path, rng: random.Random) -> None:
    """What a job of its stage leaves in the store."""
    number = 0 if job.algo == "reference" else int(job.algo.removeprefix("Method"))
    skill = 0.3 + 0.03 * number * (1 - math.exp(-job.round / 2))
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    if job.stage == "evaluate":
        lines = (json.dumps(_sample(job, at, skill, rng)) + "\n" for at in range(COMPLETIONS))
        (folder / "samples.jsonl").write_text("".join(lines))
    elif job.stage == "metrics":
        kl = 0.4 * job.round * (1 + number / 20)
        found = {"reward": skill, "kl_per_sequence": kl, "regularized_reward": skill - 0.1 * kl}
        rows = [_row(name, value + rng.gauss(0, 0.01)) for name, value in found.items()]
        (folder / "metrics.json").write_text(json.dumps({"rows": rows}))
    elif job.stage == "train":
        write_curve(folder, (_step(at, number, rng) for at in range(STEPS)))


def _row(name: str, value: float) -> dict[str, Any]:
    return {"metric": name, "value": value, "ci_low": value - 0.02, "ci_high": value + 0.02, "n": 168}


def _sample(job: Job, at: int, skill: float, rng: random.Random) -> dict[str, Any]:
    row = (job.shard or 0) * COMPLETIONS + at // 2
    text = {"prompt": f"Prompt {row}", "completion": " ".join(rng.choice(WORDS) for _ in range(WORDS_EACH))}
    judged = {"reward": round(min(1.0, max(0.0, rng.gauss(skill, 0.2))), 4), "correct": None, "kl": 1.0}
    return {"row": row, "sample": at % 2, **text, "tokens": 150, **judged, "truncated": False}


def _step(at: int, number: int, rng: random.Random) -> TrainingStep:
    return TrainingStep(
        training="policy",
        step=at + 1,
        steps=STEPS,
        tokens=4000 * (at + 1),
        loss=2 * math.exp(-at / 100) + 0.02 * number + 0.1 * rng.random(),
        grad_norm=1 + rng.random(),
        learning_rate=1e-5 * (1 - at / STEPS),
        extra={"accuracy": 0.5 + at / 1000},
    )


def write_run(output_dir: Path, rng: random.Random) -> WrittenRun:
    """The folder of the run, and its outputs in the store."""
    plan = Plan(list(jobs(rng)), [])
    run, store = WrittenRun(output_dir, plan, name="large"), Store(output_dir / ".store")
    for index in range(DEVICES):
        run.worker(index, f"GPU {index}")
    free = [run.now] * DEVICES
    events: list[dict[str, Any]] = []
    for job in plan.jobs.values():
        worker = min(range(DEVICES), key=free.__getitem__)
        begin = free[worker] + (40 * rng.random() if rng.random() < 0.02 else 0.2)
        free[worker] = begin + SECONDS[job.stage] * (0.7 + 0.6 * rng.random())
        told = {"job": job.id, "attempt": 1, "worker": worker}
        events += [
            {"event": "JobStarted", "time": begin, **told},
            {"event": "JobFinished", "time": free[worker], **told},
        ]
        write_outputs(job, store.path(job.key), rng)
    events.sort(key=lambda event: event["time"])
    with run.folder.journal.open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
    run.now = max(free)
    run.write("RunFinished", interrupted=None, stored=0, done=len(plan.jobs))
    return run


def open_page(path: Path, scratch: Path) -> float:
    """Seconds from asking a browser for the page to all of it being there."""
    with browser(scratch) as tab:
        began = time.monotonic()
        tab.open(path)
        took = time.monotonic() - began
        assert tab.complaints == [], tab.complaints
        return took


def main() -> None:
    """Write, open, and print what that took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_run(asked.out or Path(scratch) / "outputs", random.Random(0)).folder
        began = time.process_time()
        write_report(folder.report, [folder])
        took, size = time.process_time() - began, folder.report.stat().st_size / 1e6
        print(f"written: {size:.1f} MB, {took:.1f} s of a processor")
        if CHROMIUM is None:
            print("opened: there is no Chromium here")
        else:
            times = [open_page(folder.report, Path(scratch) / f"browser{turn}") for turn in range(OPENINGS)]
            print(f"opened: {min(times):.1f} s, the best of {OPENINGS}")


if __name__ == "__main__":
    main()
