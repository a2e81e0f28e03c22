"""A stage that computes without torch does not wait for it, and one that imports it finds it set up."""

import subprocess
import sys

import pytest
import torch

from pipeline.learning.algos.stage_entry import prepare_torch

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
