"""Dealing rows into splits: no prompt in two, official splits kept, the same result every time."""

import numpy as np
import pytest

from pipeline.errors import DataError
from pipeline.learning.datasets.rows import SplitRows, deal


def names(*numbers: int) -> list[bytes]:
    return [str(number).encode() for number in numbers]


def prompts_of(dealt: SplitRows, prompts: dict[str, list[bytes]]) -> dict[str, set[bytes]]:
    return {
        split: {prompts["train" if split in dealt.cut else split][place] for place in places}
        for split, places in dealt.splits.items()
    }


def sizes(test: int, validation: int) -> dict[str, int]:
    return {"test": test, "validation": validation}


def test_what_is_missing_is_cut_from_train() -> None:
    prompts = {"train": names(*range(100))}
    dealt = deal(prompts, sizes(10, 5), 0)
    assert {split: len(places) for split, places in dealt.splits.items()} == {
        "train": 85,
        "test": 10,
        "validation": 5,
    }
    assert sorted(np.concatenate(list(dealt.splits.values())).tolist()) == list(range(100))
    assert dealt.cut == {"test", "validation"}
    assert dealt.warnings == ()


@pytest.mark.parametrize("seed", range(5))
def test_repeated_prompts_never_cross_splits(seed: int) -> None:
    prompts = {"train": names(*(n // 3 for n in range(90)))}
    dealt = deal(prompts, sizes(6, 4), seed)
    found = prompts_of(dealt, prompts)
    assert (len(dealt.splits["test"]), len(dealt.splits["validation"])) == (6, 4)
    assert (len(found["test"]), len(found["validation"])) == (6, 4)
    assert len(found["train"]) == 20
    assert len(dealt.splits["train"]) == 60
    assert not found["train"] & (found["test"] | found["validation"])
    assert not found["test"] & found["validation"]
    assert dealt.warnings == ("20 rows left out: repeated prompts that were cut from train for evaluation",)


def test_an_official_test_split_is_kept_and_its_prompts_leave_the_others() -> None:
    prompts = {"train": names(*range(50)), "validation": names(3, 60, 61), "test": names(60, 1, 2, 2, 80)}
    dealt = deal(prompts, sizes(5, 3), 0)
    found = prompts_of(dealt, prompts)
    assert dealt.cut == frozenset()
    assert sorted(dealt.splits["test"].tolist()) == [0, 1, 2, 3, 4]
    assert found["validation"] == set(names(3, 61))
    assert found["train"] == set(names(*range(50))) - set(names(1, 2, 3))
    assert dealt.warnings == (
        "1 row of validation left out: prompts that are held out for evaluation",
        "validation has 2 rows, fewer than the 3 asked for: all are used",
        "3 rows of train left out: prompts that are held out for evaluation",
    )


def test_few_rows_share_fairly() -> None:
    dealt = deal({"train": names(*range(20))}, sizes(500, 500), 0)
    assert {split: len(places) for split, places in dealt.splits.items()} == {
        "train": 10,
        "test": 5,
        "validation": 5,
    }
    assert dealt.warnings[0] == (
        "test has 5 rows, fewer than the 500 asked for: half of the 20 different prompts stay in train"
    )
    three = deal({"train": names(1, 2, 3)}, sizes(500, 500), 0)
    assert [len(three.splits[split]) for split in ("train", "test", "validation")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ({"train": names(1, 1, 2)}, "only 2 different prompts: too few to cut test and validation"),
        ({"train": names(1, 2), "test": names(1, 2), "validation": names(5)}, "no row is left to train on"),
    ],
)
def test_nothing_left_to_train_on(prompts: dict[str, list[bytes]], said: str) -> None:
    with pytest.raises(DataError, match=said):
        deal(prompts, sizes(1, 1), 0)
