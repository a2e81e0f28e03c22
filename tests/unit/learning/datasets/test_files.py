"""Which files make which split, what a path means, and what is said where there is nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pipeline.errors import DataError
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.files import TABLES, HubDataset, LocalFiles, locate
from pipeline.learning.datasets.from_files import FilesConfig, source_fingerprint
from pipeline.learning.datasets.shipped import GSM8KConfig, MathConfig


def made(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")
    return root


def splits_of(root: Path, **options: object) -> dict[str, list[str]]:
    found = locate(str(root), TABLES, hub=False, **options)  # type: ignore[arg-type]
    assert isinstance(found, LocalFiles)
    return {name: [str(path.relative_to(root)) for path in files] for name, files in found.splits.items()}


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["a.jsonl", "b.jsonl"], {"train": ["a.jsonl", "b.jsonl"]}),
        (["train.csv", "test.csv"], {"train": ["train.csv"], "test": ["test.csv"]}),
        (["x/train/1.json", "x/test/1.json"], {"train": ["x/train/1.json"], "test": ["x/test/1.json"]}),
        (
            ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/dev-0.parquet"],
            {
                "train": ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
                "validation": ["data/dev-0.parquet"],
            },
        ),
        (
            ["my_train_set.jsonl.gz", "VAL.jsonl"],
            {"train": ["my_train_set.jsonl.gz"], "validation": ["VAL.jsonl"]},
        ),
        (
            ["train.jsonl", "train_socratic.jsonl"],
            {"train": ["train.jsonl"], "train_socratic": ["train_socratic.jsonl"]},
        ),
        (["constrained.jsonl", "test.jsonl"], {"constrained": ["constrained.jsonl"], "test": ["test.jsonl"]}),
        (["train/data-0.arrow", "train/state.json", ".git/train.json"], {"train": ["train/data-0.arrow"]}),
        (["data-00000-of-00001.arrow", "cache-1169113aa42c6a1e.arrow"], {"train": ["data-00000-of-00001.arrow"]}),
        (
            [f"data/{name}-00000-of-00001.parquet" for name in ("test_gen", "test_sft", "train_gen", "train_sft")],
            {
                name: [f"data/{name}-00000-of-00001.parquet"]
                for name in ("test_gen", "test_sft", "train_gen", "train_sft")
            },
        ),
        (
            ["train_sft/data-00000-of-00001.arrow", "test_sft/data-00000-of-00001.arrow"],
            {
                "train": ["train_sft/data-00000-of-00001.arrow"],
                "test": ["test_sft/data-00000-of-00001.arrow"],
            },
        ),
        (["train_a/0.jsonl", "train_b/0.jsonl"], {"train": ["train_a/0.jsonl", "train_b/0.jsonl"]}),
        (["train.jsonl", "my_eval.jsonl"], {"train": ["train.jsonl"], "test": ["my_eval.jsonl"]}),
        (
            ["math-00000-of-00001.parquet", "code-00000-of-00001.parquet"],
            {"train": ["code-00000-of-00001.parquet", "math-00000-of-00001.parquet"]},
        ),
    ],
)
def test_splits_of_a_folder(tmp_path: Path, names: list[str], splits: dict[str, list[str]]) -> None:
    assert splits_of(made(tmp_path, *names, "README.md")) == splits


def test_a_subset_is_a_folder_inside(tmp_path: Path) -> None:
    made(tmp_path, "main/train.jsonl", "socratic/train.jsonl")
    assert splits_of(tmp_path, subset="main") == {"train": ["main/train.jsonl"]}
    assert splits_of(tmp_path, subset="other") == {"train": ["main/train.jsonl", "socratic/train.jsonl"]}


def test_an_id_of_the_hub_only_where_nothing_local_has_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = locate("owner/name", TABLES, hub=True, subset="main", revision="abc")
    assert found == HubDataset("owner/name", "main", "abc")
    made(tmp_path, "owner/name/train.jsonl")
    assert isinstance(locate("owner/name", TABLES, hub=True), LocalFiles)


@pytest.mark.parametrize("path", ["data/rows.jsonl", "./data", "/no/such/folder", "a/b/c", "rows.parquet"])
def test_what_can_only_be_a_file_is_not_looked_for_on_the_hub(path: str) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        locate(path, TABLES, hub=True)


@pytest.mark.parametrize("hub", [True, False])
def test_a_pipe_or_a_device_is_no_file_of_data(tmp_path: Path, hub: bool) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")  # as a shell makes of <(zcat rows.gz)
    for path in (str(tmp_path / "rows.jsonl"), "/dev/null"):
        with pytest.raises(DataError, match="is no file of data but a pipe or a device"):
            locate(path, TABLES, hub=hub)


@pytest.mark.parametrize(
    ("names", "path", "said"),
    [
        (["notes.md"], ".", r"holds no file that can be read here"),
        (["rows.xlsx"], "rows.xlsx", r"cannot read this kind of file. Known here: .jsonl"),
        (["train.jsonl", "train.csv"], ".", r"split 'train' has files of several kinds \(.csv, .jsonl\)"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, names: list[str], path: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        locate(str(made(tmp_path, *names) / path), TABLES, hub=True)


# -- test fingerprint --------------------------------------------------------------------------------------------
# What a plan knows of a source: its content, never its place, and without heavy imports or the network.


DATA = Path(__file__).parents[3] / "data"


def test_content_counts_and_not_the_place(tmp_path: Path) -> None:
    shutil.copytree(DATA / "gsm8k", tmp_path / "elsewhere")
    one = source_fingerprint(load_dataset(GSM8KConfig(kind="gsm8k", path=str(DATA / "gsm8k"))))
    other = source_fingerprint(load_dataset(GSM8KConfig(kind="gsm8k", path=str(tmp_path / "elsewhere"))))
    assert one == other
    assert one["path"]["files"] == 3
    with (tmp_path / "elsewhere" / "test.jsonl").open("a") as file:
        file.write("\n")
    assert source_fingerprint(load_dataset(GSM8KConfig(kind="gsm8k", path=str(tmp_path / "elsewhere")))) != one


def test_the_split_of_a_file_counts(tmp_path: Path) -> None:
    shutil.copytree(DATA / "gsm8k", tmp_path / "swapped")
    swapped = tmp_path / "swapped"
    (swapped / "train.jsonl").rename(swapped / "x")
    (swapped / "test.jsonl").rename(swapped / "train.jsonl")
    (swapped / "x").rename(swapped / "test.jsonl")
    one, other = (
        source_fingerprint(load_dataset(FilesConfig(kind="hf", path=str(p)))) for p in (DATA / "gsm8k", swapped)
    )
    assert one["path"]["bytes"] == other["path"]["bytes"]
    assert one != other


def test_every_source_of_a_dataset_is_in_it() -> None:
    config = MathConfig(kind="math", path=str(DATA / "math"), revision="not used here")
    assert source_fingerprint(load_dataset(config)) == {
        "path": source_fingerprint(load_dataset(FilesConfig(kind="hf", path=str(DATA / "math"))))["path"],
        "test_path": {"hub": "HuggingFaceH4/MATH-500", "subset": None, "revision": None},
    }
