"""What a plan knows of a source: its content, never its place, and without heavy imports or the network."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import DataError
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.from_files import FilesConfig, source_fingerprint
from pipeline.learning.datasets.shipped import GSM8KConfig, MathConfig

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


def test_what_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("{}\n")

    def refused(path: Path) -> str:  # as for a user without that right; root always has it
        raise PermissionError(13, "Permission denied", str(path))

    with pytest.raises(DataError, match=rf"dataset 'jsonl': cannot read {file} \(Permission denied\)"):
        source_fingerprint(load_dataset(FilesConfig(kind="jsonl", path=str(file))), refused)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(DataError, match=rf"{tmp_path}: may not be looked into"):
        source_fingerprint(load_dataset(FilesConfig(kind="jsonl", path=str(tmp_path))))


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


def test_planning_imports_nothing_heavy() -> None:
    code = f"""
import sys
from pipeline.config.tables import all_shipped
from pipeline.learning.datasets.shipped import GSM8KConfig
from pipeline.learning.datasets.from_files import source_fingerprint
from pipeline.learning.datasets.base import load_dataset
source_fingerprint(load_dataset(GSM8KConfig(kind="gsm8k", path={str(DATA / "gsm8k")!r})))
for kind, schema in all_shipped("datasets").items():
    given = {{"path": "owner/name"}} if kind == "hf" else {{}}
    if kind not in ("csv", "jsonl", "parquet"):
        source_fingerprint(load_dataset(schema(kind=kind, **given)))
heavy = {{"torch", "transformers", "datasets", "pyarrow", "pandas", "huggingface_hub"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
