"""What a program logs for the sweep that runs it."""

import json
import logging
import os
import random
import struct
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import sweeps
from pipeline.outputs.formats import LARGEST
from pipeline.sweeps import reporting
from pipeline.sweeps.file import Goal, Metric
from pipeline.sweeps.metrics import Curve, WandbRun, has_key, latest_values, read_line, wandb_variables
from pipeline.sweeps.storage import TrialFolder


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reporting, "_warned", set())
    monkeypatch.delenv("RANK", raising=False)
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setenv(reporting.VARIABLE, str(path))
    return path


def lines(path: Path) -> list[tuple[int, dict[str, float | None]]]:
    return [(line["step"], line["values"]) for line in map(json.loads, path.read_text().splitlines())]


def test_each_call_is_a_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps.log(loss=0.5)
    sweeps.log({"val/loss": 0.25, "n": 3}, step=7)
    sweeps.log(loss=float("nan"), acc=True)
    monkeypatch.setenv("RANK", "1")
    sweeps.log(loss=0.5)  # of several ranks the first alone is heard
    assert lines(file) == [(1, {"loss": 0.5}), (7, {"val/loss": 0.25, "n": 3.0}), (8, {"loss": None, "acc": 1.0})]


def test_a_step_that_is_no_whole_number_is_warned_once_and_counted(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        for step in (7, 0.5, float("nan"), 10**400):
            sweeps.log(loss=1.0, step=step)
    assert [step for step, _ in lines(file)] == [7, 8, 9, 10]
    assert [record.getMessage() for record in caplog.records] == [
        "log(step=0.5): a step is a whole number, so such calls are counted instead"
    ]
    for wrong, named in (({"loss": "low"}, "loss='low'"), ({"step": "last"}, "step='last'")):
        with pytest.raises(TypeError, match=rf"log\({named}\): a number is needed"):
            sweeps.log(**wrong)  # type: ignore[arg-type]
    assert len(lines(file)) == 4


@pytest.mark.properties
@given(
    st.dictionaries(
        st.text(st.characters(), max_size=5), st.floats() | st.integers() | st.just(10**400), max_size=3
    ),
    st.none() | st.floats() | st.integers() | st.just(10**400),
)
def test_whatever_is_logged_is_read(values: dict[str, float], step: float | None) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "metrics.jsonl"
        patch.setenv(reporting.VARIABLE, str(path))
        patch.delenv("RANK", raising=False)
        sweeps.log(values, step=step)
        (found,) = map(read_line, path.read_bytes().splitlines())
    usable = {name: float(value) if abs(value) <= LARGEST else None for name, value in values.items()}
    assert {name.encode(errors="replace").decode(): value for name, value in usable.items()} == found.values
    assert found.step == (step if step is not None and abs(step) <= 2**53 and step == int(step) else 1)


def test_a_file_that_cannot_be_written_or_no_sweep_is_warned_once_and_costs_the_program_nothing(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert reporting.own_trial() == file.parent
    with caplog.at_level(logging.DEBUG, logger="pipeline"):
        for place in (str(tmp_path / "missing" / "metrics.jsonl"), ""):
            monkeypatch.setenv(reporting.VARIABLE, place)
            for _ in range(2):
                sweeps.log(loss=0.5)
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG"]
    assert reporting.own_trial() is None


# -- how it is read ----------------------------------------------------------------------------------------------


def test_lines_are_read_up_to_one_that_is_cut_off_and_others_cost_themselves(tmp_path: Path) -> None:
    curve = Curve(TrialFolder(tmp_path), 1, Metric(name="loss"))
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "values": {"loss": 2, "a": 1}}\n'
        'Traceback\n{"values": {"loss": "x"}}\n{"values": {"loss": null}, "time": 3}\n{"values": {"loss"'
    )
    assert (curve.refresh(), curve.last) == ([2.0, None], {"loss": None, "a": 1.0})
    with path.open("a") as file:
        file.write(": 1.5}}\n")
    assert (curve.refresh(), curve.finite(), curve.best()) == ([2.0, None, 1.5], [2.0, 1.5], 1.5)
    assert latest_values(path) == {"loss": 1.5, "a": 1.0}
    assert latest_values(tmp_path) == {}


@pytest.mark.parametrize("number", ["-1e101", "1" + "0" * 400, "1e999", "NaN"])
def test_a_number_that_is_of_no_use_costs_itself_and_no_other_of_its_line(number: str) -> None:
    line = read_line(b'{"step": 2, "values": {"loss": 300, "ppl": %s}}' % number.encode())
    assert (line.step, line.values) == (2, {"loss": 300.0, "ppl": None})


