"""The main job end to end, small: what a user sees.

That its results are the same bytes however it ran, `test_chaos` has.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.doubles.small_runs import ROOT, calm_run, command, events, results, run_here, with_reference


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on two workers."""
    return calm_run(tmp_path_factory)


@pytest.fixture
def light(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> list[str]:
    """What makes a run below `tmp_path` one that trains nothing: for tests of what is around the work."""
    return with_reference(tmp_path_factory, tmp_path / "outputs")


def test_a_run_leaves_every_file_it_promises(calm: Path) -> None:
    latest = calm / "t" / "latest"
    for name in (
        "config.yaml",
        "plan.json",
        "journal.jsonl",
        "run.log",
        "results.json",
        "results.csv",
        "pooled.csv",
        "samples.jsonl",
        "report.html",
    ):
        assert (latest / name).stat().st_size > 0, name
    results = json.loads((latest / "results.json").read_bytes())
    rows = results["rows"]
    assert {(row["algo"], row["round"]) for row in results["pooled"]} == {
        (row["algo"], row["round"]) for row in rows
    }
    tested = [(one["first"], one["second"], one["round"]) for one in results["comparisons"]]
    assert tested == [("PITA", "reference", 2), ("QSharp", "reference", 2), ("PITA", "QSharp", 2)]
    found = {(row["algo"], row["round"], row["metric"]) for row in rows}
    for chain in [("reference", 0), ("PITA", 1), ("PITA", 2), ("QSharp", 1), ("QSharp", 2)]:
        assert {(*chain, metric) for metric in ("pass@1", "reward", "kl_per_sequence", "length")} <= found
    assert all(row["value"] == 0 for row in rows if row["algo"] == "reference" and row["metric"].startswith("kl"))
    log = (latest / "run.log").read_text()
    assert "worker 0: cpu slot 0, 1 thread" in log
    assert "worker 1: cpu slot 1, 1 thread" in log
    assert not list(calm.glob(".store/.tmp/*"))
    for job in json.loads((latest / "plan.json").read_bytes())["jobs"]:
        assert (latest / "jobs" / job["id"] / "log.txt").is_file()


def test_the_chains_share_the_reference(calm: Path) -> None:
    finished = events(calm, "JobFinished")
    assert len([job for job in finished if "reference/train" in job]) == 1
    assert len(finished) == len(set(finished))


def test_the_same_command_again_runs_nothing_and_prints_the_table(calm: Path, tmp_path: Path) -> None:
    copy = tmp_path / "outputs"
    shutil.copytree(calm, copy, symlinks=True)
    (copy / ".store" / ".tmp" / "t-verified-1").mkdir()  # left by a run that was killed
    printed = run_here(copy)
    assert not list(copy.glob(".store/.tmp/*"))
    assert "nothing to run" in printed
    assert "reference" in printed
    assert "stored, 0 to run" in run_here(copy, "dry_run=true")
    # What little there was to learn from is told every time, not only when it is trained on.
    note = re.compile(r"addition/tiny/s0/QSharp, round 1: trained on \d\d sequences, fewer than one batch of 128")
    assert note.search(printed)
    assert note.search((copy / "t" / "latest" / "run.log").read_text())
    assert events(copy, "JobStarted") == []
    assert len(events(copy, "RunFinished", key="event")) == 1
    latest = copy / "t" / "latest"
    for job in json.loads((latest / "plan.json").read_bytes())["jobs"]:
        assert (latest / "jobs" / job["id"] / "output" / "manifest.json").is_file()
    assert "nothing to run" in (latest / "run.log").read_text()
    assert not (copy / "t" / "latest" / "workers").exists()
    assert results(copy) == results(calm)


def test_dry_run_prints_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    output_dir = tmp_path / "outputs"
    printed = run_here(output_dir, "dry_run=true")
    assert "generate" in printed
    assert "Nothing was started" in printed
    assert not output_dir.exists()


def test_a_budget_ends_a_run_with_its_table_and_the_same_command_goes_on(calm: Path, tmp_path: Path) -> None:
    """Costs of the calm run say how much reaches into the first round: whatever they are, it is so."""
    output_dir = tmp_path / "outputs"
    costs = json.loads((calm / "t" / "latest" / "compute.json").read_bytes())["rows"]
    flops = [sum(row["flops"] or 0 for row in costs if row["round"] == number) for number in (0, 1)]
    budget = flops[0] + 0.7 * flops[1]
    printed = run_here(output_dir, f"experiment.budget={{flops: {budget}}}", code=3)
    there = {(row["algo"], row["round"]) for row in json.loads(results(output_dir)[0])["rows"]}
    assert ("reference", 0) in there
    assert 1 < len(there) < 5
    assert not [job for job in events(output_dir, "JobStarted") if "/r2/" in job]
    missing = {("PITA", 1), ("PITA", 2), ("QSharp", 1), ("QSharp", 2)} - there
    lines = [line for line in printed.splitlines() if line.startswith("incomplete: ")]
    assert len(lines) == len({algo for algo, _ in missing})
    assert f"experiment.budget={{flops: {budget}}}" in printed.splitlines()[-1]
    for again in ("experiment.budget={flops: 1e36, device_hours: 1e6}", "experiment.budget={flops: 1}"):
        run_here(output_dir, again)  # the second has nothing to run, so that any budget suffices
        assert results(output_dir) == results(calm)


def test_a_wrong_request_is_one_message_and_exit_code_2(tmp_path: Path) -> None:
    output_dir = tmp_path / "outputs"
    printed = run_here(output_dir, "device=cuda", code=2)
    assert printed.startswith("error: ")
    assert "no usable GPU" in printed
    assert not output_dir.exists()


def test_packages_that_only_the_search_path_has_reach_workers_too(light: list[str], tmp_path: Path) -> None:
    """As `pip install --target` leaves them, or the modules of a cluster: the interpreter itself has none."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    words = command(tmp_path / "outputs", "device=cpu", *light)
    done = subprocess.run(
        [str(tmp_path / "bare/bin/python"), *words[1:]],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(psutil.__file__).parents[1])])},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert events(tmp_path / "outputs", "AttemptFailed") == []
