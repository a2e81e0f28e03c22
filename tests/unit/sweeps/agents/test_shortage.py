"""Trials that cannot be started as the machine is short of something: they wait, and nothing is lost."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import StoreError, WorkerError
from pipeline.sweeps.agents.shortage import Pauses, shortage
from pipeline.sweeps.folder import sweep_folder
from pipeline.sweeps.recorded import RecordedSweep

AGENT = """
import os, resource, sys
from pathlib import Path
from pipeline.config.schema import DeviceChoice
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.errors import WorkerError
from pipeline.sweeps.agents import shortage
from pipeline.sweeps.agents.agent import Agent, Bounds, SweepListener
from pipeline.sweeps.agents.beginning import begin_sweep
from pipeline.sweeps.agents.pool import choose_pool
from pipeline.sweeps.reading.file import read_sweep
from pipeline.sweeps.searching.searches import make_search

shortage._FIRST_S = 0.01
usual = resource.getrlimit(resource.RLIMIT_NOFILE)

class Short(Agent):
    def _start(self, *args):
        lowest = os.dup(0)
        os.close(lowest)
        enough = mended or case == "within-a-turn"
        resource.setrlimit(resource.RLIMIT_NOFILE, usual if enough else (lowest + 4, usual[1]))
        try:
            super()._start(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)

    def _collect(self):
        if case == "within-a-turn" and not mended:
            lowest = os.dup(0)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, usual[1]))
        super()._collect()

def say(text):
    global mended
    print(text, flush=True)
    mended = mended or (case != "for-good" and "no trial can be started now" in text)
    if mended:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)

for case in sys.argv[1:]:
    mended = False
    file = Path("lr.yaml")
    sweep = read_sweep(file, name=case)
    folder = begin_sweep(sweep, file, Path("out"))
    pool = choose_pool(DeviceChoice.cpu, agents=1)
    print("case", case)
    with StopSignals() as signals:
        try:
            Short(sweep, folder, pool, Bounds(own=1), make_search(sweep), SweepListener(say=say)).run(signals)
        except WorkerError as error:
            print("gave up:", error)
    resource.setrlimit(resource.RLIMIT_NOFILE, usual)

import pipeline.commands.sweep_run
slow = sys.modules.keys() & {"torch", "numpy", "hydra", "omegaconf"}
assert not slow, f"an agent of programs that are none of ours starts without {slow}"
"""


CASES = ["mended", "for-good", "within-a-turn"]


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder of outputs of a sweep for each case, and what its agent said; all in one process, one by one."""
    folder = tmp_path_factory.mktemp("short")
    asked = {
        "command": ["true"],
        "method": "grid",
        "parameters": {"lr": {"values": [0.1 + 0.2]}, "say": {"value": "a\nb"}},
    }
    (folder / "lr.yaml").write_text(json.dumps(asked))
    where = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PIPELINE_LEASE_DIR": str(folder / "leases")}
    done = subprocess.run(
        [sys.executable, "-c", AGENT, *CASES],
        cwd=folder,
        env={**os.environ, **where},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = (part.partition("\n") for part in done.stdout.split("case ")[1:])
    return folder / "out", {case: text for case, _, text in said}


@pytest.mark.parametrize("case", CASES)
def test_a_trial_without_descriptors_waits_and_is_no_failure(
    case: str, agents: tuple[Path, dict[str, str]]
) -> None:
    """The limit of the process is real: its socket and pipes cannot be made."""
    outputs, said = agents
    assert said[case].count("no trial can be started now: this process has as many files open as it may") == 1
    (trial,) = RecordedSweep(sweep_folder(outputs, case)).view.trials.values()
    assert trial.failures == trial.losses == 0
    if case != "for-good":
        told = next(line for line in said[case].splitlines() if line.startswith("trial 0 on "))
        assert told.partition(": ")[2] == "lr=0.3 say=a\\nb", "as in every table, on one line"
        assert (trial.state.value, trial.attempts) == ("done", 2 if case == "mended" else 1)
    else:
        assert trial.state.value == "waiting"
        assert "gave up: no trial can be started: this process has as many files open as it may" in said[case]
        assert said[case].strip().endswith("It was tried 7 times in a row")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM])
def test_what_is_short_is_said_in_words_also_behind_an_error_of_ours(number: int) -> None:
    error = StoreError("cannot write x")
    error.__cause__ = OSError(number, "")
    assert shortage(error)
    assert not shortage(OSError(errno.ENOENT, ""))
    assert not shortage(StoreError("cannot write x"))


def test_pauses_grow_and_end_when_something_runs() -> None:
    now, said = [0.0], list[str]()
    pauses = Pauses(said.append, lambda: now[0])
    for pause in (1, 2, 4, 8, 16, 32, 60):
        pauses.give_up()
        pauses.begin("memory")
        now[0] += pause - 0.5
        assert pauses.on()
        now[0] += 0.5
        assert not pauses.on()
    with pytest.raises(WorkerError, match=r"memory\. It was tried 7 times in a row"):
        pauses.give_up()
    assert len(said) == 1
    pauses.over()
    pauses.give_up()
