"""Where rows are: files by split, the hub where it can be reached or not, and what a plan knows of them."""

import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.workers.messages import FailureKind, classify
from pipeline.errors import DataError, JobError
from pipeline.learning.datasets import files
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.files import TABLES, HubDataset, LocalFiles, locate
from pipeline.learning.datasets.from_files import FilesConfig, source_fingerprint
from pipeline.learning.datasets.prepared import PreparedDataset, prepare
from pipeline.learning.datasets.shipped import GSM8KConfig, MathConfig
from pipeline.learning.models.kinds import HFModelConfig
from pipeline.learning.models.source import snapshot, write_reference


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
    "split_of",
    [
        {"x/train/1.json": "train", "x/test/1.json": "test"},
        {f"data/train-0000{part}-of-00002.parquet": "train" for part in (0, 1)}
        | {"data/dev-0.parquet": "validation"},
        {"my_train_set.jsonl.gz": "train", "VAL.jsonl": "validation"},
        {"train.jsonl": "train", "train_socratic.jsonl": "train_socratic"},
        {"constrained.jsonl": "constrained", "test.jsonl": "test"},
        {"train/data-0.arrow": "train", "train/state.json": "", ".git/train.json": ""},
        {"data-00000-of-00001.arrow": "train", "cache-1169113aa42c6a1e.arrow": ""},
        {
            f"data/{split}-00000-of-00001.parquet": split
            for split in ("test_gen", "test_sft", "train_gen", "train_sft")
        },
        {"train_sft/data-00000-of-00001.arrow": "train", "test_sft/data-00000-of-00001.arrow": "test"},
        {"math-00000-of-00001.parquet": "train", "code-00000-of-00001.parquet": "train"},
        {"data/math-00000-of-00001.parquet": "math", "data/code-00000-of-00001.parquet": "code"},
        {
            "dataset_dict.json": "",
            "math/data-00000-of-00001.arrow": "math",
            "code/data-00000-of-00001.arrow": "code",
        },
        {"snli_1.0_train.jsonl": "train", "snli_1.0_dev.jsonl.gz": "validation", "snli_1.0.test.JSONL.GZ": "test"},
        {"MathTrain.jsonl": "train", "MathTest.jsonl": "test", "devset.jsonl": "validation"},
    ],
    ids=lambda split_of: ", ".join(split_of),
)
def test_splits_of_a_folder(tmp_path: Path, split_of: dict[str, str]) -> None:
    splits: dict[str, list[str]] = {}
    for name, split in sorted(split_of.items()):
        if split:
            splits.setdefault(split, []).append(name)
    assert splits_of(made(tmp_path, *split_of, "README.md")) == splits


def test_a_subset_is_a_folder_inside(tmp_path: Path) -> None:
    made(tmp_path, "main/train.jsonl", "socratic/train.jsonl")
    assert splits_of(tmp_path, subset="main") == {"train": ["main/train.jsonl"]}
    both = {"train": ["main/train.jsonl", "socratic/train.jsonl"]}
    assert splits_of(tmp_path, subset="other", is_usual=True) == both
    with pytest.raises(DataError, match="has no subset 'other'"):
        splits_of(tmp_path, subset="other")


def test_links_are_followed(tmp_path: Path) -> None:
    root = made(tmp_path / "root", "train.jsonl")
    made(tmp_path, "kept/0.jsonl")
    (root / "test").symlink_to(tmp_path / "kept")
    (root / "test" / "up").symlink_to(tmp_path)
    (root / "again").symlink_to(root)
    splits = splits_of(root)
    assert splits["train"] == ["train.jsonl"]
    assert "test/0.jsonl" in splits["test"]
    (root / "dev.jsonl").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"dev\.jsonl: is a link to nothing"):
        splits_of(root)


@pytest.mark.parametrize("name", ["test.jsonl.zst", "x.parquet.bz2"])
def test_a_compressed_part_is_not_passed_over(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"{name}: is compressed"):
        splits_of(made(tmp_path, "train-0.jsonl", name))


