"""Of machines that share nothing but a store one computes a key, and another where that one is gone."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import pytest

from pipeline.engine.store.shared.claims import Claims, Held, Lease, holder, moment
from pipeline.engine.store.shared.objects import Objects

KEY = "cd" * 20


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an S3 server `test_session` sees as much, at a hundred times the cost."""
    (tmp_path / "shared").mkdir()
    return f"file://{tmp_path}/shared" if request.param == "file" else f"memory://{secrets.token_hex(4)}"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def claims(objects: Objects, clock: Clock, store: str = "", host: str = "far") -> Claims:
    return Claims(objects, holder(store or str(id(object())) + host, host), lease_s=60, clock=clock)


def taken(claims: Claims) -> Lease:
    lease = claims.take(KEY)
    assert isinstance(lease, Lease)
    return lease


def test_one_machine_has_a_claim_until_it_gives_it_back(objects: Objects, clock: Clock) -> None:
    one, other = claims(objects, clock, "one", "near"), claims(objects, clock, "other")
    began = time.time()
    lease = taken(one)
    assert taken(one) == lease  # the answer to the first request was lost
    assert other.take(KEY) == Held("near")
    assert str(other.take(KEY)) in {f"near, since {moment(when)}" for when in (began, time.time())}
    one.release(lease)
    later = taken(other)
    assert later.number > lease.number
    assert one.take(KEY) == Held("far")


def test_a_claim_that_is_renewed_is_never_taken_over(objects: Objects, clock: Clock) -> None:
    one, other = claims(objects, clock, "one"), claims(objects, clock, "other")
    lease = taken(one)
    for _ in range(10):
        assert isinstance(other.take(KEY), Held)
        clock.now += 59
        assert one.renew(lease)


def test_a_holder_that_is_gone_is_replaced_and_notices_when_it_comes_back(objects: Objects, clock: Clock) -> None:
    one, other = claims(objects, clock, "one"), claims(objects, clock, "other")
    lease = taken(one)
    clock.now += 1e6  # by the clock of whoever waits, from when it first looked
    assert isinstance(other.take(KEY), Held)
    clock.now += 60
    later = taken(other)
    assert later.number > lease.number
    assert not one.renew(lease)
    one.release(lease)  # of what is another's by now nothing is given back
    assert isinstance(claims(objects, clock, "third").take(KEY), Held)
    assert other.renew(later)


def test_a_claim_of_the_same_local_store_is_of_a_run_that_is_gone(objects: Objects, clock: Clock) -> None:
    taken(claims(objects, clock, "one"))
    assert taken(claims(objects, clock, "one")).number == 2


def test_no_claim_is_left_of_an_output_that_is_there(objects: Objects, clock: Clock) -> None:
    one = claims(objects, clock, "one")
    one.release(taken(one))
    lease = taken(one)
    one.forget(KEY)
    assert objects.names(f"claims/{KEY}/") == []
    assert not one.renew(lease)


def test_a_claim_that_nobody_can_read_ends_as_any_other(objects: Objects, clock: Clock) -> None:
    objects.write(f"claims/{KEY}/000007", b"\xff" * 9)
    objects.write(f"claims/{KEY}/stranger", b"")
    objects.write(f"claims/{KEY}/000001", b"{}")
    one = claims(objects, clock)
    assert one.take(KEY) == Held("?")
    clock.now += 60
    assert taken(one).number == 8
