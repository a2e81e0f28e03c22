"""What is saved of a value model's guidance is held to its form, by whoever writes it and whoever reads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import JobError
from pipeline.outputs.check import check_output
from pipeline.outputs.formats import ADAPTERS, FOLDER, GUIDANCE, adapter_folders

SAVED: dict[str, Any] = {
    "algo": "PITA",
    "eta": 1.0,
    "offset": {"rule": "preference"},
    "top_k": 6,
    "min_p": 0.02,
    "others": "kept",
    "reference": "0123456789" * 4,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"eta": 0},
        {"others": "kept\n"},
        {"reference": "../../etc"},
        {"offset": {"rule": "os.system"}},
        {"offset": {"rule": "bernoulli", "rewards": [0, 0.5, 1]}},
        {"offset": {"rule": "atoms", "rewards": [1, 0]}},
    ],
    ids=str,
)
def test_other_values_cost_the_job_that_writes_them(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (tmp_path / GUIDANCE).write_text(json.dumps({**SAVED, **wrong}))
    with pytest.raises(JobError, match=r"guidance\.json is not as it must be"):
        check_output(tmp_path)


# -- what says of which adapters a policy is made ---


KEY = "0" * 40


def test_adapters_are_merged_in_the_order_of_their_rounds(tmp_path: Path) -> None:
    assert adapter_folders(tmp_path) == []
    (tmp_path / ADAPTERS).write_text(f'{{"rounds": [2, 3, 10], "reference": "{KEY}"}}')
    check_output(tmp_path)
    assert adapter_folders(tmp_path) == [tmp_path / FOLDER / name for name in ("2", "3", "10")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"rounds": []}', "length >= 1"),
        ('{"rounds": [2, 1]}', "expected `rounds` in their order"),
        ('{"rounds": [1], "reference": "/etc"}', "matching regex"),
    ],
)
def test_what_says_something_else_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / ADAPTERS).write_text(text)
    with pytest.raises(JobError, match=said):
        check_output(tmp_path)
    with pytest.raises(JobError, match=said):
        adapter_folders(tmp_path)
