"""A run loaded from its folder: whole, going on, killed, damaged."""

import fcntl
import io
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.schema import Keep
from pipeline.engine.keeper import remove_weights
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError, PipelineError, PlanError
from pipeline.files import json_text, lock
from pipeline.plan.graph import Job, Plan
from pipeline.plan.recorded import plan_text
from pipeline.runs.loaded import LoadedRun, choose_run, find_job, load
from pipeline.runs.origin import Origin, write_origin
from pipeline.runs.report.status import explain_job, print_run
from pipeline.runs.trained import Trained
from pipeline.terminal.console import Terminal
from tests.doubles.composing import quick_config
from tests.doubles.engine import job, plan_of
from tests.doubles.runs import CHAIN, START, WHERE, WrittenRun, chain_plan


def evaluated() -> Plan:
    """A round that was evaluated in two shards, and measured."""
    place = {**WHERE, "round": 1, "entry": "m:f", "payload": {}}
    jobs = [
        Job(id=f"{CHAIN}/r1/{name}", key=sign * 40, stage=stage, **place)
        for name, stage, sign in (
            ("evaluate/000", "evaluate", "a"),
            ("evaluate/001", "evaluate", "b"),
            ("metrics", "metrics", "c"),
        )
    ]
    return Plan(jobs, [(jobs[0].id, jobs[2].id), (jobs[1].id, jobs[2].id)])


def sample(row: int, completion: str) -> str:
    fields = {"row": row, "sample": 0, "prompt": "p", "completion": completion, "tokens": 2, "reward": 1.0}
    return json_text({**fields, "correct": True, "kl": 0.5, "truncated": False}) + "\n"


def measured(value: float) -> str:
    row = {"metric": "pass@1", "value": value, "ci_low": 0.1, "ci_high": 0.9, "n": 4}
    return json_text({"rows": [row]})


def test_a_run_that_goes_on_has_the_results_of_what_is_stored_so_far(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, evaluated())
    loaded = load(run.folder)
    assert loaded.results.rows == []
    run.store("c" * 40, metrics_json=measured(0.5), samples_jsonl='{"row": 1}\n')
    loaded.refresh()
    assert [(row.algo, row.round, row.value) for row in loaded.results.rows] == [("X", 1, 0.5)]
    assert [(row.metric, row.value) for row in loaded.results.pooled] == [("pass@1", 0.5)]
    assert [row.stage for row in loaded.compute.rows] == ["metrics"]
    assert not list(loaded.samples())
    run.store("b" * 40, samples_jsonl=sample(7, "yes") + sample(8, "no"))
    run.store("a" * 40, samples_jsonl=sample(1, "first"))
    found = [(job.shard, job.id[-3:], one.row, one.completion) for job, one in loaded.samples()]
    assert found == [(None, "000", 1, "first"), (None, "001", 7, "yes"), (None, "001", 8, "no")]


def test_a_part_of_the_samples_has_all_of_those_to_each_prompt(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, evaluated())
    run.store("a" * 40, samples_jsonl="".join(sample(row, "x") for row in (1, 1, 2, 2, 2, 3)))
    run.store("b" * 40, samples_jsonl=sample(4, "x"))
    loaded = load(run.folder)
    assert [one.row for _, one in loaded.samples(most_each=3)] == [1, 1, 2, 2, 2, 4]
    assert [one.row for _, one in loaded.samples(most_each=2)] == [1, 1, 4]


