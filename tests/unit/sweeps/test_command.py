"""The command line of a trial, by W&B's macros, and the settings of a run of this program."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.devices import inventory
from pipeline.engine.devices.inventory import Device
from pipeline.errors import ConfigError
from pipeline.foreign import read_json
from pipeline.machine import descendants
from pipeline.machine.children import Channel
from pipeline.sweeps import trial_process
from pipeline.sweeps.command import (
    as_ranks,
    check_program,
    overrides_of,
    own_command,
    prepare_command,
    trial_command,
)
from pipeline.sweeps.file import RESERVED, SPLIT, Options, Sweep, sweep_of
from pipeline.sweeps.trial_process import Order, Result

BLOCK = {
    "lr": {"value": 1e-05},
    "on": {"values": [True, False]},
    "off": {"value": False},
    "a b": {"value": "$(x) ${program}"},
    "model": {"parameters": {"size": {"values": [1, 2]}, "kinds": {"value": ["x"]}}},
}
VALUES = {"lr": 1e-05, "on": True, "off": False, "a b": "$(x) ${program}", "model.size": 2, "model.kinds": ["x"]}
MODEL = {"size": 2, "kinds": ["x"]}
WORDS = {"lr": "1e-05", "on": "True", "off": "False", "a b": "$(x) ${program}", "model": str(MODEL)}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("ODD", "${odd}")


def words(*command: str, num_gpus: int = 1, **options: Any) -> list[str]:
    asked = sweep(command, **options)
    return trial_command(asked, VALUES, Path("/tmp/p.json"), num_gpus=num_gpus)


def sweep(command: tuple[str, ...], **options: Any) -> Sweep:
    asked = sweep_of({"program": "train.py", "method": "random", "parameters": BLOCK}, Path("s.yaml"))
    return replace(asked, command=command, options=Options(**options))


@pytest.mark.parametrize(
    ("macro", "made"),
    [
        ("${env}", ["/usr/bin/env"]),
        ("${interpreter}", [sys.executable]),
        ("${program}", ["train.py"]),
        ("${args}", [f"--{name}={word}" for name, word in WORDS.items()]),
        ("${args_no_hyphens}", [f"{name}={word}" for name, word in WORDS.items()]),
        ("${args_no_equals}", [each for name, word in WORDS.items() for each in (f"--{name}", word)]),
        ("${args_no_boolean_flags}", ["--lr=1e-05", "--on", "--a b=$(x) ${program}", f"--model={MODEL}"]),
        ("${args_append_hydra}", [f"+{name}={word}" for name, word in WORDS.items()]),
        ("${args_override_hydra}", [f"++{name}={word}" for name, word in WORDS.items()]),
        ("${args_json}", [json.dumps({**{name: VALUES[name] for name in list(VALUES)[:4]}, "model": MODEL})]),
        ("${args_json_file}", ["/tmp/p.json"]),
        ("${envvar:HOME}/x", ["/home/me/x"]),
        ("${envvar:NOBODY}", ["NOBODY"]),
        ("${envvar:ODD}", ["${odd}"]),
        ("--all=${args}", ["--all=${args}"]),
    ],
)
def test_macros_are_filled_in_as_wandbs_agent_does(macro: str, made: list[str]) -> None:
    """A name or value of any characters is part of one word: no shell takes it apart, and it is no macro."""
    assert words("first", macro, "last") == ["first", *made, "last"]


def test_several_devices_may_have_another_program_and_what_prepares_has_no_parameters() -> None:
    assert words("${program}", num_gpus=2) == ["train.py"]
    assert words("${program}", num_gpus=2, distributed_program="ddp.py") == ["ddp.py"]
    assert words("${program}", num_gpus=1, distributed_program="ddp.py") == ["train.py"]
    prepare = ["${interpreter}", "${program}", "${args}", "${args_json}", "--only-data", "${envvar:HOME}"]
    made = [sys.executable, "train.py", "--only-data", "/home/me"]
    assert prepare_command(sweep((), prepare=prepare)) == made
    assert prepare_command(sweep(())) == []


BY_PYTHON = ("${env}", "${interpreter}", "${program}", "${args}")


@pytest.mark.parametrize(
    ("program", "command", "there"),
    [
        ("train.py", BY_PYTHON, True),
        ("package", BY_PYTHON, True),
        ("-mpackage", BY_PYTHON, True),
        ("bash", ("${program}", "${args}"), True),
        ("folder", BY_PYTHON, False),
        ("train", BY_PYTHON, False),
    ],
)
def test_what_python_is_to_run_is_a_file_or_a_package(
    tmp_path: Path, program: str, command: tuple[str, ...], there: bool
) -> None:
    (tmp_path / "train.py").touch()
    for folder in ("package", "folder"):
        (tmp_path / folder).mkdir()
    (tmp_path / "package" / "__main__.py").touch()
    asked = replace(sweep(command), folder=tmp_path, program=program)
    with (
        nullcontext() if there else pytest.raises(ConfigError, match=rf"^program: there is no file {program} in ")
    ):
        check_program(asked)


# Keys of tables as Hydra has them; values of any plain data.
_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8).filter(lambda text: "${" not in text),
    st.sampled_from(["true", "Null", "inf", "1e5", "", "2.0->0.5@linear", "a,b", "it's", "\\", "a\\'"]),
)
_plain = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), inner, max_size=3),
    ),
    max_leaves=5,
)


@pytest.mark.properties
@given(_plain)
def test_hydra_reads_a_setting_as_it_was(value: object) -> None:
    (override,) = OverridesParser.create().parse_overrides(overrides_of({"a.b": value}))
    assert (override.key_or_group, repr(_unquoted(override.value()))) == ("a.b", repr(value))


def _unquoted(value: Any) -> Any:
    if isinstance(value, dict):
        return {_unquoted(key): _unquoted(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_unquoted(each) for each in value]
    return getattr(value, "text", value)


# -- what is started ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("/usr/bin/env python train.py --lr=1", "train.py --lr=1"),
        ("/venv/bin/python3.11 -u train.py", "train.py"),
        ("python -m my.train --lr 1", "-m my.train --lr 1"),
        ("env A=1 python train.py", "env A=1 python train.py"),
        ("bash run.sh 1", "bash run.sh 1"),
        ("torchrun --nproc-per-node=2 train.py", None),
        ("/usr/bin/env accelerate launch train.py", None),
        ("python -m torch.distributed.run train.py", None),
        ("python -m pipeline launch -- train.py", None),
    ],
)
def test_what_is_started_on_each_device(command: str, ranks: str | None) -> None:
    assert as_ranks(command.split()) == (None if ranks is None else ranks.split())


CUDA = Device(kind="cuda", index=5, uuid="GPU-b", name="GPU", memory_total_bytes=1)
CPU = Device(kind="cpu", index=0, uuid=None, name="CPU", memory_total_bytes=1)


@pytest.mark.parametrize(
    ("device", "where"),
    [(CUDA, ["distributed.gpu_ids=[1]"]), (CPU, ["device=cpu", "execution.workers=3"])],
    ids=["cuda", "cpu"],
)
def test_what_the_sweep_decides_of_a_run_of_this_package_no_parameter_may_say(
    device: Device, where: list[str]
) -> None:
    """So that no parameter is overruled in silence."""
    own, out = replace(sweep(("${program}",)), program="./run_parallel.py", name="eta"), Path("/outputs")
    python, program, *settings = own_command(own, out, {"num_gpus": 1, "dataset": "x"}, [device], [1], 3)
    assert (python, program) == (sys.executable, "./run_parallel.py")
    assert settings == ["dataset=x", "experiment.name=eta", "output_dir=/outputs", *where]
    assert {setting.partition("=")[0] for setting in settings[1:]} <= {*RESERVED, SPLIT, "execution.workers"}
    chosen = own_command(own, out, {"execution.workers": 1}, [CPU], [], 3)
    assert "execution.workers=1" in chosen
    assert "execution.workers=3" not in chosen


@pytest.mark.parametrize(("threads", "workers"), [(1, 5), (2, 2), (8, 1)])
def test_workers_of_several_threads_share_the_cores_of_a_run(threads: int, workers: int) -> None:
    own = replace(sweep(("${program}",)), program="./run_parallel.py")
    words = own_command(own, Path("/outputs"), {"system.cpu_threads": threads}, [CPU], [], 5)
    assert f"execution.workers={workers}" in words


# -- test trial process ------------------------------------------------------------------------------------------
# What the process of a trial says of its program: that it could not be started, or how it has ended.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["true", "a" * 200_000], "too long"),
        (["true", "\ud800"], "can't encode"),
        (["acelerate", "launch"], "No such file or directory: 'acelerate'"),
    ],
    ids=["too long", "no text", "not there"],
)
def test_a_program_that_cannot_be_started_is_one_message(
    monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    order, told = Order(words=words, log="log", start="start"), list[Result]()
    ear = SimpleNamespace(send=lambda line: told.append(read_json(line, Result)))
    monkeypatch.setattr(trial_process, "begin", lambda _death: {"fd": 0, "order": msgspec.to_builtins(order)})
    monkeypatch.setattr(Channel, "inherited", lambda _fd: ear)
    monkeypatch.setattr(trial_process, "_carry_out", lambda order: subprocess.Popen(order.words))
    trial_process.main()
    assert said in told[0].refused


@pytest.mark.parametrize(
    ("owner", "name"),
    [(descendants, "end_own"), (inventory, "wait_until_free")],
    ids=["ending", "freeing"],
)
def test_a_program_that_has_ended_well_counts_though_a_request_to_stop_comes_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """While what it has left is ended, or its devices get free: it is not to be run again."""

    def told(*_: object) -> list[str]:
        os.kill(os.getpid(), signal.SIGTERM)
        return []

    monkeypatch.setattr(owner, name, told)
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    order = Order(words=["true"], log=str(tmp_path / "log"), start=str(tmp_path / "start"))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert trial_process._carry_out(order).exit_code == 0
    finally:
        signal.signal(signal.SIGTERM, before)
