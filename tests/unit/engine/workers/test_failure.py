"""What kind of failure an exception is."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.engine.workers.messages import (
    FailureKind,
    RunJob,
    classify,
    decode_report,
    encode,
)
from pipeline.engine.workers.work import raised
from pipeline.errors import DamagedOutput, GangError, RanksDisagree

ORDER = RunJob(
    job_id="a", attempt=1, key="k", entry="m:f", payload={}, inputs={"x": ["read"]}, store="", scratch="",
    verified="", log_path="",
)  # fmt: skip

FULL = """
import sqlite3, sys
from pathlib import Path

import numpy
import pyarrow
import torch
from pyarrow import parquet
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from pipeline.engine.workers.messages import classify

folder = Path(sys.argv[1])
tensor = torch.zeros(1_000_000)
words = Tokenizer(models.WordLevel({f"token {i}": i for i in range(100_000)}, "token 0"))


def to_an_open_file():
    with (folder / "open.pt").open("wb") as file:
        torch.save(tensor, file)


def to_a_database():
    database = sqlite3.connect(folder / "database")
    database.execute("create table t(x blob)")
    database.execute("insert into t values (?)", (b"x" * 5_000_000,))


def and_fail_while_cleaning_up():
    try:
        save_file({"x": tensor}, folder / "model.safetensors")
    except Exception:
        raise ValueError("could not save")


for save in (
    lambda: save_file({"x": tensor}, folder / "model.safetensors"),
    lambda: torch.save(tensor, folder / "tensor.pt"),
    lambda: torch.save(tensor, folder / "old.pt", _use_new_zipfile_serialization=False),
    lambda: numpy.save(folder / "array.npy", tensor.numpy()),
    lambda: numpy.savez(folder / "array.npz", tensor.numpy()),
    lambda: parquet.write_table(pyarrow.table({"a": numpy.random.rand(1_000_000)}), folder / "table.parquet"),
    lambda: words.save(str(folder / "tokenizer.json")),
    lambda: (folder / "text").write_text("x" * 5_000_000),
    to_an_open_file,
    to_a_database,
    and_fail_while_cleaning_up,
):
    try:
        save()
    except Exception as error:
        print(classify(error).value, type(error).__name__)
    else:
        print("nothing raised")
    for path in folder.iterdir():
        path.unlink()
"""


def test_a_full_disk_is_told_whatever_was_being_saved(
    small_disk: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    (disk := tmp_path / "disk").mkdir()
    done = subprocess.run(
        [*small_disk(disk), sys.executable, "-c", FULL, str(disk)],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    kinds = [line.split()[0] for line in done.stdout.splitlines()]
    assert kinds == ["storage"] * 11, done.stdout


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EDQUOT, "x"), FailureKind.storage),
        (OSError(errno.EROFS, "x"), FailureKind.storage),
        (RuntimeError("Read-only file system (os error 30)"), FailureKind.storage),
        (RuntimeError("Connection refused (os error 111)"), FailureKind.bug),
        (OSError(errno.ENOENT, "No space left on device"), FailureKind.bug),
        (ValueError("no space left in the context window"), FailureKind.bug),
        (RuntimeError("CUDA error: no space left on device"), FailureKind.device),
        (GangError("its log ends: No space left on device", rank=0, kind="bug"), FailureKind.bug),
        (GangError("m", rank=0, kind="no such kind"), FailureKind.bug),
        (RuntimeError("NCCL error in: x.cpp, remote process exited or there was an error"), FailureKind.transient),
        (RuntimeError("NCCL error: unhandled cuda error"), FailureKind.device),
        (RanksDisagree("2 ranks"), FailureKind.device),
    ],
    ids=str,
)
def test_what_an_exception_is(error: BaseException, kind: FailureKind) -> None:
    assert classify(error) is kind


# -- exceptions whose own code raises --------------------------------------------------------------------------


class Unspeakable(OSError):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__

    @property
    def errno(self) -> int:  # type: ignore[override]
        raise SystemExit


class Odd(Exception):
    __notes__ = property(lambda _self: os.abort)  # type: ignore[assignment]
    __cause__ = property(lambda _self: 1 / 0)  # type: ignore[assignment]

    def __str__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unspeakable(), "its message cannot be read"),
        (Odd(), "read"),
        (ValueError("\udcff\x1b[31m"), r"\udcff\x1b[31m"),
        (type("N\n", (Exception,), {"__module__": "\udcff"})("m"), "m"),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), "surrogates not allowed"),
        (DamagedOutput("not read", "p"), "cannot be used"),
        (GangError("g", rank=7, kind="bug", damaged_key="x"), "g"),
        (GangError("g", rank="7", kind="damaged_input"), "g"),  # type: ignore[arg-type]
    ],
    ids=lambda value: "" if type(value) is str else type(value).__name__,
)
def test_whatever_is_raised_can_be_told(error: BaseException, said: str) -> None:
    message = raised(ORDER, error, 0.0)
    assert said in message.message
    assert (message.kind, message.rank, message.damaged_key) == (FailureKind.bug, None, "")
    assert decode_report(encode(message)) == message