def test_the_timeline_has_a_span_for_every_device_that_a_job_takes(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan(rounds=1))
    run.worker(0, "GPU 0")
    run.worker(1, "GPU 1")
    shard = f"{CHAIN}/r1/generate/000"
    run.write("JobStarted", job=shard, attempt=1, worker=1, members=[0])
    run.fail_attempt(shard, "lost", "gone", retry=True, worker=1)
    run.begin(shard, attempt=2)
    loaded = load(run.folder)
    with run.folder.journal.open() as engine:  # which lives as long as it holds its journal
        lock(engine.fileno(), shared=False, wait=False)
        found = loaded.timeline()
    spans = [(span.worker, span.device, span.outcome, span.start - START, span.end) for span in found]
    assert spans == [
        (0, "GPU 0", "failed", 3, START + 4),
        (1, "gpu 7", "failed", 3, START + 4),
        (0, "GPU 0", "running", 5, None),
    ]
    first = loaded.timeline()[0]
    assert (first.job, first.chain, first.round, first.stage) == (shard, CHAIN, 1, "generate")
    run.finish(shard, attempt=2)
    loaded.refresh()
    assert [span.outcome for span in loaded.timeline()] == ["failed", "failed", "done"]


@pytest.mark.parametrize("name", ["config.yaml", "plan.json", "journal.jsonl", "origin.json", "compute.json"])
@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_what_is_damaged_costs_its_own_part(tmp_path: Path, name: str, damage: str) -> None:
    run = WrittenRun(tmp_path, evaluated())
    write_origin(run.folder.path, Origin(command=["pipeline", "a=[b]"], settings=["a=[b]"]))
    run.store("c" * 40, metrics_json=measured(0.5))
    path = run.folder.path / name
    path.unlink(missing_ok=True)
    if damage == "cut off":
        path.write_text('{"a": [')
    loaded = load(run.folder)
    rows = [] if name == "plan.json" else ["pass@1"]
    assert [row.metric for row in loaded.results.rows] == rows
    assert [bool(loaded.curves()), bool(loaded.timeline()), list(loaded.samples())] == [False, False, []]
    assert loaded.origin.command_line == ("" if name == "origin.json" else "pipeline 'a=[b]'")
    assert loaded.config.keys() == (set() if name == "config.yaml" else {"execution"})
    assert loaded.lost_attempts == []
    if name == "plan.json":
        with pytest.raises(PlanError):
            _ = loaded.plan


def test_a_run_is_found_by_its_own_folder_and_by_its_experiment(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, evaluated())
    for folder in (run.folder.path, run.folder.path.parent, run.folder.path.parent / "latest"):
        loaded = load(folder)
        assert isinstance(loaded, LoadedRun)
        assert (loaded.name, loaded.stamp) == ("x", run.folder.stamp)
    shutil.rmtree(run.folder.path)
    with pytest.raises(ConfigError, match="is no folder of a run"):
        load(run.folder)


FILES = ("config.yaml", "plan.json", "journal.jsonl", "origin.json", "compute.json", "results.json")
STORED = ("metrics_json", "samples_jsonl", "metrics_jsonl")
PARTS = ("config", "origin", "jobs", "state", "results", "compute")


