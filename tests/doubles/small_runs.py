"""Small runs of the main command: as a user types it, in this process, and one calm run for all tests."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.engine.journal import JournalReader
from tests.doubles.shared import made_once

ROOT = Path(__file__).parents[2]
INLINE = "system.use_parallel_execution=false"
SMALL = [
    "models.tiny.steps=40",
    "models.tiny.batch_size=32",
    "data_collection.prompts_per_round=60",
    "execution.shard_size=20",
    "evaluation.num_prompts=20",
    "evaluation.bootstrap_samples=50",
    "algos.PITA.epochs=1",
    "algos.QSharp.epochs=1",
]


def small(*overrides: str) -> list[str]:
    """The settings of `SMALL` and others, each once, as a command line has them: the last one of a key wins."""
    last = {word.partition("=")[0].lstrip("+"): word for word in (*SMALL, *overrides)}
    return [*last.values()]


def command(output_dir: Path, *overrides: str, name: str = "t") -> list[str]:
    main = str(ROOT / "run_parallel.py")
    return [sys.executable, main, f"experiment.name={name}", *small(f"output_dir={output_dir}", *overrides)]


def run(output_dir: Path, *overrides: str, name: str = "t", code: int = 0) -> str:
    done = subprocess.run(
        command(output_dir, *overrides, name=name),
        capture_output=True,
        text=True,
        cwd=output_dir.parent,
        timeout=800,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout + done.stderr


def run_here(output_dir: Path, *overrides: str, name: str = "t", code: int = 0) -> str:
    """As `run`, all of it in this process: for tests that are not about processes, and quicker by their start."""
    done = CliRunner().invoke(
        app,
        ["run", f"experiment.name={name}", *small(f"output_dir={output_dir}", "device=cpu", INLINE, *overrides)],
    )
    assert done.exit_code == code, done.output
    return done.output


def results(output_dir: Path, name: str = "t") -> tuple[bytes, bytes, bytes]:
    run_dir = output_dir / name / "latest"
    read = [(run_dir / file).read_bytes() for file in ("results.json", "results.csv", "samples.jsonl")]
    return read[0], read[1], read[2]


def events(output_dir: Path, event: str, name: str = "t", key: str = "job") -> list[str]:
    journal = JournalReader(output_dir / name / "latest" / "journal.jsonl").new_events()
    return [str(entry[key]) for entry in journal if entry["event"] == event]


def wait_for(condition: Callable[[], bool], timeout_s: float = 600) -> None:
    """Until something is so, asked less often where that takes long; the time is for what would never end."""
    began = asked = time.monotonic()
    while not condition():
        assert time.monotonic() < began + timeout_s, "waited too long"
        time.sleep(max(0.02, 4 * (time.monotonic() - asked)))
        asked = time.monotonic()


def calm_run(factory: pytest.TempPathFactory) -> Path:
    """The folder of outputs of a finished run of `SMALL` on two workers. Tests must leave it as it is."""
    return made_once(factory, "calm", lambda folder: run(folder / "outputs", "execution.workers=2")) / "outputs"


def with_reference(factory: pytest.TempPathFactory, output_dir: Path) -> list[str]:
    """Put the reference of `SMALL` into a folder of outputs, so that no job of a run need train.

    Returns:
        What makes a run there one of `Counted` alone, whose workers never import torch.
    """
    shutil.copytree(calm_run(factory) / ".store", output_dir / ".store", symlinks=True)
    return ["algos=[]", "algos.Counted.class_path=tests.doubles.counted.Counted"]
