"""What was decided is done, and what only the disk knows is told as it is."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from pipeline.engine.devices.select import plain_layout
from pipeline.engine.journal import Event, Journal, JournalReader, Listener
from pipeline.engine.keeper import remove_weights
from pipeline.engine.scheduler.loop import FORCE_S, Outside
from pipeline.engine.scheduler.run import OnDisk, ProcessOrder, Record, ReleaseClaim
from pipeline.engine.scheduler.state import RunState
from pipeline.engine.store.store import REMOVED, Store, Verified
from pipeline.engine.workers.pool import Pool
from pipeline.errors import StoreError
from tests.doubles.engine import job, key, plan_of


class Told:
    """A pool that remembers what it was told to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> object:
        assert callable(getattr(Pool, name))
        return lambda index: self.calls.append((name, index))


def in_journal(folder: Path) -> list[dict[str, Any]]:
    return list(JournalReader(folder / "journal.jsonl").new_events())


@pytest.fixture
def events() -> list[Event]:
    """What whoever watches was told."""
    return []


@pytest.fixture
def outside(tmp_path: Path, events: list[Event]) -> Iterator[Outside]:
    store, journal = Store(tmp_path / "store"), Journal(tmp_path / "journal.jsonl")
    verified = Verified(store, tmp_path / "verified")
    yield Outside(
        pool=cast("Pool", Told()),
        store=store,
        journal=journal,
        run_dir=tmp_path / "name" / "run",
        found=verified,
        listener=Listener(on_event=events.append),
    )
    journal.close()


def commit(store: Store, *names: str) -> None:
    for name in names:
        folder = store.begin(store.root / "scratch", key(name), 1)
        (folder / "value").write_text(name)
        store.commit(key(name), folder, {})


def test_a_journal_that_breaks_is_not_gone_on_with(
    outside: Outside, events: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.carry_out(Record("A", {"job": "a"}))
    outside.settle()
    with monkeypatch.context() as patched:
        patched.setattr(outside.journal, "force", lambda: fail("no space left"))
        outside.carry_out(Record("B", {}))
        outside.settle()
    assert outside.broken == "no space left"
    outside.carry_out(Record("C", {}))
    outside.settle()
    assert [event["event"] for event in in_journal(tmp_path)] == ["A"]
    assert in_journal(tmp_path) == events, "who watches is told what is on disk"


def forced(events: list[str], outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Note in `events` when the journal is forced to disk."""
    force = outside.journal.force
    monkeypatch.setattr(outside.journal, "force", lambda: (events.append("forced"), force()))


def test_what_only_the_journal_tells_is_on_disk_before_anything_is_done(
    outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    forced(done, outside, monkeypatch)
    monkeypatch.setattr(outside.pool, "restart", lambda _index: done.append("restart"), raising=False)
    outside.carry_out(Record("AttemptFailed", {"job": "a"}))
    outside.carry_out(Record("JobFailed", {"job": "a"}))
    assert done == [], "they go to disk together"
    outside.carry_out(ProcessOrder("restart", 0))
    assert done == ["forced", "restart"]
    assert [event["event"] for event in in_journal(tmp_path)] == ["AttemptFailed", "JobFailed"]


def test_what_the_store_tells_as_well_is_written_once_a_turn_and_forced_a_few_times_a_second(
    outside: Outside, events: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    forced(done, outside, monkeypatch)
    now_s = [1000.0]
    outside.clock = lambda: now_s[0]
    for turn in range(10):
        outside.carry_out(Record("JobStarted", {"job": str(turn)}))
        outside.carry_out(ProcessOrder("restart", 0))
        outside.carry_out(Record("JobFinished", {"job": str(turn)}))
        assert len(events) == 2 * turn, "nobody is told what is not written"
        outside.settle()
        assert in_journal(tmp_path) == events, "a kill of the engine loses none of it"
        now_s[0] += FORCE_S / 4
    assert len(done) == 2
    assert outside.force_due_s <= now_s[0] + FORCE_S, "the rest does not wait for another event"
    now_s[0] = outside.force_due_s
    outside.settle()
    assert len(done) == 3
    assert outside.force_due_s == math.inf


def fail(why: str) -> NoReturn:
    raise StoreError(why)


def test_a_key_is_claimed_until_it_is_released(outside: Outside) -> None:
    state = RunState(plan_of(job("a")), [], plain_layout(1))
    assert outside.before(job("a"), state) == OnDisk()
    assert outside.before(job("a"), state) == OnDisk(claimed=False)
    outside.carry_out(ReleaseClaim("a"))
    commit(outside.store, "a")
    assert outside.before(job("a"), state) == OnDisk(stored=True)
    assert outside.after(job("a")).stored
    assert not outside.after(job("b")).stored


def test_an_output_without_its_weights_will_do_where_nothing_that_is_left_reads_it(outside: Outside) -> None:
    plan = plan_of(job("a"), job("reader", needs=["a"]))
    commit(outside.store, "a")
    assert remove_weights(outside.store, key("a"), ["value"], "", outside.store.root / "scratch")
    assert not outside.before(plan.jobs["a"], RunState(plan, [], plain_layout(1))).stored
    outside.carry_out(ReleaseClaim("a"))
    assert outside.before(plan.jobs["a"], RunState(plan, ["reader"], plain_layout(1))).stored
    outside.carry_out(ReleaseClaim("a"))
    assert not outside.before(
        plan.jobs["a"], RunState(plan_of(job("a")), [], plain_layout(1))
    ).stored  # asked for itself
    assert not outside.after(plan.jobs["a"]).stored
    assert outside.damage(key("a"), RunState(plan, ["a"], plain_layout(1))) == OnDisk(problem=REMOVED, maker="a")


def test_what_it_takes_to_make_an_output_anew_is_looked_for_as_far_as_it_is_gone(outside: Outside) -> None:
    # w -> x -> a -> b -> reader, and o -> b; x was removed long ago, o is there, w is not needed for x.
    plan = plan_of(
        job("w"), job("x", needs=["w"]), job("a", needs=["x"]), job("o"), job("b", needs=["a", "o"]),
        job("reader", needs=["b"]),
    )  # fmt: skip
    commit(outside.store, "w", "x", "a", "o", "b")
    shutil.rmtree(outside.store.path(key("a")))
    state = RunState(plan, ["w", "x", "a", "o", "b"], plain_layout(1))
    assert outside.damage(key("b"), state) == OnDisk(maker="b", missing=frozenset({"a"}))
    shutil.rmtree(outside.store.path(key("x")))
    shutil.rmtree(outside.store.path(key("b")))
    assert outside.damage(key("b"), state) == OnDisk(
        problem="not stored", maker="b", missing=frozenset({"a", "x"})
    )
    assert outside.damage("f" * 64, state).maker == ""