@pytest.mark.parametrize(
    ("logged", "exit_code", "asked", "state", "value"),
    [
        ([2.0, 1.0], 0, None, "done", 1.0),
        ([2.0, None], 0, None, "done", None),
        ([], 0, None, "failed", None),
        ([2.0], 1, None, "failed", None),
        ([2.0], None, None, "failed", None),
        ([2.0, 1.0], 143, ("stopped", "worse"), "stopped", 1.0),
        ([2.0], 143, ("waiting", "interrupted"), "waiting", None),
        ([2.0], 0, ("waiting", "interrupted"), "done", 2.0),
        ([2.0], 143, ("cancelled", "cancelled"), "cancelled", None),
    ],
)
def test_what_the_end_of_an_attempt_means(
    tmp_path: Path,
    logged: list[float | None],
    exit_code: int | None,
    asked: tuple[str, str] | None,
    state: str,
    value: float | None,
) -> None:
    lines = [json.dumps({"values": {"loss": each}}) + "\n" for each in logged]
    (tmp_path / "metrics.jsonl").write_text("".join([json.dumps({"values": {"other": 1}}) + "\n", *lines]))
    curve = Curve(TrialFolder(tmp_path), 1, Metric(name="loss"))
    curve.refresh()
    end = curve.end(exit_code, asked)
    assert (end.state, end.value, end.exit_code) == (state, value, exit_code)
    assert end.values["other"] == 1.0


def test_the_last_line_of_a_program_that_is_over_needs_no_end_and_one_that_is_no_json_is_warned(
    tmp_path: Path,
) -> None:
    for text, state in (('{"values": {"loss": 1}}', "done"), ("loss: 1", "failed")):
        (tmp_path / "metrics.jsonl").write_text(text)
        curve = Curve(TrialFolder(tmp_path), 1, Metric(name="loss"))
        curve.follow(to_its_end=True)
        end = curve.end(0)
        assert (end.state, "has told no value of loss" in end.reason) == (state, state == "failed")


# -- test wandb run ----------------------------------------------------------------------------------------------
# What wandb has written on this machine, read without it; its own files are in integration/test_trackers.py.


LOSS = Metric(name="loss")


def varint(number: int) -> bytes:
    more = number >> 7
    return bytes([number & 0x7F | (0x80 if more else 0)]) + (varint(more) if more else b"")


