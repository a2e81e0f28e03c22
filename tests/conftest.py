"""Fixtures for all tests. Being in a package, this file also makes `tests.doubles` importable."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.engine import Engine, descriptors

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts into the background so, and every program that a test starts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """The real engine on a folder of its own; nothing may be left behind by a test that uses it."""
    before = descriptors()
    engine = Engine(tmp_path / "an odd näme")
    yield engine
    assert engine.leftovers() == []
    assert descriptors() == before
