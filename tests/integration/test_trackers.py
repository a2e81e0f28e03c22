"""Real trackers, offline: told of a run while it goes on, killed in the middle, and brought up to date."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.config.schema import Tracker, TrackingConfig
from pipeline.machine import descendants
from pipeline.runs.trackers import Feeders, leave_values
from pipeline.sweeps.metrics import WandbRun
from tests.doubles.small_runs import ROOT, calm_run, results, run_here, wait_for
from tests.doubles.tracked import TrackedRun, points

LONG_S = 600.0
Fake = Callable[[str], None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts a module in the place of wandb, for processes that are started from now on."""

    def put(code: str) -> None:
        folder = tmp_path / "fakes"
        folder.mkdir()
        (folder / "wandb.py").write_text(code)
        monkeypatch.syspath_prepend(folder)

    return put


def start(run: TrackedRun, tracker: str, warned: list[str]) -> Feeders:
    return Feeders(run.folder, TrackingConfig(report_to=[Tracker(tracker)]), warned.append)


def notes(run: TrackedRun, tracker: str) -> list[dict[str, Any]]:
    """What we have noted that a tracker was told."""
    folder = run.folder.path.parents[1] / (".trackio" if tracker == "trackio" else f"x/tracking/{tracker}")
    return [note for path in folder.glob(".told/*/*.json") for note in json.loads(path.read_text()).values()]


def has(tracker: str, output_dir: Path) -> dict[str, Any]:
    words = [sys.executable, "-m", "tests.doubles.tracker_readers", tracker, str(output_dir)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=LONG_S, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def below_this() -> set[int]:
    return {process.pid for process in descendants.below(os.getpid())}


@pytest.mark.parametrize("tracker", ["tensorboard", "trackio", "wandb"])
def test_a_tracker_that_is_killed_in_the_middle_is_told_the_rest_once(tmp_path: Path, tracker: str) -> None:
    run, warned, before = TrackedRun(tmp_path), list[str](), below_this()
    run.make_round(1)
    feeders = start(run, tracker, warned)
    [pid] = below_this() - before
    written = {"wandb": "x/tracking/wandb/offline-run-*/*.wandb", "trackio": ".trackio/*.db"}
    wait_for(lambda: bool(list(tmp_path.glob(written.get(tracker, "x/tracking/**/*tfevents*")))))
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: feeders.look() or bool(warned))
    assert len(warned) == 1
    assert "its process has ended" in warned[0]
    assert "python -m pipeline track x" in warned[0]
    feeders.finish(LONG_S)
    assert below_this() == before

    run.make_round(2)
    run.end()
    again = start(run, tracker, warned)
    again.finish(LONG_S)
    assert len(warned) == 1
    assert list(again.told) == [tracker]
    assert below_this() == before
    found = has(tracker, tmp_path)
    assert found["runs"] == ["X/d/m/s0"]
    assert len(list(tmp_path.glob("x/tracking/wandb/offline-run-*"))) == (tracker == "wandb")
    for name, expected in points().items():
        assert found[name] == [list(point) for point in expected], name
    if tracker == "wandb":
        *_, path = (tmp_path / "x" / "tracking").glob("wandb/*run-*/run-*.wandb")
        assert path
        rows = list(WandbRun(path).rows())
        for name, expected in points().items():
            values = [row[name] for row in rows if name in row]
            assert [round(value, 6) for value in values if value is not None] == [
                point[1] for point in expected
            ], name
    shown = json.dumps(found)
    assert "algo.eta" in shown
    assert "[2J" in shown if tracker != "wandb" else "table-file" in shown
    assert "\\u001b" not in shown


