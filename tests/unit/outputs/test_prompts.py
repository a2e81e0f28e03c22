"""Measures by prompt: what is written is read again, and nothing else is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from pipeline.errors import JobError
from pipeline.foreign import ForeignDataError
from pipeline.outputs.check import check_output
from pipeline.outputs.formats import PROMPTS
from pipeline.outputs.prompts import PromptMeasures, read_prompts, write_prompts

ROWS = np.array([3, 5, 9])
TEXTS = np.array([4, 2**63 - 1, 0])
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
    write_prompts(tmp_path, PromptMeasures(ROWS, sums, TEXTS))
    once = (tmp_path / PROMPTS).read_bytes()
    write_prompts(tmp_path, PromptMeasures(ROWS, sums, TEXTS))
    assert (tmp_path / PROMPTS).read_bytes() == once
    check_output(tmp_path)
    found = read_prompts(tmp_path)
    assert found.rows.tolist() == [3, 5, 9]
    assert found.texts.tolist() == TEXTS.tolist()
    assert set(found.sums) == set(sums) - {"diverged", "out of reach"}
    for name, both in found.sums.items():
        assert [one.tolist() for one in both] == [one.tolist() for one in sums[name]]
    assert len(once) < 3 * 8 * 6 + 600


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no safetensors"),
        (b"\xff" * 100, "no safetensors"),
        ({**GOOD, "rows": ROWS[::-1].copy()}, "ascend"),
        ({**GOOD, "rows": ROWS.astype(np.int32)}, "expected int64 of shape [P] in 'rows', got int32"),
        ({**GOOD, "texts": ROWS[1:]}, "expected int64 of shape [3] in 'texts'"),
        ({"numerators/a": ONES}, "expected a tensor 'rows', got numerators/a"),
        ({**GOOD, "numerators/a": np.ones(2)}, "expected float64 of shape [3] in 'numerators/a'"),
        ({**GOOD, "numerators/a": ONES.astype(np.float32)}, "got float32"),
        ({**GOOD, "numerators/a": ONES * np.nan}, "expected numbers between"),
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
