"""Real trackers, offline: told of a run while it goes on, killed in the middle, and brought up to date."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.config.schema import Tracker, TrackingConfig
from pipeline.machine import descendants
from pipeline.runs.trackers import TRACKERS, Feeders, leave_values
from pipeline.sweeps.metrics import WandbRun
from tests.doubles.small_runs import ROOT, calm_run, results, run_here, wait_for
from tests.doubles.tracked import TrackedRun, points

LONG_S = 600.0
Fake = Callable[[str], None]
ENGINE = """
import sys, time
from pathlib import Path
from pipeline.config.schema import Tracker, TrackingConfig
from pipeline.engine.run_folder import RunFolder
from pipeline.runs.trackers import Feeders
kept = Feeders(RunFolder(Path(sys.argv[1])), TrackingConfig(report_to=list(Tracker)), print)
time.sleep(600)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts a module in the place of wandb, for processes that are started from now on."""

    def put(code: str) -> None:
        folder = tmp_path / "fakes"
        folder.mkdir(exist_ok=True)
        (folder / "wandb.py").write_text(code)
        monkeypatch.syspath_prepend(folder)

    return put


def start(run: TrackedRun, warned: list[str], *trackers: str) -> Feeders:
    return Feeders(run.folder, TrackingConfig(report_to=list(map(Tracker, trackers))), warned.append)


def below_this() -> set[int]:
    return {process.pid for process in descendants.below(os.getpid())}


def test_trackers_that_die_with_the_engine_are_told_the_rest_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under an agent of wandb too, whose run is told what is judged, whatever else the environment says."""
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
    written = ("wandb/offline-run-*/*.wandb", "tensorboard/**/*tfevents*", "../../.trackio/*.db")
    with subprocess.Popen([sys.executable, "-c", ENGINE, str(run.folder.path)], cwd=ROOT) as engine:
        try:
            wait_for(lambda: all(list((tmp_path / "x" / "tracking").glob(path)) for path in written))
            family = descendants.below(engine.pid)
        finally:
            engine.kill()
    assert len(family) >= 4, "one for each tracker, and wandb's own"
    wait_for(lambda: not descendants.alive(family))

    run.make_round(2)
    leave_values(run.folder.path, 1, {"objective": 0.5})
    run.end()
    again = start(run, warned, *TRACKERS)
    again.finish(LONG_S)
    assert (warned, list(again.look_commands)) == ([], list(TRACKERS))
    words = [sys.executable, "-m", "tests.doubles.tracker_readers", *TRACKERS, str(tmp_path)]
    read = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=LONG_S, check=True)
    for tracker, found in json.loads(read.stdout).items():
        assert sorted(set(found["runs"])) in (["X/d/m/s0"], ["", "X/d/m/s0"])
        assert found["runs"].count("X/d/m/s0") == 1
        for name, expected in points().items():
            assert found[name] == [list(point) for point in expected], (tracker, name)
        shown = json.dumps(found)
        assert "algo.eta" in shown
        assert "[2J" in shown if tracker != "wandb" else "table-file" in shown
        assert "\\u001b" not in shown
    [chain, judged] = sorted(zip(found["id"], found["sweep"], found["group"], strict=True), key=lambda one: one[1])
    assert (chain[1:], judged) == (("", "x"), ("abc123", "s1", "x"))
    assert found["objective"] == [[1, 0.5]]
    (path,) = (tmp_path / "x" / "tracking").glob(f"wandb/*run-*-{chain[0]}/run-*.wandb")
    rows = list(WandbRun(path).rows())
    for name, expected in points().items():
        values = [value for row in rows if (value := row.get(name)) is not None]
        assert [round(value, 6) for value in values] == [point[1] for point in expected], name


WRONG = {
    "ignores signals": (
        "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(600)"
    ),
    "dies": "import os; os._exit(1)",
}


@pytest.mark.parametrize(("what", "code"), WRONG.items(), ids=WRONG)
def test_a_tracker_that_hangs_or_dies_is_left_behind(fake: Fake, tmp_path: Path, what: str, code: str) -> None:
    marker = tmp_path / "began"
    fake(f"open({str(marker)!r}, 'w')\n{code}")
    run, warned, before = TrackedRun(tmp_path), list[str](), below_this()
    run.make_round(1)
    feeders = start(run, warned, "wandb")
    wait_for(marker.exists)
    log = run.folder.path / "tracking" / "wandb.log"
    if what == "dies":
        wait_for(lambda: feeders.look() or bool(warned))
    feeders.finish(0.05)
    [text] = warned
    ended = "its process has ended"
    assert (ended if what == "dies" else "takes longer than tracking.finish_timeout_s=0.05") in text
    assert "python -m pipeline track x" in text
    assert "begins it" in log.read_text(errors="replace"), "the log says what it was doing"
    assert below_this() == before


def test_one_that_hangs_stops_no_other_and_nobody_waits_for_it_after_an_interrupt(
    fake: Fake, tmp_path: Path
) -> None:
    """Nor is the same told twice by another run of the experiment."""
    fake("import time; time.sleep(600)")
    run, warned, before = TrackedRun(tmp_path), list[str](), below_this()
    run.make_round(1)
    feeders = start(run, warned, "wandb", "tensorboard")
    wait_for(lambda: bool(list(tmp_path.rglob("*tfevents*"))))
    start(run, warned, "tensorboard").finish(LONG_S)
    [text] = warned
    assert "another run of the experiment tells it right now" in text
    run.end()
    reading, writing = os.pipe()
    os.write(writing, b"s")
    feeders.finish(LONG_S, reading)
    assert warned == [text]
    assert below_this() == before
    os.close(reading)
    os.close(writing)


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
