"""Whatever lies where runs only remember things counts as absent if it is odd, and nobody waits for it."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.devices.select import claim_lease, wanted_before
from pipeline.engine.journal import Journal
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.run_jobs import read_durations, read_peaks, update_durations, update_peaks
from pipeline.engine.store.gc import find_runs, job_of
from pipeline.engine.store.store import Store, Verified, users
from pipeline.errors import DeviceError, PlanError, StoreError
from pipeline.foreign import recall
from pipeline.learning.models.batch_size import _Hint
from pipeline.outputs.manifest import MANIFEST
from pipeline.plan.graph import Durations, Timed
from pipeline.plan.models import _Hashes
from pipeline.runs.cost import FILE as COMPUTE
from pipeline.runs.cost import Compute, read_compute
from pipeline.runs.loaded import LoadedRun, load_planned
from pipeline.runs.record import read_results

KEY = "ab" + "0" * 38


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket has at most 107 bytes
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, errors="surrogateescape")


ODD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "empty": _text(""),
    "no text": _text("\udcff\udcfe"),
    "nan": _text('{"a": NaN, "size": NaN, "rows": NaN}'),
    "text": _text('{"a": "much", "size": "much", "rows": [{"a": 1}]}'),
    "deep": _text('{"a":' * 200_000),
}


def _cost(root: Path) -> Any:
    return Store(root).costs.of(KEY)


def _note(root: Path) -> Any:
    return Verified(Store(root), root / "notes")._unchanged(KEY)


def _hashes(root: Path) -> Any:
    return _Hashes(root / ".hints")._sums


READERS: dict[str, tuple[str, Callable[[Path], Any], Any]] = {
    "durations": ("durations.json", read_durations, Durations()),
    "peaks": (".hints/memory.json", read_peaks, {}),
    "hashes": (".hints/file_hashes.json", _hashes, {}),
    "batch size": (
        ".hints/batch_sizes/x.json",
        lambda root: recall(root / ".hints/batch_sizes/x.json", _Hint),
        None,
    ),
    "costs": (".costs/ab.jsonl", _cost, {}),
    "users": (".users/0123456789abcdef", users, []),
    "note": (f"notes/{KEY}.note", _note, False),
    "job of an output": (f"ab/{KEY}/{MANIFEST}", lambda root: job_of(Store(root), KEY), "(unknown job)"),
    "compute": (COMPUTE, read_compute, Compute()),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("reader", READERS)
def test_an_odd_file_counts_as_absent(tmp_path: Path, reader: str, odd: str) -> None:
    name, read, absent = READERS[reader]
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    assert read(tmp_path) == absent
    ODD[odd](tmp_path / name)
    assert read(tmp_path) == absent


@pytest.mark.parametrize("odd", ODD)
def test_new_measurements_replace_what_cannot_be_read_and_never_fail(tmp_path: Path, odd: str) -> None:
    (tmp_path / ".hints").mkdir()
    for name in ("durations.json", ".hints/memory.json"):
        ODD[odd](tmp_path / name)
    odd_ones = {"never": Timed(1.0, float("nan")), "endless": Timed(float("inf"), 1.0)}
    update_durations(tmp_path, Durations(odd_ones, {"a": 2.0, "never": float("nan"), "endless": float("inf")}))
    update_peaks(tmp_path, {"a": 5, "no": -1})
    replaced = odd != "folder"
    assert read_durations(tmp_path) == Durations(seconds={"a": 2.0} if replaced else {})
    assert read_peaks(tmp_path) == ({"a": 5} if replaced else {})
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith((".durations", ".memory"))]


@pytest.mark.parametrize("odd", ODD)
def test_a_plan_that_cannot_be_read_is_one_message(tmp_path: Path, odd: str) -> None:
    run = RunFolder(tmp_path / "x" / "2026-01-02_10-00-00")
    run.path.mkdir(parents=True)
    ODD[odd](run.plan)
    with pytest.raises(PlanError, match=r"cannot read .*plan\.json|has no plan\.json"):
        load_planned(run)
    ODD[odd](run.results_json)
    with pytest.raises(StoreError, match=r"cannot read .*results\.json"):
        read_results(run.results_json)
    with pytest.raises(StoreError, match="so what its run needs is unknown"):
        find_runs([tmp_path], tmp_path / "store")  # a clean-up refuses rather than guesses


@pytest.mark.parametrize("odd", ["pipe", "folder", "socket", "device"])
def test_a_lease_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, odd: str) -> None:
    ODD[odd](tmp_path / "GPU-0.lock")
    with pytest.raises(DeviceError, match=r"the lease .*GPU-0\.lock"):
        claim_lease(tmp_path / "GPU-0.lock")


@pytest.mark.parametrize("odd", ["pipe", "folder", "socket", "device"])
def test_a_journal_that_is_no_file_is_not_waited_for(tmp_path: Path, odd: str) -> None:
    ODD[odd](tmp_path / "journal.jsonl")
    with pytest.raises(StoreError, match="cannot write"):
        Journal(tmp_path / "journal.jsonl")
    run = RunFolder(tmp_path)
    run.plan.write_text('{"jobs": [], "edges": []}')
    with pytest.raises(StoreError, match=r"cannot read .*journal\.jsonl"):
        _ = LoadedRun(run).view


@pytest.mark.properties
@given(
    data=st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["size", "rows", "tokens", "jobs", "key", "about", "job", "a"]), inner
            )
        ),
    ).map(lambda value: json.dumps(value).encode()),
)
def test_any_bytes_are_read_or_count_as_absent(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        for name, read, _ in READERS.values():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            read(Path(folder))


def test_a_ticket_that_is_held_but_cannot_be_read_is_waited_for(tmp_path: Path) -> None:
    with claim_lease(tmp_path / "queue" / "00") or pytest.fail("not free") as other:
        other.write('["GPU-')
        assert list(wanted_before(tmp_path, "", {"GPU-0"})) == [{"GPU-0"}]
        other.write('["GPU-1"]')
        assert list(wanted_before(tmp_path, "", {"GPU-0"})) == [{"GPU-1"}]
