"""A dataset of files that is prepared, and its rewards tried on it, without an engine."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline.learning.algos.registry import Preparation
from pipeline.learning.datasets.from_files import FilesConfig


def checked(config: FilesConfig, folder: Path) -> None:
    """Carry out both stages; what the second one says is in ``out``."""
    prepared, out = folder / "prepared", folder / "out"
    out.mkdir(exist_ok=True)
    ctx: Any = SimpleNamespace(
        config=SimpleNamespace(dataset=config.without_rewards()),
        out=prepared,
        job_id="mine/tiny/dataset/prepare",
        loading=contextlib.nullcontext,
        input=lambda _: prepared,
    )
    Preparation().prepare(ctx)
    ctx.config, ctx.out = SimpleNamespace(dataset=config), out
    Preparation().check(ctx)
