"""Folders of adapters as models: peft's own logits, of all kinds that it merges; others are refused beforehand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft import get_peft_model
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from pipeline.config.schema import SystemConfig
from pipeline.errors import ConfigError, JobError
from pipeline.learning.models import kinds, load, source
from pipeline.learning.models.adapters import SETTINGS, quietly
from tests.doubles.tokenizers import tokenizer

LAYERS = ["q_proj", "down_proj"]
IDS = torch.tensor([[1, 5, 2, 7]])
KINDS: dict[str, Callable[[], Any]] = {
    "LORA": lambda: peft.LoraConfig(target_modules=LAYERS),
    "DORA": lambda: peft.LoraConfig(target_modules=LAYERS, use_dora=True, use_rslora=True),
    "saved head": lambda: peft.LoraConfig(target_modules=LAYERS, modules_to_save=["lm_head"]),
    "saved embedding": lambda: peft.LoraConfig(target_modules=LAYERS, modules_to_save=["embed_tokens", "lm_head"]),
    "embedding": lambda: peft.LoraConfig(target_modules=["embed_tokens", "q_proj"]),
    "tokens": lambda: peft.LoraConfig(target_modules=LAYERS, trainable_token_indices=[1, 2]),
    "ADALORA": lambda: peft.AdaLoraConfig(target_modules=LAYERS, total_step=10),
    "IA3": lambda: peft.IA3Config(target_modules=LAYERS, feedforward_modules=["down_proj"]),
    "LOHA": lambda: peft.LoHaConfig(target_modules=LAYERS),
    "LOKR": lambda: peft.LoKrConfig(target_modules=LAYERS),
    "OFT": lambda: peft.OFTConfig(target_modules=LAYERS, oft_block_size=4),
    "HRA": lambda: peft.HRAConfig(target_modules=LAYERS),
    "VERA": lambda: peft.VeraConfig(target_modules=["q_proj"], r=4),
    "FOURIERFT": lambda: peft.FourierFTConfig(target_modules=LAYERS, n_frequency=10),
}


def base(folder: Path, *, tied: bool = False, **given: int) -> PreTrainedModel:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, **given}
    made = tokenizer("plain")
    config = LlamaConfig(vocab_size=len(made), tie_word_embeddings=tied, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    made.save_pretrained(folder)
    return load.load_policy(folder, SystemConfig(), "cpu")


def adapt(model: PreTrainedModel, settings: Any, folder: Path, **saved: Any) -> torch.Tensor:
    """Save adapters with weights; returns the logits of base and adapters by peft."""
    with quietly(), torch.no_grad():
        torch.manual_seed(1)
        adapted = get_peft_model(model, settings).eval()
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.add_(0.05 * torch.randn_like(weight))
        adapted.save_pretrained(folder, **{"save_embedding_layers": False, **saved})
        logits: torch.Tensor = adapted(input_ids=IDS).logits
    return logits


def merged(adapters: Path, out: Path) -> torch.Tensor:
    source.write_reference(kinds.HFModelConfig(kind="hf", path=str(adapters)), out)
    with torch.no_grad():
        logits: torch.Tensor = load.load_policy(out, SystemConfig(), "cpu")(IDS).logits
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_and_base_are_one_model(tmp_path: Path, kind: str) -> None:
    model = base(tmp_path / "base")
    with torch.no_grad():
        before = model(IDS).logits
    expected = adapt(model, KINDS[kind](), tmp_path / "adapters")
    assert not torch.allclose(before, expected, atol=1e-4)
    assert torch.allclose(merged(tmp_path / "adapters", tmp_path / "out"), expected, atol=1e-5)
    assert len(load.load_tokenizer(tmp_path / "out")) == len(tokenizer("plain"))


def test_all_kinds_that_are_taken_are_tried() -> None:
    assert {settings().peft_type.value for settings in KINDS.values()} == kinds.MERGED


def test_an_embedding_that_was_resized_comes_with_its_tokenizer(tmp_path: Path) -> None:
    model, more = base(tmp_path / "base"), load.load_tokenizer(tmp_path / "base")
    more.add_tokens(["<new>", "<other>"])
    model.resize_token_embeddings(len(more), mean_resizing=False)
    expected = adapt(model, KINDS["LORA"](), tmp_path / "adapters", save_embedding_layers=True)
    more.save_pretrained(tmp_path / "adapters")
    found = merged(tmp_path / "adapters", tmp_path / "out")
    assert found.shape[-1] == len(more)
    assert torch.allclose(found, expected, atol=1e-5)
    assert load.load_tokenizer(tmp_path / "out").convert_tokens_to_ids("<other>") == len(more) - 1


def test_ends_beside_adapters_go_before_those_of_the_base(tmp_path: Path) -> None:
    adapt(base(tmp_path / "base"), KINDS["LORA"](), tmp_path / "adapters")
    for place, end in (("base", 1), ("adapters", 2)):
        GenerationConfig(eos_token_id=end).save_pretrained(tmp_path / place)
    merged(tmp_path / "adapters", tmp_path / "out")
    assert load.load_policy(tmp_path / "out", SystemConfig(), "cpu").generation_config.eos_token_id == 2


def test_a_chat_template_that_nothing_would_read_is_refused(tmp_path: Path) -> None:
    adapt(base(tmp_path / "base"), KINDS["LORA"](), tmp_path / "adapters")
    (tmp_path / "adapters" / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(ConfigError, match=r"chat_template\.jinja"):
        kinds.check_folder("models.hf.path=x", tmp_path / "adapters")
    load.load_tokenizer(tmp_path / "base").save_pretrained(tmp_path / "adapters")
    kinds.check_folder("models.hf.path=x", tmp_path / "adapters")


@pytest.mark.parametrize("kind", ["saved head", "saved embedding", "embedding", "tokens", "LORA"])
def test_what_a_base_with_tied_weights_computes_is_kept(tmp_path: Path, kind: str) -> None:
    expected = adapt(base(tmp_path / "base", tied=True), KINDS[kind](), tmp_path / "adapters")
    assert torch.allclose(merged(tmp_path / "adapters", tmp_path / "out"), expected, atol=1e-5)


def test_adapters_of_another_model_are_refused(tmp_path: Path) -> None:
    adapt(base(tmp_path / "base"), KINDS["LORA"](), tmp_path / "adapters")
    settings = json.loads((tmp_path / "adapters" / SETTINGS).read_text())
    base(tmp_path / "small", hidden_size=16)
    settings["base_model_name_or_path"] = str(tmp_path / "small")
    (tmp_path / "adapters" / SETTINGS).write_text(json.dumps(settings))
    with pytest.raises(JobError, match="cannot be merged"):
        merged(tmp_path / "adapters", tmp_path / "out")


def test_a_base_may_lie_beside_the_adapters_and_value_models_begin_with_both(tmp_path: Path) -> None:
    expected = adapt(base(tmp_path / "a" / "base"), KINDS["LORA"](), tmp_path / "a")
    settings = json.loads((tmp_path / "a" / SETTINGS).read_text())
    (tmp_path / "a" / SETTINGS).write_text(json.dumps({**settings, "base_model_name_or_path": "base"}))
    (tmp_path / "scratch").mkdir()
    found = source.value_folder(
        kinds.HFModelConfig(kind="hf", path="x", value_path=str(tmp_path / "a")), tmp_path / "scratch"
    )
    with torch.no_grad():
        assert torch.allclose(load.load_policy(str(found), SystemConfig(), "cpu")(IDS).logits, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"peft_type": "PROMPT_TUNING"}, "PROMPT_TUNING"),
        ({"task_type": "SEQ_CLS"}, "SEQ_CLS"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
        (None, "adapter_config.json"),
    ],
)
def test_what_cannot_be_merged_is_refused_before_the_start(
    tmp_path: Path, changed: dict[str, Any] | None, told: str
) -> None:
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "me/base"}
    (tmp_path / SETTINGS).write_text("{" if changed is None else json.dumps({**settings, **changed}))
    (tmp_path / kinds.WEIGHTS).touch()
    assert kinds.is_adapters(tmp_path)
    with pytest.raises(ConfigError, match=told):
        kinds.check_folder("models.hf.path=x", tmp_path)
