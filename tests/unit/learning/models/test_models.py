"""Tiny references, value models, and what a worker keeps of models."""

import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf

from examples.sorting import Sorting, SortingConfig
from pipeline.config.schema import DType, SystemConfig
from pipeline.errors import JobError
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets import base, shipped
from pipeline.learning.models import kinds, load, tiny, value
from pipeline.learning.models.cache import ModelCache
from tests.doubles.models import tiny_policy

DATASET = base.load_dataset(shipped.AdditionConfig(kind="addition"))
SMALL = kinds.TinyModelConfig(kind="tiny", steps=5, batch_size=8)


def reference() -> hf.GPT2LMHeadModel:
    config = hf.GPT2Config(
        vocab_size=13, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=10, eos_token_id=None
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return hf.GPT2LMHeadModel(config).eval()


def test_a_language_model_that_lacks_weights_of_its_kind_makes_no_value_model() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = hf.BertLMHeadModel(hf.BertConfig(is_decoder=True, vocab_size=13, **sizes))
    with pytest.raises(JobError, match=r"cannot start from the BertModel .* other weights \(pooler"):
        value.value_model_from(model, HeadType.v)


@pytest.mark.parametrize("head", [HeadType.v, HeadType.q])
def test_a_backbone_may_give_another_width_than_its_layers_have(head: HeadType) -> None:
    sizes = {"hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = hf.OPTForCausalLM(
        hf.OPTConfig(word_embed_proj_dim=8, vocab_size=13, max_position_embeddings=32, **sizes)
    )
    values = value.value_model_from(model, head)(torch.tensor([[10, 3, 2]]))
    assert values.shape == ((1, 3) if head is HeadType.v else (1, 3, 13))


@pytest.mark.parametrize("head", [HeadType.v, HeadType.q])
def test_a_value_model_is_the_same_after_saving_and_loading(tmp_path: Path, head: HeadType) -> None:
    model = value.value_model_from(reference(), head).eval()
    model.head.weight.data = torch.randn(model.head.weight.shape, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(tmp_path)
    ids = torch.tensor([[10, 3, 2, 1, 11]])
    loaded = load.load_value(tmp_path, SystemConfig(), "cpu")
    assert isinstance(loaded, value.ValueModel)
    assert loaded.config.head == head.name
    assert torch.equal(loaded(ids), model(ids))
    assert loaded(ids).shape == ((1, 5) if head is HeadType.v else (1, 5, 13))
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    files = ["config.json", "model.safetensors", "value_head.json", "value_head.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files


@pytest.mark.parametrize("name", ["past_key_values", "cache_params", "cache"])
def test_the_cache_is_given_by_the_name_that_a_model_has_for_it(name: str) -> None:
    made: dict[str, object] = {}
    exec(f"def forward(self, input_ids, {name}=None): ...", made)
    assert value.cache_argument(made["forward"]) == name  # type: ignore[arg-type]


def test_a_folder_without_a_head_is_no_value_model(tmp_path: Path) -> None:
    reference().save_pretrained(tmp_path)
    with pytest.raises(JobError, match=r"no value model: value_head\.json"):
        load.load_value(tmp_path, SystemConfig(), "cpu")


def test_a_value_model_may_take_its_backbone_instead_of_a_copy(tmp_path: Path) -> None:
    model = tiny_policy(dropout=0.5)
    value.value_model_from(model, HeadType.q).save_pretrained(tmp_path / "copied")
    taken = value.value_model_from(model, HeadType.q, take=True)
    assert taken.backbone is model.transformer
    ids = torch.tensor([[10, 3, 2, 1, 11]])
    hidden = [taken.train().backbone(ids).last_hidden_state for _ in range(2)]
    assert torch.equal(*hidden)  # nothing is dropped
    taken.save_pretrained(tmp_path / "taken")
    for name in ("config.json", "model.safetensors", "value_head.json", "value_head.safetensors"):
        assert (tmp_path / "taken" / name).read_bytes() == (tmp_path / "copied" / name).read_bytes(), name


def test_the_model_used_longest_ago_leaves_the_cache_first() -> None:
    cache, loaded = ModelCache(2), []

    def get(name: str) -> str:
        return str(cache.get((name,), lambda: loaded.append(name) or name.upper(), nullcontext))

    assert [get(name) for name in "abacab"] == ["A", "B", "A", "C", "A", "B"]
    assert loaded == ["a", "b", "c", "b"]


def test_what_the_present_job_works_with_is_not_dropped() -> None:
    cache = ModelCache(4)
    for name in "ab":
        cache.get((name,), name.upper, nullcontext)
    assert not cache.drop_unused()
    cache.begin_job()
    cache.get(("b",), pytest.fail, nullcontext)
    assert cache.drop_unused()
    assert not cache.drop_unused()
    cache.get(("b",), pytest.fail, nullcontext)
    assert cache.get(("a",), lambda: "again", nullcontext) == "again"


def test_the_tokenizer_has_the_vocabulary_of_the_dataset(tmp_path: Path) -> None:
    made = tiny.make_tokenizer(DATASET)
    made.save_pretrained(tmp_path)
    for tokenizer in (made, hf.AutoTokenizer.from_pretrained(tmp_path), load.load_tokenizer(tmp_path)):
        row = DATASET.row(123456)
        assert tokenizer(row.prompt)["input_ids"] == [10, 3, 2, 1, 11, 6, 5, 4, 12]
        assert tokenizer.decode([9, 7, 5, 0], skip_special_tokens=True) == row.columns["solution"]
        assert tokenizer.decode([10, 9, 7], skip_special_tokens=True) == "97"
        assert len(tokenizer) == len(DATASET.vocabulary)
        assert tokenizer.eos_token_id is None


def test_demonstrations_are_training_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: set[int] = set()
    demonstration = DATASET.demonstration
    monkeypatch.setattr(DATASET, "demonstration", lambda row, draw: shown.add(row) or demonstration(row, draw))
    tiny.train_reference(SMALL, SystemConfig(), DATASET, "cpu", lambda step, tokens: None)
    assert len(shown) == 40
    assert shown <= set(DATASET.ids("train").tolist())


def test_the_reference_computes_in_bfloat16_if_asked_for_and_keeps_weights_in_float32() -> None:
    trained = {
        dtype: tiny.train_reference(SMALL, SystemConfig(dtype=dtype), DATASET, "cpu", lambda step, tokens: None)
        for dtype in (DType.float32, DType.bfloat16)
    }
    for model, _ in trained.values():
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    (_, exact), (_, rounded) = trained.values()
    assert exact != rounded
    assert rounded == pytest.approx(exact, rel=0.02)


SORTING = Sorting(SortingConfig(kind="sorting"))


def model_of(share_of_likeliest: float, size: int) -> Any:
    """A model that gives the token that comes next a fixed probability, and the others the rest."""

    def run(ids: torch.Tensor, use_cache: bool) -> Any:
        rest = (1 - share_of_likeliest) / (size - 1)
        probabilities = torch.full((*ids.shape, size), rest, dtype=torch.float64)
        following = torch.roll(ids, -1, 1)
        probabilities.scatter_(2, following[..., None], share_of_likeliest)
        return SimpleNamespace(logits=probabilities.log())

    run.device = "cpu"  # type: ignore[attr-defined]
    return run


def measured(model: Any, dataset: base.Dataset) -> tiny.Imitation:
    with pytest.MonkeyPatch.context() as patch:  # the models are functions, of which no FLOPs are known
        patch.setattr(tiny.flops, "spend", lambda purpose, flops: None)
        patch.setattr(tiny.flops, "model_cost", lambda model: SimpleNamespace(forward=lambda read: 0))
        found = tiny.measure_imitation(model, dataset)
    assert found is not None
    return found


@pytest.mark.parametrize("dataset", [DATASET, SORTING], ids=["addition", "sorting"])
def test_it_is_told_by_which_of_the_two_is_nearer(dataset: base.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "PROMPTS", 100)
    between = measured(model_of(0.5, len(dataset.vocabulary)), dataset)
    assert between.corpus < between.guessing
    middle = (between.corpus + between.guessing) / 2
    better, worse = (
        measured(model_of(math.exp(-middle * factor), len(dataset.vocabulary)), dataset) for factor in (0.9, 1.1)
    )
    assert better.has_learnt
    assert better.problem(4) is None
    assert not worse.has_learnt
