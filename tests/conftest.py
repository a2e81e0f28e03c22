"""Fixtures for all tests. Being in a package, this file also makes `tests.doubles` importable."""

import gc
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

from tests.doubles.engine import Engine, descriptors
from tests.doubles.machine import adopt_no_orphans

# Making the commands of an app takes a tenth of a second, and `CliRunner` does it at each call.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]
# Looking for garbage as often as usual takes a fifth of all time; until all tests are collected there is none.
gc.set_threshold(50_000, 20, 20)
gc.disable()


# The same few examples every time; `pytest --hypothesis-profile=long` tries 20,000 new ones of each property.
_slow_machines = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("short", max_examples=10, derandomize=True, database=None, **_slow_machines)
settings.register_profile("long", max_examples=20_000, print_blob=True, **_slow_machines)
settings.load_profile("short")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deal the tests to the processes of xdist, and give what tries 20,000 examples the time for them."""
    items[:] = _dealt(items, int(getattr(config, "workerinput", {}).get("workercount", 1)))
    if settings.get_current_profile_name() == "long":
        for item in items:
            if item.get_closest_marker("properties"):
                item.add_marker(pytest.mark.timeout(6 * 3600))


def _dealt(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Tests in an order that lets each process begin with its share of those that wait for processes of their own.

    Each process of xdist begins with as many tests as any other, in the order of all, and takes over from the end
    of what others have left. So what takes longest comes first, and only short tests are left for the end. Tests
    of one file stay together, as they share what its fixtures have started.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if "integration" in item.path.parts:
            files.setdefault(item.path, []).append(item)
    short = [item for item in items if item.path not in files]
    dealt: list[pytest.Item] = []
    for process in range(processes):
        chosen = [item for file in sorted(files)[process::processes] for item in files[file]]
        room = max(0, (len(items) - len(dealt)) // (processes - process) - len(chosen))
        dealt += [*chosen, *short[:room]]
        short = short[room:]
    return [*dealt, *short]


def pytest_collection_finish() -> None:
    """Thousands of tests and the libraries that they import are no garbage: never look through them."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """What is visible to this process matters to tests of real GPUs alone."""
    with pytest.MonkeyPatch.context() as patched:
        if item.get_closest_marker("gpu") is None:
            patched.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Nor is what a file of tests leaves for good, such as modules: no search of a later one goes through it."""
    yield
    if nextitem is None or nextitem.path != item.path:
        adopt_no_orphans()
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Nor need Python go through all of it as it ends."""
    gc.freeze()


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
