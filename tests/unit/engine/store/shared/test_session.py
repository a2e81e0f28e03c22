"""A shared store beside a run: nothing waits for it, and faults cost time alone."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from pipeline.engine.store.shared.objects import Objects, UnreachableError
from pipeline.engine.store.shared.outputs import SharedOutputs
from pipeline.engine.store.shared.session import Answer, Session, Traffic
from tests.doubles.s3 import FAULTS, S3
from tests.unit.engine.store.shared.conftest import FILES, KEY, PATIENT, QUICK, Machine, entry, replaced

NewMachine = Callable[[], Machine]
LONG_S = 60


def known(session: Session, key: str = KEY) -> Answer:
    """What is known of a key once it is."""
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        if (answer := session.ask("job", key)) is not Answer.wait:
            return answer
        select.select([session.fileno()], [], [], 1)
        session.answered()
    raise AssertionError("no answer")


def uploaded(machine: Machine, objects: Objects, key: str = KEY) -> Session:
    """The session, which is over, in which a machine has brought an output there."""
    machine.make(key)
    session = machine.session(objects, pace=PATIENT)
    session.finished(key, "the job")
    assert session.conclude() == ""
    return session


def test_what_one_machine_makes_another_has(objects: Objects, machine: NewMachine) -> None:
    one, other = machine(), machine()
    here, there = one.session(objects), other.session(objects)
    assert known(here) is Answer.mine
    assert known(here) is Answer.mine  # asked again for another attempt
    one.make()
    here.finished(KEY)
    assert here.conclude() == ""
    assert known(there) is Answer.there
    assert other.holds() == FILES
    assert there.conclude() == ""
    size = sum(map(len, FILES.values()))
    assert here.traffic == Traffic(uploaded=1, uploaded_bytes=size)
    assert there.traffic == Traffic(fetched=1, fetched_bytes=size)


def test_what_another_had_stored_first_is_not_counted_as_uploaded_and_told_where_it_differs(
    shared: Objects, machine: NewMachine, caplog: pytest.LogCaptureFixture
) -> None:
    assert uploaded(machine(), shared).traffic.uploaded == 1
    assert uploaded(machine(), shared).traffic.uploaded == 0
    assert caplog.text == ""
    third = machine()
    third.make(files={**FILES, "metrics.json": b"[]"})
    session = third.session(shared)
    session.finished(KEY)
    assert session.conclude() == ""
    assert KEY in caplog.text


def test_what_is_expected_is_fetched_and_told(shared: Objects, machine: NewMachine) -> None:
    other = machine()
    uploaded(machine(), shared)
    session = other.session(shared, {KEY}, limit=1)
    session.expect({"job": KEY})
    assert not session.is_busy  # a large file on its way keeps no job from beginning
    assert select.select([session.fileno()], [], [], LONG_S)[0]
    assert session.answered() == ["job"]
    assert other.holds() == FILES
    assert other.verified.is_noted(KEY)  # the engine's loop need not read it
    session.conclude()


def test_what_is_bad_there_is_set_aside_and_made_again(shared: Objects, machine: NewMachine) -> None:
    other, third = machine(), machine()
    uploaded(machine(), shared)
    replaced(shared, f"files/{KEY}/{entry(shared)['upload']}/0000002", b"torn")
    session = other.session(shared, {KEY})
    session.expect({"job": KEY})
    assert known(session) is Answer.mine
    assert other.holds() is None
    session.conclude()
    uploaded(other, shared)
    assert third.fetch(shared)
    assert third.holds() == FILES


def test_what_is_damaged_here_is_not_uploaded(
    shared: Objects, machine: NewMachine, caplog: pytest.LogCaptureFixture
) -> None:
    one = machine()
    one.make()
    (one.store.path(KEY) / "metrics.json").write_bytes(b"[]")  # as long as before
    session = one.session(shared)
    session.finished(KEY)
    assert session.conclude() == ""
    assert SharedOutputs(shared).keys() == set()
    assert KEY in caplog.text


def cut_off(shared: Objects, patch: pytest.MonkeyPatch) -> list[str]:
    """Have no request answered, until the patch is undone; what was asked."""
    asked: list[str] = []

    def ask(method: str, *_: object, **__: object) -> None:
        asked.append(method)
        raise UnreachableError("no route")

    patch.setattr(shared, "_ask", ask)
    return asked


def test_without_a_network_the_run_goes_on_and_the_next_one_uploads(
    shared: Objects, machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine()
    one.make()
    with monkeypatch.context() as patched:
        cut_off(shared, patched)
        session = one.session(shared, away="no route")
        assert session.ask("job", KEY) is Answer.mine
        assert session.notice
        session.finished(KEY, "the job")
        said = session.conclude()
        assert "the job" in said
        assert "no route" in said
        session = one.session(shared)
        session.finished(KEY)
        assert session.conclude(lambda: True)  # one that is asked to end does not wait for uploads
        assert session.conclude() == ""  # told once
    uploaded(one, shared)
    assert SharedOutputs(shared).keys() == {KEY}


def test_a_network_that_goes_and_comes_back_is_told_once(
    shared: Objects, machine: NewMachine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where one output was waited for in vain no other is."""
    one = machine()
    keys = {f"job{number}": f"{number:040x}" for number in range(20)}
    with monkeypatch.context() as patched:
        asked = cut_off(shared, patched)
        session = one.session(shared, keys.values(), pace=replace(QUICK, fetched_s=0.3, backoff_s=0.1))
        session.expect(keys)
        assert {known(session, key) for key in keys.values()} == {Answer.mine}
        assert len(asked) <= 40
        assert caplog.text.count("cannot be reached") == 1
        assert session.notice
    one.make()
    session.finished(KEY)
    assert session.conclude() == ""
    assert session.notice == ""


@pytest.mark.parametrize(
    ("kind", "first", "step"),
    [
        ("dropped before", 1, 2),
        ("dropped after", 2, 2),
        ("500", 1, 4),
        ("503", 3, 4),
        ("slow", 4, 8),
        *(pytest.param(kind, 1, 1, marks=pytest.mark.exhaustive) for kind in FAULTS),
    ],
)
def test_any_request_to_a_real_server_may_go_wrong(
    kind: str, first: int, step: int, s3: S3, s3_url: str, machine: NewMachine
) -> None:
    """Question, upload and fetch, with each request of the first two machines failing once."""
    objects = Objects(s3_url)
    for at in range(first, 99, step):
        key = f"{at:040x}"
        one, other, last = machine(), machine(), machine()
        s3.fail(at, kind)
        here, there = one.session(objects, pace=PATIENT), other.session(objects, pace=PATIENT)
        assert known(here, key) is Answer.mine
        one.make(key)
        here.finished(key)
        assert here.conclude() == ""
        assert known(there, key) is Answer.there
        assert there.conclude() == ""
        assert other.holds(key) == FILES
        requests = s3.requests
        s3.fail()
        assert last.fetch(objects, key)
        assert last.holds(key) == FILES
        if requests < at:
            break
    assert 8 < at < 40
