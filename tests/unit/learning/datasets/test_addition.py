"""Addition: rows, disjoint splits, the rounds of a chain, demonstrations."""

import numpy as np
import pytest

from pipeline.config.bases import DatasetConfig
from pipeline.config.shipped import DATASETS
from pipeline.errors import ConfigError
from pipeline.learning.datasets.base import SPLITS, load_dataset
from pipeline.learning.datasets.made import Addition, AdditionConfig


def addition(**settings: object) -> Addition:
    small = {"digits": 2, "test_size": 100, "validation_size": 50, **settings}
    return Addition(AdditionConfig(kind="addition", **small))  # type: ignore[arg-type]


def number(text: str) -> int:
    return int(text[::-1])


def test_every_row_is_right_and_fits_its_bounds() -> None:
    dataset = addition()
    for row_id in range(10_000):
        row = dataset.row(row_id)
        a, b = row.prompt.removesuffix("=").split("+")
        assert number(a) + number(b) == number(row.columns["solution"])
        assert number(a) * 100 + number(b) == row_id
        assert len(row.columns["solution"]) == dataset.completion_length == 3


def test_splits_are_disjoint_and_cover_everything() -> None:
    dataset = addition()
    splits = [dataset.ids(name) for name in SPLITS]
    assert [len(ids) for ids in splits] == [9850, 50, 100]
    assert np.array_equal(np.sort(np.concatenate(splits)), np.arange(10_000))


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_rounds_use_training_rows_only_and_different_ones_while_they_last(seed: int) -> None:
    dataset = addition()
    rounds = [dataset.round_ids(seed, number, 3000) for number in (1, 2, 3)]
    used = np.concatenate(rounds)
    assert len(np.unique(used)) == 9000
    assert set(used.tolist()) <= set(dataset.ids("train").tolist())
    fourth = dataset.round_ids(seed, 4, 3000)
    assert len(fourth) == 3000
    assert set(fourth.tolist()) <= set(dataset.ids("train").tolist())


def test_demonstrations_drop_every_carry_or_none() -> None:
    dataset = load_dataset(AdditionConfig(kind="addition", carry_drop=0.6))
    row_id = 567_678  # 567 + 678 = 1245; without carries 5+6, 6+7, 7+8 leave 1, 3, 5
    assert dataset.demonstration(row_id, 0.6) == ("765+876=", "5421")
    assert dataset.demonstration(row_id, 0.599) == ("765+876=", "5310")
    assert dataset.demonstration(111_222, 0.0)[1] == dataset.demonstration(111_222, 0.9)[1] == "3330"


def test_splits_that_leave_nothing_to_train_on_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave nothing of its 100 rows"):
        addition(digits=1)


def test_an_unknown_dataset_or_split_lists_the_known_ones() -> None:
    assert "addition" in DATASETS
    with pytest.raises(ConfigError, match="Did you mean 'addition'"):
        load_dataset(DatasetConfig(kind="adition"))
    with pytest.raises(ConfigError, match="test, train, validation"):
        addition().ids("dev")