@pytest.mark.properties
@given(
    st.dictionaries(st.sampled_from(FILES), st.binary(max_size=60) | st.just(b'{"rows": [{}]}')),
    st.dictionaries(st.sampled_from(STORED), st.text(max_size=60) | st.just('{"rows": 3}')),
)
def test_whatever_the_files_hold_it_is_read_or_told(files: dict[str, bytes], stored: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = WrittenRun(Path(folder), evaluated())
        for key in ("a", "c"):
            run.store(key * 40, **{name: text.replace("\r", "") for name, text in stored.items()})
        for name, data in files.items():
            (run.folder.path / name).write_bytes(data)
        loaded = load(run.folder)
        for part in PARTS:
            with suppress(PipelineError):
                getattr(loaded, part)
        for read in (loaded.timeline, loaded.curves, loaded.samples):
            list(read())


# -- whether the engine of a run lives, from what anyone can see of it ---


def written(tmp_path: Path) -> WrittenRun:
    run = WrittenRun(tmp_path, chain_plan())
    run.worker(0, "gpu 7")
    return run


def test_the_lock_on_the_journal_tells_whether_the_engine_lives(tmp_path: Path) -> None:
    run = written(tmp_path)
    with run.folder.journal.open("ab") as engine:
        fcntl.flock(engine, fcntl.LOCK_EX)
        assert LoadedRun(run.folder).state == "running"
    assert LoadedRun(run.folder).state == "killed"


def test_without_a_journal_a_run_is_about_to_start_or_never_did(tmp_path: Path) -> None:
    run = written(tmp_path)
    run.folder.journal.unlink()
    assert LoadedRun(run.folder).state == "running"
    os.utime(run.folder.path, (START, START))
    assert LoadedRun(run.folder).state == "not started"
    run.folder.journal.touch()
    os.utime(run.folder.path, (START, START))
    assert LoadedRun(run.folder).state == "not started"


@pytest.mark.parametrize(
    ("host", "pid", "at", "state"),
    [
        ("here", "me", 4_000_000_000.0, "running"),
        ("here", "me", 1.0, "killed"),
        ("here", "nobody", 4_000_000_000.0, "killed"),
        ("elsewhere", "me", 4_000_000_000.0, "unknown"),
    ],
    ids=["lives", "its number was given again", "gone", "other machine"],
)
def test_where_files_have_no_locks_the_process_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, pid: str, at: float, state: str
) -> None:
    run = written(tmp_path)
    run.now = at
    known = {"here": socket.gethostname(), "elsewhere": "elsewhere"}[host]
    run.write("RunStarted", jobs=6, unsettled=6, pid=os.getpid() if pid == "me" else 2**22 + 1, host=known)

    def no_locks(*_: object) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert LoadedRun(run.folder).state == state


# -- what status and why say of trained models that are there no more: what removed them, and whi---


PLAN = plan_of(
    *(
        job(f"r{number}", algo="A", round=number, stage="train", weights=("model.safetensors",))
        for number in (1, 2, 3)
    )
)


def trained(tmp_path: Path, keep: Keep) -> tuple[WrittenRun, Store]:
    """A run that has trained three rounds, of which the weights of the first went by ``execution.keep=last``."""
    run, store = WrittenRun(tmp_path, PLAN), Store(tmp_path / ".store")
    run.folder.plan.write_text(plan_text(PLAN, keep=keep))
    scratch = store.scratch("maker")
    for each in PLAN.jobs.values():
        folder = store.begin(scratch, each.key, 1)
        (folder / "model.safetensors").write_text("weights")
        store.commit(each.key, folder, {"job": each.id})
        run.begin(each.id)
        run.finish(each.id)
    run.end()
    first = PLAN.jobs["r1"]
    assert remove_weights(store, first.key, first.weights, "execution.keep=last", scratch, lambda: True)
    return run, store


def test_what_removed_weights_is_said_and_not_what_this_run_was_to_keep(tmp_path: Path) -> None:
    run, _ = trained(tmp_path, Keep.all)
    text = shown(run)
    assert "made, and their weights removed (execution.keep=last)\n" in text
    assert "in the store no more" not in text
    why = "\n".join(explain_job(LoadedRun(run.folder), "r1", None, START))
    assert "Its weights were removed since, as execution.keep=last asked" in why


def shown(run: WrittenRun) -> str:
    out = io.StringIO()
    print_run(LoadedRun(run.folder), START, Terminal(file=out, width=200))
    return out.getvalue()


# -- test index --------------------------------------------------------------------------------------------------
# Finding the run that a user means.


def test_a_run_is_chosen_by_the_begin_of_its_timestamp(tmp_path: Path) -> None:
    for stamp in ("2026-01-02_10-00-00", "2026-01-02_10-00-00_2", "2026-01-03_09-00-00"):
        WrittenRun(tmp_path, chain_plan(), stamp)
    assert choose_run(tmp_path, "x").path.name == "2026-01-03_09-00-00"
    assert choose_run(tmp_path, "x", "2026-01-03").path.name == "2026-01-03_09-00-00"
    assert choose_run(tmp_path, "x", "2026-01-02_10-00-00").path.name == "2026-01-02_10-00-00"
    with pytest.raises(ConfigError, match="fits several runs"):
        choose_run(tmp_path, "x", "2026-01-02")
    with pytest.raises(ConfigError, match="has no run '2025'"):
        choose_run(tmp_path, "x", "2025")
    with pytest.raises(ConfigError, match="Known: x"):
        choose_run(tmp_path, "y")
    with pytest.raises(ConfigError, match="no folder"):
        choose_run(tmp_path / "nothing", "x")


