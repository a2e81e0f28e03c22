"""Runs on disk that no engine has carried out: a plan and a journal, written line by line."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.plan.graph import Job, Plan, result_key
from pipeline.plan.recorded import plan_text

START = 1_767_300_000.0
"""When they begin, in wall-clock seconds."""
WHERE: dict[str, Any] = {"dataset": "d", "model": "m", "seed": 0, "algo": "X"}
CHAIN = "d/m/s0/X"


def chain_plan(rounds: int = 2, eta: float = 1.0, version: int = 1) -> Plan:
    """Two generate shards and a train job a round; the next round reads the train job."""
    jobs: list[Job] = []
    edges: list[tuple[str, str]] = []
    config = {"algo": {"eta": eta}, "generation": {"top_p": 1.0, "batch_size": 8}}
    for number in range(1, rounds + 1):
        before = f"{CHAIN}/r{number - 1}/train"
        shards = [f"{CHAIN}/r{number}/generate/{shard:03d}" for shard in range(2)]
        keys = {job.id: job.key for job in jobs}
        for shard, name in enumerate(shards):
            inputs: dict[str, tuple[str, ...]] = {"train@previous": (keys[before],)} if before in keys else {}
            jobs.append(
                _job(name, number, "generate", inputs, version, {"generation": config["generation"]}, shard)
            )
            edges += [(before, name)] if before in keys else []
        inputs = {"generate": tuple(job.key for job in jobs[-2:])}
        train = f"{CHAIN}/r{number}/train"
        jobs.append(_job(train, number, "train", inputs, version, config, None))
        edges += [(name, train) for name in shards]
    return Plan(jobs, edges)


def _job(
    name: str,
    number: int,
    stage: str,
    inputs: dict[str, tuple[str, ...]],
    version: int,
    config: dict[str, Any],
    shard: int | None,
) -> Job:
    rows = [0, 0] if shard is None else [shard * 10, shard * 10 + 10]
    determined_by = {
        "algo": "X",
        "class_path": None,
        "round": number,
        "stage": stage,
        "rows": rows,
        "version": version,
        "config": config,
    }
    return Job(
        id=name,
        key=result_key({**determined_by, "inputs": inputs}),
        entry="m:f",
        payload={**determined_by, "samples": 3},
        inputs=inputs,
        determined_by=determined_by,
        round=number,
        stage=stage,
        shard=shard,
        **WHERE,
    )


class WrittenRun:
    """A run folder whose journal a test writes; a second passes with each event."""

    def __init__(
        self,
        output_dir: Path,
        plan: Plan,
        stamp: str = "2026-01-02_10-00-00",
        name: str = "x",
        stored: Sequence[str] = (),
    ) -> None:
        self.folder = RunFolder(output_dir / name / stamp)
        self.folder.path.mkdir(parents=True)
        latest = output_dir / name / "latest"
        latest.unlink(missing_ok=True)
        latest.symlink_to(stamp)
        self.plan, self.now = plan, START
        self.folder.plan.write_text(plan_text(plan, stored))
        self.folder.config.write_text("execution:\n  store: null\n")
        self.folder.log.write_text("engine's first line\nengine's last line\n")
        self.folder.journal.touch()
        self.write(
            "RunStarted", jobs=len(plan.jobs), unsettled=len(plan.jobs) - len(stored), pid=1, host="nowhere"
        )

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        with self.folder.journal.open("a") as file:
            file.write(json.dumps({"event": event, "time": self.now, **fields}) + "\n")
        self.now += 1

    def worker(self, index: int, device: str) -> None:
        """A worker is ready."""
        self.write("WorkerStarted", worker=index, pid=100 + index, device=device)

    def store(self, key: str, **files: str) -> Path:
        """Put an output where its store has it; names of files with an underscore for their dot."""
        folder = Store(self.folder.path.parent.parent / ".store").path(key)
        folder.mkdir(parents=True)
        for name, text in {"manifest_json": "{}", **files}.items():
            (folder / name.replace("_", ".")).write_text(text)
        return folder

    def begin(self, job: str, attempt: int = 1, worker: int = 0, log: str | None = "") -> None:
        """An attempt begins, and has a log."""
        if log is not None:
            path = self.folder.job(job) / ("log.txt" if attempt == 1 else f"log.{attempt}.txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(log)
        self.write("JobStarted", job=job, attempt=attempt, worker=worker)

    def finish(self, job: str, attempt: int = 1, worker: int = 0) -> None:
        """An attempt ends well."""
        self.write(
            "JobFinished", job=job, attempt=attempt, worker=worker, load_s=0.1, run_s=2.5, samples=3, tokens=9
        )

    def fail_attempt(
        self, job: str, kind: str, reason: str, *, retry: bool, attempt: int = 1, worker: int = 0
    ) -> None:
        """An attempt fails."""
        self.write(
            "AttemptFailed",
            job=job,
            attempt=attempt,
            worker=worker,
            device="gpu 7",
            kind=kind,
            reason=reason,
            exit_code=-9 if kind == "lost" else None,
            log="",
            traceback="",
            retry=retry,
            wait_s=2.0 if retry else 0.0,
        )

    def end(self, interrupted: str | None = None, **counts: int) -> None:
        """The run is over."""
        self.write("RunFinished", interrupted=interrupted, **counts)
