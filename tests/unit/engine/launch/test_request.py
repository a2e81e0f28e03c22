"""Wrong launches are refused in one line that says what to do; right ones become arguments of torchrun."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.launch import LaunchRequest, Meeting, Program, find_meeting, find_program
from pipeline.errors import ConfigError

TWO = {"nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.4", "master_port": 29500}


def asked(**fields: Any) -> LaunchRequest:
    return LaunchRequest(program=["train.py"], **fields)


@pytest.mark.parametrize(
    ("fields", "environment", "says"),
    [
        ({**TWO, "master_addr": None}, {}, "--master-addr"),
        ({**TWO, "node_rank": None}, {}, "--node-rank"),
        ({**TWO, "node_rank": 2}, {}, "--node-rank, 0 to 1"),
        ({"node_rank": 0}, {}, "for several machines"),
        ({}, {"MASTER_PORT": "many"}, "MASTER_PORT=many is no port"),
        ({**TWO, "master_port": None}, {"MASTER_PORT": "29500", "RANK": "0"}, "--master-port"),
    ],
)
def test_a_meeting_that_cannot_be(fields: dict[str, Any], environment: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        find_meeting(asked(**fields), environment)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "environment", "expected"),
    [
        ({}, {}, Meeting(1, 0, "127.0.0.1", None)),
        ({}, {"MASTER_PORT": "1234", "MASTER_ADDR": "elsewhere"}, Meeting(1, 0, "127.0.0.1", 1234)),
        ({"master_port": 99}, {"MASTER_PORT": "1234"}, Meeting(1, 0, "127.0.0.1", 99)),
        # What torchrun set for its own rank is not what a user wants.
        ({}, {"MASTER_PORT": "1234", "RANK": "3"}, Meeting(1, 0, "127.0.0.1", None)),
        (TWO, {}, Meeting(2, 1, "10.0.0.4", 29500)),
        ({"nnodes": 2}, {"MASTER_ADDR": "a", "MASTER_PORT": "7", "SLURM_NODEID": "1"}, Meeting(2, 1, "a", 7)),
        ({**TWO, "node_rank": 0}, {"SLURM_NODEID": "1"}, Meeting(2, 0, "10.0.0.4", 29500)),
    ],
    ids=[
        "free port",
        "environment",
        "option first",
        "outer launcher",
        "two nodes",
        "Slurm",
        "option before Slurm",
    ],
)
def test_where_processes_meet(fields: dict[str, Any], environment: dict[str, str], expected: Meeting) -> None:
    assert find_meeting(asked(**fields), environment) == expected


def test_programs(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    assert find_program(["train.py", "--lr", "1"], tmp_path) == Program((), "train.py", ("--lr", "1"))
    assert find_program(["-m", "mine.train", "-m"], tmp_path) == Program(("--module",), "mine.train", ("-m",))
    found = find_program(["env", "-0"], tmp_path)
    assert (found.flags, Path(found.name).name, found.arguments) == (("--no-python",), "env", ("-0",))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "there is no program to start. Give it last"),
        (["missing.py"], "there is no file missing.py in"),
        (["missing-program"], "there is no program missing-program: neither"),
        (["-m", "no_such_module.train"], "'no_such_module' is not installed"),
        (["--lr", "1"], "--lr"),
        (["run_parallel.py"], "starts a process on each GPU by itself"),
    ],
)
def test_programs_that_cannot_be_started(words: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        find_program(words, tmp_path)
