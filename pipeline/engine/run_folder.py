"""Folder of a run: ``<output_dir>/<name>/<timestamp>/``, with ``latest`` pointing to the newest one."""

import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.files import Inside

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
        """Return the timestamp and the number among runs of that second; None if the folder is not named so."""
        match = _STAMP.fullmatch(self.stamp)
        return (match[1], int(match[2] or 1)) if match else None

    @property
    def holds_run(self) -> bool:
        """Whether the folder has any of the files that a run leaves."""
        return any(path.exists() for path in (self.plan, self.journal, self.config, self.results_json))

    config = Inside("config.yaml")
    """The resolved configuration."""
    plan = Inside("plan.json")
    """Jobs, edges and keys."""
    journal = Inside("journal.jsonl")
    """Every state change."""
    progress = Inside("progress.json")
    """Progress of the run while it goes on."""
    log = Inside("run.log")
    """The engine's log."""
    results_json = Inside("results.json")
    """Rows of chains and of methods, and comparisons."""
    results_csv = Inside("results.csv")
    """Rows of chains as a table."""
    pooled_csv = Inside("pooled.csv")
    """Rows of methods as a table."""
    samples = Inside("samples.jsonl")
    """Some prompts with the completions of every round."""
    report = Inside("report.html")
    """The run as one page."""
    jobs = Inside(_JOBS)
    """The folders of all jobs."""

    @staticmethod
    def job_name(job_id: str) -> str:
        """Return a job's folder, relative to the folder of the run."""
        return f"{_JOBS}/{job_id}"

    def job(self, job_id: str) -> Path:
        """Return the folder of a job, with its logs and a link to its stored output."""
        return self.jobs / job_id


def create_run_folder(output_dir: Path, name: str, now: datetime | None = None) -> RunFolder:
    """Create the folder of a new run and point ``latest`` to it.

    Raises:
        ConfigError: The folder cannot be made.
    """
    stamp, latest = f"{now or datetime.now():{STAMP_FORMAT}}", output_dir / name / "latest"
    if latest.is_dir() and not latest.is_symlink():
        raise ConfigError(f"{latest} is a folder, where the link to the newest run belongs: rename or remove it")
    try:
        (output_dir / name).mkdir(parents=True, exist_ok=True)
        folder = _fresh(output_dir / name, stamp)
        # Renaming a new link over the old one is atomic, so a reader always finds one of the two.
        temporary = latest.with_name(f".latest.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(folder.name)
        temporary.replace(latest)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {output_dir / name}: {error.strerror or error}. Set output_dir to a folder you own."
        ) from error
    return RunFolder(folder)


def _fresh(parent: Path, stamp: str) -> Path:
    for number in range(1, 1000):
        folder = parent / (stamp if number == 1 else f"{stamp}_{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{parent / stamp} and 999 like it exist")
