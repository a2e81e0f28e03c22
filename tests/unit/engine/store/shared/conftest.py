"""Places for a shared store, and machines that share it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.store.shared.objects import Objects
from pipeline.engine.store.shared.outputs import SharedOutputs, Uploaded
from pipeline.engine.store.shared.session import Session, Timeouts
from pipeline.engine.store.store import Store
from pipeline.engine.store.verified import Verified
from tests.doubles.s3 import BUCKET, S3, serving

KEY = "ab" * 20
FILES = {"weights/model.bin": b"w" * 100_000, "metrics.json": b"{}", "empty": b""}
QUICK = Timeouts(asked_s=0.2, fetched_s=0.2, silent_s=0.2, backoff_s=0.01, longest_s=0.05)
"""Gives up at once."""
PATIENT = replace(QUICK, asked_s=60, fetched_s=60, silent_s=60)
"""Does not, however busy this machine is."""


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """One server for all tests of a process; the environment that names it stays with it."""
    pytest.importorskip("s3fs", reason="the extra dev has it")
    pytest.importorskip("moto.server", reason="the extra dev has it")
    with pytest.MonkeyPatch.context() as patch, serving(patch) as server:
        yield server


@pytest.fixture
def s3_url(s3: S3) -> str:
    s3.fail()
    return f"s3://{BUCKET}/{secrets.token_hex(4)}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty shared store's folder."""
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.fixture
def shared(folder: Path) -> Objects:
    return Objects(f"file://{folder}")


@pytest.fixture(params=["file", "s3"])
def objects(request: pytest.FixtureRequest) -> Objects:
    """An empty shared store of each kind."""
    if request.param == "file":
        return Objects(str(request.getfixturevalue("folder")))
    return Objects(request.getfixturevalue("s3_url"))


def replaced(objects: Objects, name: str, data: bytes) -> None:
    """Have other bytes in an object, as nothing here ever does."""
    objects._ask("pipe_file", name, data)


def entry(objects: Objects) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(objects.read(f"outputs/{KEY}.json", 1 << 20) or b"")
    return read


@dataclass
class Machine:
    """One with a local store of its own."""

    store: Store
    verified: Verified

    def make(self, key: str = KEY, files: dict[str, bytes] = FILES) -> None:
        """Have an output in its local store."""
        folder = self.store.begin(self.store.scratch("made-1"), key, 1)
        for name, data in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        self.store.commit(key, folder, {"job": "a/job"}, 0.0)

    def holds(self, key: str = KEY) -> dict[str, bytes] | None:
        """The files of an output that is whole, and nothing where there is none; no other state is right."""
        problem = self.store.problem(key)
        assert problem in (None, "not stored"), problem
        root = self.store.path(key)
        return None if problem else {name: (root / name).read_bytes() for name in FILES}

    def fetch(self, objects: Objects, key: str = KEY) -> bool:
        return SharedOutputs(objects).fetch(key, self.store, self.verified.folder) is not None

    def upload(self, objects: Objects, key: str = KEY) -> Uploaded:
        return SharedOutputs(objects).upload(key, self.store, lambda ask: ask())

    def session(
        self, objects: Objects, keys: Collection[str] = (), pace: Timeouts = QUICK, **settings: Any
    ) -> Session:
        return Session(objects, self.verified, keys, pace=pace, **settings)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[], Machine]:
    def make() -> Machine:
        store = Store(tmp_path / secrets.token_hex(4))
        scratch = store.scratch("run-1")
        scratch.mkdir(parents=True)
        return Machine(store, Verified(store, scratch / "verified"))

    return make
