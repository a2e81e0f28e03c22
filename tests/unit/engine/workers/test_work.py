"""What the code of a job may count."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.workers.work import Work


def work_of(told: list[tuple[Any, ...]]) -> Work:
    return Work(
        job_id="a", attempt=1, payload={}, inputs={}, out=Path(), device="cpu", checkpoints=Path(), hints=Path(),
        memory={}, report=lambda *counts: told.append(counts),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"tokens": None}, r"tokens=None: must be a whole number of at least 0"),
        ({"total": float("nan")}, r"total=nan: must be a whole number"),
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
    [("tokens", -1), ("peak_mb", 0.5), ("load_s", float("nan"))],
)
def test_counts_that_a_job_sets_itself_are_looked_at_before_its_output_is_committed(name: str, value: Any) -> None:
    work = work_of([])
    setattr(work, name, value)
    with pytest.raises((TypeError, ValueError), match=f"{name}="):
        work.check_counts()
