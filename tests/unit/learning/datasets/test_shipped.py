"""The datasets that ship: their original files become the rows that rewards and reports expect."""

from pathlib import Path

import pytest

from pipeline.config.load import load_config
from pipeline.config.schema import DatasetConfig
from pipeline.errors import ConfigError, DataError
from pipeline.learning.datasets.base import DATASETS, SPLITS, Row, load_dataset
from pipeline.learning.datasets.from_files import FilesConfig, FilesDataset
from pipeline.learning.datasets.prepared import PreparedDataset, prepare
from pipeline.learning.datasets.shipped import GSM8KConfig, IMDBConfig, MathConfig, TLDRConfig

DATA = Path(__file__).parents[3] / "data"


def rows_of(config: DatasetConfig, folder: Path) -> dict[str, list[Row]]:
    prepare(load_dataset(config), folder)
    dataset = PreparedDataset(folder)
    return {split: [dataset.row(i) for i in sorted(dataset.ids(split).tolist())] for split in SPLITS}


def test_math_is_tested_on_math_500_and_never_trained_on_it(tmp_path: Path) -> None:
    config = MathConfig(
        kind="math", path=str(DATA / "math"), test_path=str(DATA / "math_500"), prompt_template=None
    )
    rows = rows_of(config, tmp_path)
    assert [row.prompt for row in rows["test"]] == ["What is $1 + 1$?", "Solve $2x = 6$."]
    assert rows["test"][0].columns == {
        "solution": "It is $\\boxed{2}$.",
        "answer": "2",
        "level": 1,
        "subject": "Prealgebra",
    }
    others = {str(row.prompt): row for split in ("train", "validation") for row in rows[split]}
    assert sorted(others) == [
        "Factor $x^2 - 1$.",
        "How many degrees has a right angle?",
        "What is half of $\\frac{2}{3}$?",
    ]
    assert others["What is half of $\\frac{2}{3}$?"].columns["answer"] == "\\frac{1}{3}"
    right_angle = others["How many degrees has a right angle?"].columns
    assert (right_angle["answer"], right_angle["level"], right_angle["subject"]) == ("90", None, "Geometry")


@pytest.mark.parametrize(
    ("config", "row", "said"),
    [
        (GSM8KConfig(kind="gsm8k"), '{"problem": "a"}', r":1: no column 'question'; the columns are problem"),
        (GSM8KConfig(kind="gsm8k"), '{"question": "a", "answer": "42"}', r":1: the answer must end with '#### "),
        (MathConfig(kind="math", test_path=None), '{"problem": "a", "solution": "b"}', r":1: .* no final answer"),
        (IMDBConfig(kind="imdb_sentiment"), '{"text": "a", "label": -1}', r":1: label -1 is none of 0, neg,"),
        (TLDRConfig(kind="tldr"), '{"prompt": "a", "chosen": "b"}', r":1: no column 'rejected'"),
    ],
    ids=lambda value: value.kind if isinstance(value, DatasetConfig) else "",
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, config: FilesConfig, row: str, said: str) -> None:
    (tmp_path / "train.jsonl").write_text(row + "\n")
    config.path = str(tmp_path / "train.jsonl")
    with pytest.raises(DataError, match=said):
        prepare(load_dataset(config), tmp_path / "out")


@pytest.mark.parametrize("kind", sorted(DATASETS))
def test_every_kind_can_be_chosen_by_name(kind: str) -> None:
    config = load_config(["experiment.name=t", f"dataset={kind}"]).datasets[kind]
    assert config.kind == kind
    if isinstance(config, FilesConfig) and config.path is None:
        with pytest.raises(ConfigError, match="path is missing"):
            load_dataset(config)
        config.path = "somewhere"
    assert load_dataset(config).config is config


class GSM8KLike(FilesDataset):
    """A dataset of a user's own that reads files."""
