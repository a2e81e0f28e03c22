"""What a tracker must be able to do, and which there are. Their packages are imported only where they are used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from pipeline.runs.tracking.batches import Batch, TrackedChain


@dataclass(frozen=True, kw_only=True)
class TrackerPlace:
    """Where a tracker keeps what it is told.

    Attributes:
        folder: Of the tracker: for an experiment, or for all of a folder of outputs.
        project: What it calls the project.
        entity: Whose project it is; None for the account that is logged in.
        is_online: Whether it may use the network.
    """

    folder: Path
    project: str
    entity: str | None = None
    is_online: bool = False

    @property
    def told(self) -> Path:
        """Where we note what it was told; another project knows nothing of what this one was told."""
        what = json.dumps([self.project, self.entity, self.is_online])
        return self.folder / ".told" / hashlib.sha256(what.encode()).hexdigest()[:8]


class TrackerRun(Protocol):
    """A chain in a tracker that is told of it.

    Its batches are all added again, from the first one on, whenever it is begun.
    """

    def add(self, batch: Batch, first_row: int, /) -> None:
        """Tell a batch.

        Args:
            batch: It has rows or samples.
            first_row: Rows of the chain before it.
        """

    def keep(self) -> bool:
        """Have what was added outlive this process; whether that is sure now."""

    def close(self) -> None:
        """Nothing more follows for now; what was added is kept then."""


class Tracker(Protocol):
    """A program that runs are told to."""

    def begin(self, chain: TrackedChain, name: str) -> TrackerRun:
        """Begin a chain, or go on with one.

        Args:
            chain: The chain.
            name: What it is to be called.
        """

    def close(self) -> None:
        """End whatever was started."""


@dataclass(frozen=True)
class Known:
    """A tracker by name.

    Attributes:
        package: What it imports.
        made_by: What makes it of a `TrackerPlace`: ``module:class``.
        folder: Its folder below that of all experiments; ``{}`` is the experiment.
        look: What a user types to look at what it was told, with the folder and the project.
        environment: Variables that it is given, with the folder.
    """

    package: str
    made_by: str
    folder: str
    look: str
    environment: Mapping[str, str] = field(default_factory=dict)


TRACKERS: Mapping[str, Known] = {
    "tensorboard": Known(
        "tensorboardX",
        "pipeline.runs.tracking.to_tensorboard:TensorBoard",
        "{}/tracking/tensorboard",
        "tensorboard --logdir {folder}",
    ),
    "trackio": Known(
        "trackio",
        "pipeline.runs.tracking.to_trackio:Trackio",
        ".trackio",
        "TRACKIO_DIR={folder} trackio show --project {project}",
        {
            "TRACKIO_DIR": "{folder}",
            "TRACKIO_SQLITE_SYNCHRONOUS": "FULL",  # a transaction is on disk before the next one
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        },
    ),
    "wandb": Known(
        "wandb",
        "pipeline.runs.tracking.to_wandb:Wandb",
        "{}/tracking/wandb",
        "wandb sync {folder}/offline-run-*",
        {
            "WANDB_SILENT": "true",
            "WANDB_ERROR_REPORTING": "false",
            # Copies of tables, which a later `wandb sync` needs.
            "WANDB_DATA_DIR": "{folder}/.data",
            "WANDB_CACHE_DIR": "{folder}/.data",
        },
    ),
}


def make_tracker(name: str, place: TrackerPlace) -> Tracker:
    """Load a tracker, which takes a second or two."""
    module, _, made_by = TRACKERS[name].made_by.partition(":")
    return cast("Tracker", getattr(import_module(module), made_by)(place))
