"""Journals that are not as an engine writes them: what cannot be read is counted, and the rest is shown."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.engine.journal import JournalReader
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.report.status import explain_job, glance_at, overview_table, print_run, run_json
from tests.doubles.runs import CHAIN, START, WrittenRun, chain_plan

SHARD = f"{CHAIN}/r1/generate/000"
EVENTS: list[dict[str, Any]] = [
    {"event": "RunStarted", "jobs": 6, "unsettled": 6, "pid": 1, "host": "nowhere"},
    {"event": "WorkerWaits", "worker": 0},
    {"event": "WorkerStarted", "worker": 0, "pid": 100, "device": "gpu 7"},
    {"event": "JobStarted", "job": SHARD, "attempt": 1, "worker": 0, "members": [1]},
    {"event": "JobFinished", "job": SHARD, "attempt": 1, "worker": 0, "load_s": 0.1, "run_s": 2.5, "samples": 3},
    {
        "event": "AttemptFailed",
        "job": SHARD,
        "attempt": 1,
        "worker": 0,
        "device": "gpu 7",
        "kind": "lost",
        "reason": "gone",
        "exit_code": -9,
        "log": "jobs/x/log.txt",
        "traceback": "",
        "retry": True,
        "wait_s": 2.0,
    },
    {"event": "JobFailed", "job": SHARD, "attempts": 2, "kind": "bug", "reason": "ValueError"},
    {"event": "JobBlocked", "job": f"{CHAIN}/r1/train", "root_cause": SHARD},
    {"event": "JobStopped", "job": SHARD, "attempt": 1, "worker": 0},
    {"event": "JobReopened", "job": SHARD, "reason": "damaged"},
    {"event": "JobWaits", "job": SHARD, "reason": "another run computes it"},
    {"event": "JobFoundStored", "job": SHARD},
    {"event": "WorkerExited", "worker": 0, "exit_code": -9},
    {"event": "DeviceQuarantined", "worker": 0, "device": "gpu 7", "reason": "x", "failed_jobs": [SHARD]},
    {"event": "DeviceReleased", "worker": 0},
    {"event": "RunFinished", "interrupted": None, "halted": None, "done": 1, "failed": 1},
]
TOLD: list[dict[str, Any]] = [
    {"event": "WorkerStarting", "worker": 0},
    {"event": "JobProgress", "job": SHARD, "attempt": 1, "worker": 0, "done": 1, "total": 2, "tokens": 3},
    {"event": "JobProgress", "job": SHARD, "worker": 0, "numbers": {"loss": 0.5, "kl": None}},
    {
        "event": "Heartbeat",
        "worker": 0,
        "rss_bytes": 5,
        "gpu": {"label": "GPU 0", "used_bytes": 1, "total_bytes": 2},
    },
]
"""What engines tell and do not write; a line of a journal may say so nevertheless."""
ODD: list[Any] = [
    None,
    True,
    -1,
    1.5,
    "text",
    [],
    [1],
    {},
    {"a": 1},
    10**30,
    1e308,
    float("nan"),
    "\ud800",
    "a\0b",
]


def shown(run: WrittenRun) -> LoadedRun:
    """Everything that looks at a run, without a traceback."""
    console = Console(file=None, quiet=True, width=100)
    recorded = LoadedRun(run.folder)
    print_run(recorded, START + 60, console)
    json.dumps(run_json(recorded, START + 60))
    console.print(overview_table([glance_at(LoadedRun(run.folder), START + 60)]))
    explain_job(recorded, SHARD, None, START + 60)
    list(JournalReader(run.folder.journal).new_events())
    return recorded


def test_what_engines_write_is_read_whole(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan())
    for event in EVENTS:
        run.write(**event)
    assert shown(run).unreadable == 0
    assert len(list(JournalReader(run.folder.journal).new_events())) == len(EVENTS) + 1


@pytest.mark.properties
@given(data=st.data())
def test_any_lines_are_read_or_counted(data: st.DataObject) -> None:
    value = st.sampled_from(ODD) | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner)
    )
    altered = st.tuples(
        st.sampled_from([*EVENTS, *TOLD]), st.sampled_from([*EVENTS[4], "jobs", "time", "pid"]), value
    ).map(lambda drawn: json.dumps({"time": START, **drawn[0], drawn[1]: drawn[2]}).encode())
    valid = st.sampled_from([*EVENTS, *TOLD]).map(lambda event: json.dumps({"time": START, **event}).encode())
    lines = data.draw(
        st.lists(altered | valid | st.binary(max_size=50) | value.map(lambda x: json.dumps(x).encode()))
    )
    with TemporaryDirectory() as folder:
        run = WrittenRun(Path(folder), chain_plan())
        with run.folder.journal.open("ab") as file:
            file.writelines(line.replace(b"\n", b" ") + b"\n" for line in lines)
        assert shown(run).unreadable <= len(lines)


def test_a_plan_with_wrong_fields_is_one_line_with_exit_code_2(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan(), name="bad")
    plan = json.loads(run.folder.plan.read_bytes())
    for wrong in (
        {**plan, "jobs": 3},
        {**plan, "edges": [["a", "b"]]},
        {**plan, "jobs": [{**plan["jobs"][0], "round": "x"}]},
    ):
        run.folder.plan.write_text(json.dumps(wrong))
        result = CliRunner().invoke(app, ["status", "bad", "--output-dir", str(tmp_path)])
        assert result.exit_code == 2, result.output
        assert "plan.json" in result.output
        assert "Traceback" not in result.output
