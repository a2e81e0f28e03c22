"""What a worker does next."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from msgspec.structs import asdict

from pipeline.engine.workers.entrypoint import Orders
from pipeline.engine.workers.messages import JobFinished, RunJob, Shutdown, WarmUp

WELL = JobFinished(job_id="a", attempt=1, load_s=0, run_s=0, samples=0, tokens=0)


def order(name: str, after: str = "") -> RunJob:
    return RunJob(
        job_id=name, attempt=1, key="", entry="m:f", payload={}, inputs={}, store="", scratch="", verified="",
        log_path="", after=after,
    )  # fmt: skip


def given(*more: RunJob | WarmUp | Shutdown) -> Orders:
    """One who has `a`, and these to follow."""
    orders = Orders()
    for one in (order("a"), *more):
        orders.put(one)
    assert orders.get() == order("a")
    return orders


def test_a_job_that_ended_well_is_followed_by_the_one_that_was_handed_ahead() -> None:
    orders = given(order("b", "a"), order("c", "b"))
    assert orders.is_followed(order("a"), WELL)
    assert orders.get() == order("b", "a")
    assert orders.is_followed(order("b"), WELL)
    assert orders.get() == order("c", "b")
    assert not orders.is_followed(order("c"), WELL)


def test_after_any_other_end_all_of_them_are_dropped_those_too_that_are_still_under_way() -> None:
    orders = given(order("b", "a"))
    assert not orders.is_followed(order("a"), None)
    for late in (order("c", "b"), order("d"), order("e", "d")):
        orders.put(late)
    assert orders.get() == order("d"), "what comes after that was sent by an engine that knows"
    assert orders.is_followed(order("d"), WELL)
    assert orders.get() == order("e", "d")


def test_what_is_taken_back_is_not_begun_and_all_else_stays() -> None:
    warm = WarmUp(entries=["m:f"])
    orders = given(order("b", "a"), order("c", "b"), warm, Shutdown())
    assert orders.drop_ahead() == ["b", "c"]
    assert orders.drop_ahead() == []
    assert not orders.is_followed(order("a"), WELL), "first it gets warm"
    assert [orders.get(), orders.get()] == [warm, Shutdown()]


def test_what_is_about_to_begin_is_not_taken_back() -> None:
    orders = given(order("b", "a"), order("c", "b"))
    assert orders.is_followed(order("a"), WELL)
    assert orders.drop_ahead() == ["c"]
    assert orders.get() == order("b", "a")


class LookedAt(RunJob, frozen=True):
    """The first look at whether this order was handed ahead takes until another thread has had a chance."""

    meanwhile: ClassVar[threading.Thread | None] = None

    def __getattribute__(self, name: str) -> Any:
        if name == "after" and (thread := LookedAt.meanwhile):
            LookedAt.meanwhile = None
            thread.start()
            thread.join(0.2)
        return super().__getattribute__(name)


def test_an_order_is_dropped_by_name_or_begun_whoever_looks_at_the_same_time() -> None:
    orders = given(LookedAt(**asdict(order("b", "a"))), order("c", "b"))
    followed: list[bool] = []
    taker = threading.Thread(target=lambda: followed.append(orders.is_followed(order("a"), WELL)))
    LookedAt.meanwhile = taker
    assert orders.drop_ahead() == ["b", "c"]
    taker.join()
    assert followed == [False]
