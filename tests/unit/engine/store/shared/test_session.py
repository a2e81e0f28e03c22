"""A shared store beside a run: nothing waits for it, nothing is made twice, and faults cost time alone."""

from __future__ import annotations

import json
import re
import secrets
import select
import time
from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from pipeline.engine.store.shared.address import open_objects
from pipeline.engine.store.shared.answers import Answer, Traffic
from pipeline.engine.store.shared.objects import Objects, RefusedError, UnreachableError
from pipeline.engine.store.shared.outputs import SharedOutputs
from pipeline.engine.store.shared.session import Session
from tests.doubles.s3 import FAULTS, S3
from tests.unit.engine.store.shared.conftest import FILES, KEY, PATIENT, QUICK, Machine

NewMachine = Callable[[], Machine]
LONG_S = 60


@pytest.fixture
def memory() -> Objects:
    return open_objects(f"memory://{secrets.token_hex(8)}")


def known(session: Session, *, held: bool = True, key: str = KEY) -> Answer:
    """What is known of a key once it is; where `held` is False, once no other machine makes it."""
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        answer, _ = session.ask("job", key)
        if answer is not Answer.wait and (held or answer is not Answer.held):
            return answer
        select.select([session.fileno()], [], [], 1)
        session.answered()
    raise AssertionError("no answer")


def test_one_machine_makes_what_another_waits_for_and_has_then(objects: Objects, machine: NewMachine) -> None:
    one, other = machine(), machine()
    here, there = one.session(objects), other.session(objects)
    assert known(here) is Answer.mine
    assert known(here) is Answer.mine  # asked again for another attempt
    assert known(there) is Answer.held
    assert there.ask("job", KEY)[1]  # which machine
    one.make()
    here.finished(KEY)
    assert known(there, held=False) is Answer.there
    assert other.holds() == FILES
    assert (here.conclude(), there.conclude()) == ("", "")
    size = sum(map(len, FILES.values()))
    assert here.traffic == Traffic(uploaded=1, uploaded_bytes=size)
    assert there.traffic == Traffic(fetched=1, fetched_bytes=size)
    assert objects.names(f"claims/{KEY}/") == []


def test_what_another_had_stored_first_is_not_counted_as_uploaded(memory: Objects, machine: NewMachine) -> None:
    one, other = machine(), machine()
    here, there = one.session(memory), other.session(memory)
    for each, session in ((one, here), (other, there)):
        each.make()
        session.finished(KEY)
        assert session.conclude() == ""
    assert (here.traffic.uploaded, there.traffic.uploaded) == (1, 0)


def test_a_job_that_failed_there_is_made_here(memory: Objects, machine: NewMachine) -> None:
    here, there = machine().session(memory), machine().session(memory)
    assert known(here) is Answer.mine
    assert known(there) is Answer.held
    here.conclude()
    assert known(there, held=False) is Answer.mine
    there.conclude()


def test_a_machine_that_died_is_waited_for_no_longer_than_a_lease(memory: Objects, machine: NewMachine) -> None:
    here, there = machine().session(memory), machine().session(memory, pace=replace(QUICK, lease_s=0.1))
    assert known(here) is Answer.mine
    here._closing.set()  # it is gone, and renews nothing
    assert known(there, held=False) is Answer.mine
    there.conclude()


def test_a_claim_is_renewed_for_as_long_as_its_run_lives(memory: Objects, machine: NewMachine) -> None:
    now = [0.0]
    here, there = (machine().session(memory, clock=lambda: now[0]) for _ in range(2))
    assert known(here) is Answer.mine
    assert known(there) is Answer.held
    for turn in range(1, 9):  # two leases
        now[0] += QUICK.lease_s / 4
        until = time.monotonic() + LONG_S
        while json.loads(memory.read(f"claims/{KEY}/000001", 9999) or b"")["turn"] < turn:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert there.ask("job", KEY)[0] is Answer.held
    here.conclude()
    there.conclude()


