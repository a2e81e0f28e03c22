"""Where a sweep keeps its files: ``<output_dir>/<name>/sweep/``, beside the runs of its trials if it has such."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.files import Inside

_NAME = "sweep"
TRIALS = "trials"
"""The folder of all trials."""


@dataclass(frozen=True)
class TrialFolder:
    """The folder of one trial and the names inside it. A further attempt has names of its own."""

    path: Path

    parameters = Inside("parameters.json")
    """The settings, nested as in the file."""
    for_wandb = Inside("parameters.yaml")
    """The settings as W&B's agent writes them: ``wandb.init`` takes them from there."""

    def metrics(self, attempt: int) -> Path:
        """What the program logs, a line each time: ``{"step": 1, "values": {"loss": 0.5}, "time": 1.7e9}``."""
        return self.path / ("metrics.jsonl" if attempt == 1 else f"metrics.{attempt}.jsonl")

    def log(self, attempt: int) -> Path:
        """What an attempt printed."""
        return self.path / ("log.txt" if attempt == 1 else f"log.{attempt}.txt")

    def start(self, attempt: int) -> Path:
        """How an attempt was started: command line, environment, devices, port, and its exit code."""
        return self.path / ("start.json" if attempt == 1 else f"start.{attempt}.json")


@dataclass(frozen=True)
class SweepFolder:
    """The folder of one sweep and the names inside it."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.path.parent.name

    @property
    def begun(self) -> bool:
        """Whether it is one that has begun, by its name and its journal."""
        return self.path.name == _NAME and self.journal.is_file()

    file = Inside("sweep.yaml")
    """The sweep file as it was given."""
    journal = Inside("journal.jsonl")
    """What happened to trials; the record from which everything else can be made again."""
    study = Inside("optuna.log")
    """The same for Optuna's tools: a journal of its own."""
    lock = Inside("lock")
    """Held by whoever decides which trial comes next."""
    agents = Inside("agents")
    """A file for each agent, locked as long as it lives."""

    @property
    def preparing(self) -> TrialFolder:
        """What was done before the first trial."""
        return TrialFolder(self.path / "prepare")

    @property
    def winner(self) -> TrialFolder:
        """The test of the best trial."""
        return TrialFolder(self.path / "winner")

    report = Inside("report.html")
    """The sweep as one page."""
    best = Inside("best.json")
    """The best trial, and what it was on held-out data."""

    def trial(self, number: int) -> TrialFolder:
        """The folder of a trial."""
        return TrialFolder(self.path / TRIALS / f"{number:04d}")


def sweep_folder(output_dir: Path, name: str) -> SweepFolder:
    """The folder of the sweep of that name, whether or not there is one."""
    return SweepFolder(output_dir / name / _NAME)
