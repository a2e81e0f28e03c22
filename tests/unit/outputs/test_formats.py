"""The files of an output that someone reads back are held to their formats, whoever wrote them."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.errors import JobError
from pipeline.outputs.check import check_output
from pipeline.outputs.formats import PAGE, read_input, read_lines
from pipeline.plan.graph import Job
from pipeline.runs.record import Results, collect_rows, read_results, write_results, write_samples

ROW: dict[str, Any] = {"metric": "mine", "value": 0.5, "ci_low": None, "ci_high": None, "n": 10}
SAMPLE: dict[str, Any] = {
    "row": 1,
    "sample": 0,
    "prompt": "1+1=",
    "completion": "2",
    "tokens": 1,
    "reward": 1.0,
    "correct": True,
    "kl": 0.1,
    "truncated": False,
}


def metrics(*rows: dict[str, Any]) -> str:
    return json.dumps({"rows": rows})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (metrics({"metric": "mine", "value": 1}), "missing required field `ci_low` - at `$.rows[0]`"),
        (
            metrics(ROW, {**ROW, "metric": "b", "value": "1"}),
            "expected `float | null`, got `str` - at `$.rows[1].val",
        ),
        (metrics({**ROW, "value": float("nan")}), "NaN is no number"),
        (metrics({**ROW, "value": 1e300}), "<= 1e+100"),
        (metrics({**ROW, "metric": "a\x1b[2J"}), "a name that can be printed"),
        (metrics(ROW, ROW), "got two for 'mine'"),
        (metrics({**ROW, "ci_low": 1.0, "ci_high": 0.0}), "expected `ci_low` <= `ci_high`, got 1.0 and 0.0"),
        ("[]", "expected `object`, got `array`"),
    ],
)
def test_other_metrics_fail_the_job_that_wrote_them(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "metrics.json").write_text(text)
    with pytest.raises(JobError) as caught:
        check_output(tmp_path)
    message = str(caught.value)
    assert message.startswith("metrics.json is not as it must be: ")
    assert said in message
    assert PAGE in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("samples.jsonl", json.dumps(SAMPLE) + '\n{"row": 1}\n', "line 2: object missing required field `sample`"),
        ("training.json", '{"loss": [NaN]}', "NaN is no number"),
        (
            "training.json",
            '{"calibration": {"prompts": 5, "tokens": 9, "base_rate": 0.5, "auc": 1.5}}',
            "<= 1.0 - at `$.calibration.auc`, where there is 1.5",
        ),
        ("generation.json", '{"tokens": 3}', "missing required field `prompts`"),
        ("reward.json", '{"tokens_trained": -1}', "where there is -1"),
    ],
)
def test_other_files_that_are_read_back_are_held_to_their_formats_too(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(JobError, match="is not as it must be") as caught:
        check_output(tmp_path)
    assert said in str(caught.value)
    assert name in str(caught.value)


# -- what is stored already ------------------------------------------------------------------------------------


def stored(store: Store, number: int, files: dict[str, str]) -> Job:
    """A metrics job with an output, committed without a look as older versions did."""
    job = Job(
        id=f"d/m/s0/A{number}/r1/metrics",
        key=f"{number:040d}",
        entry="x:y",
        payload={},
        algo=f"A{number}",
        dataset="d",
        model="m",
        seed=0,
        round=1,
        stage="metrics",
    )
    folder = store.begin(store.scratch("run"), job.key, 1)
    for name, text in files.items():
        (folder / name).write_text(text)
    store.commit(job.key, folder, {"job": job.id})
    return job


def collected(tmp_path: Path, jobs: list[Job], store: Store) -> tuple[list[str], list[str], RunFolder]:
    run, told = RunFolder(tmp_path / "run"), []
    run.path.mkdir(exist_ok=True)
    rows = collect_rows(store, jobs, lambda job, said: told.append(f"{job.algo} {said}"))
    write_results(run, Results(rows=rows))
    write_samples(run, store, jobs, lambda job, said: told.append(f"{job.algo} {said}"))
    assert read_results(run.results_json).rows == rows
    return [row.algo for row in rows], told, run


@pytest.mark.properties
@given(
    st.binary()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["rows", *ROW]), inner)
            | st.fixed_dictionaries(
                {"rows": st.lists(st.fixed_dictionaries(dict.fromkeys(ROW, inner)), max_size=3)}
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_whatever_a_stage_writes_is_refused_or_becomes_results(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        output.mkdir()
        for name in ("metrics.json", "samples.jsonl"):
            (output / name).write_bytes(data)
        with suppress(JobError):
            check_output(output)
        # And if it was stored all the same, by a version that did not look:
        store = Store(Path(folder) / "store")
        bad, good = stored(store, 0, {}), stored(store, 1, {"metrics.json": metrics(ROW)})
        for name in ("metrics.json", "samples.jsonl"):
            (store.path(bad.key) / name).write_bytes(data)
        algos, _, run = collected(Path(folder), [bad, good], store)
        assert "A1" in algos
        assert b"NaN" not in run.results_json.read_bytes()


# -- what a later job reads ------------------------------------------------------------------------------------


def test_a_job_that_reads_a_wrong_file_says_who_wrote_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    job = stored(store, 7, {"samples.jsonl": '{"row": 1}'})
    with pytest.raises(JobError) as caught:
        read_input(store.path(job.key), "samples.jsonl", lambda path: list(read_lines(path, dict[str, str])))
    said = str(caught.value)
    assert said.startswith(f"samples.jsonl in the output of {job.id} (")
    assert "line 1: expected `str`, got `int`" in said
    with pytest.raises(JobError, match="No such file"):
        read_input(store.path(job.key), "none.json", lambda path: path.read_bytes())


@pytest.mark.parametrize("sign", ["=", "-", "\t"])
def test_a_spreadsheet_shows_a_name_rather_than_running_it(tmp_path: Path, sign: str) -> None:
    store, name = Store(tmp_path / "store"), f'{sign}HYPERLINK("http://x")'
    run = RunFolder(tmp_path)
    job = stored(store, 0, {"metrics.json": metrics({**ROW, "value": -0.5})})
    (row,) = collect_rows(store, [job])
    write_results(run, Results(rows=[replace(row, metric=name)]))
    cells = run.results_csv.read_text().splitlines()[-1]
    assert f"'{sign}HYPERLINK" in run.results_csv.read_bytes().decode()
    assert ",-0.5," in cells  # a number is none
    assert json.loads(run.results_json.read_bytes())["rows"][0]["metric"] == name
