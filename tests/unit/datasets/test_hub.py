"""The hub: only ids use it, and what is said where it cannot be reached."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.schema import FilesConfig, GSM8KConfig
from pipeline.datasets.prepared import PreparedDataset, prepare
from pipeline.errors import DataError

DATA = Path(__file__).parents[2] / "data"


def test_an_id_is_loaded_by_the_datasets_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[tuple[Any, ...]] = []

    def load(repo: str, *, name: str | None, revision: str | None) -> datasets.DatasetDict:
        asked.append((repo, name, revision))
        rows = [{"question": f"{n}+{n}?", "answer": f"#### {2 * n}"} for n in range(12)]
        return datasets.DatasetDict(
            {"train": datasets.Dataset.from_list(rows[:10]), "test": datasets.Dataset.from_list(rows[10:])}
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", load)
    about = prepare(GSM8KConfig(kind="gsm8k", revision="abc", prompt_template=None), tmp_path / "out")
    assert asked == [("openai/gsm8k", "main", "abc")]
    assert about["rows"] == {"train": 5, "validation": 5, "test": 2}
    assert about["source"] == {"path": {"hub": "openai/gsm8k", "subset": "main", "revision": "abc"}}
    dataset = PreparedDataset(tmp_path / "out")
    assert {dataset.row(i).columns["solution"] for i in dataset.ids("test")} == {"20", "22"}


def test_a_damaged_row_of_the_hub_has_a_place_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    loaded = datasets.DatasetDict({"train": datasets.Dataset.from_list([{"prompt": "a"}, {"prompt": ""}])})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: loaded)
    with pytest.raises(DataError, match=r"owner/name \[train\] row 2: the prompt is empty"):
        prepare(FilesConfig(kind="hf", path="owner/name"), tmp_path / "out")


def test_without_a_network_the_message_says_what_to_do(tmp_path: Path) -> None:
    code = """
from pathlib import Path
from pipeline.config.schema import GSM8KConfig
from pipeline.datasets.prepared import prepare
from pipeline.errors import DataError
try:
    prepare(GSM8KConfig(kind="gsm8k"), Path("out"))
except DataError as error:
    print(error)
"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    (message,) = done.stdout.splitlines()
    assert message.startswith("openai/gsm8k: no file or folder of this name here (looked for ")
    assert "the Hugging Face hub does not give it" in message
    assert "hf download --repo-type dataset openai/gsm8k --local-dir FOLDER" in message
    assert "set the dataset's path to it" in message
    assert not (tmp_path / "out").exists()


def test_a_local_path_needs_neither_network_nor_the_datasets_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setitem(sys.modules, "datasets", None)
    about = prepare(GSM8KConfig(kind="gsm8k", path=str(DATA / "gsm8k")), tmp_path / "out")
    assert sum(about["rows"].values()) == 10


@pytest.mark.parametrize("shards", [1, 2])
def test_what_the_datasets_library_saved_is_read(tmp_path: Path, shards: int) -> None:
    import datasets

    rows = [{"prompt": [{"role": "user", "content": f"{n}"}], "n": n} for n in range(20)]
    parts = {"train": datasets.Dataset.from_list(rows[:16]), "test": datasets.Dataset.from_list(rows[16:])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved", num_shards={"train": shards, "test": 1})
    config = FilesConfig(kind="hf", path=str(tmp_path / "saved"), test_size=4, validation_size=2)
    prepare(config, tmp_path / "out")
    dataset = PreparedDataset(tmp_path / "out")
    assert dataset.about["rows"] == {"train": 14, "validation": 2, "test": 4}
    assert sorted(dataset.ids("test").tolist()) == [16, 17, 18, 19]
    assert dataset.row(17).prompt == [{"role": "user", "content": "17"}]
    assert dataset.row(17).columns == {"n": 17}