def test_what_is_expected_is_fetched_and_told(memory: Objects, machine: NewMachine) -> None:
    one, other = machine(), machine()
    one.make()
    session = one.session(memory)
    session.finished(KEY)
    assert session.conclude() == ""
    session = other.session(memory, {KEY})
    session.expect({"job": KEY})
    assert not session.is_busy  # a large file on its way keeps no job from beginning
    assert select.select([session.fileno()], [], [], LONG_S)[0]
    assert session.answered() == ["job"]
    assert other.holds() == FILES
    assert other.verified.is_noted(KEY)  # the engine's loop need not read it
    session.conclude()


def test_what_is_bad_there_is_set_aside_and_made_again(memory: Objects, machine: NewMachine) -> None:
    one, other = machine(), machine()
    one.make()
    session = one.session(memory)
    session.finished(KEY)
    session.conclude()
    upload = json.loads(memory.read(f"outputs/{KEY}.json", 1 << 20) or b"")["upload"]
    memory.write(f"files/{KEY}/{upload}/0000002", b"torn")
    session = other.session(memory, {KEY})
    session.expect({"job": KEY})
    assert select.select([session.fileno()], [], [], LONG_S)[0]
    assert session.answered() == ["job"]
    assert other.holds() is None
    assert known(session) is Answer.mine
    other.make()
    session.finished(KEY)
    assert session.conclude() == ""
    third = machine()
    assert third.fetch(memory)
    assert third.holds() == FILES


class Away:
    """A store that cannot be reached for a while."""

    def __init__(self, inner: Objects) -> None:
        self._inner = inner
        self.away = True

    def __getattr__(self, name: str) -> Callable[..., object]:
        def ask(*args: object) -> object:
            if self.away:
                raise UnreachableError("no route")
            answer: object = getattr(self._inner, name)(*args)
            return answer

        return ask