def test_under_an_agent_of_wandb_chains_are_runs_of_their_own_and_its_run_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else the environment says of a run."""
    (tmp_path / "parameters.yaml").write_text("wandb_version: 1\neta: {value: 0.3}\n")
    for name, value in {
        "SWEEP_ID": "s1",
        "RUN_ID": "abc123",
        "SWEEP_PARAM_PATH": str(tmp_path / "parameters.yaml"),
        "RESUME": "must",
        "NAME": "mine",
        "RUN_GROUP": "others",
        "SERVICE": "nobody",
        "MODE": "online",
    }.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    run, warned = TrackedRun(tmp_path), list[str]()
    run.make_round(1)
    leave_values(run.folder.path, 1, {"objective": 0.5})
    run.end()
    start(run, "wandb", warned).finish(LONG_S)
    assert not warned
    found = has("wandb", tmp_path)
    assert len(set(found["id"])) == 2
    assert set(found["group"]) == {"x"}
    assert dict(zip(found["id"], found["sweep"], strict=True))["abc123"] == "s1"
    assert sorted(found["sweep"]) == ["", "s1"]
    assert found["runs"].count("X/d/m/s0") == 1
    assert found["objective"] == [[1, 0.5]]


def test_a_killed_engine_takes_the_processes_of_trackers_along(tmp_path: Path) -> None:
    run = TrackedRun(tmp_path)
    run.make_round(1)
    code = (
        "import sys, time; from pathlib import Path; "
        "from pipeline.config.schema import Tracker, TrackingConfig; "
        "from pipeline.engine.run_folder import RunFolder; from pipeline.runs.trackers import Feeders; "
        "kept = Feeders(RunFolder(Path(sys.argv[1])), TrackingConfig(report_to=list(Tracker)), print); "
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(run.folder.path)], cwd=ROOT) as engine:
        try:
            wait_for(lambda: bool(list(tmp_path.glob("x/tracking/wandb/offline-run-*/*.wandb"))))
            family = descendants.below(engine.pid)
        finally:
            engine.kill()
    assert len(family) >= 4, "one for each tracker, and wandb's own"
    wait_for(lambda: not descendants.alive(family))


HANGS = {
    "floods": "while True: os.write(1, b'x' * 65536)",
    "ignores signals": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(600)",
}


@pytest.mark.parametrize("code", HANGS.values(), ids=HANGS)
def test_a_tracker_that_hangs_is_left_behind(fake: Fake, tmp_path: Path, code: str) -> None:
    marker = tmp_path / "began"
    fake(
        f"import os, signal, time; open({str(marker)!r}, 'w'); {code}"
        if "while" not in code
        else f"import os; open({str(marker)!r}, 'w')\n{code}"
    )
    run, warned, before = TrackedRun(tmp_path), list[str](), below_this()
    run.make_round(1)
    feeders = start(run, "wandb", warned)
    wait_for(marker.exists)
    log = run.folder.path / "tracking" / "wandb.log"
    if "write" in code:
        wait_for(lambda: log.stat().st_size >= 1 << 20)
    feeders.finish(0.05)
    [text] = warned
    assert "takes longer than tracking.finish_timeout_s=0.05" in text
    assert "begins it" in log.read_text(errors="replace"), "the log says what it was doing"
    assert log.stat().st_size < 2 << 20
    assert below_this() == before


def test_one_that_hangs_stops_no_other_and_nobody_waits_for_it_after_an_interrupt(
    fake: Fake, tmp_path: Path
) -> None:
    fake("import time; time.sleep(600)")
    run, warned, before = TrackedRun(tmp_path), list[str](), below_this()
    run.make_round(1)
    asked = TrackingConfig(report_to=[Tracker.wandb, Tracker.tensorboard])
    feeders = Feeders(run.folder, asked, warned.append)
    run.end()
    wait_for(lambda: bool(list(tmp_path.rglob("*tfevents*"))))
    reading, writing = os.pipe()
    os.write(writing, b"s")
    feeders.finish(LONG_S, reading)
    assert not warned
    assert below_this() == before
    os.close(reading)
    os.close(writing)


def test_two_runs_of_one_experiment_do_not_tell_the_same_twice(tmp_path: Path) -> None:
    run, warned = TrackedRun(tmp_path), list[str]()
    run.make_round(1)
    first = start(run, "tensorboard", warned)
    wait_for(lambda: bool(notes(run, "tensorboard")))
    second = start(run, "tensorboard", warned)
    second.finish(LONG_S)
    [text] = warned
    assert "another run of the experiment tells it right now" in text
    first.finish(LONG_S)
    assert list(first.told) == ["tensorboard"]


def test_the_main_command_tells_trackers_and_minds_none_that_fails(
    fake: Fake, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fake("raise RuntimeError('no')")
    calm, output_dir = calm_run(tmp_path_factory), tmp_path / "outputs"
    shutil.copytree(calm / ".store", output_dir / ".store", symlinks=True)
    asked = ["tracking.report_to=[tensorboard,wandb]", "tracking.finish_timeout_s=600"]
    said = " ".join(run_here(output_dir, *asked).split())
    assert results(output_dir) == results(calm)
    assert "tensorboard: tensorboard --logdir" in said
    assert said.count("warning:") == 1
    assert "warning: tracking: wandb: RuntimeError: no." in said
    assert "tracking: wandb: RuntimeError: no." in (output_dir / "t" / "latest" / "run.log").read_text()
    events = {path: path.stat().st_mtime_ns for path in output_dir.rglob("*tfevents*")}
    chains = {str(path.parent.relative_to(output_dir / "t" / "tracking" / "tensorboard")) for path in events}
    assert chains == {f"{name}/addition/tiny{seed}" for name, seed in RUNS}

    invoked = CliRunner().invoke(app, ["track", "t", "--output-dir", str(output_dir)])
    assert invoked.exit_code == 1, invoked.output
    assert "tensorboard was told everything" in invoked.output
    assert {path: path.stat().st_mtime_ns for path in output_dir.rglob("*tfevents*")} == events


RUNS = [("PITA", "/s0"), ("QSharp", "/s0"), ("reference", "/s0"), ("reference", "")]
