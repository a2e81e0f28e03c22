"""Sweeps as users run them: agents and trials are processes, and are killed, interrupted and left alone."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
from optuna.storages.journal import JournalFileBackend
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.engine.devices.inventory import find_gpus
from pipeline.engine.devices.select import LeaseSet
from pipeline.machine import descendants
from pipeline.sweeps.storage import Record, sweep_folder
from tests.doubles import fake_nvml
from tests.doubles.small_runs import wait_for

ROOT = Path(__file__).parents[2]
TRIAL = ROOT / "tests/doubles/trial.sh"


class Sweeps:
    """Commands of sweeps in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tag = folder, descendants.new_tag()
        self.environment = descendants.with_tag(os.environ, self.tag)

    def file(self, name: str, **block: Any) -> None:
        block.setdefault("method", "grid")
        block.setdefault("metric", {"name": "loss"})
        (self.folder / f"{name}.yaml").write_text(json.dumps(block))

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline", "sweep", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, code: int = 0) -> str:
        """To its end, in this process, which is quicker by the start of Python."""
        done = CliRunner().invoke(app, ["sweep", *words])
        assert done.exit_code == code, done.output
        return done.output

    def attempts(self, name: str) -> list[dict[str, Any]]:
        """What the record knows of each attempt at a trial, in their order: ``trial``, ``start``, ``end``."""
        path = self.folder / "outputs" / name / "sweep" / "optuna.log"
        if not path.exists() or not path.stat().st_size:
            return []
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        studies = storage.get_all_studies()
        return [each.user_attrs for each in storage.get_all_trials(0)] if studies else []

    def ends(self, name: str, state: str) -> Counter[int]:
        """How many attempts at each trial have ended so."""
        found = self.attempts(name)
        return Counter(one["trial"] for one in found if one.get("end", {}).get("state") == state)

    def events(self) -> list[list[str]]:
        path = self.folder / "events"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def processes(self) -> set[int]:
        """All that was started here, however deep, and is still there."""
        return {process.pid for process in descendants.tagged({self.tag})}


@pytest.fixture
def sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sweeps]:
    """Nothing that was started is left when a test is over."""
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    found = Sweeps(tmp_path)
    for name in found.environment.keys() - os.environ.keys():
        monkeypatch.setenv(name, found.environment[name])
    yield found
    try:
        wait_for(lambda: not found.processes(), 30)
    finally:
        descendants.end(lambda: descendants.tagged({found.tag}))


def check_no_overlap(attempts: list[dict[str, Any]]) -> None:
    """No device had two trials at a time."""
    events = [
        (one[what][f"{what}ed"], what, one["start"]["devices"])
        for one in attempts
        for what in ("end", "start")
        if what in one and "start" in one
    ]
    busy: set[str] = set()
    for _, what, devices in sorted(events):
        if what == "start":
            assert not set(devices) & busy
        busy = busy | set(devices) if what == "start" else busy - set(devices)


