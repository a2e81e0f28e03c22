"""Files of labelled sequences and of samples that are not as they must be: one message says what is wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from pipeline.errors import JobError
from pipeline.learning.training.scoring import completion_logprobs, without_padding
from pipeline.learning.training.sequences import FILE, Sequences, batch_of
from tests.doubles.families import tiny_model

GOOD = {
    "ids": np.array([[1, 2, 3], [4, 5, 0]], np.int32),
    "lengths": np.array([3, 2], np.int32),
    "starts": np.array([1, 1], np.int32),
    "labels": np.array([1, 0], np.float32),
}


def test_positions_in_between_may_be_left_out(tmp_path: Path) -> None:
    marks = [[False, True, False, True], [False, True]]
    data = Sequences.supervised_at([[1, 2, 3, 4], [5, 6]], marks, [1.0, 0.0])
    data.save(tmp_path)
    (tmp_path / "plain").mkdir()
    Sequences.supervised_at([[7, 8, 9, 1, 2]], [[False, False, True, True, True]], [1.0]).save(tmp_path / "plain")
    found = Sequences.load([tmp_path, tmp_path / "plain"])
    expected = [[False, True, False, True, False], [False, True, False, False, False], [False] * 2 + [True] * 3]
    assert found.mask().tolist() == expected
    assert found.supervised.tolist() == [2, 1, 3]
    assert batch_of(found, np.array([2, 0]), "cpu").mask.tolist() == [expected[2], expected[0]]
    assert found.some(np.array([1])).mask().tolist() == [expected[1]]
    assert Sequences.load([tmp_path / "plain"]).left_out is None


@pytest.mark.parametrize("padding_free", [False, True])
def test_what_is_left_out_counts_in_no_log_probability(padding_free: bool) -> None:
    model = tiny_model("llama")
    ids = [[3, 4, 5, 6, 7, 8], [9, 10, 11, 12]]
    whole = Sequences.of(ids, [2, 1], [1.0, 0.0])
    marks = [[False, False, True, False, False, True], [False, True, True, True]]
    batches = [
        batch_of(each, np.arange(2), "cpu") for each in (whole, Sequences.supervised_at(ids, marks, [1.0, 0.0]))
    ]
    with torch.no_grad(), without_padding(model, padding_free):
        every, some = (completion_logprobs(model, batch) for batch in batches)
    assert every[0, 3:5].abs().min() > 0
    torch.testing.assert_close(some, torch.where(batches[1].mask, every, 0.0))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"labels": None}, "it lacks the array `labels`; it has ids, lengths, starts"),
        ({"ids": np.zeros(2, np.int32)}, r"expected `ids` of shape [N,T] and whole numbers, got [2] of int32"),
        ({"ids": np.zeros((2, 3), np.float32)}, r"got [2, 3] of float32"),
        (
            {"labels": np.zeros(3, np.float32)},
            r"expected `labels` of shape [N] with N=2 and floating numbers, got [3]",
        ),
        ({"starts": np.array([4, 0], np.int32)}, "expected 0 <= `starts` <= `lengths` <= T"),
        ({"lengths": np.array([9, 1], np.int32)}, "expected 0 <= `starts` <= `lengths` <= T"),
        ({"ids": -GOOD["ids"]}, "found a negative number"),
    ],
)
def test_other_arrays_are_refused_in_one_message(
    tmp_path: Path, changed: dict[str, np.ndarray], said: str
) -> None:
    save_file({name: array for name, array in {**GOOD, **changed}.items() if array is not None}, tmp_path / FILE)
    with pytest.raises(JobError) as caught:
        Sequences.load([tmp_path])
    assert str(caught.value).startswith(f"{FILE} in the output of (unknown job) ({tmp_path}) cannot be used: ")
    assert said in str(caught.value)
