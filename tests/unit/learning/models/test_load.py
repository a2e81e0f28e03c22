"""Models of other makers: GGUF files, folders that move, several ends of text, contexts that are too short."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from pipeline.config import schema
from pipeline.errors import ConfigError, DataError, JobError
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets import base, from_files, shipped
from pipeline.learning.generation import decode, sampling
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.models import flops, load, source, tiny
from pipeline.learning.models.kinds import HFModelConfig
from pipeline.learning.models.tensor_parallel import split_options
from pipeline.learning.models.value import value_model_from
from pipeline.learning.training.distributed import Ranks, Spread
from pipeline.plan.rewards import check_tokenizers, has_chat_template, read_vocabulary
from tests.doubles import wide
from tests.doubles.composing import quick_config
from tests.doubles.families import tiny_model
from tests.doubles.gguf import TOKENS, write_gguf

SYSTEM = schema.SystemConfig()


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_weights_may_stay_in_their_file_in_the_type_that_they_have_there(tmp_path: Path, family: str) -> None:
    """Gemma's embeddings are multiplied by a number that is computed, which bfloat16 would round."""
    tiny_model(family).to(torch.bfloat16).save_pretrained(tmp_path)
    stored, exact = (load.load_policy(tmp_path, SYSTEM, "cpu", as_stored=flag) for flag in (True, False))
    assert {weight.dtype for weight in stored.parameters()} == {torch.bfloat16}
    ours, theirs = ({**dict(one.named_parameters()), **dict(one.named_buffers())} for one in (stored, exact))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor.to(theirs[name].dtype), theirs[name]), name


@pytest.mark.parametrize("several", [False, True])
def test_no_weight_is_rounded_for_what_a_configuration_or_another_weight_says(
    tmp_path: Path, several: bool
) -> None:
    model = tiny_model("llama")
    if several:
        model.get_input_embeddings().to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    stored = dict(load.load_policy(tmp_path, SYSTEM, "cpu", as_stored=True).named_parameters())
    for name, weight in model.named_parameters():
        assert stored[name].dtype == torch.float32
        assert torch.equal(stored[name], weight.float()), name


