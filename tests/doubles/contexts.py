"""What a stage's method is given, without a run around it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline.config.schema import AlgoConfig, StageConfig
from pipeline.learning.algos.base import JobContext


def context(algo: AlgoConfig, out: Path = Path("nowhere"), **inputs: tuple[Path, ...]) -> JobContext:
    """The context of a stage that reads files and settings alone.

    Args:
        algo: Settings of the algorithm.
        out: Where the stage writes to.
        inputs: Folders of its inputs, by name.
    """
    unused: Any = SimpleNamespace()
    return JobContext(
        job_id="a job",
        algo="Mine",
        seed=0,
        round=1,
        rows=(0, 1),
        config=StageConfig(algo=algo),
        inputs=inputs,
        out=out,
        device="cpu",
        checkpoints=out,
        checkpoint_every_steps=0,
        checkpoint_every_minutes=0.0,
        hints=out,
        joined=None,
        models=unused,
        loading=unused,
        progress=unused,
        stopping=unused,
    )
