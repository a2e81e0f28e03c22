"""What a stage is given before its method is called."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.errors import JobError
from pipeline.learning.algos import base, registry, stage_entry
from pipeline.learning.algos.stage_entry import _advice_on_determinism as _advised
from pipeline.learning.algos.stage_entry import prepare_torch, run_stage
from pipeline.learning.models.cache import ModelCache


class Noting:
    """An algorithm whose stages do nothing but note what they find."""

    stages = (base.Stage("train", scales=True), base.Stage("generate"))
    found: list[Any]

    def train(self, ctx: base.JobContext) -> None:
        self.found.append(ctx.models.holds_any)

    generate = train


def work_on(device: str, stage: str, memory: dict[str, Any]) -> Any:
    payload = {
        "algo": "Noting", "class_path": None, "stage": stage, "config": {}, "seed": 0, "round": 1, "rows": [0, 1],
        "models_in_memory": 4, "checkpoint_every_steps": 0, "checkpoint_every_minutes": 0, "samples": 0,
    }  # fmt: skip
    nowhere = Path("nowhere")
    return SimpleNamespace(
        job_id="a", payload=payload, inputs={}, out=nowhere, device=device, checkpoints=nowhere, hints=nowhere,
        memory=memory, shared=False, world_size=1, limit_mb=0, loading=nullcontext, stopping=None, show=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("device", "stage", "kept"), [("cuda", "train", False), ("cuda", "generate", True), ("cpu", "train", True)]
)
def test_what_generation_has_loaded_is_not_there_while_a_gpu_trains(
    device: str, stage: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ModelCache(4)
    left = weakref.ref(cache.get(("policy",), lambda: torch.nn.Linear(1, 1), nullcontext))
    monkeypatch.setattr(registry, "load_algorithm", lambda *_: Noting)
    monkeypatch.setattr(stage_entry, "prepare_torch", lambda *_, **__: None)
    Noting.found = []
    run_stage(work_on(device, stage, {"models": cache}))
    assert Noting.found == [kept]
    assert (left() is not None) is kept


def test_a_model_that_cannot_be_trained_deterministically_is_told_how_to_be_trained_all_the_same() -> None:
    said = "foo_cuda does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms"
    with pytest.raises(JobError, match=r"foo_cuda does not .*training.deterministic=false"), _advised():
        raise RuntimeError(said)
    with pytest.raises(RuntimeError, match="other"), _advised():
        raise RuntimeError("other")


# -- test torch setup --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "trains", "exact", "flags"),
    [
        ("cpu", True, True, (True, True)),
        ("cpu", False, True, (True, True)),
        ("cuda", True, True, (True, False)),
        ("cuda", False, True, (False, False)),
        ("cuda", True, False, (True, True)),
    ],
)
def test_only_trainings_on_a_gpu_must_be_deterministic(
    device: str, trains: bool, exact: bool, flags: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a mere warning attention takes backward passes that add up in an order of chance."""
    given = []
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setattr(
        torch, "use_deterministic_algorithms", lambda mode, *, warn_only=False: given.append((mode, warn_only))
    )
    prepare_torch(1, device, trains=trains, exact=exact)
    assert given == [flags]
    assert not torch.utils.deterministic.fill_uninitialized_memory
