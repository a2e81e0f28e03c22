"""An algorithm of a user's own that counts prompts without torch: for tests of what surrounds the work.

A run of it costs seconds less per worker than one that trains. `tests.doubles.small_runs.with_reference` has the
output of the reference, which every plan holds. Where the environment names a folder as `GATE`, each count of the
second round waits until that is gone.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import ClassVar

from pipeline.learning.algos.base import Algorithm, JobContext, Read, Stage


class Counted(Algorithm):
    """Counts the rows of its shards, and adds up over the rounds."""

    name: ClassVar[str] = "Counted"
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage("count", "train", config=("algo",), loads_models=False),
        Stage("add", None, (Read("count"), Read("add", "previous")), loads_models=False),
        Stage("metrics", None, (Read("add"),), loads_models=False),
    )

    def count(self, ctx: JobContext) -> None:
        """How many rows a shard has, times what the settings say."""
        if ctx.round == 2 and "GATE" in os.environ:
            ctx.progress(0)
            while Path(os.environ["GATE"]).exists():
                time.sleep(0.02)
        times = int(ctx.config.algo.options.get("times", 1))
        (ctx.out / "count.json").write_text(json.dumps(times * (ctx.rows[1] - ctx.rows[0])))

    def add(self, ctx: JobContext) -> None:
        """The sum of all shards of the rounds so far."""
        folders = [*ctx.inputs["count"], *ctx.inputs.get("add@previous", ())]
        total = sum(json.loads((folder / "count.json").read_bytes()) for folder in folders)
        (ctx.out / "count.json").write_text(json.dumps(total))

    def metrics(self, ctx: JobContext) -> None:
        """The sum, and whether this process has met torch."""
        rows = {
            "count": json.loads((ctx.input("add") / "count.json").read_bytes()),
            "torch": int("torch" in sys.modules),
        }
        told = [
            {"metric": metric, "value": value, "ci_low": None, "ci_high": None, "n": 0}
            for metric, value in rows.items()
        ]
        (ctx.out / "metrics.json").write_text(json.dumps({"rows": told}))
