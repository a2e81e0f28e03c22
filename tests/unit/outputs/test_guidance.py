"""What is saved of a value model's guidance is held to its form, by whoever writes it and whoever reads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import JobError
from pipeline.outputs.check import check_output
from pipeline.outputs.guidance import GUIDANCE, read_guidance

SAVED: dict[str, Any] = {
    "algo": "PITA",
    "eta": 1.0,
    "offset": {"rule": "preference"},
    "top_k": 6,
    "min_p": 0.02,
    "others": "kept",
    "reference": "0123456789" * 4,
}
USED: dict[str, Any] = {"kind": "value", "drawing": {}, "prompting": {}, "reference": {"path": "reference"}}


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    (tmp_path / GUIDANCE).write_text(json.dumps(SAVED))
    read = read_guidance(tmp_path / GUIDANCE)
    assert (read.eta, read.top_k, read.others) == (1.0, 6, "kept")
    (tmp_path / GUIDANCE).write_text(json.dumps({**SAVED, "eta": None, "offset": None, "later": 1}))
    assert read_guidance(tmp_path / GUIDANCE).eta is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"eta": 0},
        {"eta": "strong"},
        {"top_k": 0},
        {"min_p": 1},
        {"others": "kept\n"},
        {"reference": "../../etc"},
        {"offset": {"rule": "os.system"}},
        {"offset": {"rule": "bernoulli", "rewards": [0, 0.5, 1]}},
        {"offset": {"rule": "atoms", "rewards": [1, 0]}},
        {"offset": {"rule": "atoms", "rewards": [1]}},
    ],
    ids=str,
)
def test_other_values_cost_the_job_that_writes_them(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (tmp_path / GUIDANCE).write_text(json.dumps({**SAVED, **wrong}))
    with pytest.raises(JobError, match=r"guidance\.json is not as it must be"):
        check_output(tmp_path)