def test_a_folder_of_the_hubs_cache_is_its_snapshot(tmp_path: Path) -> None:
    made(tmp_path, *(f"snapshots/{commit}/{file}" for commit in ("a", "b") for file in ("train.csv", "test.csv")))
    for name, commit in (("main", "b"), ("v1", "a")):
        (made(tmp_path, f"refs/{name}") / "refs" / name).write_text(commit)
        revision = {} if name == "main" else {"revision": name}
        assert splits_of(tmp_path, **revision)["test"] == [f"snapshots/{commit}/test.csv"]
    assert splits_of(tmp_path, revision="a")["test"] == ["snapshots/a/test.csv"]
    with pytest.raises(DataError, match=r"has no revision 'v2'; set revision to one of a, b\."):
        splits_of(tmp_path, revision="v2")


CARD = """\ufeff---
license: mit
configs:
- config_name: main
  data_files:
  - {split: train, path: "data/*.jsonl"}
  - {split: test, path: ["./kept.jsonl", "../../*.jsonl"]}
- config_name: other
  data_files: [{split: dev, path: "**/part-[0-9].*"}, {split: train, path: "[!k]*/[ab]*"}]
- {config_name: folder, data_dir: deep}
- {config_name: elsewhere, data_dir: /}
---
"""


def test_the_card_of_a_folder_says_its_subsets_and_splits(tmp_path: Path) -> None:
    root = made(tmp_path / "a" / "b", "data/my_test.jsonl", "kept.jsonl", "deep/part-1.jsonl", "deep/test.jsonl")
    made(root, "x/a.jsonl", "x/c.jsonl")
    made(tmp_path, "outside.jsonl")
    (root / "README.md").write_text(CARD)
    main = {"train": ["data/my_test.jsonl"], "test": ["kept.jsonl"]}
    assert splits_of(root, subset="main") == main
    assert splits_of(root, subset="other") == {"validation": ["deep/part-1.jsonl"], "train": ["x/a.jsonl"]}
    assert splits_of(root, subset="folder") == {"part-1": ["deep/part-1.jsonl"], "test": ["deep/test.jsonl"]}
    assert splits_of(root, subset="data") == {"test": ["data/my_test.jsonl"]}
    for subset, said in (("mian", "no subset 'mian'"), (None, "several subsets: main, other, folder")):
        with pytest.raises(DataError, match=said):
            splits_of(root, subset=subset)
    (root / "README.md").write_text(CARD.replace("name: main", "name: main\n  default: true"))
    assert splits_of(root) == main
    (root / "kept.jsonl").unlink()
    with pytest.raises(DataError, match="split 'test' that are not here"):
        splits_of(root)
    (root / "README.md").write_text("---\nconfigs: [{config_name: only, data_files: data/*.parquet}]\n---\n")
    with pytest.raises(DataError, match=r"files that its README\.md names are not here"):
        splits_of(root)
    (root / "README.md").write_text("---\nconfigs: [{config_name: only, data_files: x/a.jsonl}]\n---\n")
    assert splits_of(root) == splits_of(root, subset="main", is_usual=True) == {"train": ["x/a.jsonl"]}
    with pytest.raises(DataError, match="no subset 'main'"):
        splits_of(root, subset="main")
    for broken in (
        "configs: [",
        "configs: [{data_files: 'a[9-0]'}]",
        "configs: [{data_files: [{path: x}]}]",
    ):
        (root / "README.md").write_text(f"---\n{broken}\n---\n")
        with pytest.raises(DataError, match="`configs` at its top cannot be read"):
            splits_of(root)


def test_an_id_of_the_hub_only_where_nothing_local_has_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = locate("owner/name", TABLES, hub=True, subset="main", revision="abc")
    assert found == HubDataset("owner/name", "main", "abc")
    made(tmp_path, "owner/name/train.jsonl")
    assert isinstance(locate("owner/name", TABLES, hub=True), LocalFiles)


