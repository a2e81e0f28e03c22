"""What the code of a job may count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.engine.workers.work import Work


def work_of(told: list[tuple[Any, ...]]) -> Work:
    return Work(
        job_id="a", attempt=1, payload={}, inputs={}, out=Path(), device="cpu", checkpoints=Path(), hints=Path(),
        memory={}, report=lambda *counts: told.append(counts),
    )  # fmt: skip


def test_whole_numbers_of_libraries_are_numbers() -> None:
    told: list[tuple[Any, ...]] = []
    work = work_of(told)
    work.progress(np.int64(3), np.uint8(4), tokens=np.int32(5))  # type: ignore[arg-type]
    work.held_mb = np.int64(7)  # type: ignore[assignment]
    work.check_counts()
    assert told == [(3, 4, 5, {})]
    assert {type(count) for count in (*told[0][:3], work.samples, work.tokens, work.held_mb)} == {int}


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"loss": "low"}, r"loss='low': must be a number"),
        ({"a b": 1.0}, r"\['a b'\]: must be at most 8 names, each a plain word"),
        ({f"x{at}": 1.0 for at in range(9)}, "must be at most 8 names"),
    ],
    ids=["no number", "no word", "too many"],
)
def test_what_is_no_number_of_a_step_is_an_error_where_it_is_shown(numbers: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        work_of([]).show(numbers)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"tokens": None}, r"tokens=None: must be a whole number of at least 0"),
        ({"done": "1"}, r"done='1': must be a whole number"),
        ({"done": 1.0}, r"done=1\.0: must be a whole number"),
        ({"total": float("nan")}, r"total=nan: must be a whole number"),
        ({"total": -1}, r"total=-1: must be a whole number from 0"),
        ({"tokens": 2**54}, r"tokens=18014398509481984: must be a whole number from 0 to 2\^53"),
    ],
    ids=str,
)
def test_anything_else_is_an_error_where_it_is_reported(counts: dict[str, Any], said: str) -> None:
    told: list[tuple[Any, ...]] = []
    with pytest.raises((TypeError, ValueError), match=said):
        work_of(told).progress(**{"done": 1, "total": 2, **counts})
    assert told == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples", None),
        ("tokens", -1),
        ("peak_mb", 0.5),
        ("held_mb", "1"),
        ("load_s", float("nan")),
        ("load_s", -1),
    ],
)
def test_counts_that_a_job_sets_itself_are_looked_at_before_its_output_is_committed(name: str, value: Any) -> None:
    work = work_of([])
    setattr(work, name, value)
    with pytest.raises((TypeError, ValueError), match=f"{name}="):
        work.check_counts()
