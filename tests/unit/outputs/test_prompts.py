"""Measures by prompt: what is written is read again, and nothing else is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from pipeline.engine.store.store import Store
from pipeline.errors import JobError
from pipeline.foreign import ForeignDataError
from pipeline.outputs.check import check_output
from pipeline.outputs.formats import PROMPTS
from pipeline.outputs.prompts import PromptMeasures, read_prompts, write_prompts
from pipeline.plan.graph import Job
from pipeline.runs.record import place_of, prompt_reader

ROWS = np.array([3, 5, 9])
ONES = np.ones(3)
GOOD: dict[str, np.ndarray[Any, Any]] = {"rows": ROWS, "numerators/a": ONES, "denominators/a": ONES}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    sums = {
        "pass@1": (np.array([0.25, 1, 0]), ONES),
        "kl_per_token": (np.array([0.1, 3, 0]), np.array([4.0, 9, 0])),
        "diverged": (np.array([np.nan, 1, 1]), ONES),
        "out of reach": (np.array([4e100, 1, 1]), ONES),
        "mine/eta=0.1": (np.array([-1e50, 0, 1]), ONES),
    }
    write_prompts(tmp_path, PromptMeasures(ROWS, sums))
    once = (tmp_path / PROMPTS).read_bytes()
    write_prompts(tmp_path, PromptMeasures(ROWS, sums))
    assert (tmp_path / PROMPTS).read_bytes() == once
    check_output(tmp_path)
    found = read_prompts(tmp_path)
    assert found.rows.tolist() == [3, 5, 9]
    assert set(found.sums) == set(sums) - {"diverged", "out of reach"}
    for name, both in found.sums.items():
        assert [one.tolist() for one in both] == [one.tolist() for one in sums[name]]
    assert len(once) < 3 * 8 * 5 + 600


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no safetensors"),
        (b"\x80\x04\x95pickled", "no safetensors"),
        (b"\xff" * 100, "no safetensors"),
        ({**GOOD, "rows": ROWS[::-1].copy()}, "ascend"),
        ({**GOOD, "rows": ROWS[[0, 0, 1]]}, "ascend"),
        ({**GOOD, "rows": ROWS.astype(np.int32)}, "expected int64 of shape [P] in 'rows', got int32"),
        ({"numerators/a": ONES}, "expected a tensor 'rows', got numerators/a"),
        ({**GOOD, "numerators/a": np.ones(2)}, "expected float64 of shape [3] in 'numerators/a'"),
        ({**GOOD, "numerators/a": np.ones((3, 1))}, "of shape [3, 1]"),
        ({**GOOD, "numerators/a": ONES.astype(np.float32)}, "got float32"),
        ({**GOOD, "numerators/a": ONES * np.nan}, "expected numbers between"),
        ({**GOOD, "numerators/a": ONES * 1e200}, "expected numbers between"),
        ({**GOOD, "denominators/a": -ONES}, "no number below 0"),
    ],
)
def test_anything_else_fails_the_job_that_wrote_it(
    tmp_path: Path, content: bytes | dict[str, np.ndarray[Any, Any]], said: str
) -> None:
    (tmp_path / PROMPTS).write_bytes(content if isinstance(content, bytes) else save(content))
    with pytest.raises(ForeignDataError) as caught:
        read_prompts(tmp_path)
    assert said in str(caught.value)
    with pytest.raises(JobError, match=r"prompts\.safetensors is not as it must be"):
        check_output(tmp_path)


def test_ids_may_lie_as_far_apart_as_they_can(tmp_path: Path) -> None:
    ends = np.iinfo(np.int64)
    write_prompts(tmp_path, PromptMeasures(np.array([ends.min, 0, ends.max]), {"a": (ONES, ONES)}))
    assert read_prompts(tmp_path).rows.tolist() == [ends.min, 0, ends.max]


@pytest.mark.parametrize("broken", [{"numerators/": np.ones(2)}, {"denominators/": -ONES, "numerators/": ONES}])
def test_a_long_name_is_told_by_its_beginning(tmp_path: Path, broken: dict[str, np.ndarray[Any, Any]]) -> None:
    name = "x" * 200_000
    (tmp_path / PROMPTS).write_bytes(save({"rows": ROWS, **{kind + name: one for kind, one in broken.items()}}))
    with pytest.raises(ForeignDataError) as caught:
        read_prompts(tmp_path)
    assert "xxxxx" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_what_cannot_be_read_of_a_stored_one_is_told_and_what_is_not_there_is_not(tmp_path: Path) -> None:
    store, told = Store(tmp_path / "store"), []
    jobs = []
    for number, content in enumerate((None, b"broken", save(GOOD))):
        where = {"algo": f"A{number}", "dataset": "d", "model": "m", "seed": 0, "round": 1, "stage": "metrics"}
        job = Job(id=f"A{number}", key=f"{number:040d}", entry="x:y", payload={}, **where)  # type: ignore[arg-type]
        folder = store.begin(store.scratch("run"), job.key, 1)
        if content is not None:
            (folder / PROMPTS).write_bytes(content)
        store.commit(job.key, folder, {})
        jobs.append(job)
    read = prompt_reader(store, jobs, lambda job, said: told.append(f"{job.algo} {said}"))
    found = [read(place_of(job)) for job in jobs]
    assert [one is not None for one in found] == [False, False, True]
    assert len(told) == 1
    assert told[0].startswith("A1 its stored prompts.safetensors cannot be read: these are no safetensors")


def test_tensors_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / PROMPTS).write_bytes(save({**GOOD, "notes": np.ones((2, 2), np.float16)}))
    assert set(read_prompts(tmp_path).sums) == {"a"}
