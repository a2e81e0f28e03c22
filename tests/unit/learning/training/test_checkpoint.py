"""Checkpoints: exact to the bit, kept and removed as they should be, never taken when anything is odd."""

import errno
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pipeline.errors import JobError, JobStopped
from pipeline.learning.training import checkpoint as module

STATE = module.State(
    {"a": torch.arange(5.0), "b": torch.tensor(3, dtype=torch.int32)}, {"loss": [0.1, float("inf")]}
)


class Tied(nn.Module):
    """Weights that are shared, frozen, and a buffer that changes."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.second(self.first(self.base(x))))


def trained(steps: int, seed: int = 0, width: int = 3) -> tuple[Tied, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = Tied(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.5, 0.75))
    go_on(model, optimizer, steps)
    return model, optimizer


def go_on(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Steps on noise of the global generator."""
    for _ in range(steps):
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_training_goes_on_exactly(tmp_path: Path) -> None:
    """Weights, buffers, AdamW's moments and steps, and the generator that its data comes from."""
    model, optimizer = trained(steps=3)
    module.Checkpoints(tmp_path, {}).save(3, module.training_state(model, optimizer, history=[1, 2, 3]))
    go_on(model, optimizer, 4)

    other, fresh = trained(steps=0)
    saved = module.Checkpoints(tmp_path, {}).latest(lambda found: module.state_problem(found.state, other, fresh))
    assert saved is not None
    torch.manual_seed(99)
    assert module.restore_training(saved.state, other, fresh) == {"history": [1, 2, 3]}
    del saved
    # A file that is still mapped keeps its room on the disk, though a later checkpoint has replaced it.
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert fresh.param_groups[0]["betas"] == (0.5, 0.75)
    go_on(other, fresh, 4)
    for (name, one), (_, two) in zip(model.state_dict().items(), other.state_dict().items(), strict=True):
        assert torch.equal(one, two), name
    assert other.second.weight is other.first.weight
    for index, entry in optimizer.state_dict()["state"].items():
        for name, value in entry.items():
            assert torch.equal(value, fresh.state_dict()["state"][index][name]), (index, name)


def test_an_optimizer_that_keeps_objects_is_refused() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.LBFGS(model.parameters())
    optimizer.state[model.weight] = {"old": [torch.zeros(1)]}
    with pytest.raises(JobError, match="LBFGS keeps a list as 'old'"):
        module.training_state(model, optimizer)


def draws() -> list[float]:
    return [torch.rand(1).item(), np.random.normal(), random.gauss(0, 1)]


def test_every_global_generator_goes_on_where_it_was() -> None:
    """After one draw of each, so that the halves of pairs of normal draws are pending."""
    draws()
    tensors, values = module.random_state()
    expected = [draws() for _ in range(5)]
    module.restore_random_state(tensors, json.loads(json.dumps(values)))
    assert [draws() for _ in range(5)] == expected


def spoil(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a bit flipped": (
        lambda c: spoil(c / "tensors.safetensors", lambda b: b[:-1] + bytes([b[-1] ^ 1])),
        "size and checksum",
    ),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "cannot be read"),
    "another step": (lambda c: edit(c / "manifest.json", step=3), "manifest is of step 3"),
    "another training": (
        lambda c: edit(c / "manifest.json", about={"of": "that", "torch": torch.__version__}),
        "of another training",
    ),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_checkpoint_with_anything_odd_is_passed_over(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, said = DAMAGE[how]
    module.Checkpoints(tmp_path, {"of": "this"}).save(5, STATE)
    (tmp_path / "step-00000005").rename(tmp_path / "kept")
    module.Checkpoints(tmp_path, {"of": "this"}).save(6, STATE)
    (tmp_path / "kept").rename(tmp_path / "step-00000005")
    damage(tmp_path / "step-00000006")
    checkpoints = module.Checkpoints(tmp_path, {"of": "this"})
    found = checkpoints.latest()
    assert found is not None
    assert found.step == 5
    printed = capsys.readouterr().out
    assert "warning: the checkpoint of step 6 is passed over" in printed
    assert said in printed
    # Arriving at the same step again replaces what is damaged.
    checkpoints.save(6, STATE)
    assert module.Checkpoints(tmp_path, {"of": "this"}).latest() is not None
    assert names(tmp_path) == ["step-00000006"]


def test_a_state_of_another_model_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module.Checkpoints(tmp_path, {}).save(1, module.training_state(*trained(steps=1)))
    wide = trained(steps=0, width=4)
    assert module.Checkpoints(tmp_path, {}).latest(lambda found: module.state_problem(found.state, *wide)) is None
    assert "its model has other tensors (model." in capsys.readouterr().out
    saved = module.Checkpoints(tmp_path, {}).latest()
    assert saved is not None
    other = nn.Linear(3, 3)
    problem = module.state_problem(saved.state, other, torch.optim.AdamW(other.parameters()))
    assert problem is not None
    assert "other tensors (model.bias" in problem
    model, optimizer = trained(steps=0)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    assert module.state_problem(saved.state, model, optimizer) == "its optimizer has other groups of parameters"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_saves_after_steps_or_minutes_whichever_comes_first(tmp_path: Path) -> None:
    clock, saved = Clock(), []
    checkpoints = module.Checkpoints(tmp_path, {}, every_steps=4, every_minutes=1, clock=clock)

    def state() -> module.State:
        saved.append((len(saved), clock.now))
        return STATE

    at = []
    for step in range(1, 13):
        clock.now += 25.0
        before = len(saved)
        checkpoints.after_step(step, state)
        at += [step] if len(saved) > before else []
    # Minutes count from the last checkpoint, whatever caused it: 3, then 4 by steps, 7 by the minute, ...
    assert at == [3, 4, 7, 8, 11, 12]
    assert names(tmp_path) == ["step-00000012"]


def test_a_full_disk_costs_the_checkpoint_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = module.Checkpoints(tmp_path, {}, every_steps=1)
    checkpoints.after_step(1, lambda: STATE)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.files, "fsync", fail)
        checkpoints.after_step(2, lambda: STATE)
        assert "step 2 could not be saved: [Errno 28] No space left" in capsys.readouterr().out
        patch.setattr(module, "save_file", lambda tensors, path: save_file(tensors, path.parent))  # its own error
        checkpoints.after_step(2, lambda: STATE)
        assert "step 2 could not be saved: Error while serializing: " in capsys.readouterr().out
        stopping = module.Checkpoints(tmp_path / "new", {}, stopping=lambda: True)
        with pytest.raises(JobStopped, match="from the start: nothing could be saved"):
            stopping.after_step(2, lambda: STATE)
    assert names(tmp_path) == ["new", "step-00000001"]
    assert names(tmp_path / "new") == []
    found = module.Checkpoints(tmp_path, {}).latest()
    assert found is not None
    assert found.step == 1


def test_what_a_killed_process_left_half_written_is_no_checkpoint_and_goes_with_the_next(tmp_path: Path) -> None:
    (tmp_path / ".writing-host-1").mkdir()
    (tmp_path / ".writing-host-1" / "tensors.safetensors").write_bytes(b"half")
    checkpoints = module.Checkpoints(tmp_path, {})
    assert checkpoints.latest() is None
    checkpoints.save(1, STATE)
    assert names(tmp_path) == ["step-00000001"]
