"""Fixtures for all tests. Being in a package, this file also makes `tests.doubles` importable."""

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.doubles.engine import Engine, descriptors

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts into the background so, and every program that a test starts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The same few examples every time; `pytest --hypothesis-profile=long` tries 20,000 new ones of each property.
_slow_machines = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("short", max_examples=25, derandomize=True, database=None, **_slow_machines)
settings.register_profile("long", max_examples=20_000, print_blob=True, **_slow_machines)
settings.load_profile("short")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """The real engine on a folder of its own; nothing may be left behind by a test that uses it."""
    before = descriptors()
    engine = Engine(tmp_path / "an odd näme")
    yield engine
    assert engine.leftovers() == []
    assert descriptors() == before


@pytest.fixture(scope="session")
def small_disk() -> Callable[[Path], list[str]]:
    """The start of a command that runs the rest of it with a disk of 2 MiB in a folder, which only it sees."""
    script = 'mount -t tmpfs -o size=2m,nr_inodes=1000 tmpfs "$0" && exec "$@"'
    for unshare in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        if shutil.which("unshare"):
            tried = subprocess.run(
                [*unshare, "sh", "-c", script, "/mnt", "true"], capture_output=True, check=False
            )
            if tried.returncode == 0:
                return lambda folder: [*unshare, "sh", "-c", script, str(folder)]
    pytest.skip("may not mount a small disk here")
