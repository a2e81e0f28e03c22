"""A sweep that W&B searches: created once, its agents on devices of their own.

W&B is a stand-in: for most tests its package too, for one its server alone.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands import sweep
from pipeline.errors import ConfigError, PipelineError
from pipeline.sweeps import online
from pipeline.sweeps.file import read_sweep
from tests.doubles import fake_nvml, wandb_server, wandb_stand_in
from tests.doubles.small_runs import wait_for

PROGRAM = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "WANDB_MODE", "WANDB_RUN_ID", "CUDA_VISIBLE_DEVICES")
told = {"arguments": sys.argv[1:], **{name: os.environ.get(name) for name in names}}
folder, rank = os.environ["WANDB_STAND_IN"], os.environ.get("RANK", "alone")
with open(f"{folder}/{rank}-{'-'.join(sys.argv[1:])}.json", "w") as file:
    json.dump(told, file)
"""
Run = Callable[..., tuple[int, str]]
SWEEP = """
program: train.py
method: grid
parameters:
  lr: {values: [1e-3, 1e-2]}
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOOKS": 1, "EMPTY_S": 0.0, "FAILED_S": 0.0, "BUSY_S": 0.1}.items():
        monkeypatch.setattr(online, name, value)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    environment: dict[str, str] = {"PIPELINE_LEASE_DIR": str(tmp_path / "leases")}
    wandb_stand_in.install(tmp_path, environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(tmp_path / "site")  # which processes of ours inherit
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "lr.yaml").write_text(SWEEP)
    return tmp_path


def mode(place: Path, word: str) -> None:
    (place / "server" / "mode").write_text(word)


def sent(place: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((place / "server" / "sweep.json").read_text())["config"]
    return config


def told(place: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((place / "server").glob("*-*.json"))]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def _run(place: Path, **options: Any) -> tuple[int, str]:
        code = sweep.run(place / "lr.yaml", wandb=True, output_dir=place / "out", **options)
        return code, capsys.readouterr().out

    return _run


def test_trials_run_on_devices_of_their_own_until_none_is_left(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a second time, it goes on with the same sweep and finds nothing to do."""
    fake_nvml.use(monkeypatch, place, "two")
    code, said = run(place, agents=2)
    assert code == 0, said
    assert "me/sums/abc123" in said
    assert "2 trials run" in said
    kept = json.loads((place / "out" / "lr" / "sweep" / "wandb.json").read_text())
    assert kept["path"] == "me/sums/abc123"
    assert sent(place)["parameters"] == {"lr": {"values": [0.001, 0.01]}}
    assert "command" not in sent(place)
    assert [one["arguments"] for one in told(place)] == [["--lr=0.001"], ["--lr=0.01"]]
    assert {one["WANDB_RUN_ID"] for one in told(place)} == {"run0", "run1"}
    assert all(one["CUDA_VISIBLE_DEVICES"].count("GPU-") == 1 for one in told(place))
    again, said = run(place, agents=1)
    assert again == 0
    assert "going on with" in said
    assert "0 trials run" in said
    (place / "lr.yaml").write_text(SWEEP.replace("1e-2", "1e-1"))
    with pytest.raises(ConfigError, match="was created from another file"):
        run(place)


def test_of_a_trial_on_several_devices_rank_0_alone_is_a_run(place: Path, run: Run) -> None:
    (place / "lr.yaml").write_text(SWEEP.replace("[1e-3, 1e-2]", "[1e-3]") + "  num_gpus: {value: 2}\n")
    code, said = run(place, agents=1)
    assert code == 0, said
    assert sent(place)["command"][:4] == ["${env}", "${interpreter}", "-m", "pipeline.sweeps.online"]
    assert [(one["RANK"], one["WORLD_SIZE"], one["WANDB_RUN_ID"], one["WANDB_MODE"]) for one in told(place)] == [
        ("0", "2", "run0", None),
        ("1", "2", None, "disabled"),
    ]


