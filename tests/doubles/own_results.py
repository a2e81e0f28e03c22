"""Algorithms of a user's own with nothing but a stage that writes results: one right, one wrong."""

import json
from typing import Any, ClassVar

from pipeline.learning.algos.base import Algorithm, JobContext, Stage


class Right(Algorithm):
    name: ClassVar[str] = "Right"
    stages: ClassVar[tuple[Stage, ...]] = (Stage("metrics", loads_models=False),)
    row: ClassVar[dict[str, Any]] = {"metric": "mine", "value": 1, "ci_low": None, "ci_high": None, "n": 3}

    def metrics(self, ctx: JobContext) -> None:
        (ctx.out / "metrics.json").write_text(json.dumps({"rows": [self.row]}))
        (ctx.out / "samples.jsonl").write_text('{"prompt": "a"}\n')


class Wrong(Right):
    name: ClassVar[str] = "Wrong"
    row: ClassVar[dict[str, Any]] = {"metric": "mine", "value": 1}
