"""Layers are compiled while a training runs, and only then; without a compiler that is told before it begins."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.errors import JobError
from pipeline.learning.training import policy
from pipeline.learning.training.policy import compiled
from tests.doubles.models import tiny_policy


def test_layers_are_compiled_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    how: list[dict[str, Any]] = []
    calls: list[int] = []
    forgotten: list[bool] = []

    def compile_(function: Any, **settings: Any) -> Any:
        how.append(settings)
        return lambda *args, **named: calls.append(1) or function(*args, **named)

    monkeypatch.setattr(torch, "compile", compile_)  # of which one costs 20 s
    monkeypatch.setattr(torch.compiler, "reset", lambda: forgotten.append(True))
    monkeypatch.setattr(policy, "no_compiler", lambda *, on_gpu: "")
    model, ids = tiny_policy(), torch.tensor([[1, 2, 3]])
    expected = model(ids).logits
    with compiled(model, False):
        model(ids)
    assert not how
    assert not forgotten
    with compiled(model, True):
        assert torch.equal(model(ids).logits, expected)
    assert how == [{"dynamic": True}]
    assert len(forgotten) == 1  # as if this worker had compiled nothing before
    model(ids)
    assert len(calls) == 1


def test_a_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(JobError, match=r"training\.compile=true: .* there is no no-such-compiler\. Install it"):  # noqa: SIM117
        with compiled(tiny_policy(), True):
            pass
    with compiled(nn.Linear(1, 1), False):
        pass


def test_what_is_missing_is_named_for_both_kinds_of_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: set[str] = set()
    monkeypatch.setattr(policy.shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(policy.sys, "platform", "linux")
    monkeypatch.setattr(policy.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(policy, "find_spec", lambda _: None)
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    assert "need the package triton" in policy.no_compiler(on_gpu=True)
    monkeypatch.setattr(policy, "find_spec", lambda _: "found")
    assert policy.no_compiler(on_gpu=True).endswith("need a C compiler, and there is no gcc or clang")
    assert policy.no_compiler(on_gpu=False).endswith("need a C++ compiler, and there is no g++")
    there |= {"clang", "g++"}
    for on_gpu in (True, False):
        assert "headers of Python (python3-dev)" in policy.no_compiler(on_gpu=on_gpu)
    (tmp_path / "Python.h").touch()
    assert [policy.no_compiler(on_gpu=on_gpu) for on_gpu in (True, False)] == ["", ""]
    monkeypatch.setenv("CC", "no-such")
    assert policy.no_compiler(on_gpu=True).endswith("there is no no-such")
