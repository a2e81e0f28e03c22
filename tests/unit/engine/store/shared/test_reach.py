"""Whether a shared store can be reached: for how long it is asked."""

import errno
from threading import Event
from typing import cast

import pytest

from pipeline.engine.store.shared.answers import Timeouts
from pipeline.engine.store.shared.objects import Objects, RefusedError, UnreachableError, _is_refusal
from pipeline.engine.store.shared.reach import Reach


class Waits(Event):
    """Time that passes by being waited for."""

    now_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now_s += timeout or 0.0
        return False


def asked(error: Exception) -> list[float]:
    waits, times = Waits(), list[float]()
    reach = Reach(
        cast("Objects", None), Timeouts(backoff_s=0.25, longest_s=15.0), waits, "", clock=lambda: waits.now_s
    )

    def ask() -> None:
        times.append(waits.now_s)
        raise error

    with pytest.raises(type(error)):
        reach.patiently(ask, 10.0)
    return times


def test_a_question_is_asked_for_as_long_as_was_said_and_once_more_when_that_is_over() -> None:
    assert asked(UnreachableError("no route")) == [0.0, 0.25, 0.75, 1.75, 3.75, 7.75, 10.0]


def test_what_is_refused_is_asked_once() -> None:
    assert asked(RefusedError("not yours")) == [0.0]


@pytest.mark.parametrize("name", ["EROFS", "ENOTDIR", "EACCES", "ENOENT"])
def test_a_folder_that_nobody_can_write_is_refused(name: str) -> None:
    assert _is_refusal(OSError(getattr(errno, name), "no"))
    assert not _is_refusal(OSError(errno.EIO, "perhaps later"))
