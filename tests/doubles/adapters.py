"""The output of a training with adapters, without one: these are drawn."""

import copy
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from pipeline.learning.algos.policy_config import LoraSettings
from pipeline.learning.models.adapters import save_adapters
from pipeline.learning.training.lora import merged, with_adapters
from pipeline.outputs.formats import ADAPTERS, FOLDER


def write_rounds(
    start: PreTrainedModel, output: Path, *, rounds: int = 2, rank: int = 2, spread: float = 0.02
) -> PreTrainedModel:
    """Write adapters of rounds that each go on from the policy of the one before.

    Returns:
        That policy, merged round by round.
    """
    whole = copy.deepcopy(start)
    for number in range(1, rounds + 1):
        adapted = with_adapters(whole, LoraSettings(rank=rank), seed=number)
        assert isinstance(adapted, PeftModel)
        draw = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for weight in (one for one in adapted.parameters() if one.requires_grad):
                weight.add_(spread * torch.randn(weight.shape, generator=draw))
        save_adapters(adapted, output / FOLDER / str(number))
        whole = merged(adapted)
    (output / ADAPTERS).write_text(f'{{"rounds": {list(range(1, rounds + 1))}}}')
    return whole.eval().requires_grad_(False)