@pytest.mark.parametrize("path", ["./data", "a/b/c", "rows.parquet"])
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
    def known(folder: Path) -> dict[str, Any]:
        return dict(source_fingerprint(load_dataset(GSM8KConfig(kind="gsm8k", path=str(folder)))))

    one, copy = known(DATA / "gsm8k"), shutil.copytree(DATA / "gsm8k", tmp_path / "elsewhere")
    assert known(copy) == one
    assert one["path"]["files"] == 3
    for name, new in (("train", "x"), ("test", "train"), ("x", "test")):  # the split of a file counts
        (copy / f"{name}.jsonl").rename(copy / f"{new}.jsonl")
    swapped = known(copy)
    assert swapped != one
    assert swapped["path"]["bytes"] == one["path"]["bytes"]
    with (copy / "test.jsonl").open("a") as file:
        file.write("\n")
    assert known(copy) not in (one, swapped)


def test_every_source_of_a_dataset_is_in_it() -> None:
    config = MathConfig(kind="math", path=str(DATA / "math"), revision="not used here")
    assert source_fingerprint(load_dataset(config)) == {
        "path": source_fingerprint(load_dataset(FilesConfig(kind="hf", path=str(DATA / "math"))))["path"],
        "test_path": {"hub": "HuggingFaceH4/MATH-500", "subset": None, "revision": None},
    }


def test_an_id_is_loaded_by_the_datasets_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[tuple[Any, ...]] = []

    def load(repo: str, *, name: str | None, revision: str | None) -> datasets.DatasetDict:
        asked.append((repo, name, revision))
        rows = [{"question": f"{n}+{n}?", "answer": f"#### {2 * n}", "rate": 0.1} for n in range(12)]
        every = datasets.Dataset.from_list(rows).cast_column("rate", datasets.Value("float32"))
        return datasets.DatasetDict(
            {name: every.select(at) for name, at in (("train", range(9)), ("dev", [9]), ("test", [11, 10]))}
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets, "load_dataset", load)
    about = prepare(
        load_dataset(GSM8KConfig(kind="gsm8k", revision="abc", prompt_template=None)),
        tmp_path / "out",
    )
    assert asked == [("openai/gsm8k", "main", "abc")]
    assert about["rows"] == {"train": 9, "validation": 1, "test": 2}
    assert about["source"] == {"path": {"hub": "openai/gsm8k", "subset": "main", "revision": "abc"}}
    dataset = PreparedDataset(tmp_path / "out")
    assert {dataset.row(i).columns["solution"] for i in dataset.ids("test")} == {"20", "22"}
    _, splits = files.open_source(HubDataset("openai/gsm8k", None, None))
    assert [record.data["rate"] for record in splits["test"]()] == [0.1, 0.1]  # as in a file of that precision


def test_what_the_cache_has_instead_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commit = "c" * 40
    datasets.Dataset.from_list([{"prompt": "a"}]).save_to_disk(tmp_path / commit)
    cached = datasets.Dataset.from_file(str(next((tmp_path / commit).glob("*.arrow"))))

    def load(repo: str, *, name: str | None, revision: str | None) -> datasets.DatasetDict:
        if name is not None:
            raise ValueError("Available configs\nin the cache: ['main']")
        if repo == "x/y":
            return datasets.DatasetDict({"train": cached})
        raise ConnectionError

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert list(files.open_source(HubDataset("x/y", None, commit))[1]) == ["train"]
    made(tmp_path, "datasets--x--z/refs/main")
    for repo, subset, revision, said in (
        (
            "x/y",
            "other",
            None,
            r"x/y: HF_HUB_OFFLINE is set\. Available configs in the cache: \['main'\]\. Set subset",
        ),
        ("x/y", None, "d" * 40, f"gives the revision {commit}, not d*"),
        ("x/z", None, None, rf"the name of {tmp_path}/datasets--x--z in its place"),
    ):
        with pytest.raises(DataError, match=said):
            files.open_source(HubDataset(repo, subset, revision))


def test_a_local_path_needs_neither_network_nor_the_datasets_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setitem(sys.modules, "datasets", None)
    about = prepare(load_dataset(GSM8KConfig(kind="gsm8k", path=str(DATA / "gsm8k"))), tmp_path / "out")
    assert sum(about["rows"].values()) == 10


