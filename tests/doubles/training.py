"""Small trainings that are killed at a chosen moment, by a signal that nothing can catch."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from pipeline.config.schema import SystemConfig
from pipeline.engine.workers.work import Work
from pipeline.learning.algos.stage_entry import prepare_torch, run_stage
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets import base, shipped
from pipeline.learning.models import kinds, tiny
from pipeline.learning.models.value import value_model_from
from pipeline.learning.training import checkpoint, loop, sequences, value
from pipeline.learning.training.checkpoint import Checkpoints, State
from tests.doubles.models import fitting

STEPS = 9
"""Of each training below."""


def small_sequences() -> sequences.Sequences:
    generator = np.random.default_rng(0)
    ids = [generator.integers(0, 10, length).tolist() for length in generator.integers(3, 10, 24)]
    return sequences.Sequences.of(ids, [len(row) - 2 for row in ids], [float(row[-1] % 2) for row in ids])


def _value(
    head: HeadType, checkpoints: Checkpoints, hints: Path | None, curve: loop.Curve | None
) -> tuple[PreTrainedModel, list[float]]:
    config = GPT2Config(
        vocab_size=13, n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=10, eos_token_id=None
    )
    torch.manual_seed(0)
    model = value_model_from(GPT2LMHeadModel(config), head)
    losses = value.fit_value(
        model,
        small_sequences(),
        fitting(
            3,
            head_learning_rate=3e-2,
            epochs=3,
            warmup_steps=2,
            checkpoint=checkpoints,
            hints=hints,
            curve=curve,
        ),
    )
    return model, losses


def _reference(
    checkpoints: Checkpoints, hints: Path | None, curve: loop.Curve | None
) -> tuple[PreTrainedModel, list[float]]:
    config = kinds.TinyModelConfig(
        kind="tiny", steps=STEPS, batch_size=6, n_embd=16, n_head=2, n_inner=16, warmup_steps=2
    )
    dataset = base.load_dataset(shipped.AdditionConfig(kind="addition"))
    how: dict[str, Any] = {"checkpoint": checkpoints, "hints": hints, "curve": curve}
    return tiny.train_reference(config, SystemConfig(), dataset, "cpu", lambda step, tokens: None, **how)


TRAININGS: dict[
    str, Callable[[Checkpoints, Path | None, loop.Curve | None], tuple[PreTrainedModel, list[float]]]
] = {
    "value of tokens": lambda *how: _value(HeadType.v, *how),
    "value of next tokens": lambda *how: _value(HeadType.q, *how),
    "reference": _reference,
}


def run_training(
    kind: str, out: Path, checkpoints: Path, moment: str = "", step: int = 0, **settings: Any
) -> None:
    """Do a training and write what its stage would; die at a moment of a step.

    What it prints goes to ``<out>.log``.
    """
    with out.with_suffix(".log").open("a") as log:
        sys.stdout = log
        prepare_torch(1)
        die_at(moment, step)
        made = Checkpoints(checkpoints, {"training": kind}, **{"every_steps": 2, "every_minutes": 0, **settings})
        drawn = out.with_suffix(".drawn")
        drawn.mkdir(exist_ok=True)
        model, losses = TRAININGS[kind](made, None, loop.Curve(training=kind, folder=drawn))
        drawn.rename(out)
        model.save_pretrained(out)
        (out / "training.json").write_text(json.dumps({"loss": losses}))


def die_at(moment: str, step: int) -> None:
    """Have this process kill itself, at a moment of a step that is named in `MOMENTS`."""
    if moment:
        MOMENTS[moment](step)


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _after_step(step: int) -> None:
    after_step = Checkpoints.after_step

    def patched(self: Checkpoints, now: int, state: Callable[[], State], *, last: bool = False) -> None:
        if now == step:
            die()
        after_step(self, now, state, last=last)

    Checkpoints.after_step = patched  # type: ignore[method-assign]


def _in_backward(step: int) -> None:
    """In the last micro-batch of a step, with gradients half accumulated."""
    clip = torch.nn.utils.clip_grad_norm_
    calls = iter(range(1, 1000))
    torch.nn.utils.clip_grad_norm_ = lambda *a, **b: die() if next(calls) == step else clip(*a, **b)  # type: ignore


def _while_saving(step: int, patch: Callable[[], None]) -> None:
    save = Checkpoints.save

    def patched(self: Checkpoints, now: int, state: State) -> None:
        if now >= step:
            patch()
        save(self, now, state)

    Checkpoints.save = patched  # type: ignore[method-assign]


def _half_of_the_tensors() -> None:
    def save(tensors: dict[str, torch.Tensor], path: Path) -> None:
        save_file(tensors, path)
        os.truncate(path, path.stat().st_size // 2)
        die()

    checkpoint.save_file = save


def _renamed() -> None:
    rename = Path.rename
    Path.rename = lambda self, target: (rename(self, target), die())  # type: ignore


def _older_half_removed() -> None:
    remove = checkpoint.shutil.rmtree

    def patched(path: Path, **options: Any) -> None:
        if path.name.startswith("step-"):
            (path / "state.json").unlink()
            die()
        remove(path, **options)

    checkpoint.shutil.rmtree = patched  # type: ignore[assignment]


MOMENTS: dict[str, Callable[[int], None]] = {
    "after a step": _after_step,
    "in a step": _in_backward,
    "saving: before anything": lambda step: _while_saving(step, die),
    "saving: half of the tensors": lambda step: _while_saving(step, _half_of_the_tensors),
    "saving: before the rename": lambda step: _while_saving(step, lambda: setattr(checkpoint.files, "fsync", die)),
    "saving: after the rename": lambda step: _while_saving(step, _renamed),
    "saving: an older one half removed": lambda step: _while_saving(step, _older_half_removed),
}


def stage(work: Work) -> None:
    """A stage of the pipeline whose worker dies after a step of its first attempts: ``die_after`` lists them."""
    steps = work.payload["die_after"]
    if work.attempt <= len(steps):
        die_at("after a step", steps[work.attempt - 1])
    run_stage(work)
    assert "peft" not in sys.modules, "which loads libraries for seconds, and only adapters need"


def failing_stage(work: Work) -> None:
    """A stage whose training loses a connection after the step ``fail_after`` of its first attempt."""

    def fail(now: int) -> None:
        if work.attempt == 1 and now == work.payload["fail_after"]:
            raise ConnectionError("lost")

    _run_stage_with(fail, work)


def slow_stage(work: Work) -> None:
    """A stage whose training makes a file, ``flag``, after the step ``flag_after``, and waits to be stopped."""

    def wait(now: int) -> None:
        if now == work.payload["flag_after"]:
            Path(work.payload["flag"]).touch()
            while not work.stopping():
                time.sleep(0.01)

    _run_stage_with(wait, work)


def _run_stage_with(after: Callable[[int], None], work: Work) -> None:
    """Run a stage that does something more after each step of its training, before it looks after checkpoints."""
    after_step = Checkpoints.after_step

    def patched(self: Checkpoints, now: int, state: Callable[[], State], *, last: bool = False) -> None:
        after(now)
        after_step(self, now, state, last=last)

    Checkpoints.after_step = patched  # type: ignore[method-assign]
    try:
        run_stage(work)
    finally:
        Checkpoints.after_step = after_step  # type: ignore[method-assign]
