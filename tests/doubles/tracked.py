"""A run with curves, results and samples, written job by job without an engine, for what trackers are told."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.engine.store.store import Store
from pipeline.outputs.formats import TrainingStep, write_curve
from pipeline.plan.graph import Job, Plan, result_key
from tests.doubles.runs import WrittenRun

CHAIN = "d/m/s0/X"
STEPS = 3
NASTY = "<script>alert(1)</script> | **b** \x1b[2J\u202e </td>\nnext line"


def job_id(number: int, stage: str) -> str:
    return f"{CHAIN}/r{number}/{stage}"


def plan(rounds: int = 2, eta: float = 1.0) -> Plan:
    """A train job and what measures it, in each round."""
    jobs: list[Job] = []
    config: dict[str, Any] = {
        "algo": {"eta": eta, "options": {}, "etas": [1, 2]},
        "training": {"grad_clip": float("inf")},
    }
    for number in range(1, rounds + 1):
        for stage in ("train", "metrics"):
            determined_by = {"round": number, "stage": stage, "config": config if stage == "train" else {}}
            inputs = {"before": (jobs[-1].key,)} if jobs else {}
            key = result_key({"config": repr(config), "round": number, "stage": stage, "inputs": inputs})
            where: dict[str, Any] = {"dataset": "d", "model": "m", "seed": 0, "algo": "X"}
            jobs.append(
                Job(
                    **where,
                    id=job_id(number, stage),
                    key=key,
                    entry="m:f",
                    payload={},
                    inputs=inputs,
                    determined_by=determined_by,
                    round=number,
                    stage=stage,
                )
            )
    return Plan(jobs, [(first.id, second.id) for first, second in pairwise(jobs)])


class TrackedRun(WrittenRun):
    """A run whose jobs get done one by one."""

    def __init__(self, output_dir: Path, **of_plan: Any) -> None:
        super().__init__(output_dir, plan(**of_plan))
        self.store = Store(output_dir / ".store")
        self.worker(0, "cpu 0")

    def make(self, number: int, stage: str, *, text: str = NASTY) -> None:
        """A job leaves its output, and the journal says so."""
        job = self.plan.jobs[job_id(number, stage)]
        folder = self.store.begin(self.store.scratch("t"), job.key, 1)
        if stage == "train":
            steps = [step(number, at) for at in range(1, STEPS + 1)]
            write_curve(folder, steps)
        else:
            self._measure(folder, number, text)
        self.store.commit(job.key, folder, {"job": job.id})
        self.store.costs.note(job.key, {"run_s": 2.0, "load_s": 0.5, "tokens": 60, "samples": 10})
        self.begin(job.id, log=None)
        self.finish(job.id)

    def make_round(self, number: int) -> None:
        self.make(number, "train")
        self.make(number, "metrics")

    def end(self) -> None:
        self.write("RunFinished", interrupted=None, done=len(self.plan.jobs))

    @staticmethod
    def _measure(folder: Path, number: int, text: str) -> None:
        row = {"metric": "pass@1", "value": number / 10, "ci_low": 0.0, "ci_high": 1.0, "n": 20}
        (folder / "metrics.json").write_text(json.dumps({"rows": [row, {**row, "metric": "odd", "value": None}]}))
        completions = [{"text": f"{text} {place}", "reward": 0.5, "correct": True} for place in range(2)]
        sample = {"row": 1, "prompt": text, "completions": completions}
        (folder / "samples.jsonl").write_text(f"{json.dumps(sample)}\n" * 3)


def step(number: int, at: int) -> TrainingStep:
    """A step of the training of a round; the loss tells which."""
    plain = TrainingStep(
        training="policy",
        step=at,
        steps=STEPS,
        tokens=100 * at,
        loss=number + at / 10,
        grad_norm=None,
        learning_rate=0.001,
    )
    return replace(plain, extra={"kl": 0.25})


def points(rounds: int = 2) -> dict[str, list[tuple[int, float]]]:
    """What a tracker has of the chain when it was told everything, each point once: name -> places and values."""
    losses = [(number, at) for number in range(1, rounds + 1) for at in range(1, STEPS + 1)]
    return {
        "train/policy/loss": [((number - 1) * STEPS + at, number + at / 10) for number, at in losses],
        "eval/pass@1": [(number, number / 10) for number in range(1, rounds + 1)],
        "time/train/tokens_per_s": [(number, 30.0) for number in range(1, rounds + 1)],
    }
