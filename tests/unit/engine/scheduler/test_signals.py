"""Requests to stop: the first one counts, a further one hurries."""

import os
import select
import signal

import pytest

from pipeline.engine.scheduler.signals import StopSignals


@pytest.mark.parametrize(
    ("first", "second", "hurries"),
    [
        (signal.SIGINT, signal.SIGINT, True),
        (signal.SIGTERM, signal.SIGINT, True),
        (signal.SIGHUP, signal.SIGHUP, False),
        (signal.SIGTERM, signal.SIGHUP, False),
        (signal.SIGHUP, signal.SIGTERM, True),
    ],
    ids=str,
)
def test_the_second_sighup_of_a_closed_terminal_is_no_second_request(
    first: signal.Signals, second: signal.Signals, hurries: bool
) -> None:
    """A shell passes on the SIGHUP that the kernel then sends as well; running jobs keep their time to save."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    calls: list[None] = []
    try:
        with StopSignals() as signals, signals.calling(lambda: calls.append(None)):
            os.kill(os.getpid(), first)
            assert select.select([signals.fileno()], [], [], 10)[0]
            signals.drain()
            os.kill(os.getpid(), second)
            assert bool(select.select([signals.fileno()], [], [], 0)[0]) == hurries
            assert len(calls) == 1 + hurries
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_of_jobs_the_third_signal_ends_the_process_as_it_did_before() -> None:
    """What is written is finished, but not if it never ends."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        with StopSignals() as signals:
            for _ in range(2):
                signal.raise_signal(signal.SIGTERM)
            assert not got
            assert signals.received == "SIGTERM"
            signal.raise_signal(signal.SIGTERM)
            assert got == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
