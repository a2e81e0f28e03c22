"""Adapters work in the pass that trains them as they do merged, in families whose layers are not all alike."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from pipeline.errors import JobError
from pipeline.learning.algos.policy_config import LoraSettings
from pipeline.learning.memory.shape import shape_of_config
from pipeline.learning.models import adapters
from pipeline.learning.training import lora
from pipeline.outputs.formats import adapter_folders
from tests.doubles.adapters import write_rounds
from tests.doubles.families import tiny_model


@pytest.mark.parametrize("family", ["mamba", "llama4_text", "mixtral"])
def test_what_is_trained_is_what_is_merged(family: str) -> None:
    model, ids = tiny_model(family), torch.arange(2, 22)[None]
    width = shape_of_config(model.config, family).lora_width
    before = model(ids, use_cache=False).logits
    adapted = lora.with_adapters(model, LoraSettings(rank=2), seed=0).eval()
    trained = [weight for weight in adapted.parameters() if weight.requires_grad]
    assert sum(weight.numel() for weight in trained) == 2 * width
    with torch.no_grad():
        for weight in trained:
            weight.add_(0.02)
        whole = adapted(ids, use_cache=False).logits
        torch.testing.assert_close(lora.merged(adapted)(ids, use_cache=False).logits, whole, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(before, whole, atol=1e-2)


def different(one: PreTrainedModel, other: PreTrainedModel) -> list[str]:
    """Names of the weights that are not the same bits of the same type."""
    mine, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    assert mine.keys() == theirs.keys()
    assert {name: each.dtype for name, each in mine.items()} == {name: each.dtype for name, each in theirs.items()}
    return [name for name, weight in mine.items() if not torch.equal(weight, theirs[name])]


@pytest.mark.parametrize("family", ["mamba", "llama4_text", "mixtral", "llava"])
def test_what_is_stored_and_merged_when_loaded_is_what_was_merged_before(family: str, tmp_path: Path) -> None:
    """Of two rounds, each of which goes on from the policy of the one before."""
    start = tiny_model(family)
    whole = write_rounds(start, tmp_path)
    folders = adapter_folders(tmp_path)
    assert len(folders) == 2
    assert different(whole, start)
    state = torch.get_rng_state()
    exact = copy.deepcopy(start)
    adapters.merge_adapters(exact, folders)
    assert not different(exact, whole)
    rounded, whole = copy.deepcopy(start).bfloat16(), whole.bfloat16()
    adapters.merge_adapters(rounded, folders, copy.deepcopy(start))
    assert not different(rounded, whole)
    assert torch.equal(torch.get_rng_state(), state)
    adapters.copy_adapters(folders, tmp_path / "copied")
    for folder in folders:
        for file in folder.iterdir():
            assert (tmp_path / "copied" / folder.name / file.name).read_bytes() == file.read_bytes()


def test_weights_in_bfloat16_are_rounded_once_however_many_adapters_there_are(tmp_path: Path) -> None:
    start = tiny_model("mixtral").bfloat16()
    write_rounds(start, tmp_path, rounds=3)
    folders = adapter_folders(tmp_path)
    exact, rounded = copy.deepcopy(start).float(), copy.deepcopy(start)
    adapters.merge_adapters(exact, folders)
    adapters.merge_adapters(rounded, folders)
    assert different(rounded, start)
    assert not different(rounded, exact.bfloat16())


def _without_one(folder: Path) -> None:
    weights = load_file(folder / adapters.WEIGHTS)
    del weights[min(weights)]
    save_file(weights, folder / adapters.WEIGHTS)


def _with_one_more(folder: Path) -> None:
    save_file(load_file(folder / adapters.WEIGHTS) | {"z": torch.zeros(1)}, folder / adapters.WEIGHTS)


def _with_nan(folder: Path) -> None:
    weights = load_file(folder / adapters.WEIGHTS)
    weights[min(weights)][0, 0] = torch.nan
    save_file(weights, folder / adapters.WEIGHTS)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_with_nan, "has numbers that are not finite"),
        (_without_one, "lora_A.weight is missing"),
        (_with_one_more, "z is nowhere in the model"),
        (
            lambda folder: (folder / adapters.WEIGHTS).rename(folder / "adapter_model.bin"),
            f"{adapters.WEIGHTS} is missing",
        ),
        (lambda folder: (folder / adapters.SETTINGS).unlink(), f"{adapters.SETTINGS} is missing"),
        (lambda folder: (folder / adapters.WEIGHTS).write_bytes(b"cut off"), "header"),
        (lambda folder: (folder / adapters.SETTINGS).write_text('{"peft_type": "NONE"}'), "NONE"),
        (lambda folder: (folder / adapters.SETTINGS).write_text("{"), "Expecting"),
    ],
)
def test_adapters_that_are_not_whole_are_told_and_never_merged_in_part(
    harm: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    start = tiny_model("mixtral")
    write_rounds(start, tmp_path, rounds=1)
    (folder,) = adapter_folders(tmp_path)
    harm(folder)
    with pytest.raises(JobError, match=f"adapters in {folder} cannot be merged into their reference: .*{said}"):
        adapters.merge_adapters(start, [folder])


def test_what_rounded_weights_would_swallow_is_kept() -> None:
    """Trained on weights in bfloat16, merged into those that they were rounded from."""
    exact = tiny_model("mixtral")
    rounded = copy.deepcopy(exact).bfloat16()
    start = {name: weight.clone() for name, weight in exact.named_parameters()}
    settings = LoraSettings(rank=2, target_modules=["q_proj", "v_proj"])
    adapted = lora.with_adapters(rounded, settings, seed=0)
    with torch.no_grad():
        for weight in adapted.parameters():
            weight.add_(1e-5 * weight.requires_grad)
    below = lora.weights_below(adapted)
    assert len(below) == 2 * exact.config.num_hidden_layers
    assert {weight.dtype for weight in below.values()} == {torch.bfloat16}
    whole = lora.merged(adapted, lambda: lora.with_adapters(exact, settings, seed=0))
    after = dict(whole.named_parameters())
    assert {weight.dtype for weight in after.values()} == {torch.float32}
    assert all((after[name] != start[name]).float().mean() > 0.9 for name in below)
    share = lora.share_kept(below, whole, torch.bfloat16)
    assert share is not None
    assert 0 < share < 0.5
