"""Adapters work in the pass that trains them as they do merged, in families whose layers are not all alike."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from pipeline.config.schema import SystemConfig
from pipeline.errors import ConfigError, JobError
from pipeline.learning.algos.policy_config import LoraSettings
from pipeline.learning.memory.shape import shape_of_config
from pipeline.learning.models import kinds, load, source
from pipeline.learning.training import lora
from pipeline.outputs.formats import adapter_folders
from tests.doubles.families import tiny_model
from tests.doubles.models import write_rounds
from tests.doubles.tokenizers import tokenizer


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Import what no other tests need, and takes a third as long as all that they do."""
    global adapters, peft
    import peft

    from pipeline.learning.models import adapters


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


@pytest.mark.parametrize("family", ["mixtral", "llava"])
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
    weights = load_file(folder / kinds.WEIGHTS)
    del weights[min(weights)]
    save_file(weights, folder / kinds.WEIGHTS)


def _with_one_more(folder: Path) -> None:
    save_file(load_file(folder / kinds.WEIGHTS) | {"z": torch.zeros(1)}, folder / kinds.WEIGHTS)


def _with_nan(folder: Path) -> None:
    weights = load_file(folder / kinds.WEIGHTS)
    weights[min(weights)][0, 0] = torch.nan
    save_file(weights, folder / kinds.WEIGHTS)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_with_nan, "has numbers that are not finite"),
        (_without_one, "lora_A.weight is missing"),
        (_with_one_more, "z is nowhere in the model"),
        (lambda folder: (folder / kinds.SETTINGS).unlink(), f"{kinds.SETTINGS} is missing"),
        (lambda folder: (folder / kinds.SETTINGS).write_text("{"), "Expecting"),
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
    whole = lora.merged(adapted, lambda: lora.with_adapters(exact, settings, seed=0))
    after = dict(whole.named_parameters())
    assert {weight.dtype for weight in after.values()} == {torch.float32}
    trained = [name for name in after if name.endswith(("q_proj.weight", "v_proj.weight"))]
    assert len(trained) == 2 * exact.config.num_hidden_layers
    assert all((after[name] != start[name]).float().mean() > 0.9 for name in trained)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["gpt2", "mixtral", "llava"])
def test_weights_with_adapters_are_those_of_the_checkpoint_and_change_nothing(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Also where passes are computed in bfloat16, of tied weights, and of experts that a checkpoint has apart."""
    model = tiny_model(family).to(dtype)
    adapted = lora.with_adapters(model, LoraSettings(rank=2), seed=0)
    with torch.no_grad():
        for weight in adapted.parameters():
            weight.add_(0.02 * weight.requires_grad)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.autocast("cpu", torch.bfloat16):
        found = dict(lora.whole_weights(model))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    lora.merged(adapted).save_pretrained(tmp_path)
    expected = load_file(tmp_path / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


# -- test adapter folder -----------------------------------------------------------------------------------------
# Folders of adapters as models: peft's own logits, of all kinds that it merges; others are refused
# beforehand.


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
    with adapters.quietly(), torch.no_grad():
        torch.manual_seed(1)
        adapted = peft.get_peft_model(model, settings).eval()
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


TIED = ("saved head", "saved embedding", "embedding", "tokens", "LORA")


@pytest.mark.parametrize(("kind", "tied"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in TIED)])
def test_adapters_and_base_are_one_model(tmp_path: Path, kind: str, tied: bool) -> None:
    model = base(tmp_path / "base", tied=tied)
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


def test_adapters_of_another_model_are_refused(tmp_path: Path) -> None:
    adapt(base(tmp_path / "base"), KINDS["LORA"](), tmp_path / "adapters")
    settings = json.loads((tmp_path / "adapters" / kinds.SETTINGS).read_text())
    base(tmp_path / "small", hidden_size=16)
    settings["base_model_name_or_path"] = str(tmp_path / "small")
    (tmp_path / "adapters" / kinds.SETTINGS).write_text(json.dumps(settings))
    with pytest.raises(JobError, match="cannot be merged"):
        merged(tmp_path / "adapters", tmp_path / "out")


def test_a_base_may_lie_beside_the_adapters_and_value_models_begin_with_both(tmp_path: Path) -> None:
    expected = adapt(base(tmp_path / "a" / "base"), KINDS["LORA"](), tmp_path / "a")
    settings = json.loads((tmp_path / "a" / kinds.SETTINGS).read_text())
    (tmp_path / "a" / kinds.SETTINGS).write_text(json.dumps({**settings, "base_model_name_or_path": "base"}))
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
    (tmp_path / kinds.SETTINGS).write_text("{" if changed is None else json.dumps({**settings, **changed}))
    (tmp_path / kinds.WEIGHTS).touch()
    assert kinds.is_adapters(tmp_path)
    with pytest.raises(ConfigError, match=told):
        kinds.check_folder("models.hf.path=x", tmp_path)
