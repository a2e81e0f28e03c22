"""A run that is changed while it goes on, from another terminal, and the one command that computes the same."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands import run as run_commands
from pipeline.commands import steer, steering
from pipeline.commands.steering import Asked
from pipeline.engine.devices.inventory import find_gpus
from pipeline.engine.devices.select import LeaseSet, holders
from pipeline.engine.journal import JournalReader
from pipeline.engine.run_folder import RunFolder
from pipeline.runs.loaded import LoadedRun
from tests.doubles import fake_nvml
from tests.doubles.small_runs import (
    ROOT,
    command,
    events,
    results,
    run,
    run_here,
    wait_for,
    with_reference,
)

BASE = ["algos=[PITA,DPO]", "algos.DPO.epochs=1", "rounds_of_training=2", "execution.workers=2", "device=cpu"]

LONG = ["algos=[QSharp,DPO]"]  # it trains on every completion, right or wrong


def say(*words: str, output: Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words, "--output-dir", str(output)])
    assert done.exit_code == code, done.output
    return done.output


@contextmanager
def started(output: Path, *settings: str) -> Iterator["subprocess.Popen[str]"]:
    """A run that has begun, which is killed at the end if it has not ended."""
    told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process: Any = subprocess.Popen(command(output, *BASE, *settings), cwd=output.parent, **told)
    wait_for(
        lambda: (
            (output / "t" / "latest" / "journal.jsonl").exists()
            and bool(events(output, "RunStarted", key="event"))
        )
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: "subprocess.Popen[str]", code: int = 0) -> str:
    told, _ = process.communicate(timeout=800)
    assert process.returncode == code, told
    assert "Traceback" not in told
    return told


def typed_command(output: Path, to: Path) -> list[str]:
    """Settings of the command that a run has become, for another folder."""
    words = shlex.split(say("command", "t", output=output))
    return [word for word in words[2:] if not word.startswith(("experiment.name=", "output_dir="))]


def plan_of(output: Path) -> dict[str, str]:
    plan = json.loads((output / "t" / "latest" / "plan.json").read_text())
    return {job["id"]: job["key"] for job in plan["jobs"]}


def leave(output: Path, name: str, content: bytes) -> None:
    folder = steering.folder_of(RunFolder((output / "t" / "latest").resolve()))
    folder.mkdir(exist_ok=True)
    (folder / ".new").write_bytes(content)
    (folder / ".new").rename(folder / name)


def ask(output: Path, **asked: Any) -> None:
    """As the commands do, and sooner: they take longer than a small round."""
    path = steering.ask(RunFolder((output / "t" / "latest").resolve()), Asked(**asked))
    wait_for(lambda: path.stem in events(output, "RequestAnswered", key="request"))
    assert events(output, "RequestAnswered", key="reason")[-1] == ""


def test_a_stopped_cloned_and_extended_run_has_the_bytes_of_the_command_that_it_prints(tmp_path: Path) -> None:
    output = tmp_path / "outputs"
    with started(output) as process:
        say("add", "t", "experiment.seeds=[1]", output=output)
        say("clone", "t", "PITA", "--as", "Weak", "algos.Weak.eta=3.0", "--from-round", "1", output=output)
        say("stop", "t", "s1/DPO", output=output)
        say("priority", "t", "s0/PITA", "high", output=output)
        before = plan_of(output)
        for words, named in (
            (["stop", "t", "s1/DPO"], "stop"),  # twice
            (["stop", "t", "nope"], "no chain fits"),
            (["resume", "t", "PITA"], "PITA"),
            (["add", "t", "experiment.seeds=[1]"], "has that already"),
            (["add", "t", "rounds_of_training=1"], "new total"),
            (["add", "t", "algos.PITA.eta=0.1"], "would change addition/tiny/s0/PITA/r1"),
            (["add", "t", "nonsense"], "KEY=VALUE"),
            (["add", "t", "output_dir=elsewhere"], "no other settings"),
            (["clone", "t", "PITA", "--as", "DPO"], "no algorithm has"),
            (["clone", "t", "PITA", "--as", "X", "--from-round", "2"], "before the last"),
            (["clone", "t", "PITA", "--as", "X", "rounds_of_training=3"], "settings of a clone are"),
        ):
            assert named in " ".join(say(*words, output=output, code=2).split())
        # Of what others leave there nothing is done, and all of it is told.
        leave(output, "00000000-a.json", b'{"verb": "stop", "chain": "PI')
        leave(output, "00000000-b.json", b'{"verb": "\\u001b[2Jformat", "chain": "../../x", "words": [1]}')
        leave(output, "00000000-c.json", b'{"verb": "erase"}')
        leave(output, "00000000-d.json", b" " * (2 << 20))
        (output / "t" / "latest" / "requests" / "00000000-e.json").symlink_to("/etc/passwd")
        wait_for(lambda: events(output, "RequestAnswered", key="request").count("00000000-e") == 1)
        assert plan_of(output) == before
        wait_for(lambda: "addition/tiny/s0/PITA/r1/metrics" in events(output, "JobFinished"))
        told = ended(process)
    answers = events(output, "RequestAnswered", key="reason")
    assert answers[:4] == ["", "", "", ""]
    assert all(answers[4:])
    assert len(answers) == 9
    assert "\x1b" not in told
    assert not list((output / "t" / "latest" / "requests").iterdir())
    rows = {(row["algo"], row["seed"], row["round"]) for row in json.loads(results(output)[0])["rows"]}
    assert {("Weak", 0, 2), ("Weak", 1, 2), ("PITA", 1, 2), ("DPO", 0, 2)} <= rows
    assert not {("Weak", 0, 1), ("DPO", 1, 1)} & rows

    again = tmp_path / "again"
    run_here(again, *typed_command(output, again))
    assert plan_of(again) == plan_of(output)
    assert results(again) == results(output)


def test_a_chain_is_stopped_after_its_round_and_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    output = tmp_path / "outputs"
    with started(output, *LONG, "algos.QSharp.epochs=100", "rounds_of_training=3") as process:
        ask(output, verb="stop", chain="DPO")
        wait_for(lambda: "addition/tiny/s0/QSharp/r1/train" in events(output, "JobStarted"))
        ask(output, verb="stop", chain="QSharp", after_round=True)
        stopped = [job for job in plan_of(output) if "/QSharp/" in job]
        assert {job.split("/")[4] for job in stopped} == {"r1"}
        wait_for(lambda: "addition/tiny/s0/QSharp/r1/train" in events(output, "JobFinished"))
        ask(output, verb="resume", chain="QSharp")
        ended(process)
    assert events(output, "JobFinished").count("addition/tiny/s0/QSharp/r3/metrics") == 1
    # Over, it goes on in this very process.
    say("resume", "t", "DPO", output=output)
    assert {"addition/tiny/s0/DPO/r3/metrics"} <= {*events(output, "JobFinished")}
    assert "goes on" in say("stop", "t", "DPO", output=output, code=2)
    calm = tmp_path / "calm"
    run(calm, *BASE, *LONG, "algos.QSharp.epochs=100", "rounds_of_training=3")
    assert results(calm) == results(output)


def test_a_running_job_of_a_stopped_chain_ends_and_its_device_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "outputs"
    with started(
        output, *LONG, "algos.QSharp.epochs=4000", "execution.workers=1", "execution.stop_grace_s=1"
    ) as process:
        wait_for(lambda: "addition/tiny/s0/QSharp/r1/train" in events(output, "JobStarted"))
        ask(output, verb="stop", chain="QSharp")
        ended(process)
    assert events(output, "JobStopped") == ["addition/tiny/s0/QSharp/r1/train"]
    assert "addition/tiny/s0/DPO/r2/metrics" in events(output, "JobFinished")
    assert not [job for job in plan_of(output) if "/QSharp/" in job]


@pytest.mark.parametrize("moment", ["before", "plan", "answer"])
def test_a_request_is_done_once_or_not_at_all_if_the_engine_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Killed before it writes the plan, which says all, after that, or between the last file and the answer."""
    output = tmp_path / "outputs"
    monkeypatch.setenv("KILLED_AT", moment)
    killed = [
        "import os, signal, sys; from pipeline.commands import steering, start; from pipeline.runs import origin",
        "write, write_origin, at = steering.write_whole, origin.write_origin, os.environ['KILLED_AT']",
        "end = lambda *_: os.kill(os.getpid(), signal.SIGKILL)",
        "steering.write_whole = lambda *a: (at == 'before' and end(), write(*a), at == 'plan' and end())",
        "def last(*a):",
        "    write_origin(*a)",
        "    steering.origin.link_stored = end",
        "def began(*a): steering.origin.write_origin = last",
        "real = steering.Steered.next_change",
        "steering.Steered.next_change = lambda self, state: (began(), real(self, state))[1]",
        "start.start('pipeline.cli:main', sys.argv[1:])",
    ]
    words = command(output, *BASE, "execution.stop_grace_s=1")[2:]
    process = subprocess.Popen(
        [sys.executable, "-c", "\n".join(killed), *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(
        lambda: (
            (output / "t" / "latest" / "journal.jsonl").exists()
            and bool(events(output, "RunStarted", key="event"))
        )
    )
    folder = RunFolder((output / "t" / "latest").resolve())
    steering.ask(folder, Asked(verb="add", words=["experiment.seeds=[7]"]))
    assert process.wait(300) == -signal.SIGKILL
    is_done = moment != "before"
    assert ("experiment.seeds=[0,7]" in say("command", "t", output=output)) == is_done
    assert any("/s7/" in job for job in plan_of(output)) == is_done
    assert ("s7" in say("status", "t", output=output)) == is_done
    assert LoadedRun(folder).config["experiment"]["seeds"] == ([0, 7] if is_done else [0])
    assert events(output, "RequestAnswered") == []


def workers_of(output: Path) -> dict[int, str]:
    return {index: worker.state for index, worker in LoadedRun(folder_of(output)).view.workers.items()}


def folder_of(output: Path) -> RunFolder:
    return RunFolder((output / "t" / "latest").resolve())


def test_a_run_that_gives_devices_back_and_takes_others_has_the_bytes_of_one_that_does_not(tmp_path: Path) -> None:
    output = tmp_path / "outputs"
    with started(output) as process:
        say("devices", "t", "-1", output=output)
        for words, named in (
            (["-0"], "last device"),
            (["-1"], "names no device"),
            (["+0"], "has cpu slot 0 already"),
            (["+7"], "names no device"),
            (["+1", "+1"], "named twice"),
            (["3"], "+1 takes a device"),
        ):
            assert named in " ".join(say("devices", "t", *words, output=output, code=2).split())
        wait_for(lambda: workers_of(output)[1] == "given back")
        say("devices", "t", "+2", "-0", output=output)
        wait_for(lambda: workers_of(output)[0] == "given back")
        ask(output, verb="devices", words=["+1"])
        ended(process)
    assert process.returncode == 0
    journal = list(JournalReader(output / "t" / "latest" / "journal.jsonl").new_events())
    assert {event["worker"] for event in journal if event["event"] == "JobStarted"} >= {0, 2}
    left = next(
        at for at, event in enumerate(journal) if event["event"] == "WorkerExited" and event["worker"] == 1
    )
    back = next(at for at, event in enumerate(journal) if event["event"] == "DeviceReleased")
    assert not [one for one in journal[left:back] if one["event"] == "JobStarted" and one["worker"] == 1]
    told = json.loads(say("status", "t", "--json", output=output))
    assert [(one["worker"], one["done"]) for one in told["given_back"]] == [(0, True)]
    assert "devices that are given back" in say("status", "t", output=output)
    assert [answer["text"] for answer in told["answers"] if not answer["reason"]] == [
        "devices -1",
        "devices +2 -0",
        "devices +1",
    ]
    calm = tmp_path / "calm"
    run(calm, *BASE)
    assert results(calm) == results(output)


def test_a_gpu_that_is_given_back_is_free_for_others_while_the_run_goes_on(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, gate = tmp_path / "outputs", tmp_path / "gate"
    counted = with_reference(tmp_path_factory, output)
    fake_nvml.use(monkeypatch, tmp_path, "lost")  # GPUs 0 and 2; 1 is broken
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    settings = [
        *counted,
        "execution.jobs_per_device=2",
        "execution.stop_grace_s=1",
    ]
    words = command(output, *settings)
    words[1:2] = [str(ROOT / "tests" / "doubles" / "fake_gpus.py"), str(gate)]
    process: Any = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    gpus = find_gpus()
    with process:
        try:
            wait_for(lambda: (output / "t" / "latest" / "journal.jsonl").exists())
            ask(output, verb="devices", words=["-2"])
            wait_for(lambda: len(holders(gpus)) == 1)
            with LeaseSet.acquire(gpus[1:], experiment="other"):
                assert "leased: 'other'" in " ".join(say("devices", "t", "+2", output=output, code=2).split())
                assert "is broken" in say("devices", "t", "+1", output=output, code=2)
            say("devices", "t", f"+{gpus[1].uuid}", f"-{gpus[0].uuid}", output=output)
            wait_for(lambda: {*holders(gpus)} == {gpus[1].uuid})
            gate.touch()
            ended(process)
        finally:
            process.kill()
    assert holders(gpus) == {}
    assert {*events(output, "JobStarted", key="worker")} <= {"1", "3"}  # both slots of GPU 2


def test_an_engine_that_is_gone_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "outputs"
    with started(output) as process:
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(steer, "PATIENCE_S", 1.0)
        assert "nothing was changed" in " ".join(
            say("add", "t", "experiment.seeds=[1]", output=output, code=2).split()
        )
        assert not list((output / "t" / "latest" / "requests").iterdir())
        os.kill(process.pid, signal.SIGCONT)
        os.kill(process.pid, signal.SIGINT)
        ended(process, 130)


def test_requests_that_wait_when_nothing_is_left_to_do_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, real = tmp_path / "outputs", run_commands.create_run_folder
    run_here(output, "algos=[DPO]", "rounds_of_training=1")

    def with_requests(*where: Any) -> RunFolder:
        folder = real(*where)
        steering.ask(folder, Asked(verb="stop", chain="PITA"))  # all else is stored
        steering.ask(folder, Asked(verb="add", words=["experiment.seeds=[1]"]))
        return folder

    monkeypatch.setattr(run_commands, "create_run_folder", with_requests)
    run_here(output, "algos=[DPO,PITA]", "rounds_of_training=1")
    assert events(output, "RequestAnswered", key="reason") == ["", ""]
    assert "addition/tiny/s1/DPO/r1/metrics" in events(output, "JobFinished")
