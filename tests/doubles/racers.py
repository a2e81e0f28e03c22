"""Algorithms that answer rightly by chance, at a share that settings say, without a model: for tests of races."""

import hashlib
import time
from pathlib import Path
from typing import ClassVar

from pipeline.errors import JobStopped
from pipeline.learning.algos.base import METRICS, Algorithm, JobContext, Read, Stage
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.evaluation.metrics import write_samples
from pipeline.outputs.formats import SAMPLES, Sample


class Racer(Algorithm):
    """Trains for as long as `options.train_s` says, and is right for `options.share` of the prompts."""

    name: ClassVar[str] = "Racer"
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage("train", reads=(Read("train", "previous"),), config=("algo",), loads_models=False),
        Stage(
            "evaluate",
            "eval",
            (Read("train"),),
            config=("algo", "dataset", "evaluation"),
            loads_models=False,
        ),
        METRICS,
    )

    def train(self, ctx: JobContext) -> None:
        """Wait, or fail in the round that `options.fails_in` says."""
        if ctx.round == ctx.config.algo.options.get("fails_in"):
            raise ValueError("as its options say")
        until = time.monotonic() + float(ctx.config.algo.options.get("train_s", 0)) * (ctx.round > 1)
        while time.monotonic() < until:
            ctx.progress(0)
            if ctx.stopping():
                raise JobStopped
            time.sleep(0.02)
        Path(ctx.out / "trained.json").write_text("{}")

    def evaluate(self, ctx: JobContext) -> None:
        """Answer each prompt by a hash of it."""
        share = float(ctx.config.algo.options["share"])
        ids = load_dataset(ctx.config.dataset).ids(ctx.config.evaluation.split)[ctx.rows[0] : ctx.rows[1]]

        def sample(row: int, number: int) -> Sample:
            luck = hashlib.sha256(f"{ctx.config.algo.options}{ctx.round} {row} {number}".encode()).digest()[0]
            right = luck < 256 * share
            return Sample(row, number, str(row), "?", 1, float(right), right, 0.0, truncated=False)

        numbers = range(ctx.config.evaluation.num_samples)
        write_samples(ctx.out / SAMPLES, [sample(int(row), number) for row in ids for number in numbers])

    def metrics(self, ctx: JobContext) -> None:
        """Compute the metrics of all evaluated samples."""
        from pipeline.learning.algos.evaluating import write_metrics

        write_metrics(ctx)