def test_without_a_network_the_run_goes_on_and_the_next_one_uploads(
    memory: Objects, machine: NewMachine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    one, store = machine(), Away(memory)
    session = one.session(store, away="no route")  # type: ignore[arg-type]
    assert session.ask("job", KEY)[0] is Answer.mine
    one.make()
    session.finished(KEY, "the job")
    assert one.holds() == FILES
    said = session.conclude()
    assert said == (
        "the job is not in the shared store yet (no route). The next run of the same command goes on with it"
    )
    assert "reached again" not in caplog.text  # reading what is to be sent is no sign of it
    store.away = False
    session = one.session(store)  # type: ignore[arg-type]
    session.finished(KEY)
    assert session.conclude() == ""
    assert SharedOutputs(memory).keys() == {KEY}


def test_a_network_that_goes_and_comes_back_is_told_once_each(
    memory: Objects, machine: NewMachine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    one, store = machine(), Away(memory)
    session = one.session(store)  # type: ignore[arg-type]
    assert session.notice == ""
    assert [known(session, key=key * 20) for key in ("aa", "bb")] == [Answer.mine, Answer.mine]
    assert re.fullmatch(
        r"the shared store cannot be reached since [-\d: ]+ \(no route\): going on with what is here",
        session.notice,
    )
    one.make()
    session.finished(KEY)
    store.away = False
    assert session.conclude() == ""
    assert session.notice.startswith("the shared store is reached again since ")
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "the shared store cannot be reached (no route): the run goes on with what is here"
    assert said[1:] == ["the shared store is reached again"]


def test_a_job_that_is_given_up_is_made_by_another_machine_at_once(memory: Objects, machine: NewMachine) -> None:
    here, there = machine().session(memory), machine().session(memory)
    assert known(here) is Answer.mine
    assert known(there) is Answer.held
    here.give_up(KEY)  # it has failed; the run goes on
    assert known(there, held=False) is Answer.mine
    assert known(here) is Answer.held
    assert (here.conclude(), there.conclude()) == ("", "")


def test_a_claim_that_cannot_be_taken_back_keeps_no_upload_from_counting(
    memory: Objects, machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends by itself, a lease later; the output is there."""
    one = machine()
    session = one.session(memory)
    assert known(session) is Answer.mine

    def unreachable(key: str) -> None:
        raise UnreachableError("cut off")

    monkeypatch.setattr(session._claims, "forget", unreachable)
    one.make()
    session.finished(KEY)
    assert session.conclude() == ""
    assert (session.traffic.uploaded, session.traffic.left) == (1, 0)


def test_a_job_that_is_given_up_keeps_its_claim_until_its_output_is_uploaded(
    memory: Objects, machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output was made, and only the run has no more use for it: no other machine is to make it again."""
    one = machine()
    session, goes = one.session(memory), Event()
    assert known(session) is Answer.mine
    patiently = session._reach.patiently

    def later(*given: Any) -> Any:
        goes.wait(LONG_S)
        return patiently(*given)

    monkeypatch.setattr(session._reach, "patiently", later)
    one.make()
    session.finished(KEY)
    session.give_up(KEY)
    assert KEY in session._leases
    goes.set()
    assert session.conclude() == ""
    assert session.traffic.uploaded == 1


class Odd:
    """Objects of which no entry can be read."""

    def __init__(self, objects: Objects, error: Exception) -> None:
        self._objects, self._error = objects, error
        self.asked = 0

    def read(self, name: str, limit: int) -> bytes | None:
        if not name.startswith("outputs/"):
            return self._objects.read(name, limit)
        self.asked += 1
        raise self._error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)


@pytest.mark.parametrize(("error", "most"), [(UnreachableError("cut off"), 60), (RefusedError("not yours"), 20)])
def test_where_one_output_was_waited_for_in_vain_no_other_is(
    memory: Objects, machine: NewMachine, caplog: pytest.LogCaptureFixture, error: Exception, most: int
) -> None:
    """What is refused is not asked for again either: reading is not allowed, or what reads it is broken."""
    odd = Odd(memory, error)
    keys = {f"job{number}": f"{number:040x}" for number in range(20)}
    session = machine().session(odd, keys.values(), pace=replace(QUICK, fetched_s=0.3, backoff_s=0.1))
    session.expect(keys)
    assert {known(session, key=key) for key in keys.values()} == {Answer.mine}
    assert odd.asked <= most
    assert caplog.text.count("cannot be reached") == 1
    session.conclude()


def test_an_end_waits_for_no_server_that_does_not_answer(memory: Objects, machine: NewMachine) -> None:
    blocked = Event()

    class Silent(Odd):
        def names(self, prefix: str) -> list[str]:
            blocked.wait()
            return []

    session = machine().session(memory, pace=replace(QUICK, released_s=0.05))
    assert known(session) is Answer.mine
    session._claims._objects = Silent(memory, UnreachableError(""))
    assert session.conclude() == ""
    blocked.set()


def test_a_run_that_is_asked_to_end_does_not_wait_for_uploads(memory: Objects, machine: NewMachine) -> None:
    one = machine()
    one.make()
    session = one.session(Away(memory))  # type: ignore[arg-type]
    session.finished(KEY)
    assert "is not in the shared store yet" in session.conclude(lambda: True)
    assert session.conclude() == ""  # told once


@pytest.mark.parametrize(
    ("kind", "first", "step"),
    [
        ("dropped before", 1, 2),
        ("dropped after", 2, 2),
        ("500", 1, 8),
        ("503", 5, 16),
        ("slow", 7, 16),
        *(pytest.param(kind, 1, 1, marks=pytest.mark.exhaustive) for kind in FAULTS),
    ],
)
def test_any_request_to_a_real_server_may_go_wrong(
    kind: str, first: int, step: int, s3: S3, s3_url: str, machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim, commit and fetch, with each request of the first two machines failing once in one of two ways.

    Answers of 500 are not asked for again below us: of these every eighth request is tried, with the one by which
    the second machine claims.
    """
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)  # none but our own: what has to hold without them
    objects = open_objects(s3_url)
    for at in range(first, 99, step):
        key = f"{at:040x}"
        one, other = machine(), machine()
        s3.fail(at, kind)
        here, there = one.session(objects, pace=PATIENT), other.session(objects, pace=PATIENT)
        assert known(here, key=key) is Answer.mine
        one.make(key)
        here.finished(key)
        assert here.conclude() == ""
        answer = known(there, held=False, key=key)
        assert answer is Answer.there
        assert there.conclude() == ""
        assert other.holds(key) == FILES
        requests = s3.requests
        s3.fail()
        last = machine()
        assert last.fetch(objects, key)
        assert last.holds(key) == FILES
        if requests < at:
            break
    assert 10 < at < 90