def test_every_point_exactly_once_on_eight_gpus_whatever_is_killed(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps.environment[fake_nvml.VARIABLE] = fake_nvml.write(
        sweeps.folder / "nvml.json", fake_nvml.MACHINES["eight"]
    )
    sweeps.file(
        "g",
        command=["sh", str(TRIAL), str(sweeps.folder), "${args}"],
        parameters={"a": {"values": [1, 2]}, "num_gpus": {"values": [1, 2, 4]}},
        pipeline={"max_attempts": 30, "max_failures": 30, "launcher": "none"},
    )
    hold, chosen = sweeps.folder / "hold", random.Random(0)
    hold.touch()
    agents = 0
    agent = sweeps.start("run", "g.yaml")
    for number in range(3):
        kill(chosen.choice(at_work(agent)))
        if number == 1:
            kill(agent.pid)
            agent.communicate()
            agents += 1
            agent = sweeps.start("run", "g.yaml")
    hold.unlink()
    said, _ = agent.communicate(timeout=600)
    assert agent.returncode == 0, said
    assert agents == 1
    assert sweeps.ends("g", "done") == Counter(range(6))
    check_no_overlap(sweeps.attempts("g"))
    done = [event for event in sweeps.events() if event[0] == "end"]
    assert len({tuple(event[3:]) for event in done}) == len(done) == 6
    assert all(len(event[2].split(",")) == int(event[-1].removeprefix("--num_gpus=")) for event in done)


FAILS_LAST = """
if [ "$0" = --lr=1 ] && ! [ -e again ]; then
  touch again
  while ! grep -q '"end"' outputs/last/sweep/optuna.log; do sleep 0.1; done
  sleep 0.5
  exit 1
fi
echo '{"values": {"loss": 1}}' >> "$PIPELINE_TRIAL"
"""


def test_a_trial_that_fails_when_nothing_else_is_left_is_tried_again_before_the_agent_leaves(
    sweeps: Sweeps,
) -> None:
    sweeps.file("last", command=["sh", "-c", FAILS_LAST, "${args}"], parameters={"lr": {"values": [1, 2]}})
    stale = sweep_folder(sweeps.folder / "outputs", "last").trial(1).metrics(1)
    stale.parent.mkdir(parents=True)
    stale.write_text('{"values": {"loss": 0}}\n')  # as of a sweep whose record was removed
    sweeps.run("run", "last.yaml", "--device", "cpu", "--agents", "2")
    assert [one["end"]["best"] for one in sweeps.attempts("last") if one["trial"] == 1] == [1]
    assert sweeps.ends("last", "failed") == Counter([0])
    assert sweeps.ends("last", "done") == Counter([0, 1])


def at_work(agent: subprocess.Popen[str]) -> list[int]:
    wait_for(lambda: len(running(agent)) >= 2 or agent.poll() is not None)
    return running(agent)


def running(agent: subprocess.Popen[str]) -> list[int]:
    """The processes of an agent's trials: those that look after them, and their programs."""
    found = []
    with suppress(psutil.Error):
        for process in psutil.Process(agent.pid).children(recursive=True):
            with suppress(psutil.Error):
                words = process.cmdline()  # none of one that is over
                if words and words[0] != "sleep" and not words[-1].endswith("descendants.py"):
                    found.append(process.pid)
    return found


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


DEAF = """
trap '' TERM
echo "pid $$"
setsid sleep 1000 &
(setsid sleep 1000 &)
echo '{"values": {"loss": 1}}' >> "$PIPELINE_TRIAL"
[ -e finish ] && exit 0
while :; do sleep 0.1; done
"""


def test_ctrl_c_ends_trials_in_order_and_the_same_command_goes_on(sweeps: Sweeps) -> None:
    (sweeps.folder / "deaf.sh").write_text(DEAF)
    sweeps.file("deaf", command=["sh", "deaf.sh"], parameters={"lr": {"values": [1, 2]}})
    words = ("run", "deaf.yaml", "--device", "cpu", "--agents", "2")

    def interrupted(times: int, grace: str) -> str:
        agent = sweeps.start(*words, "--grace", grace)
        wait_for(lambda: len(logs(sweeps, "deaf")) == 2)
        said = ""
        for _ in range(times):
            agent.send_signal(signal.SIGINT)
            while "stopping" not in said:
                said += agent.stdout.readline() if agent.stdout else ""
        said += agent.communicate(timeout=600)[0]
        assert agent.returncode == 130, said
        assert not sweeps.processes(), "daemons of a program that is deaf to SIGTERM among them"
        for path in logs(sweeps, "deaf"):
            path.unlink()
        return said

    assert "trial 0: waiting (interrupted)" in interrupted(1, "1")
    interrupted(2, "500")
    (sweeps.folder / "finish").touch()
    sweeps.run(*words)
    assert sweeps.ends("deaf", "done") == Counter([0, 1])
    assert sum(sweeps.ends("deaf", "failed").values()) == 0


STAYS = """
while [ "$1" = 2 ] && ! [ -e better ]; do sleep 0.1; done
for step in 1 2 3; do echo "{\\"values\\": {\\"loss\\": $1}}" >> "$PIPELINE_TRIAL"; done
touch better
while [ "$1" = 2 ] || ! [ -e stopped ]; do sleep 0.1; done
"""


def test_a_trial_that_is_worse_is_stopped_while_others_run(sweeps: Sweeps) -> None:
    (sweeps.folder / "stays.sh").write_text(STAYS)
    sweeps.file(
        "early",
        command=["sh", "-c", 'sh stays.sh "${0#--lr=}"', "${args}"],
        parameters={"lr": {"values": [1, 2]}},
        early_terminate={"type": "hyperband", "min_iter": 2, "eta": 4},
    )
    agent = sweeps.start("run", "early.yaml", "--device", "cpu", "--agents", "2")
    wait_for(lambda: sweeps.ends("early", "stopped") == Counter([1]))
    (sweeps.folder / "stopped").touch()
    said, _ = agent.communicate(timeout=600)
    assert agent.returncode == 0, said
    assert sweeps.ends("early", "done") == Counter([0])
    assert "hyperband: its value 2 of the metric, 2, is worse than 1" in said


def logs(sweeps: Sweeps, name: str) -> list[Path]:
    return list((sweeps.folder / "outputs" / name / "sweep" / "trials").glob("*/metrics*.jsonl"))


RUN = """
import json, os, sys, time
from pathlib import Path
import pipeline.sweeps as sweeps
settings = dict(word.split("=", 1) for word in sys.argv[1:])
with Path("ran").open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
while Path("hold-" + settings.get("stage", settings["evaluation.split"])).exists():
    time.sleep(0.02)
if "stage" not in settings:
    for number in (1, 2):
        sweeps.log(objective=number * float(settings["algos.PITA.eta"]), kl=1.0, step=number)
"""


def test_runs_are_prepared_once_and_the_winner_is_tested_once_though_agents_are_killed_at_it(
    sweeps: Sweeps,
) -> None:
    """One of two agents is killed as it prepares, so the other does; and that one as it tests the winner."""
    (sweeps.folder / "run_parallel.py").write_text(RUN)
    sweeps.file(
        "eta",
        program="run_parallel.py",
        metric={"name": "objective", "goal": "maximize"},
        parameters={"algos.PITA.eta": {"values": [0.5, 2.0]}, "model": {"value": "tiny"}},
    )
    holds = {part: sweeps.folder / f"hold-{part}" for part in ("prepare", "test")}
    for hold in holds.values():
        hold.touch()
    first = sweeps.start("run", "eta.yaml", "--device", "cpu", "--agents", "1")
    wait_for(lambda: len(runs(sweeps)) == 1)
    second = sweeps.start("agent", "eta", "--device", "cpu")
    assert second.stdout
    assert second.stdout.readline().startswith("waiting for agent ")
    kill(first.pid)
    first.communicate()
    wait_for(lambda: len(runs(sweeps)) == 2)
    holds["prepare"].unlink()
    wait_for(lambda: runs(sweeps)[-1]["evaluation.split"] == "test")
    kill(second.pid)
    assert "waiting for agent" not in second.communicate()[0], "it is said once"
    wait_for(lambda: not sweeps.processes(), 30)
    holds["test"].unlink()
    sweeps.run("agent", "eta", "--device", "cpu")
    ran = runs(sweeps)
    assert [run.get("stage") for run in ran] == ["prepare", "prepare", None, None, None, None]
    assert [run["evaluation.split"] for run in ran] == ["validation"] * 4 + ["test"] * 2
    assert ran[-1]["algos.PITA.eta"] == "2.0"
    assert {run["experiment.name"] for run in ran} == {"eta"}
    assert {run["device"] for run in ran} == {"cpu"}
    tested = Record(sweep_folder(sweeps.folder / "outputs", "eta")).once["winner"]
    assert (tested.trial, tested.results) == (1, {"objective": 4.0, "kl": 1.0})
    sweeps.run("run", "eta.yaml", "--device", "cpu")
    assert len(runs(sweeps)) == 6


def test_what_is_done_once_waits_for_devices_as_trials_do(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.use(monkeypatch, sweeps.folder, "two")
    sweeps.environment[fake_nvml.VARIABLE] = os.environ[fake_nvml.VARIABLE]
    (sweeps.folder / "run_parallel.py").write_text(RUN)
    sweeps.file(
        "eta",
        program="run_parallel.py",
        metric={"name": "objective", "goal": "maximize"},
        parameters={"algos.PITA.eta": {"values": [0.5]}},
    )

    with LeaseSet.acquire(find_gpus(), experiment="other") as lease:
        agent = sweeps.start("run", "eta.yaml")
        assert agent.stdout
        assert agent.stdout.readline().startswith("waiting for devices: GPU 0 has 'other' (pid ")
        lease.release()
        said, _ = agent.communicate(timeout=600)
    assert agent.returncode == 0, said
    assert [run["distributed.gpu_ids"] for run in runs(sweeps)] == ["[0]"] * 3


def runs(sweeps: Sweeps) -> list[dict[str, str]]:
    """The settings of every run, in the order in which they began."""
    path = sweeps.folder / "ran"
    lines = path.read_text().splitlines() if path.exists() else []
    return [dict(word.split("=", 1) for word in json.loads(line)) for line in lines]
