"""What is said of a dataset of the user's own that cannot be used."""

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from pipeline.config.schema import DatasetConfig
from pipeline.errors import ConfigError, JobError
from pipeline.learning.datasets.base import (
    Dataset,
    Row,
    check_dataset,
    check_demonstrations,
    demonstration_length,
    load_dataset,
)
from pipeline.learning.datasets.from_files import FilesDataset
from pipeline.learning.models.tiny import Encoder


class Counting(Dataset):
    """A dataset as it should be: numbers, and whether they are even."""

    vocabulary = (*"0123456789=", "<bos>")
    bos_token: ClassVar[str] = "<bos>"
    completion_length = 1

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        self.split_ids("counting", 30_000)

    def row(self, row_id: int) -> Row:
        return Row(row_id, f"{row_id:05d}=", {"solution": str(row_id % 2)})

    def demonstration(self, row_id: int, draw: float) -> tuple[str, str]:
        return f"{row_id:05d}=", str(row_id % 2)


def _few(self: Dataset, config: DatasetConfig) -> None:
    Dataset.__init__(self, config)
    self.split_ids("counting", 10)


_ODD: dict[str, dict[str, Any]] = {
    "NoBase": {"__init__": lambda self, config: None},
    "NoRows": {"__init__": Dataset.__init__},
    "TooFew": {"__init__": _few},
    "NoRow": {"row": Dataset.row},
    "OddRow": {"row": lambda self, row_id: {"prompt": "1"}},
    "OtherRow": {"row": lambda self, row_id: Row(0, "1")},
    "NullPrompt": {"row": lambda self, row_id: Row(row_id, None)},  # type: ignore[arg-type]
    "RowFails": {"row": lambda self, row_id: Row(row_id, str(1 / 0))},
    "Exits": {"__init__": lambda self, config: sys.exit("no")},
    "NoDemonstrations": {"demonstration": Dataset.demonstration},
    "DemonstrationFails": {"demonstration": lambda self, row_id, draw: (f"{row_id:05d}=", str(1 / 0))},
    "OddPattern": {"symbol_pattern": "("},
    "Unknown": {"vocabulary": (*"0123456789", "<bos>")},
    "Ragged": {"demonstration": lambda self, row_id, draw: (f"{row_id}=", "1")},
    "NoVocabulary": {"vocabulary": (), "bos_token": ""},
}
# Each a class of this module, so that it has a path.
globals().update({name: type(name, (Counting,), {**odd, "__module__": __name__}) for name, odd in _ODD.items()})


def made(name: str) -> Dataset:
    return load_dataset(DatasetConfig(kind="mine", class_path=f"{__name__}.{name}"))


def test_one_that_can_be_used() -> None:
    check_demonstrations("mine", made("Counting"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Row", "is no dataset: it must be a subclass of pipeline.Dataset"),
        ("made", "is no dataset"),
        ("NoRow", r"it must define row\(\)"),
        ("NoBase", "cannot be used with its settings: AttributeError"),
        ("NoRows", r"must call self.split_ids\(name, number_of_rows\)"),
        ("TooFew", "leave nothing of its 10 rows"),
        ("OddRow", r"gave \{'prompt': '1'\}, but must give Row\("),
        ("OtherRow", r"gave Row\(id=0"),
        ("NullPrompt", r"prompt=None.*whose prompt is text, .* \(.*test_base.py:\d+\)"),
        ("Exits", r"SystemExit: no \(.*test_base.py:\d+\)"),
        ("RowFails", r"ZeroDivisionError: .* \(.*test_base.py:\d+\)"),
    ],
)
def test_one_that_cannot_be_used_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoDemonstrations", "lacks demonstrations. Choose a model of your own: model=hf"),
        ("NoVocabulary", "lacks a vocabulary, a bos_token"),
    ],
)
def test_one_that_no_model_can_be_made_for_is_refused(name: str, said: str) -> None:
    dataset = made(name)
    with pytest.raises(ConfigError, match=said):
        check_demonstrations("mine", dataset)


@pytest.mark.parametrize("name", ["DemonstrationFails", "OddPattern"])
def test_demonstrations_that_cannot_be_made_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"demonstrations of {name} fail"):
        demonstration_length(made(name))


@pytest.mark.parametrize("name", ["Unknown", "Ragged"])
def test_demonstrations_that_no_model_can_learn_together_fail_their_training(name: str) -> None:
    dataset = made(name)
    shown = [dataset.demonstration(row, 0.5) for row in (9, 10)]
    with pytest.raises(JobError, match="tokens of the dataset's vocabulary"):
        Encoder(dataset)(shown)


class OtherArguments(Counting):
    def row(self, row_id: int, split: str) -> Row:  # type: ignore[override]
        return Row(row_id, split)


class NoDraw(Counting):
    def demonstration(self, row_id: int) -> tuple[str, str]:  # type: ignore[override]
        return str(row_id), "1"


class AdaptsAlone(FilesDataset):
    def adapt(self, data: Mapping[str, Any]) -> Mapping[str, Any]:  # type: ignore[override]
        return data


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        (OtherArguments, "row() is called as that of Dataset, which it overrides: write def row(self, row_id)"),
        (NoDraw, "write def demonstration(self, row_id, draw)"),
        (AdaptsAlone, "that of FilesDataset, which it overrides: write def adapt(self, data, place)"),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
def test_a_method_that_cannot_be_called_as_the_one_it_overrides_is_refused(kind: type, meant: str) -> None:
    """Else it would fail where rows are read, with nothing said of how it is called."""
    with pytest.raises(ConfigError) as caught:
        check_dataset("a.path", kind)
    assert meant in str(caught.value)
