"""status, logs and why on runs that the engine has carried out, as a user types them."""

import fcntl
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipeline.__main__ import app
from pipeline.runs.loaded import choose_run
from tests.doubles.runs import CHAIN, WrittenRun, chain_plan
from tests.doubles.shared import made_once
from tests.doubles.small_runs import run_here, with_reference

ADD = "addition/tiny/s0/Counted/r1/add"
ASKED = [
    *("algos=[]", "rounds_of_training=1"),
    *(f"algos.{name}.class_path=tests.doubles.counted.Counted" for name in ("Counted", "Other")),
]
TWICE = "algos.Counted.options.times=2"


def look(output_dir: Path, *words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*words, "--output-dir", str(output_dir)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, of two methods without torch; a setting of one of them differs."""

    def make(folder: Path) -> None:
        with_reference(tmp_path_factory, folder / "outputs")
        run_here(folder / "outputs", *ASKED, "algos.Counted.options.times=1")
        run_here(folder / "outputs", *ASKED, TWICE)

    return made_once(tmp_path_factory, "twice", make) / "outputs"


def test_status_of_all_and_of_one(twice: Path) -> None:
    assert [look(twice, "status").output.split()[at] for at in (-6, -4, -3)] == ["t", "done", "13/13"]
    text = look(twice, "status", "t").output
    assert "13/13 jobs done (8 stored before)" in text
    first = min(path.name for path in (twice / "t").iterdir())
    assert "13/13 jobs done (3 stored before)" in look(twice, "status", "t", "--run", first).output
    data = json.loads(look(twice, "status", "t", "--json").output)
    assert (data["state"], data["done"], data["failed_jobs"]) == ("done", 13, [])
    assert [row["name"] for row in json.loads(look(twice, "status", "--json").output)] == ["t"]


def test_a_table_is_shown_with_how_its_run_stands_where_that_is_not_done(twice: Path, tmp_path: Path) -> None:
    assert "this run" not in look(twice, "show", "t").output
    shutil.copytree(twice, tmp_path / "outputs", symlinks=True)
    journal = choose_run(tmp_path / "outputs", "t").journal
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]))  # what says that the run is over
    shown = look(tmp_path / "outputs", "show", "t").output
    assert "results:" in shown
    assert (
        "this run: killed, so rows may be missing. More of it: python -m pipeline status t --output-dir" in shown
    )


def test_the_newest_results_are_shown_where_the_last_run_has_none(twice: Path, tmp_path: Path) -> None:
    shutil.copytree(twice, tmp_path / "outputs", symlinks=True)
    newest = choose_run(tmp_path / "outputs", "t")
    older = min(path.name for path in newest.path.parent.iterdir())
    newest.results_json.write_text('{"rows": []}')
    shown = look(tmp_path / "outputs", "show", "t").output
    assert f"these are of run {older}" in shown
    assert f"{older}/results.json" in shown
    newest.results_json.unlink()
    assert look(tmp_path / "outputs", "show", "t").output == shown
    assert "no results yet" in look(tmp_path / "outputs", "show", "t", "--run", newest.stamp, code=2).output


def test_names_that_do_not_exist_are_refused_with_those_that_do(twice: Path) -> None:
    for words in (["status", "u"], ["logs", "u"], ["why", "u", "train"]):
        result = look(twice, *words, code=2)
        assert "Known: t" in result.output
    assert ADD in look(twice, "logs", "t", "Counted/r1/aad", code=2).output
    assert "fits 3 jobs" in look(twice, "logs", "t", "Counted/r1/count", code=2).output
    assert "no log of attempt 7" in look(twice, "logs", "t", ADD, "--attempt", "7", code=2).output
    assert "no folder" in look(twice / "nothing", "status", code=2).output


def test_logs_of_the_engine_and_of_a_job(twice: Path) -> None:
    assert "worker 0: cpu slot 0" in look(twice, "logs", "t").output
    assert len(look(twice, "logs", "t", "-n", "1", "-f").stdout.splitlines()) == 1
    assert look(twice, "logs", "t", ADD, "-f").stderr.endswith(f"{ADD}: done\n")


def test_the_log_of_a_stored_job_is_that_of_the_run_that_made_it(twice: Path) -> None:
    first = min(path.name for path in (twice / "t").iterdir())
    log = twice / "t" / first / "jobs/addition/tiny/s0/Other/r1/add/log.txt"
    log.write_text("made here\n")
    result = look(twice, "logs", "t", "Other/r1/add")
    assert result.stdout == "made here\n"
    assert f"this is its log from {first}" in result.stderr


def test_why_a_job_ran_again(twice: Path) -> None:
    text = look(twice, "why", "t", "Counted/r1/metrics").output
    assert "algos.Counted.options.times: 1 -> 2" in text
    assert text.count("->") < 6
    assert "the same key" in look(twice, "why", "t", "Other/r1/metrics").output


def test_ctrl_c_ends_following_cleanly(tmp_path: Path) -> None:
    written = WrittenRun(tmp_path, chain_plan())
    written.begin(f"{CHAIN}/r1/train", log="at work [1/2]\n")
    with written.folder.journal.open("ab") as engine:
        fcntl.flock(engine, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "pipeline", "logs", "x", "r1/train", "-f", "--output-dir", str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == "at work [1/2]\n"
            following.send_signal(signal.SIGINT)
            rest, errors = following.communicate(timeout=600)
    assert following.returncode == 130
    assert (rest, errors) == ("", "")