def test_what_wandb_does_wrong_is_one_message_and_starts_nothing(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode(place, "fails")
    with pytest.raises(PipelineError, match=r"(?s)exit code 1\):.*api_key not configured"):
        run(place)
    mode(place, "garbage")
    with pytest.raises(PipelineError, match="it names none"):
        run(place)
    mode(place, "hangs")
    monkeypatch.setattr(online, "_CREATE_S", 0.5)
    with pytest.raises(PipelineError, match=r"within 0.5 s"):
        run(place)
    monkeypatch.setattr(online, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="which is not installed"):
        run(place)
    assert not (place / "out" / "lr" / "sweep").exists()
    (place / "lr.yaml").write_text(SWEEP.replace("train.py", "run_parallel.py"))
    with pytest.raises(ConfigError, match="leave out --wandb"):
        run(place)


def test_agents_that_fail_stop_the_sweep_and_those_without_trials_end(place: Path, run: Run) -> None:
    mode(place, "agent fails")
    code, said = run(place, agents=1)
    assert code == 1
    assert said.count("agent 1 failed: exit code 1") == 3
    assert "BrokenPipeError" in said
    mode(place, "nothing")
    code, said = run(place, agents=1)
    assert code == 0
    assert "0 trials run" in said
    mode(place, "")
    code, said = run(place, agents=1, count=1)
    assert code == 0
    assert "1 trial run" in said
    assert len(told(place)) == 1


def test_an_agent_that_has_fewer_devices_than_the_largest_trial_needs_is_refused(place: Path) -> None:
    (place / "lr.yaml").write_text(SWEEP + "  num_gpus: {values: [1, 4, 2]}\n")
    asked = read_sweep(place / "lr.yaml")
    assert online.devices_of_agents(asked, None) == 4
    with pytest.raises(ConfigError, match="need up to 4"):
        online.devices_of_agents(asked, 2)


def test_a_trial_that_needs_more_than_its_agent_has_says_so(place: Path) -> None:
    words = [sys.executable, "-m", "pipeline.sweeps.online", "train.py", "--num_gpus", "4"]
    environment = {**os.environ, "PIPELINE_TRIAL_DEVICES": "2"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "this trial needs num_gpus=4, and its agent has 2" in done.stderr


HOLDS = """
import os, signal, sys, time
def told(*_):
    open("told", "w").close()
    sys.exit(1)
signal.signal(signal.SIGTERM, told)
with open("ran", "a") as file:
    file.write(f"{os.environ['WANDB_RUN_ID']} {sys.argv[1]}\\n")
if sys.argv[1] == "--lr=0.1":
    time.sleep(600)
"""


def test_the_real_agent_runs_trials_and_tells_them_to_stop(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package as it is installed: one agent runs a trial to its end, and is followed by that of the next.

    Without being told to, an agent that is interrupted would end and say nothing to its trial.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(HOLDS)
    (tmp_path / "lr.yaml").write_text(SWEEP.replace("1e-2", "1e-1") + "project: sums\n")
    ran, told = tmp_path / "ran", tmp_path / "told"
    with wandb_server.serving() as server:
        for name, value in server.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        # A signal that comes while the agent has started a trial and not noted it yet never reaches that.
        interrupt = threading.Thread(
            target=lambda: (
                wait_for(lambda: "run2" in server.running and "run2" in ran.read_text()),
                os.kill(os.getpid(), signal.SIGINT),
            )
        )
        interrupt.start()
        code, said = run(tmp_path, agents=1)
        interrupt.join()
        assert (code, told.exists()) == (130, True), said
        assert "me/sums/abcd1234" in said
        assert "failed" not in said
        assert server.given == [{"lr": 0.001}, {"lr": 0.1}]
        assert ran.read_text().splitlines() == ["run1 --lr=0.001", "run2 --lr=0.1"]
