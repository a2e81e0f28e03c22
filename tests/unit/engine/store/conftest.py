"""A store, and outputs for it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.engine.store.store import Store

KEY = "ab" + "0" * 38

Put = Callable[..., Path]


@pytest.fixture
def key() -> str:
    return KEY


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def put(store: Store) -> Put:
    """Commits an output of two files and an empty folder."""

    def put(key: str = KEY, text: str = "hello", job: str = "d/m/s0/A/r1/generate/003") -> Path:
        folder = store.begin(store.scratch("run"), key, 1)
        (folder / "sub").mkdir()
        (folder / "empty").mkdir()
        (folder / "sub" / "a.txt").write_text(text)
        (folder / "b.bin").write_bytes(b"\0" * 100)
        return store.commit(key, folder, {"job": job})

    return put
