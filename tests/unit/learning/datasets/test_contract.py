"""What is said of a dataset of the user's own that cannot be used."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from pipeline.config.bases import DatasetConfig
from pipeline.config.load import load_config
from pipeline.errors import ConfigError
from pipeline.learning.datasets.base import Dataset, Row, check_dataset, check_demonstrations, load_dataset
from pipeline.learning.datasets.from_files import FilesDataset
from pipeline.plan.rewards import check_tokenizers


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


class NoBase(Counting):
    def __init__(self, config: DatasetConfig) -> None:
        self.config = config


class NoRows(Counting):
    def __init__(self, config: DatasetConfig) -> None:
        Dataset.__init__(self, config)


class Fails(Counting):
    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        self.digits = config.digits  # type: ignore[attr-defined]


class TooFew(Counting):
    def __init__(self, config: DatasetConfig) -> None:
        Dataset.__init__(self, config)
        self.split_ids("counting", 10)


class NoRow(Dataset):
    pass


class OddRow(Counting):
    def row(self, row_id: int) -> Any:
        return {"prompt": "1"}


class OtherRow(Counting):
    def row(self, row_id: int) -> Row:
        return Row(0, "1")


class RowFails(Counting):
    def row(self, row_id: int) -> Row:
        return Row(row_id, str(1 / 0))


class NoDemonstrations(Counting):
    demonstration = Dataset.demonstration


class NoVocabulary(Counting):
    vocabulary = ()
    bos_token = ""


class NoBos(Counting):
    vocabulary = "0123456789="


class Unknown(Counting):
    vocabulary = (*"0123456789", "<bos>")


class Ragged(Counting):
    def demonstration(self, row_id: int, draw: float) -> tuple[str, str]:
        return f"{row_id}=", "1"


class Long(Counting):
    def demonstration(self, row_id: int, draw: float) -> tuple[str, str]:
        return f"{row_id:05d}=", "11"


class DemonstrationFails(Counting):
    def demonstration(self, row_id: int, draw: float) -> tuple[str, str]:
        return f"{row_id:05d}=", str(1 / 0)


class NullPrompt(Counting):
    def row(self, row_id: int) -> Row:
        return Row(row_id, None)  # type: ignore[arg-type]


class NumberPrompt(Counting):
    def row(self, row_id: int) -> Row:
        return Row(row_id, 5)  # type: ignore[arg-type]


class RowExits(Counting):
    def row(self, row_id: int) -> Row:
        raise SystemExit(5)


class Exits(Counting):
    def __init__(self, config: DatasetConfig) -> None:
        raise SystemExit("no")


class NullVocabulary(Counting):
    vocabulary = None  # type: ignore[assignment]


class TokenTwice(Counting):
    vocabulary = (*"00123456789=", "<bos>")


class OddPattern(Counting):
    symbol_pattern: ClassVar[str] = "("


class TextLength(Counting):
    completion_length = "a"  # type: ignore[assignment]


class NoLength(Counting):
    completion_length = -1


class NoDemonstration(Counting):
    def demonstration(self, row_id: int, draw: float) -> Any:
        return None


class HalfADemonstration(Counting):
    def demonstration(self, row_id: int, draw: float) -> Any:
        return ("a",)


class NullDemonstration(Counting):
    def demonstration(self, row_id: int, draw: float) -> Any:
        return None, None


class DemonstrationExits(Counting):
    def demonstration(self, row_id: int, draw: float) -> Any:
        raise SystemExit(0)


def made(name: str) -> Dataset:
    return load_dataset(DatasetConfig(kind="mine", class_path=f"{__name__}.{name}"))


def test_one_that_can_be_used() -> None:
    check_demonstrations("mine", made("Counting"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Row", "is no dataset: it must be a subclass of pipeline.learning.datasets.base.Dataset"),
        ("made", "is no dataset"),
        ("NoRow", r"it must define row\(\)"),
        ("NoBase", r"its __init__ must call super\(\).__init__\(config\), then self.split_ids"),
        ("NoRows", "its __init__ must call"),
        ("Fails", r"test_contract.py:\d+ \(self.digits = config.digits.*\): AttributeError"),
        ("TooFew", "leave nothing of its 10 rows"),
        ("OddRow", r"gave \{'prompt': '1'\}, but must give Row\("),
        ("NullPrompt", r"gave the prompt None, but a prompt must be text, .* \(.*test_contract.py:\d+\)"),
        ("NumberPrompt", r"gave the prompt 5, but a prompt must be text"),
        ("RowExits", r"test_contract.py:\d+ \(raise SystemExit\(5\)\): SystemExit: 5"),
        ("Exits", r"test_contract.py:\d+ \(raise SystemExit\(.no.\)\): SystemExit: no"),
        ("NullVocabulary", r"test_contract.py:\d+\): its vocabulary is None, but must be a tuple of texts"),
        ("TokenTwice", "its vocabulary has '0' twice"),
        (
            "OddPattern",
            r"test_contract.py:\d+\): its symbol_pattern is '\(', which is no regular expr",
        ),
        ("TextLength", r"test_contract.py:\d+\): its completion_length is 'a', but must be a whole number"),
        ("NoLength", "its completion_length is -1, but"),
        ("OtherRow", r"gave Row\(id=0"),
        ("RowFails", r"test_contract.py:\d+ \(return Row\(row_id, str\(1 / 0\)\)\): ZeroDivisionError"),
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
        ("NoBos", "its vocabulary lacks its bos_token '<bos>'"),
        ("Unknown", "has '=', which is not in its vocabulary"),
        ("Ragged", "differ in their numbers of tokens"),
        ("Long", "longer than completion_length=1"),
        ("NoDemonstration", r"gave None, but must give two texts \(.*test_contract.py:\d+\)"),
        ("HalfADemonstration", r"gave \('a',\), but must give two texts"),
        ("NullDemonstration", r"gave \(None, None\), but must give two texts"),
        ("DemonstrationExits", r"failed: .*test_contract.py:\d+ \(raise SystemExit\(0\)\): SystemExit: 0"),
        ("DemonstrationFails", r"demonstration\(\d+, 0.01\) failed: .*ZeroDivisionError"),
    ],
)
def test_one_that_no_model_can_be_made_for_is_refused(name: str, said: str) -> None:
    dataset = made(name)
    with pytest.raises(ConfigError, match=said):
        check_demonstrations("mine", dataset)


def test_files_need_a_model_of_their_own() -> None:
    config = load_config(["experiment.name=t", "dataset=[addition,jsonl]", "datasets.jsonl.path=mine.jsonl"])
    with pytest.raises(ConfigError, match=r"datasets\.jsonl with model=tiny"):
        check_tokenizers(config)


def test_positions_hold_a_prompt_and_its_completion() -> None:
    config = load_config(["experiment.name=t", "models.tiny.n_positions=4"])
    with pytest.raises(
        ConfigError, match=r"models\.tiny\.n_positions=4: .* set models\.tiny\.n_positions=\d"
    ) as said:
        check_tokenizers(config)
    least = str(said.value).rpartition("=")[2].split()[0]
    check_tokenizers(load_config(["experiment.name=t", f"models.tiny.n_positions={least}"]))
    with pytest.raises(ConfigError, match=r"n_positions"):
        check_tokenizers(load_config(["experiment.name=t", f"models.tiny.n_positions={int(least) - 1}"]))


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