def part(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def item(name: str, value: Any) -> bytes:
    names = b"".join(part(2, each.encode()) for each in name.split("."))
    return (names if "." in name else part(1, name.encode())) + part(16, json.dumps(value).encode())


def history(**values: Any) -> bytes:
    return b"\x08\x05" + part(2, b"".join(part(1, item(name, value)) for name, value in values.items()))


def summary(*removed: str, **values: Any) -> bytes:
    updates = b"".join(part(1, item(name, value)) for name, value in values.items())
    return part(3, updates + b"".join(part(2, part(1, name.encode())) for name in removed))


def config(**values: Any) -> bytes:
    return b"".join(part(1, item(name, value)) for name, value in values.items())


def written(*records: bytes) -> bytes:
    """As LevelDB writes logs: in pieces that do not cross the end of a block."""
    data = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        first = True
        while True:
            left = 2**15 - len(data) % 2**15
            if left < 7:
                data += bytes(left)
                continue
            piece, record = record[: left - 7], record[left - 7 :]
            kind = (1 if not record else 2) if first else (4 if not record else 3)
            data += struct.pack("<IHB", 0, len(piece), kind) + piece
            first = False
            if not record:
                break
    return bytes(data)


def run_file(folder: Path, *records: bytes, name: str = "offline-run-1-abc") -> Path:
    path = folder / "wandb" / name / "run-abc.wandb"
    path.parent.mkdir(parents=True)
    path.write_bytes(written(*records))
    return path


def test_rows_the_summary_and_settings_by_their_names(tmp_path: Path) -> None:
    begun = part(17, part(1, b"abc") + part(4, config(lr=0.1, model={"width": 8}, gone=1)))
    path = run_file(
        tmp_path,
        begun,
        history(loss=1, **{"val.acc": 0.5}, text="x", flag=True, nan=float("nan"), big=10**400),
        history(loss=0.25, table={"a": {"b": 3}}, long="y" * 100_000),
        summary(loss=0.25, best={"max": 0.9}, gone=1),
        summary("gone", final=7),
        part(5, config(lr=0.5, text="x") + part(2, part(1, b"gone"))),
    )
    run = WandbRun(path)
    assert list(run.rows()) == [
        {"loss": 1.0, "val.acc": 0.5, "nan": None, "big": None},
        {"loss": 0.25, "table.a.b": 3.0},
    ]
    assert run.summary == {"loss": 0.25, "best.max": 0.9, "final": 7.0}
    assert run.config == {"lr": 0.5, "model": {"width": 8}, "text": "x"}


def test_a_file_that_is_cut_off_or_altered_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    rows = [history(loss=float(number), pad="z" * 3000) for number in range(40)]
    path = run_file(tmp_path, *rows)
    whole, chosen = path.read_bytes(), random.Random(0)
    for cut in (0, 3, 7, 9, 3000, 32768, 32770, len(whole) - 1):
        path.write_bytes(whole[:cut])
        read = [row["loss"] for row in WandbRun(path).rows()]
        assert read == list(range(len(read)))
    for _ in range(60):
        altered = bytearray(whole)
        for _ in range(chosen.randrange(1, 20)):
            altered[chosen.randrange(len(altered))] = chosen.randrange(256)
        path.write_bytes(bytes(altered))
        list(WandbRun(path).rows())
    path.write_bytes(os.urandom(5000))
    assert list(WandbRun(path).rows()) == []


def test_a_file_that_grows_is_read_on_from_where_it_ended(tmp_path: Path) -> None:
    """Wherever that is, in the middle of a row too."""
    path = run_file(tmp_path, *(history(loss=float(number), pad="z" * 5000) for number in range(40)), summary(a=1))
    whole, run, read = path.read_bytes(), WandbRun(path), list[float | None]()
    for size in [*range(0, len(whole), 1777), len(whole)]:
        path.write_bytes(whole[:size])
        read += [row["loss"] for row in run.rows()]
    assert read == list(range(40))
    assert run.summary == {"a": 1.0}


@pytest.mark.parametrize(
    ("defined", "goal", "value"),
    [
        (0.5, "minimize", 0.5),
        ({"min": 1.0, "max": 4.0, "last": 2.0}, "minimize", 1.0),
        ({"min": 1.0, "max": 4.0, "last": 2.0}, "maximize", 4.0),
        ({"mean": 3.0}, "maximize", 3.0),
        ({"max": 4.0, "best": 1.5}, "minimize", 1.5),
        ({}, "minimize", 2.0),
    ],
)
def test_a_trial_that_tells_wandb_alone_is_judged_by_that_and_by_what_it_defined_for_the_summary(
    tmp_path: Path, defined: Any, goal: Goal, value: float
) -> None:
    """By ``define_metric("loss", summary="min")``; and not by what an attempt before it has told."""
    place = TrialFolder(tmp_path)
    curve = Curve(place, 2, Metric(name="loss", goal=goal))
    run_file(tmp_path, history(loss=0.5), name="offline-run-0-old")
    curve.begin(Path())
    rows = [history(loss=each, _step=5 + at, _timestamp=1.5e9) for at, each in enumerate((4.0, 1.0, 2.0))]
    run_file(tmp_path, *rows, history(other=1.0), summary(loss=defined))
    curve.follow(to_its_end=True)
    assert curve.judged[:3] == [4.0, 1.0, 2.0]
    assert curve.judged[-1] == value
    assert [json.loads(line)["step"] for line in place.metrics(2).read_text().splitlines()][:3] == [5, 6, 7]
    assert not place.metrics(1).exists()


def test_rows_are_taken_while_a_trial_runs_each_once_of_all_its_runs(tmp_path: Path) -> None:
    place = TrialFolder(tmp_path)
    curve = Curve(place, 1, LOSS)
    path = run_file(tmp_path, history(loss=3.0), history(loss=2.0))
    curve.follow()
    curve.follow()
    assert curve.judged == [3.0, 2.0]
    path.write_bytes(written(history(loss=3.0), history(loss=2.0), history(loss=1.0), summary(loss=1.0)))
    second = run_file(tmp_path, history(loss=0.5), summary(loss=0.5), name="offline-run-2-abc")
    os.utime(second, (time.time() + 9,) * 2)
    curve.follow(to_its_end=True)
    assert curve.judged == [3.0, 2.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("given", "known", "said"),
    [
        ({"lr": 0.1}, {"lr": 1}, ["lr=1 where the sweep gave 0.1"]),
        ({"a": {"lr": 0.1, "b": 2}}, {"a": {"lr": 5, "b": 2, "c": 3}}, ["a.lr=5 where the sweep gave 0.1"]),
        ({"lr": 1e-05, "n": 1, "f": True, "x": None}, {"lr": "1e-05", "n": 1.0, "f": True, "x": None}, []),
        ({"flag": True}, {"flag": 1}, ["flag=1 where the sweep gave True"]),
        ({"lr": 1, "layers": [1, 2], "big": float("inf")}, {"layers": [3], "big": "Infinity"}, []),
    ],
)
def test_settings_that_a_trial_was_not_given_are_warned(
    tmp_path: Path, given: dict[str, Any], known: dict[str, Any], said: list[str]
) -> None:
    curve = Curve(TrialFolder(tmp_path), 1, LOSS)
    run_file(tmp_path, part(17, part(4, config(**known))))
    curve.follow()
    assert curve.other_values(given) == said


KEY = "0123456789" * 4


@pytest.mark.parametrize(
    ("environment", "file", "text", "found"),
    [
        ({"WANDB_API_KEY": KEY}, ".netrc", "", True),
        ({}, ".netrc", f"machine api.wandb.ai login user password {KEY}", True),
        ({}, ".netrc", f"machine example.org login user password {KEY}", False),
        (
            {"WANDB_BASE_URL": "http://example.org:8080"},
            ".netrc",
            "machine example.org:8080 login u password p",
            True,
        ),
        ({}, ".config/wandb/settings", "[default]\nmode = disabled", True),
    ],
)
def test_without_a_login_where_wandb_looks_for_it_trials_are_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], file: str, text: str, found: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    assert has_key(environment) is found
    mode = wandb_variables(TrialFolder(tmp_path), "fit", environment).get("WANDB_MODE")
    assert mode == (None if found else "offline")
    assert "WANDB_MODE" not in wandb_variables(TrialFolder(tmp_path), "fit", {"WANDB_MODE": "online"})
