"""Large inputs are read while a job loads them, and nothing comes of it before they were found good."""

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import pytest

from pipeline.engine.store.store import Store
from pipeline.engine.store.verified import Verified
from pipeline.engine.workers import runner as module
from pipeline.engine.workers.failure import FailureKind
from pipeline.engine.workers.messages import JobFinished, JobRaised, RunJob
from pipeline.engine.workers.runner import InputChecks, JobRunner
from pipeline.errors import DamagedOutput

KEY, OTHER, MADE = (letter * 40 for letter in "abc")
DAMAGE = "weights.bin does not have its checksum"
PATIENCE_S = 60.0
"""Far more than any step takes: what waits so long waits for ever."""


class Watched(Store):
    """Begins to read files when it is told to, and says what it did, in which thread."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.may_read = Event()
        self.said: list[str] = []

    def problem(self, key: str, *, checksums: bool = True) -> str | None:
        if checksums:
            assert self.may_read.wait(PATIENCE_S), "nobody loads before everything was read"
            self.said.append("read" if current_thread() is main_thread() else "read beside")
        return super().problem(key, checksums=checksums)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """With an output of a size that counts as large."""
    monkeypatch.setattr(module, "LARGE_BYTES", 1000)
    store = Watched(tmp_path / "store")
    put(store, KEY, 1000)
    return store


def put(store: Store, key: str, size: int) -> None:
    folder = store.begin(store.scratch("run"), key, 1)
    (folder / "weights.bin").write_bytes(b"\0" * size)
    store.commit(key, folder, {"job": "a/train"})


def alter(store: Store, key: str = KEY) -> None:
    path = store.path(key) / "weights.bin"
    path.write_bytes(b"\1" + path.read_bytes()[1:])


def checks(store: Store, *keys: str, beside: bool = True) -> InputChecks:
    return InputChecks(Verified(store, store.scratch("run") / "verified"), keys or (KEY,), beside=beside)


def test_a_job_loads_while_its_inputs_are_read_and_tells_nothing_before(store: Watched) -> None:
    def tell(*progress: int | Mapping[str, float | None]) -> None:
        store.said.append(f"progress {progress[0]}")

    with checks(store) as begun:
        report = begun.before(tell)
        store.said.append("loads")
        store.may_read.set()
        report(1, 10, 0, {})
        report(2, 10, 0, {})
    assert store.said == ["loads", "read beside", "progress 1", "progress 2"]
    with checks(store) as again:
        assert again._thread is None
    assert store.said.count("read beside") == 1


def test_what_is_small_and_what_ranks_read_is_read_before(store: Watched) -> None:
    put(store, OTHER, 100)
    store.may_read.set()
    with checks(store, OTHER), checks(store, beside=False):
        store.said.append("loads")
    assert store.said == ["read", "read", "loads"]


@pytest.mark.parametrize("when", ["progress", "stopping", "end", "failure", "exit"])
def test_an_altered_byte_is_told_in_the_same_words_whatever_the_job_does(store: Watched, when: str) -> None:
    alter(store)
    told: list[object] = []

    def load() -> None:
        with checks(store) as begun:
            store.may_read.set()
            if when == "failure":
                raise ValueError("no header")
            if when == "exit":
                sys.exit("no header")
            if when == "progress":
                begun.before(lambda *progress: told.append(progress))(1, 10, 0, {})
            if when == "stopping":
                begun.before(lambda: told.append("stopping"))()

    with pytest.raises(DamagedOutput) as beside:
        load()
    with pytest.raises(DamagedOutput) as before, checks(store, beside=False):
        pass
    assert str(beside.value) == str(before.value)
    assert DAMAGE in str(before.value)
    assert not told
    assert isinstance(beside.value.__cause__, ValueError | SystemExit) == (when in ("failure", "exit"))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda path: path.unlink(), "missing: weights.bin"),
        (lambda path: path.write_bytes(b"cut off"), "weights.bin has 7 bytes instead of 1000"),
    ],
)
def test_what_shows_without_reading_is_told_before_the_job_begins(
    store: Watched, harm: Callable[[Path], object], said: str
) -> None:
    harm(store.path(KEY) / "weights.bin")
    with pytest.raises(DamagedOutput, match=said), checks(store):
        raise AssertionError("it has begun")
    assert not store.said


def order(tmp_path: Path, store: Store, entry: str = "keeps_what_it_loads", attempt: int = 1) -> RunJob:
    fields: dict[str, Any] = {
        "job_id": "job", "attempt": attempt, "key": MADE, "entry": f"{__name__}:{entry}", "payload": {},
        "inputs": {"train": [KEY]}, "store": str(store.root), "scratch": str(store.scratch("run")),
        "verified": str(tmp_path / "verified"), "log_path": str(tmp_path / "log.txt"),
    }  # fmt: skip
    return RunJob(**fields)


def keeps_what_it_loads(work: Any) -> None:
    (folder,) = work.inputs["train"]
    work.memory["model"] = (folder / "weights.bin").read_bytes()
    (work.out / "made.txt").write_text("of it")


def goes_on(work: Any) -> None:
    saved = work.checkpoints / "loaded"
    if not saved.exists():
        keeps_what_it_loads(work)
        saved.parent.mkdir(parents=True)
        saved.write_bytes(work.memory["model"])
    (work.out / "made.txt").write_bytes(saved.read_bytes()[:1])


def interrupts_itself(work: Any) -> None:
    keeps_what_it_loads(work)
    raise KeyboardInterrupt


def test_nobody_goes_on_from_what_was_saved_of_an_altered_input(tmp_path: Path, store: Watched) -> None:
    store.may_read.set()
    runner = JobRunner(lambda message: None, "cpu")
    alter(store)
    assert isinstance(runner.run(order(tmp_path, store, "goes_on")), JobRaised)
    (store.path(KEY) / "weights.bin").write_bytes(b"\0" * 1000)
    assert isinstance(runner.run(order(tmp_path, store, "goes_on", attempt=2)), JobFinished)
    assert (store.path(MADE) / "made.txt").read_bytes() == b"\0"


def test_nothing_stays_loaded_of_what_was_not_read_to_its_end(
    tmp_path: Path, store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_to_its_end(verified: Verified, key: str) -> str:
        raise SystemExit(f"{key} was not read")

    monkeypatch.setattr(Verified, "problem", not_to_its_end)
    runner = JobRunner(lambda message: None, "cpu")
    for entry in ("keeps_what_it_loads", "interrupts_itself"):
        assert isinstance(runner.run(order(tmp_path, store, entry)), JobRaised)
        assert not runner.memory
    assert not store.path(MADE).exists()


def test_what_may_have_ended_a_worker_is_read_before_the_next_attempt(tmp_path: Path, store: Watched) -> None:
    alter(store)
    said = JobRunner(lambda message: None, "cpu").run(order(tmp_path, store, "ends_the_process", attempt=2))
    assert isinstance(said, JobRaised)
    assert said.damaged_key == KEY


def ends_the_process(work: Any) -> None:
    raise AssertionError(f"{work.job_id} would have ended this process")


def test_where_no_thread_can_be_had_all_is_read_before(store: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    store.may_read.set()
    with checks(store) as begun:
        assert begun.are_good
    assert store.said == ["read"]
    alter(store)
    with pytest.raises(DamagedOutput, match=DAMAGE), checks(store):
        raise AssertionError("it has begun")


def test_nothing_is_committed_or_kept_loaded_of_an_altered_input(tmp_path: Path, store: Watched) -> None:
    runner = JobRunner(lambda message: None, "cpu")
    alter(store)
    said = runner.run(order(tmp_path, store))
    assert isinstance(said, JobRaised)
    assert (said.kind, said.damaged_key) == (FailureKind.damaged_input, KEY)
    assert DAMAGE in said.message
    assert not store.path(MADE).exists()
    assert not runner.memory
    (store.path(KEY) / "weights.bin").write_bytes(b"\0" * 1000)
    assert isinstance(runner.run(order(tmp_path, store)), JobFinished)
    assert store.has(MADE, checksums=False)
    assert runner.memory