# -- finding the job that a user means ---


SHARDS = [f"{CHAIN}/r1/generate/000", f"{CHAIN}/r1/generate/001"]
TRAIN = f"{CHAIN}/r1/train"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (TRAIN, TRAIN),
        ("r1/train", TRAIN),
        ("r1/tr", TRAIN),
        ("*1/*/001", SHARDS[1]),
        ("r1/generate/001/", SHARDS[1]),
        ("d/m/any/s0/X/r1/generate/001", SHARDS[1]),
    ],
    ids=["id", "end", "part", "pattern", "slash", "chain"],
)
def test_a_job_is_found_by(given: str, found: str) -> None:
    assert find_job(chain_plan().jobs, given) == found


def test_a_job_that_is_none_or_many_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fits 2 jobs.*\n.*r1/train\n.*r2/train"):
        find_job(chain_plan().jobs, "train")
    with pytest.raises(ConfigError, match=r"no job fits 'r1/trian'. Nearest:\n  d/m/s0/X/r1/train"):
        find_job(chain_plan().jobs, "r1/trian")
    with pytest.raises(ConfigError, match=r"no job fits .none.. There are:\n  d/m"):
        find_job(chain_plan().jobs, "none")


def test_what_else_may_happen_to_a_job(tmp_path: Path) -> None:
    run = written(tmp_path)
    run.worker(1, "gpu 8")
    for shard in SHARDS:
        run.begin(shard)
        run.finish(shard)
    run.write("JobReopened", job=SHARDS[0], reason="bytes differ")
    run.write("JobFoundStored", job=SHARDS[0])
    run.begin(TRAIN)
    run.write("JobStopped", job=TRAIN, attempt=1)
    run.write("JobWaits", job=f"{CHAIN}/r2/train", reason="another run computes it")
    run.write("DeviceQuarantined", worker=1, device="gpu 8", reason="lost thrice", failed_jobs=[TRAIN])
    run.write("WorkerExited", worker=1, exit_code=0)
    view = LoadedRun(run.folder).view
    assert view.workers[1].status == "quarantined"
    run.write("DeviceReleased", worker=1)
    assert LoadedRun(run.folder).view.quarantined == []
    reopened, train = view.jobs[SHARDS[0]], view.jobs[TRAIN]
    assert (reopened.status, reopened.found_stored, reopened.reopened) == ("stored", True, ["bytes differ"])
    assert (train.status, train.stopped, train.attempts[0].outcome) == ("pending", True, "stopped")
    assert view.jobs[f"{CHAIN}/r2/train"].waits == "another run computes it"
    assert [(place.device, place.jobs) for place in view.quarantined] == [("gpu 8", (TRAIN,))]


def test_a_policy_is_drawn_from_as_it_was_evaluated() -> None:
    own = {"top_p": 0.9, "max_new_tokens": 3}
    sampling = [f"datasets.addition.sampling.{name}={value}" for name, value in own.items()]
    config = quick_config(["experiment.name=x", "algos=[DPO]", *sampling])
    run: Any = SimpleNamespace(store=None, plan=SimpleNamespace(jobs={}))
    job: Any = SimpleNamespace(dataset="addition", algo="DPO", chain="addition/tiny/s0/DPO", round=1)
    drawing = Trained(run=run, config=config, job=job, rounds=1).usage.drawing
    assert (drawing.top_p, drawing.max_new_tokens, drawing.temperature) == (0.9, 3, config.generation.temperature)
