"""Commits on disks that are full, limited or read-only: real ones, in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SETUP = """
import errno, os, resource, shutil, signal, sys
from pathlib import Path
from pipeline.errors import StoreError
from pipeline.engine.store.store import Store

store, key = Store(Path(sys.argv[1])), "ab" + "0" * 38

def begin(name="f"):
    folder = store.begin(store.scratch("run"), key, 1)
    for number in range(200):
        (folder / f"{name}{number}").write_text("x")
    return folder

def refused(do, number, *said):
    try:
        do()
    except StoreError as error:
        assert isinstance(error.__cause__, OSError), error
        assert error.__cause__.errno == number, error
        for text in said:
            assert text in str(error), error
    else:
        raise AssertionError("nothing was refused")
"""

FULL = """
folder = begin()
with open(store.root / "filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(b"\\0" * 4096)
    except OSError as error:
        assert error.errno == errno.ENOSPC
refused(lambda: store.commit(key, folder, {}), errno.ENOSPC, str(store.root), "Free space there", "command again")
assert not store.path(key).exists()
shutil.rmtree(folder)
(store.root / "filler").unlink()
store.commit(key, begin(), {})
assert store.problem(key) is None
print("passed")
"""


def run(root: Path, code: str, *wrapper: str) -> None:
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", SETUP + code, str(root)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "passed\n"


def test_a_full_disk_leaves_nothing_half_stored_and_says_what_to_do(
    small_disk: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    run(tmp_path / "disk" / "store", FULL, *small_disk(tmp_path / "disk"))
