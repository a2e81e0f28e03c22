"""trackio: a database for each project, in one folder for all experiments, so that they can be compared.

Rows go to it by the call that trackio's own writer makes, and not through that writer: it holds rows back for half
a second and loses them when it is killed. Every row has an id that follows from what it is, and the database takes
each id once.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from trackio.sqlite_storage import SQLiteStorage
from trackio.table import Table

from pipeline.runs.tracking.batches import Batch, TrackedChain
from pipeline.runs.tracking.trackers import TrackerPlace


class Trackio:
    """Writes a database that trackio reads."""

    def __init__(self, place: TrackerPlace) -> None:
        SQLiteStorage.validate_project_name(place.project)
        self._project = place.project

    def begin(self, chain: TrackedChain, name: str) -> _Run:
        """See `Tracker.begin`."""
        return _Run(self._project, chain, name)

    def close(self) -> None:
        """Nothing was started."""


class _Run:
    """A chain in the database."""

    def __init__(self, project: str, chain: TrackedChain, name: str) -> None:
        self._project, self._chain, self._name = project, chain, name

    def add(self, batch: Batch, _first_row: int, /) -> None:
        """See `TrackerRun.add`."""
        rows: list[dict[str, Any]] = [dict(row.values) for row in batch.rows]
        places = [row.at for row in batch.rows]
        ids = [f"{self._chain.id}-{batch.id}-{number}" for number in range(len(rows))]
        if batch.samples:
            rows.append({"samples": {"_type": Table.TYPE, "_value": [dict(sample) for sample in batch.samples]}})
            places.append(batch.round)
            ids.append(f"{self._chain.id}-{batch.id}-samples")
        when = datetime.fromtimestamp(batch.time, UTC).isoformat()
        SQLiteStorage.bulk_log(
            project=self._project,
            run=self._name,
            run_id=self._chain.id,
            metrics_list=rows,
            steps=places,
            timestamps=[when] * len(rows),
            log_ids=ids,
            # What begins with an underscore is trackio's own, which its `init` would write.
            config={**self._chain.settings, "_Username": None, "_Created": when, "_Group": self._chain.experiment},
        )

    def keep(self) -> bool:
        """See `TrackerRun.keep`: each batch was a transaction, forced to disk."""
        return True

    def close(self) -> None:
        """See `TrackerRun.close`."""
