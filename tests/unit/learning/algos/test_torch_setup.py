"""A stage that computes without torch does not wait for it, and one that imports it finds it set up."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.learning.algos.stage_entry import prepare_torch, when_imported

CODE = """
import sys
from pipeline.learning.algos.stage_entry import prepare_torch
prepare_torch(3)
prepare_torch(2)
assert not {"torch", "transformers"} & set(sys.modules)
import gc
before = gc.get_freeze_count()
import torch
assert gc.isenabled() and gc.get_freeze_count() > before + 50_000  # never looked through for garbage again
assert torch.get_num_threads() == 2
assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
before = gc.get_freeze_count()
from transformers import GPT2LMHeadModel
assert gc.isenabled() and gc.get_freeze_count() > before + 50_000
from transformers.utils import logging
assert not logging.is_progress_bar_enabled()
prepare_torch(1)
assert torch.get_num_threads() == 1
"""


def test_torch_is_set_up_for_the_job_whenever_it_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that nobody has imported."""
    name = "imported_for_a_test"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_the_last_that_was_asked_for_is_done_once_when_the_module_is_whole(module: str) -> None:
    done: list[object] = []
    when_imported(module, lambda: done.append("the first"))
    when_imported(module, lambda: done.append(sys.modules[module].value))
    assert done == []
    importlib.reload(importlib.import_module(module))
    assert done == [1]
    when_imported(module, lambda: done.append("now"))
    assert done == [1, "now"]
    sys.modules.pop(module)


def test_a_module_that_is_missing_is_missing_still() -> None:
    when_imported("there_is_no_such_module", lambda: None)
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
            importlib.import_module("there_is_no_such_module")


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
