"""``python -m pipeline store``: what a user sees, and that nothing is removed that a run needs."""

import json
import os
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.engine.store.store import MANIFEST, Scratch, Store
from pipeline.outputs.formats import REPLIES

ROOT = Path(__file__).parents[2]
KEYS = [f"{number:02x}" * 20 for number in range(6)]
JOBS = [
    "addition/tiny/reference/train",
    "addition/tiny/s0/reference/evaluate/000",
    "addition/tiny/s0/PITA/r1/generate/000",
    "addition/tiny/s0/PITA/r1/generate/001",
    "addition/tiny/s0/PITA/r2/train",
    "addition/tiny/s1/QSharp/r1/metrics",
]


class Outputs:
    """An output folder with a store of six outputs, and runs that refer to them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store(path / ".store")
        for key, job in zip(KEYS, JOBS, strict=True):
            self.put(key, job)

    def put(self, key: str, job: str) -> None:
        folder = self.store.begin(self.store.scratch("done"), key, 1)
        (folder / "data.bin").write_bytes(b"x" * 1000)
        self.store.commit(key, folder, {"job": job})
        self.store.scratch("done").rmdir()

    def add_run(self, name: str, keys: list[str], age_days: float = 0.0) -> Path:
        folder = self.path / name / f"{datetime.now() - timedelta(days=age_days):%Y-%m-%d_%H-%M-%S}"
        folder.mkdir(parents=True)
        plan = {"jobs": [{"id": "x", "key": key} for key in keys], "edges": []}
        (folder / "plan.json").write_text(json.dumps(plan))
        return folder

    def stored(self) -> list[int]:
        """Which of the outputs are there, all of them whole."""
        assert all(self.store.has(key) for key in self.store.stored_keys())
        return [KEYS.index(key) for key in self.store.stored_keys()]


@pytest.fixture
def outputs(tmp_path: Path) -> Outputs:
    return Outputs(tmp_path / "outputs")


def store_command(outputs: Outputs, *arguments: str, code: int = 0, answer: str | None = None) -> str:
    where = [] if "--store" in arguments else ["--output-dir", str(outputs.path)]
    done = CliRunner().invoke(app, ["store", *arguments, *where], input=answer)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.output


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


# -- verify ----------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(("name", "damage"), [("data.bin", flip), ("data.bin", truncate), (MANIFEST, Path.unlink)])
def test_verify_lists_what_is_damaged_and_repair_sets_it_aside(
    outputs: Outputs, name: str, damage: Callable[[Path], None]
) -> None:
    damage(outputs.store.path(KEYS[2]) / name)
    assert "2 outputs checked, 0 damaged" in store_command(outputs, "verify", "0101", "03")
    first, last = store_command(outputs, "verify", code=1).splitlines()
    assert first.startswith(f"{KEYS[2]}  ")
    assert name in first or "manifest" in first
    assert name != "data.bin" or JOBS[2] in first
    assert "6 outputs checked, 1 damaged" in last
    store_command(outputs, "verify", "--repair", code=1)
    assert outputs.stored() == [0, 1, 3, 4, 5]
    assert "5 outputs checked, 0 damaged" in store_command(outputs, "verify")
    outputs.put(KEYS[2], JOBS[2])
    assert outputs.stored() == [0, 1, 2, 3, 4, 5]


# -- du --------------------------------------------------------------------------------------------------------


def test_du_adds_up_what_takes_the_space_in_columns_that_line_up(outputs: Outputs) -> None:
    outputs.add_run("first", KEYS[:4])
    outputs.add_run("second", KEYS[:2])
    truncate(outputs.store.path(KEYS[5]) / "data.bin")
    outputs.store.set_aside(KEYS[5])
    outputs.store.checkpoints(KEYS[4]).mkdir(parents=True)
    (outputs.store.checkpoints(KEYS[4]) / "state").write_bytes(b"x" * 70_000)
    outputs.store.scratch("r-1").mkdir(parents=True)
    (outputs.store.scratch("r-1") / "part").write_bytes(b"x" * 5_000_000)
    said = store_command(outputs, "du")
    rows = [" ".join(line.split()) for line in said.splitlines()]
    each = 1000 + (outputs.store.path(KEYS[2]) / MANIFEST).stat().st_size
    assert rows[0] == "store"
    assert f"first addition/tiny PITA generate 2 {2 * each / 1000:.1f} kB" in rows
    assert any(row.startswith("first, second addition/tiny reference train 1 ") for row in rows)
    assert any(row.startswith("(no run) addition/tiny PITA train 1 ") for row in rows)
    assert "(checkpoints) 1 70.0 kB" in rows
    assert "(unfinished) 1 5.0 MB" in rows
    assert any(row.startswith("(damaged) 1 1.") for row in rows)
    table = [line for line in said.splitlines() if line.rstrip().endswith(("B", "bytes", "size"))]
    total = sum(path.stat().st_size for path in outputs.store.root.rglob("*") if path.is_file())
    assert rows[-1 if rows[-1] else -2].startswith("total")
    assert f"{total / 1e6:.1f} MB" in said
    assert len({len(line.rstrip()) for line in table}) == 1


# -- gc --------------------------------------------------------------------------------------------------------


def test_gc_removes_what_no_run_refers_to_and_nothing_else(outputs: Outputs, tmp_path: Path) -> None:
    """Runs behind links, deeper down and in other folders that used the store count too."""
    moved = outputs.add_run("first", KEYS[:1])
    moved.parent.rename(tmp_path / "moved")
    (outputs.path / "first").symlink_to(tmp_path / "moved")
    (outputs.path / "first" / "latest").symlink_to(moved.name)
    (outputs.path / "loop").symlink_to(outputs.path)
    outputs.add_run("sweep/trial", KEYS[1:2])
    elsewhere = Outputs(tmp_path / "elsewhere")
    elsewhere.add_run("second", KEYS[2:3])
    with outputs.store.in_use(elsewhere.path):
        pass
    # Of a link in the store nothing is removed that it leads to.
    outputs.store.path(KEYS[5]).rename(tmp_path / "outside")
    outputs.store.path(KEYS[5]).symlink_to(tmp_path / "outside")
    before = snapshot(outputs.store.root)
    shown = store_command(outputs, "gc", "--dry-run")
    assert snapshot(outputs.store.root) == before
    assert "addition/tiny PITA train" in shown
    assert "reference" not in shown
    store_command(outputs, "gc", "--yes")
    assert outputs.stored() == [0, 1, 2]
    assert not (outputs.store.root / "04").exists()
    assert not os.path.lexists(outputs.store.path(KEYS[5]))
    assert (tmp_path / "outside" / "data.bin").is_file()
    assert "Everything in the store is needed" in store_command(outputs, "gc", "--yes")
    elsewhere.path.rename(tmp_path / "gone")
    assert "elsewhere, " in store_command(outputs, "gc", "--dry-run")


@pytest.mark.parametrize(
    ("answer", "code", "left"), [("y\n", 0, [0]), ("n\n", 1, [0, 1, 2, 3, 4, 5]), ("", 130, [0, 1, 2, 3, 4, 5])]
)
def test_gc_asks_first(outputs: Outputs, answer: str, code: int, left: list[int]) -> None:
    outputs.add_run("first", KEYS[:1])
    store_command(outputs, "gc", answer=answer, code=code)
    assert outputs.stored() == left


@pytest.mark.parametrize(("number", "left"), [("2", [0, 1, 2, 4]), ("1", [1, 2, 4])])
def test_gc_keeps_what_the_last_runs_refer_to(outputs: Outputs, number: str, left: list[int]) -> None:
    outputs.add_run("first", KEYS[:2], age_days=9)
    outputs.add_run("first", KEYS[1:3], age_days=5)
    outputs.add_run("second", KEYS[4:5], age_days=99)
    store_command(outputs, "gc", "--yes", "--keep-runs", number)
    assert outputs.stored() == left


def test_gc_removes_damaged_outputs_useless_checkpoints_and_dead_leftovers(outputs: Outputs) -> None:
    missing, forgotten = "aa" * 20, "bb" * 20
    outputs.add_run("first", [*KEYS, missing])
    store = outputs.store
    truncate(store.path(KEYS[5]) / "data.bin")
    store.set_aside(KEYS[5])
    for key in (KEYS[0], KEYS[5], missing, forgotten):
        store.checkpoints(key).mkdir(parents=True)
        (store.checkpoints(key) / "state").write_text("x")
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (f"first-2026-01-01_00-00-00-{ended.pid}", "named_by_a_person"):
        store.scratch(name).mkdir(parents=True)
    store.hints.mkdir()
    (store.hints / "batch").write_text("8")
    replies = store.hints / REPLIES / "a judge"
    replies.mkdir(parents=True)
    for key in (KEYS[0], missing, forgotten):
        (replies / f"{key}.1.jsonl").write_text("{}")
    (store.root / ".claims").mkdir()
    (store.root / ".claims" / KEYS[5]).write_text("")
    (store.root / "durations.json").write_text("{}")
    said = store_command(outputs, "gc", "--yes")
    assert "removed 5, freed" in said
    assert {path.name for path in replies.iterdir()} == {f"{key}.1.jsonl" for key in (KEYS[0], missing)}
    assert not list((store.root / ".aside").iterdir())
    assert {path.name for path in (store.root / ".checkpoints").iterdir()} == {KEYS[5], missing}
    assert [path.name for path in (store.root / ".tmp").iterdir()] == ["named_by_a_person"]
    assert not list((store.root / ".claims").iterdir())
    assert (store.hints / "batch").is_file()
    assert (store.root / "durations.json").is_file()


def test_gc_removes_nothing_while_a_run_uses_the_store(outputs: Outputs) -> None:
    outputs.add_run("first", KEYS[:1])
    with outputs.store.in_use():
        assert str(outputs.store.root) in store_command(outputs, "gc", "--yes", code=2)
        assert "no longer needed" in store_command(outputs, "gc", "--dry-run")
    scratch = Scratch(outputs.store.scratch("first-2026-01-01_00-00-00-999999999"))
    scratch.open()  # an engine that lives, and holds no lock
    assert scratch.path.name in store_command(outputs, "gc", "--yes", code=2)
    assert scratch.path.is_dir()
    scratch.close()
    assert outputs.stored() == [0, 1, 2, 3, 4, 5]
    store_command(outputs, "gc", "--yes")
    assert outputs.stored() == [0]


# -- wrong requests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify", "--store", "no/such"], "no/such"),
        (["gc", "--store", "pipeline"], "pipeline"),
        (["verify", "zz"], "zz"),
        (["gc", "--dry-run", "--yes"], "--yes"),
        (["gc", "--yes"], "--output-dir"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_request_is_refused_in_one_line(
    outputs: Outputs, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(ROOT)
    refused = store_command(outputs, *arguments, code=2)
    assert said in refused
    assert refused.startswith("error: ")
    assert refused.count("\n") == 1
    assert outputs.stored() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("text", ["{", '{"jobs": [{"id": "x"}]}'])
def test_gc_refuses_to_guess_what_a_run_needs(outputs: Outputs, text: str) -> None:
    outputs.add_run("first", KEYS[:1])
    (outputs.add_run("second", []) / "plan.json").write_text(text)
    said = store_command(outputs, "gc", "--yes", code=2)
    assert "plan.json" in said
    assert outputs.stored() == [0, 1, 2, 3, 4, 5]
