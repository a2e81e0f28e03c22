"""``python -m pipeline launch`` with real ranks on the CPU: they meet, end together and leave nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.engine.devices.inventory import find_gpus
from pipeline.engine.devices.select import holders
from tests.doubles import fake_nvml

ROOT = Path(__file__).parents[2]
RANK = "tests/doubles/rank.py"
ON_LO = {"GLOO_SOCKET_IFNAME": "lo"}
"""Two machines, both of which are this one."""
MEET_S = 200
"""Seconds for ranks to import torch and meet, on a machine that is busy with other tests."""


class Launches:
    """Launches of ranks that report to one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *what: str, options: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
        command = ["-m", "pipeline", "launch", "--device", "cpu", "--nproc", "2", "--grace", "4", *options]
        program = ["--", RANK, str(self.folder), *what]
        launch = subprocess.Popen(
            [sys.executable, *command, *program],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(launch)
        return launch

    def met(self, ranks: int) -> list[dict[str, Any]]:
        """What ranks report, once all have met."""
        end = time.monotonic() + MEET_S
        paths = [self.folder / f"rank-{rank}.json" for rank in range(ranks)]
        while not all(path.exists() for path in paths):
            assert time.monotonic() < end, [path.name for path in paths if path.exists()]
            time.sleep(0.05)
        return [json.loads(path.read_text()) for path in paths]


def finish(launch: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = launch.communicate(timeout=MEET_S)
    return launch.returncode, said


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


@pytest.fixture
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    """No process of a rank is left when a test is over."""
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    found = Launches(tmp_path)
    yield found
    for launch in found.started:
        assert launch.poll() is not None
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("rank-*.json")]
    assert alive([pid for report in reports for pid in (report["pid"], *report["left"])]) == []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_ranks_meet_in_a_clean_environment_and_one_that_fails_ends_all_that_they_have_started(
    launches: Launches, tmp_path: Path
) -> None:
    """Rank 0 ignores requests to stop: torch itself would give it half a minute."""
    leaked = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_PORT": "1", "SLURM_NTASKS": "8", "TORCHELASTIC_RUN_ID": "x"}
    code, said = finish(launches.start("fail", "leave", options=("--grace", "1"), **leaked))
    assert code == 7, said
    assert "launch: rank 1 (pid " in said
    assert "ended with exit code 7" in said
    assert not (tmp_path / "outlived").exists(), "it had torch's half minute"
    reports = launches.met(2)
    assert [len(one["left"]) for one in reports] == [1, 1]  # the fixture sees to it that they are gone
    # Ranks and agent: nobody else gets at them.
    assert [one["listening"] for one in reports] == [["127.0.0.1"]] * 2
    assert [(one["RANK"], one["LOCAL_RANK"], one["WORLD_SIZE"]) for one in reports] == [
        ("0", "0", "2"),
        ("1", "1", "2"),
    ]
    assert {one["SLURM_NTASKS"] for one in reports} == {None}
    assert {one["CUDA_VISIBLE_DEVICES"] for one in reports} == {""}


def node(rank: int, port: int) -> tuple[str, ...]:
    """Options of one of two nodes with a rank each."""
    where = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port))
    return (*where, "--node-rank", str(rank), "--nproc", "1")


def test_two_nodes_are_one_group_and_a_rank_that_is_killed_ends_those_on_both(launches: Launches) -> None:
    port = free_port()
    nodes = [launches.start("kill", "1", options=node(rank, port), **ON_LO) for rank in (0, 1)]
    ends = [finish(node) for node in nodes]
    reports = launches.met(2)
    assert {one["sum"] for one in reports} == {0.0 + 1}
    assert {one["WORLD_SIZE"] for one in reports} == {"2"}
    assert [(one["RANK"], one["LOCAL_RANK"]) for one in reports] == [("0", "0"), ("1", "0")]
    assert {one["MASTER_PORT"] for one in reports} == {str(port)}
    assert ends[1][0] == 128 + signal.SIGKILL
    assert "rank 1 (pid " in ends[1][1]
    assert "signal 9 (SIGKILL)" in ends[1][1]
    assert ends[0][0] != 0


def test_ranks_end_with_a_launcher_that_is_killed(launches: Launches) -> None:
    launch = launches.start("hang")
    pids = [pid for one in launches.met(2) for pid in (one["pid"], *one["left"])]
    assert len(pids) == 4
    launch.kill()
    finish(launch)
    end = time.monotonic() + MEET_S
    while alive(pids):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_gpus_are_leased_while_the_program_runs_and_ctrl_c_gives_them_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_nvml.use(monkeypatch, tmp_path, "eight")
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    command = [sys.executable, "-m", "pipeline", "launch", "--gpus", "2,0", "--"]
    # One write a line: ranks are not buffered, so the pieces of a `print` may be mixed with another rank's.
    program = (
        "import os, sys\n"
        'line = f\'{os.environ["RANK"]} {os.environ["CUDA_VISIBLE_DEVICES"]} {os.getpid()}\\n\'\n'
        "os.write(1, line.encode())\n"
        "sys.stdin.read()"
    )
    first = subprocess.Popen(
        [*command, sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert first.stdout
    seen = sorted(first.stdout.readline().split() for _ in range(2))
    gpus = ",".join(fake_nvml.MACHINES["eight"]["gpus"][index]["uuid"] for index in (6, 4))
    assert [words[:2] for words in seen] == [["0", gpus], ["1", gpus]]
    second = CliRunner().invoke(app, [*command[3:], "true"])
    assert second.exit_code == 2
    assert "2 of these 2 are leased: 'launch " in second.stderr
    assert "wait for them with --wait" in second.stderr
    assert second.stderr.count("\n") == 1
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=MEET_S)
    assert first.returncode == 128 + signal.SIGINT, said
    assert holders(find_gpus()) == {}
    assert alive([int(words[2]) for words in seen]) == []
