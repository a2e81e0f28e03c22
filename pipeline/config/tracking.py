"""Trackers that follow runs: which, and how they are told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pipeline.config.fields import LONGEST_S, hint, number


class Tracker(Enum):
    """Programs that runs are told to as they go on, by the name of their extra."""

    tensorboard = "tensorboard"  # a folder of events for each chain
    trackio = "trackio"  # a database for each project
    wandb = "wandb"  # a folder for each chain, or a run on a server


class TrackingMode(Enum):
    """What wandb does with what it is told."""

    offline = "offline"  # it writes files, which `wandb sync` sends later
    online = "online"  # it sends what it is told at once


@dataclass(kw_only=True)
class TrackingConfig:
    """Trackers that follow a run, see docs/tracking.md. None of this changes a result."""

    report_to: list[Tracker] = hint([])
    """Trackers that are told of the run as it goes on. One that fails costs a warning, never the run."""
    project: str | None = hint(None)
    """What trackio and wandb call the project; null takes the name of the experiment. Runs of several experiments
    in one project are told apart by their group, which is the experiment."""
    entity: str | None = hint(None)
    """Whose project it is on wandb; null takes the account that is logged in."""
    mode: TrackingMode = hint(TrackingMode.offline)
    """Whether wandb may use the network; the other trackers never do."""
    samples: int = number(8, at_least=0, at_most=1000, affects_result=False)
    """Rows of the table of samples that each round of a chain adds; 0 adds none."""
    finish_timeout_s: float = number(30.0, at_least=0, at_most=LONGEST_S, affects_result=False)
    """Seconds that the end of a run waits for trackers to take what is left; `python -m pipeline track NAME`, or
    the next run of the experiment, tells them the rest."""