def test_saved_tokenizers_are_the_same_bytes_whatever_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a cluster sets, and where the folder lay, changes no byte of an output."""
    given, found = tmp_path / "given", []
    load.save_tokenizer(tiny.make_tokenizer(base.load_dataset(shipped.AdditionConfig(kind="addition"))), given)
    for offline in (False, True):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        place, out = tmp_path / f"copy {offline}", tmp_path / f"out {offline}"
        load.save_tokenizer(load.load_tokenizer(shutil.copytree(given, place)), out)
        found.append({file.name: file.read_bytes() for file in out.iterdir()})
    assert found[0] == found[1]
    assert b"local_files_only" not in found[0]["tokenizer_config.json"]


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny model.gguf")


@pytest.fixture(scope="module")
def folder(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plain")
    load.convert(gguf_file, out)
    return out


def test_a_gguf_file_becomes_a_plain_folder(gguf_file: Path, folder: Path) -> None:
    plain = hf.AutoModelForCausalLM.from_pretrained(folder)
    direct = hf.AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
    )
    ids = torch.tensor([[1, 3, 4, 5]])
    assert torch.equal(plain(ids).logits, direct(ids).logits)
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert str(gguf_file.parent) not in (folder / "config.json").read_text()


def test_a_damaged_gguf_file_is_told(gguf_file: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf_file.read_bytes()[:700])
    with pytest.raises(JobError, match=r"cannot read .*cut\.gguf as a model"):
        load.convert(cut, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"cut\.gguf: cannot be read as a GGUF file"):
        has_chat_template(str(cut))


def test_what_planning_reads_of_a_gguf_file_is_what_the_model_has(gguf_file: Path, folder: Path) -> None:
    assert read_vocabulary("models.x.path", str(gguf_file)) == read_vocabulary("models.x.path", str(folder))
    assert has_chat_template(str(gguf_file)) is has_chat_template(str(folder)) is True


def test_a_value_model_of_another_family_is_refused(gguf_file: Path, folder: Path, tmp_path: Path) -> None:
    other = write_gguf(tmp_path / "other.gguf", [*TOKENS[:-2], TOKENS[-1], TOKENS[-2]])
    request = ["experiment.name=t", "model=hf"]
    check_tokenizers(quick_config([*request, f"models.hf.path={folder}", f"models.hf.value_path='{gguf_file}'"]))
    with pytest.raises(ConfigError, match="share no tokenizer: token 'Ġ' has id 11 in the one and is id 12"):
        check_tokenizers(quick_config([*request, f"models.hf.path={folder}", f"models.hf.value_path={other}"]))


@pytest.mark.parametrize("place", ["path", "value_path"])
def test_so_is_one_that_has_no_weights_for_some_tokens(place: str, folder: Path, tmp_path: Path) -> None:
    value = tmp_path / "value"
    shutil.copytree(folder, value)
    config = json.loads((value / "config.json").read_text())
    request = ["experiment.name=t", "model=hf", f"models.hf.path={folder}", f"models.hf.{place}={value}"]
    (value / "config.json").write_text(json.dumps({**config, "vocab_size": len(TOKENS)}))
    check_tokenizers(quick_config(request))
    (value / "config.json").write_text(json.dumps({**config, "vocab_size": len(TOKENS) - 1}))
    with pytest.raises(ConfigError, match=f"has {len(TOKENS)} tokens and its embedding {len(TOKENS) - 1} rows"):
        check_tokenizers(quick_config(request))


def test_a_gguf_reference_is_its_own_output(gguf_file: Path, tmp_path: Path) -> None:
    config = HFModelConfig(kind="hf", path=str(gguf_file))
    source.write_reference(config, tmp_path)
    assert source.reference_folder(tmp_path, config) == str(tmp_path)
    assert load.load_policy(tmp_path, SYSTEM, "cpu").num_parameters() > 0


def test_the_backbone_of_value_models_may_be_another(gguf_file: Path, folder: Path, tmp_path: Path) -> None:
    assert source.value_folder(HFModelConfig(kind="hf", path="x"), tmp_path) is None
    assert source.value_folder(HFModelConfig(kind="hf", path="x", value_path=str(folder)), tmp_path) == str(folder)
    assert source.value_context(HFModelConfig(kind="hf", path="x")) is None
    assert source.value_context(HFModelConfig(kind="hf", path="x", value_path=str(folder))) == 64
    made = source.value_folder(HFModelConfig(kind="hf", path="x", value_path=str(gguf_file)), tmp_path / "made")
    assert load.load_policy(str(made), SYSTEM, "cpu").config.hidden_size == 32


def test_attention_gives_way_to_what_the_model_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model("bloom")
    model.save_pretrained(tmp_path / "policy")
    value_model_from(model, HeadType.v).save_pretrained(tmp_path / "value")
    assert load.load_policy(tmp_path / "policy", SYSTEM, "cpu").config._attn_implementation == "eager"
    assert load.load_value(tmp_path / "value", SYSTEM, "cpu").backbone.config._attn_implementation == "eager"
    assert caplog.messages == ["transformers has bloom without sdpa attention; using eager"] * 2


def test_a_model_of_which_weights_are_in_no_file_is_refused(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path / "policy")
    value_model_from(model, HeadType.q).save_pretrained(tmp_path / "value")
    for kind, read in {"policy": load.load_policy, "value": load.load_value}.items():
        weights = tmp_path / kind / "model.safetensors"
        held = load_file(weights)
        lost = next(name for name in held if name.endswith("layers.1.mlp.up_proj.weight"))
        tensor = held.pop(lost)
        for found in (held, held | {lost: tensor[:-1]}):
            save_file(found, weights, {"format": "pt"})
            with pytest.raises(JobError, match=rf"{kind}: its files lack 1 of the tensors .* such as {lost}"):
                read(tmp_path / kind, SYSTEM, "cpu")
    model.config.num_hidden_layers += 1
    model.config.save_pretrained(tmp_path / "policy")
    with pytest.raises(JobError, match=r"its files lack \d\d of the tensors"):
        load.load_policy(tmp_path / "policy", SYSTEM, "cpu")


def test_the_backbone_of_a_value_model_needs_no_output_layer(tmp_path: Path) -> None:
    model = tiny_model("llama")
    assert not model.config.tie_word_embeddings
    model.model.save_pretrained(tmp_path)
    backbone = load.load_policy(tmp_path, SYSTEM, "cpu", for_values=True)
    assert torch.equal(backbone.model.norm.weight, model.model.norm.weight)
    value_model_from(backbone, HeadType.v)
    with pytest.raises(JobError, match="without the head that gives probabilities"):
        load.load_policy(tmp_path, SYSTEM, "cpu")


def test_a_model_that_the_hub_does_not_give_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(JobError, match=r"cannot get the model 'owner/name' at revision v1 from the hub"):
        source.snapshot("owner/name", "v1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-hf").mkdir()
    (tmp_path / "tiny-hf" / "config.json").write_text("{}")
    with pytest.raises(JobError, match=r"There is no folder tiny_hf here, but tiny-hf\. On a machine"):
        source.snapshot("tiny_hf", None)


def test_of_a_model_that_is_of_no_use_the_configuration_alone_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched(repo: str, file: str, **_: object) -> str:
        (tmp_path / file).write_text('{"model_type": "no_such_family"}')
        return str(tmp_path / file)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetched)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("it was fetched"))
    with pytest.raises(JobError, match=r"owner/name: transformers .* knows no models of the type 'no_such"):
        source.write_reference(HFModelConfig(kind="hf", path="owner/name"), tmp_path / "out")


def policy(folder: Path, **generation: object) -> TextPolicy:
    model, tokenizer = load.load_policy(folder, SYSTEM, "cpu"), hf.AutoTokenizer.from_pretrained(folder)
    model.generation_config = hf.GenerationConfig(eos_token_id=[2, 5, 6, 7])
    dataset = base.load_dataset(from_files.FilesConfig(kind="jsonl", path="unread.jsonl"))
    return TextPolicy(model, tokenizer, schema.GenerationConfig(**generation), dataset, "cpu")


def test_a_completion_stops_at_any_of_them(folder: Path) -> None:
    writer = policy(folder, max_new_tokens=20)
    assert writer.end_ids == (2, 5, 6, 7)
    decoded = writer.complete([[1, 3]] * 20, sampling.sample_keys(0, "x", np.arange(20), 1))
    assert len({tokens[-1] for tokens in decoded.tokens if len(tokens) < 20}) > 1
    assert not any(token in writer.end_ids for tokens in decoded.tokens for token in tokens[:-1])
    for tokens in decoded.tokens:
        ended = tokens[-1] in writer.end_ids
        assert ended or len(tokens) == 20
        assert writer.truncated(tokens) is not ended


def test_a_prompt_that_does_not_fit_is_refused_or_cut(folder: Path) -> None:
    long = [1] + [3 + position % 8 for position in range(60)]
    strict = policy(folder, max_new_tokens=14)
    assert load.context_length(load.load_policy(folder, SYSTEM, "cpu")) == 64
    assert strict.fitted([long[:50]]) == [long[:50]]
    with pytest.raises(DataError, match=r"a prompt of 51 tokens .* has room for 50 .*long_prompts=truncate"):
        strict.fitted([[1], long[:51]])
    cutting = policy(folder, max_new_tokens=14, long_prompts=schema.LongPrompts.truncate)
    assert cutting.fitted([[1], long]) == [[1], long[-50:]]
    with pytest.raises(DataError, match=r"max_new_tokens=64 leaves no room"):
        policy(folder, max_new_tokens=64).fitted([[1]])


_SHORT = {"rope_type": "default", "rope_theta": 1e4}
_LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
_FROM_128 = {"original_max_position_embeddings": 128}


def _of_512(rope: dict[str, Any], **settings: Any) -> hf.PreTrainedConfig:
    return hf.PreTrainedConfig(max_position_embeddings=512, rope_parameters=rope, **settings)


@pytest.mark.parametrize(
    ("config", "context"),
    [
        (hf.Phi3Config(hidden_size=4096, max_position_embeddings=131072, rope_parameters=_LONG), 4096),
        (_of_512({"type": "su"}, original_max_position_embeddings=64), 64),
        (hf.LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}), 2048),
        (_of_512({"sliding_attention": _SHORT, "full_attention": _LONG | _FROM_128}), 128),
    ],
    ids=["longrope outside", "su of a model's own code", "dynamic", "by type of layer"],
)
def test_a_context_ends_where_texts_would_follow_from_longer_ones_beside_them(
    config: hf.PreTrainedConfig, context: int
) -> None:
    assert load.config_context(config) == context
    assert load.length_beside_others(config) in (None, context)


def test_a_build_of_torch_that_would_split_a_model_over_other_devices_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(0, 2, "cpu", Spread(by_tensors=True))
    config = tiny_model("llama").config
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    with pytest.raises(JobError, match=r"over devices of the kind cuda alone, and the job is on cpu. Use gen"):
        split_options(config, ranks, "model")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    assert split_options(config, ranks, "model").keys() == {"distributed_config"}


# -- quantization ------------------------------------------------------------


@pytest.mark.parametrize(("bits", "share", "off"), [(8, 0.45, 0.3), (4, 0.35, 1.2)])
def test_a_model_in_few_bits_is_smaller_and_near(tmp_path: Path, bits: int, share: float, off: float) -> None:
    """Of random weights, whose errors do not shrink with anything that was learnt."""
    pytest.importorskip("bitsandbytes")
    whole = wide.policy()
    whole.save_pretrained(tmp_path)
    small = load.load_policy(tmp_path, schema.SystemConfig(), "cpu", bits=bits)
    sizes = [sum(one.numel() * one.element_size() for one in model.parameters()) for model in (small, whole)]
    assert sizes[0] < share * sizes[1]
    ids = torch.tensor([wide.PROMPTS[1]])
    with torch.inference_mode():
        few, exact = (model(input_ids=ids).logits for model in (small, whole))
    assert 0 < (few - exact).std() < off * exact.std()
    cost = flops.model_cost(small)
    assert (cost.body, cost.head) == (flops.model_cost(whole).body, flops.model_cost(whole).head)
    texts = [decode.decode(small, wide.PROMPTS, [8] * 3, wide.SETTINGS, keys=None).tokens for _ in range(2)]
    assert texts[0] == texts[1]
