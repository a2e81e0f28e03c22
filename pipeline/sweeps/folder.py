"""Where a sweep keeps its files: ``<output_dir>/<name>/sweep/``, beside the runs of its trials if it has such."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_NAME = "sweep"
TRIALS = "trials"
"""The folder of all trials."""


@dataclass(frozen=True)
class TrialFolder:
    """The folder of one trial and the names inside it. A further attempt has names of its own."""

    path: Path

    @property
    def parameters(self) -> Path:
        """The settings, nested as in the file."""
        return self.path / "parameters.json"

    @property
    def for_wandb(self) -> Path:
        """The settings as W&B's agent writes them: ``wandb.init`` takes them from there."""
        return self.path / "parameters.yaml"

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

    @property
    def file(self) -> Path:
        """The sweep file as it was given."""
        return self.path / "sweep.yaml"

    @property
    def journal(self) -> Path:
        """What happened to trials; the record from which everything else can be made again."""
        return self.path / "journal.jsonl"

    @property
    def study(self) -> Path:
        """The same for Optuna's tools: a journal of its own."""
        return self.path / "optuna.log"

    @property
    def lock(self) -> Path:
        """Held by whoever decides which trial comes next."""
        return self.path / "lock"

    @property
    def agents(self) -> Path:
        """A file for each agent, locked as long as it lives."""
        return self.path / "agents"

    @property
    def preparing(self) -> TrialFolder:
        """What was done before the first trial."""
        return TrialFolder(self.path / "prepare")

    @property
    def winner(self) -> TrialFolder:
        """The test of the best trial."""
        return TrialFolder(self.path / "winner")

    @property
    def report(self) -> Path:
        """The sweep as one page."""
        return self.path / "report.html"

    @property
    def best(self) -> Path:
        """The best trial, and what it was on held-out data."""
        return self.path / "best.json"

    def trial(self, number: int) -> TrialFolder:
        """The folder of a trial."""
        return TrialFolder(self.path / TRIALS / f"{number:04d}")


def sweep_folder(output_dir: Path, name: str) -> SweepFolder:
    """The folder of the sweep of that name, whether or not there is one."""
    return SweepFolder(output_dir / name / _NAME)
