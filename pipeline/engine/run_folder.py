"""Where a run keeps its files: ``<output_dir>/<name>/<timestamp>/``, with ``latest`` pointing to the newest."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pipeline.errors import ConfigError, known_names

PLAN_SVG = "plan.svg"
"""The picture of a plan."""
STAMP_FORMAT = "%Y-%m-%d_%H-%M-%S"
_JOBS = "jobs"
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:_(\d+))?")


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run and the names inside it."""

    path: Path

    @property
    def experiment(self) -> str:
        """Name of the experiment."""
        return self.path.parent.name

    @property
    def stamp(self) -> str:
        """The timestamp that names the run."""
        return self.path.name

    @property
    def begun(self) -> tuple[str, int] | None:
        """Its timestamp and its number among the runs of that second; None where it is not named so."""
        match = _STAMP.fullmatch(self.stamp)
        return (match[1], int(match[2] or 1)) if match else None

    @property
    def holds_run(self) -> bool:
        """Whether there is one of the files that a run leaves."""
        return any(path.exists() for path in (self.plan, self.journal, self.config, self.results_json))

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def plan(self) -> Path:
        """Jobs, edges and keys."""
        return self.path / "plan.json"

    @property
    def journal(self) -> Path:
        """Every state change."""
        return self.path / "journal.jsonl"

    @property
    def progress(self) -> Path:
        """How far it is, while it goes on."""
        return self.path / "progress.json"

    @property
    def timings(self) -> Path:
        """How long jobs took, and how fast they were."""
        return self.path / "timings.jsonl"

    @property
    def log(self) -> Path:
        """The engine's log."""
        return self.path / "run.log"

    @property
    def results_json(self) -> Path:
        """The rows of chains and of methods, and comparisons."""
        return self.path / "results.json"

    @property
    def results_csv(self) -> Path:
        """The rows of chains as a table."""
        return self.path / "results.csv"

    @property
    def pooled_csv(self) -> Path:
        """The rows of methods as a table."""
        return self.path / "pooled.csv"

    @property
    def samples(self) -> Path:
        """Some prompts with the completions of every round."""
        return self.path / "samples.jsonl"

    @property
    def report(self) -> Path:
        """The run as one page."""
        return self.path / "report.html"

    @property
    def jobs(self) -> Path:
        """The folders of all jobs."""
        return self.path / _JOBS

    @staticmethod
    def job_name(job_id: str) -> str:
        """The folder of a job within that of the run."""
        return f"{_JOBS}/{job_id}"

    def job(self, job_id: str) -> Path:
        """The folder of a job: its logs and a link to its stored output."""
        return self.jobs / job_id


def create_run_folder(output_dir: Path, name: str, now: datetime | None = None) -> RunFolder:
    """Make the folder of a new run and point ``latest`` to it.

    Raises:
        ConfigError: The folder cannot be made.
    """
    stamp = f"{now or datetime.now():{STAMP_FORMAT}}"
    try:
        (output_dir / name).mkdir(parents=True, exist_ok=True)
        folder = _fresh(output_dir / name, stamp)
        _point_latest(folder)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {output_dir / name}: {error.strerror or error}. Set output_dir to a folder you own."
        ) from error
    return RunFolder(folder)


def find_run(output_dir: Path, name: str) -> RunFolder:
    """The newest run of an experiment.

    Raises:
        ConfigError: There is none.
    """
    latest = output_dir / name / "latest"
    if not latest.is_dir():
        known = [path.parent.name for path in output_dir.glob("*/latest")]
        raise ConfigError(f"no run of '{name}' in {output_dir}.{known_names(name, known) if known else ''}")
    return RunFolder(latest.resolve())


def _fresh(parent: Path, stamp: str) -> Path:
    for number in range(1, 1000):
        folder = parent / (stamp if number == 1 else f"{stamp}_{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{parent / stamp} and 999 like it exist")


def _point_latest(folder: Path) -> None:
    # A link is replaced by renaming a new one over it, so a reader always finds one or the other.
    temporary = folder.parent / f".latest.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    temporary.replace(folder.parent / "latest")
