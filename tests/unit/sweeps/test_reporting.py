"""What a program logs for the sweep that runs it."""

import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import sweeps
from pipeline.outputs.formats import LARGEST
from pipeline.sweeps import reporting
from pipeline.sweeps.file import Metric
from pipeline.sweeps.metrics import Curve, latest_values, read_line
from pipeline.sweeps.storage import TrialFolder


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reporting, "_told", set())
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


def test_a_step_that_is_no_whole_number_is_told_once_and_counted(
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


def test_a_file_that_cannot_be_written_or_no_sweep_is_told_once_and_costs_the_program_nothing(
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


def test_the_last_line_of_a_program_that_is_over_needs_no_end_and_one_that_is_no_json_is_told(
    tmp_path: Path,
) -> None:
    for text, state in (('{"values": {"loss": 1}}', "done"), ("loss: 1", "failed")):
        (tmp_path / "metrics.jsonl").write_text(text)
        curve = Curve(TrialFolder(tmp_path), 1, Metric(name="loss"))
        curve.follow(to_its_end=True)
        end = curve.end(0)
        assert (end.state, "is no line as" in end.reason) == (state, state == "failed")