@pytest.mark.parametrize("shards", [1, 2])
def test_what_the_datasets_library_saved_is_read(tmp_path: Path, shards: int) -> None:
    import datasets

    rows = [{"prompt": [{"role": "user", "content": f"{n}"}], "n": n} for n in range(20)]
    parts = {"train": datasets.Dataset.from_list(rows[:16]), "test": datasets.Dataset.from_list(rows[16:])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved", num_shards={"train": shards, "test": 1})
    config = FilesConfig(kind="hf", path=str(tmp_path / "saved"), test_size=4, validation_size=2)
    prepare(load_dataset(config), tmp_path / "out")
    dataset = PreparedDataset(tmp_path / "out")
    assert dataset.about["rows"] == {"train": 14, "validation": 2, "test": 4}
    assert sorted(dataset.ids("test").tolist()) == [16, 17, 18, 19]
    assert dataset.row(17).prompt == [{"role": "user", "content": "17"}]
    assert dataset.row(17).columns == {"n": 17}


# -- a hub on this machine -------------------------------------------------------------------------------------


class Hub:
    """Listens on the loopback and counts who asks; answers with a status, or not at all."""

    def __init__(self, status: int | None) -> None:
        self.status = status
        self.asked = 0
        self._open: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):  # wakes the thread that waits
            self._socket.shutdown(socket.SHUT_RDWR)
        for each in (self._socket, *self._open):
            each.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.asked += 1
                self._open.append(connection)
                if self.status is not None:
                    connection.recv(65536)
                    head = f"HTTP/1.1 {self.status} Said\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    connection.sendall(head.encode())
                    connection.close()


@pytest.fixture
def hub_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a hub that answers with a status, that does not answer (None), or that is not there (0)."""
    import datasets
    from huggingface_hub import constants, get_session
    from huggingface_hub.utils import close_session

    made: list[Hub] = []

    def make(status: int | None) -> Hub:
        made.append(one := Hub(status))
        # One that answers is waited for, however busy this machine is.
        monkeypatch.setattr(files, "PATIENCE_S", 1.0 if status is None else 60.0)
        if status == 0:
            one.close()
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, one.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", one.url)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", one.url)
        return one

    for name in ("HF_HUB_CACHE", "HF_XET_CACHE"):
        monkeypatch.setattr(constants, name, str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    close_session()
    get_session()  # which takes its time, and is none of the hub's
    yield make
    close_session()
    for one in made:
        one.close()


def wanted(what: str, out: Path) -> None:
    if what == "model":
        write_reference(HFModelConfig(kind="hf", path="owner/name"), out)
    else:
        prepare(load_dataset(FilesConfig(kind="hf", path="owner/name")), out)


@pytest.mark.parametrize("what", ["model", "dataset"])
@pytest.mark.parametrize("status", [0, None], ids=["refuses", "never answers"])
def test_a_hub_that_cannot_be_reached_is_asked_once(
    tmp_path: Path, hub_of: Any, what: str, status: int | None
) -> None:
    server = hub_of(status)
    with pytest.raises((JobError, DataError)) as caught:
        wanted(what, tmp_path / "out")
    said = str(caught.value)
    assert "owner/name" in said
    assert f"{server.url} (HF_ENDPOINT) cannot be reached (" in said
    assert "and the cache of this machine does not have it" in said
    assert "owner/name --local-dir" in said
    assert server.asked == (0 if status == 0 else 1)
    # The engine does not try again either.
    assert classify(caught.value) is FailureKind.bug


@pytest.mark.parametrize("what", ["model", "dataset"])
@pytest.mark.parametrize("status", [401, 404])
def test_what_the_hub_does_not_show_is_one_message(tmp_path: Path, hub_of: Any, what: str, status: int) -> None:
    hub_of(status)
    with pytest.raises((JobError, DataError)) as caught:
        wanted(what, tmp_path / "out")
    said = str(caught.value)
    assert "there is none of this name, or it is private or gated" in said
    assert "log in with `hf auth login` or HF_TOKEN" in said
    assert len(said.splitlines()) == 1
    assert classify(caught.value) is FailureKind.bug


def test_the_cache_serves_while_the_hub_cannot_be_reached(tmp_path: Path, hub_of: Any) -> None:
    server = hub_of(None)
    commit = "0" * 40
    folder = tmp_path / "cache" / "models--owner--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text("{}")
    assert snapshot("owner/name", None) == str(folder / "snapshots" / commit)
    assert server.asked == 1
