"""Models are known by the content of their files, and refused where those cannot be loaded."""

import importlib.util
import json
import os
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from pipeline.config.plain import refuse_all, with_schema
from pipeline.config.schema import Attention, Config
from pipeline.errors import ConfigError
from pipeline.files import file_sha256
from pipeline.learning.datasets.from_files import FilesConfig
from pipeline.learning.models.kinds import HFModelConfig
from pipeline.learning.rewards.probe import answer
from pipeline.plan.build import build_plan
from pipeline.plan.compatibility import plain_attention, said_of_attention, usable_attention
from pipeline.plan.models import (
    check_models,
    count_weights,
    fetched_models,
    model_identities,
    read_models,
)
from pipeline.plan.rewards import check_chat_templates, check_pairs, check_tokenizers, row_problems
from tests.doubles.composing import quick_config


def saved(numbers: int = 1, name: str = "wte.weight") -> bytes:
    """A safetensors file with one tensor of zeros."""
    tensor = {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}
    header = json.dumps({"__metadata__": {"format": "pt"}, name: tensor}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4 * numbers)


def folder_of(path: Path, **config: object) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"model_type": "gpt2", **config}))
    (path / "model.safetensors").write_bytes(saved())
    (path / "tokenizer.json").write_text("{}")
    return path


def request(*overrides: str) -> Config:
    return quick_config(["experiment.name=t", "model=hf", *overrides])


def identity(path: Path | str, **settings: str) -> dict[str, dict[str, object]]:
    return model_identities(HFModelConfig(kind="hf", path=str(path), **settings), file_sha256)


def keys(config: Config) -> dict[str, str]:
    return {job.id: job.key for job in build_plan(config, models=read_models(config)).jobs.values()}


def test_where_a_model_is_kept_does_not_matter(tmp_path: Path) -> None:
    one = folder_of(tmp_path / "one")
    other = tmp_path / "elsewhere" / "other"
    shutil.copytree(one, other)
    (other / "README.md").write_text("about the model")
    (other / "pytorch_model.bin").write_bytes(b"never loaded")
    assert identity(one) == identity(other)
    assert keys(request(f"models.hf.path={one}")) == keys(request(f"models.hf.path={other}"))


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"),
        *("additional_chat_templates/tool_use.jinja", "sentencepiece.bpe.model", "tekken.json", "qwen.tiktoken"),
    ],
)
def test_every_file_that_is_loaded_matters(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path / "model")
    config = request(f"models.hf.path={folder}")
    before, keys_before = identity(folder), keys(config)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"{} ")
    assert identity(folder) != before
    assert not set(keys(config).values()) & set(keys_before.values())


def test_the_value_model_matters_to_what_uses_it_alone(tmp_path: Path) -> None:
    folder, value = folder_of(tmp_path / "model"), folder_of(tmp_path / "value", n_layer=1)
    without = keys(request(f"models.hf.path={folder}"))
    given = keys(request(f"models.hf.path={folder}", f"models.hf.value_path={value}"))
    (value / "model.safetensors").write_bytes(b"other weights")
    changed = keys(request(f"models.hf.path={folder}", f"models.hf.value_path={value}"))
    shared = {job for job in without if "/reference/" in job}
    assert shared
    assert {job for job in without if without[job] == given[job]} == shared
    assert {job for job in given if given[job] == changed[job]} == shared


def test_a_gguf_file_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF and so on")
    (tmp_path / "b.gguf").write_bytes(b"GGUF and so on")
    found = identity(tmp_path / "a.gguf")
    assert found == identity(tmp_path / "b.gguf")
    assert found["reference"]["bytes"] == 14


def test_a_model_on_the_hub_is_known_by_its_id_and_revision() -> None:
    assert identity("owner/name") == {"reference": {"hub": "owner/name", "revision": None}}
    assert identity("gpt2", revision="main") == {"reference": {"hub": "gpt2", "revision": "main"}}


def refused(path: Path | str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_models(request(f"models.hf.path={path}", *overrides))
    return str(caught.value)


def test_models_that_cannot_be_loaded_are_refused(tmp_path: Path) -> None:
    assert "no such file or folder" in refused("./nowhere")
    (tmp_path / "empty").mkdir()
    assert "cannot read" in refused(tmp_path / "empty")
    pickled = folder_of(tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    assert "weights in pickles are not" in refused(pickled)
    (tmp_path / "notes.txt").write_text("hello")
    assert "no GGUF file" in refused(tmp_path / "notes.txt")
    (tmp_path / "page.gguf").write_text("<html>")
    assert "begins with b'<htm'" in refused(tmp_path / "page.gguf")


WHOLE = saved(100)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 269060552\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (WHOLE[:-1], f"model.safetensors is cut off or damaged: it has {len(WHOLE) - 1} bytes"),
        (b"", "is cut off or damaged: it has 0 bytes"),
        (LFS, r"model.safetensors only names a file of Git LFS. Fetch that with `git lfs pull`"),
    ],
    ids=["one byte less", "empty", "Git LFS"],
)
def test_weights_that_are_not_whole_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    folder = folder_of(tmp_path / "model")
    for role in ("path", "value_path"):
        (folder / "model.safetensors").write_bytes(content)
        asked = [f"models.hf.{role}={folder}", *(["models.hf.path=owner/name"] if role == "value_path" else [])]
        with pytest.raises(ConfigError, match=rf"models\.hf\.{role}=.*: .*{said}"):
            check_models(request(*asked))
        (folder / "model.safetensors").write_bytes(WHOLE)
        check_models(request(*asked))


def test_a_missing_part_of_the_weights_is_told(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "consolidated.safetensors").write_bytes(b"the same weights in another form, which nobody loads")
    parts = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    named = {f"layer.{at}": part for at, part in enumerate(parts)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": named}))
    (folder / parts[0]).write_bytes(saved())
    assert f"{parts[1]} is missing, one of 2 files of weights that model.safetensors.index.json" in refused(folder)
    (folder / parts[1]).write_bytes(saved(7)[:-3])
    assert f"{parts[1]} is cut off" in refused(folder)
    (folder / parts[1]).write_bytes(saved(7, "wpe.weight"))
    config = request(f"models.hf.path={folder}")
    check_models(config)
    assert count_weights(config.models["hf"]) == 8


@pytest.mark.parametrize(
    ("key", "said", "there"), [("vocab_size", 7, 6), ("n_embd", 3, 4), ("n_layer", 3, 2), ("n_layer", 1, None)]
)
def test_weights_of_another_configuration_are_refused(
    tmp_path: Path, key: str, said: int, there: int | None
) -> None:
    """Unless a configuration leaves out layers: those that predict further tokens are in weights alone."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=6, n_embd=4, n_layer=2, n_head=1, n_positions=8)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    asked = request(f"models.hf.path={tmp_path / 'model'}")
    check_models(asked)
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: said}))
    refused = pytest.raises(ConfigError, match=rf"{key} is {said} .* {there} in the weights")
    with nullcontext() if there is None else refused:
        check_models(asked)


def test_a_model_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text("{}")  # which says how, not of what
    config = request(f"models.hf.path={folder}")
    with pytest.raises(ConfigError, match=r"models\.hf\.path=.*/model: the folder holds no tokenizer"):
        check_tokenizers(config)
    with pytest.raises(ConfigError, match=r"^evaluation\.also\.own=.*/model: the folder holds no tokenizer"):
        check_tokenizers(request(f"evaluation.also={{own: {folder}}}"))
    (folder / "spiece.model").write_bytes(b"pieces")
    check_tokenizers(config)


_SHORT = "generation.max_new_tokens=8"


def test_completions_that_fill_the_context_of_a_model_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", max_position_embeddings=64)
    (folder / "tokenizer.json").rename(folder / "spiece.model")
    own = f"evaluation.also={{own: {folder}}}"
    for words, key in (
        ([own, "generation.max_new_tokens=64"], "generation.max_new_tokens=64"),
        ([own, _SHORT, "datasets.jsonl.sampling.max_new_tokens=64"], "datasets.jsonl.sampling.max_new_tokens=64"),
    ):
        with pytest.raises(ConfigError, match=rf"^{re.escape(key)} .*evaluation\.also\.own=.* has 64 tokens"):
            check_tokenizers(request("dataset=jsonl", "datasets.jsonl.path=rows.jsonl", *words))
        shorter = [word.replace("tokens=64", "tokens=63") for word in words]
        check_tokenizers(request("dataset=jsonl", "datasets.jsonl.path=rows.jsonl", *shorter))
    check_tokenizers(request(own, "generation.max_new_tokens=64"))  # of addition, whose answers are shorter


def test_code_that_comes_with_a_model_needs_consent(tmp_path: Path) -> None:
    code = {"AutoModelForCausalLM": "modeling_x.X"}
    folder = folder_of(tmp_path / "model", model_type="own", auto_map=code)
    assert "models.hf.trust_remote_code=true" in refused(folder)
    check_models(request(f"models.hf.path={folder}", "models.hf.trust_remote_code=true"))
    # What transformers knows by itself is loaded by its own code.
    check_models(request(f"models.hf.path={folder_of(tmp_path / 'known', model_type='phi3', auto_map=code)}"))


def test_a_conversation_needs_a_chat_template(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    config = request(f"models.hf.path={folder}", "dataset=jsonl", "datasets.jsonl.chat=true")
    with pytest.raises(ConfigError, match=r"datasets\.jsonl\.chat=true .* has no chat template"):
        check_chat_templates(config)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    check_chat_templates(config)
    (folder / "tokenizer_config.json").unlink()
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    check_chat_templates(config)
    check_chat_templates(request("models.hf.path=owner/name", "dataset=jsonl", "datasets.jsonl.chat=true"))


FLASH = ["experiment.name=t", "system.attn_impl=flash_attention_2"]


@pytest.mark.parametrize(
    ("gpu", "installed", "said"),
    [(False, True, "this run uses none"), (True, False, "not installed"), (True, True, None)],
    ids=["no GPU", "no package", "usable"],
)
def test_flash_attention_gives_way_to_what_there_is(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, installed: bool, said: str | None
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    config, warning = usable_attention(quick_config(FLASH), gpu)
    assert (said or "") in (warning or "")
    assert config.system.attn_impl is (Attention.sdpa if warning else Attention.flash_attention_2)
    assert bool(warning) == bool(said)


def test_a_model_without_fused_attention_has_keys_that_say_so(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", model_type="gemma2")
    asked = request(f"models.hf.path={folder}")
    plain = plain_attention(asked)
    assert plain == {"hf"}
    assert "no such attention for hf; using eager" in (said_of_attention(plain) or "")
    jobs = build_plan(asked, models=read_models(asked), plain_attention=plain).jobs.values()
    assert plain_attention(request("models.hf.path=google/gemma-2-2b")) == frozenset()  # no machine guesses
    eager = request(f"models.hf.path={folder}", "system.attn_impl=eager")
    assert plain_attention(eager) == frozenset()
    assert {job.id: job.key for job in jobs} == keys(eager)
    used = {job.payload["config"]["system"]["attn_impl"] for job in jobs if "system" in job.payload["config"]}
    assert used == {"eager"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "t5 is an encoder with a decoder"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "bert is no causal language model: it is"),
        ({"model_type": "bart", "architectures": ["BartForCausalLM"]}, "it counts positions of tokens from"),
        ({"architectures": ["GPT2ForSequenceClassification"]}, "saved as GPT2ForSequenceClassification, without"),
        ({"model_type": "no_such_family"}, r"knows no models of the type 'no_such_family'.* pip install -U"),
    ],
)
def test_what_continues_no_texts_is_refused_before_anything_starts(
    tmp_path: Path, config: dict[str, object], said: str
) -> None:
    folder = folder_of(tmp_path / "model", **config)
    with pytest.raises(ConfigError, match=f"models.hf.path=.*{said}"):
        check_models(request(f"models.hf.path={folder}"))


def test_files_that_may_not_be_read_are_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path / "model")
    config, stat = request(f"models.hf.path={folder}"), Path.stat

    def refused(path: Path, **how: bool) -> os.stat_result:
        if folder in path.parents:  # as for a user without the right to enter it; root always has that
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refused)
        with pytest.raises(ConfigError, match=r"models\.hf\.path=.*/model: cannot read .*Permission denied"):
            check_models(config)
        assert count_weights(config.models["hf"]) == 0
        with pytest.raises(ConfigError, match=r"/model: cannot read .*Permission denied"):
            read_models(config)
    check_models(config)


def adapters_of(base: Path | str, path: Path) -> Path:
    path.mkdir()
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base)}
    (path / "adapter_config.json").write_text(json.dumps(settings))
    (path / "adapter_model.safetensors").write_bytes(saved(name="base_model.model.wte.lora_A.weight"))
    return path


def test_adapters_are_a_model_by_their_own_content_and_that_of_their_base(tmp_path: Path) -> None:
    base = folder_of(tmp_path / "base", tie_word_embeddings=True)
    (base / "model.safetensors").write_bytes(saved(50))
    folder = adapters_of(base, tmp_path / "adapters")
    config = request(f"models.hf.path={folder}", f"models.hf.value_path={folder}")
    check_models(config)
    check_tokenizers(request(f"models.hf.path={folder}"))
    assert count_weights(config.models["hf"]) == 50
    (folder / "config.json").write_text("{}")  # of the base, as some trainers leave it
    check_models(config)
    before = identity(folder)
    (base / "model.safetensors").write_bytes(saved(60))
    other_base = identity(folder)
    (folder / "adapter_model.safetensors").write_bytes(saved(2, "base_model.model.wte.lora_A.weight"))
    assert len({str(one) for one in (before, other_base, identity(folder))}) == 3


def test_adapters_whose_base_is_of_no_use_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = adapters_of(tmp_path / "gone", tmp_path / "adapters")
    assert "base_model_name_or_path of their adapter_config.json" in refused(folder)
    few = folder_of(tmp_path / "few", model_type="llama", quantization_config={"bits": 4})
    assert "base_model_name_or_path" in refused(adapters_of(few, tmp_path / "of few bits"))
    cut = adapters_of(folder_of(tmp_path / "base"), tmp_path / "cut")
    (cut / "adapter_model.safetensors").write_bytes(b"")
    assert "adapter_model.safetensors is cut off" in refused(cut)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = request(f"models.hf.path={adapters_of('me/base', tmp_path / 'of a hub id')}")
    with pytest.raises(ConfigError, match=r"adapters of me/base \(base_model_name_or_path of .*HF_HUB_OFFLINE"):
        fetched_models(config, ["models.hf"])


def test_faults_of_a_checkpoint_are_told_by_what_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"^evaluation\.also\.own=\S+: there is no such file"):
        check_models(request(f"evaluation.also={{own: {tmp_path}/none}}"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"^evaluation\.also\.own=me/base: there is no folder me/base"):
        fetched_models(request("evaluation.also={own: me/base}"), ["algos.own"])


EXISTING = ["experiment.name=t", "algos=[DPO]", "algos.DPO.pairs=existing"]


def test_a_dataset_that_makes_rows_without_pairs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algos\.DPO\.pairs=existing: datasets\.addition has no pairs"):
        check_pairs(quick_config(EXISTING))


@pytest.mark.parametrize("pair", [{}, {"chosen": "b", "rejected": "c"}], ids=["without pairs", "with pairs"])
def test_files_without_pairs_are_refused_by_their_first_rows(tmp_path: Path, pair: dict[str, str]) -> None:
    lines = [json.dumps({"prompt": f"a{n}", "solution": "1", **pair}) + "\n" for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    config = quick_config(EXISTING)
    said = answer({"mine": with_schema(FilesConfig(kind="jsonl", path=str(tmp_path / "rows.jsonl")))}, ["mine"])
    assert list(said["unpaired"]) == ([] if pair else ["mine"])
    with nullcontext() if pair else pytest.raises(ConfigError, match=r"datasets\.mine has no pairs"):
        refuse_all(list(row_problems(config, said)))


def test_completions_with_labels_are_enough_for_kto_alone() -> None:
    labelled = {"unpaired": {"mine": ["prompt", "label"]}, "unanswered": {}, "texts": []}
    kto = quick_config(["experiment.name=t", "algos=[KTO]", "algos.KTO.pairs=existing"])
    assert not list(row_problems(kto, labelled))
    (said,) = row_problems(quick_config([*EXISTING, "algos=[KTO,DPO]", "algos.KTO.pairs=existing"]), labelled)
    assert said.startswith("algos.DPO.pairs=existing: datasets.mine has no pairs")
    with pytest.raises(ConfigError, match="or completion and label, but have"):
        check_pairs(quick_config(["experiment.name=t", "algos=[KTO]", "algos.KTO.pairs=existing"]))


def test_a_reward_model_needs_the_pairs_that_it_is_to_be_fitted_to() -> None:
    with pytest.raises(ConfigError, match=r"algos\.RM\.pairs=existing: datasets\.addition has no pairs"):
        check_pairs(quick_config(["experiment.name=t", "algos=[RM]", "algos.RM.pairs=existing"]))


@pytest.mark.parametrize("label", [True, None, "yes"])
def test_labels_that_are_neither_true_nor_false_are_refused(tmp_path: Path, label: object) -> None:
    lines = [
        json.dumps({"prompt": f"a{n}", "completion": "b", "solution": "b", "label": label if n else True})
        for n in range(30)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    said = answer({"mine": with_schema(FilesConfig(kind="jsonl", path=str(tmp_path / "rows.jsonl")))}, ["mine"])
    config = quick_config(["experiment.name=t", "algos=[KTO]", "algos.KTO.pairs=existing"])
    with (
        nullcontext()
        if label is True
        else pytest.raises(ConfigError, match=r"label \(neither .* in 29 of 30 rows")
    ):
        refuse_all(list(row_problems(config, said)))


def test_completions_of_a_dataset_that_makes_none_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"algos\.SFT imitates .*: datasets\.addition: its rows have") as said:
        check_pairs(quick_config(["experiment.name=t", "algos=[SFT]"]))
    assert "datasets.addition.columns" not in str(said.value)  # there is no such setting


@pytest.mark.parametrize(
    ("rows", "unanswered"),
    [
        ([{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": None}], [5, 10]),
        ([{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}], None),
        ([{"instruction": "a", "output": "b"}], None),
        ([{"prompt": "a", "chosen": "b", "rejected": "d"}], None),
        ([{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}], None),
        ([{"messages": [{"role": "user", "content": "a"}]}], None),
        ([{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}], None),
    ],
    ids=["half", "all", "Alpaca", "pairs", "messages", "messages that end with a question", "ShareGPT"],
)
def test_files_with_rows_without_completions_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], unanswered: list[int] | None
) -> None:
    lines = [json.dumps({**rows[n % len(rows)], "solution": "1"}) + "\n" for n in range(10)]
    lines = [line.replace('"a"', f'"a{n}"').replace('"c"', f'"c{n}"') for n, line in enumerate(lines)]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    mine = FilesConfig(kind="jsonl", path=str(tmp_path / "rows.jsonl"), test_size=1, validation_size=1)
    said = answer({"mine": with_schema(mine)}, ["mine"])
    assert said["unanswered"] == ({} if unanswered is None else {"mine": unanswered})
    with (
        nullcontext()
        if unanswered is None
        else pytest.raises(ConfigError, match="5 of its first 10 rows have none")
    ):
        refuse_all(list(row_problems(quick_config(["experiment.name=t", "algos=[SFT]"]), said)))
    turns = quick_config(["experiment.name=t", "algos=[SFT]", "algos.SFT.assistant_only_loss=true"])
    assert bool(said["texts"]) != bool(said["conversations"])
    with pytest.raises(ConfigError, match="are text") if said["texts"] else nullcontext():
        refuse_all(list(row_problems(turns, {**said, "unanswered": {}})))


# -- rewards -----------------------------------------------------------------------------------------------------


def check_reward(path: Path, **settings: object) -> None:
    """Check a request whose reward is a model."""
    options = ", ".join(f"{name}: {value}" for name, value in {"path": path, **settings}.items())
    given = ["datasets.addition.reward=model", f"datasets.addition.grading.options={{model: {{{options}}}}}"]
    config = quick_config(["experiment.name=t", *given])
    check_models(config)
    check_tokenizers(config)


ONE = {"id2label": {"0": "LABEL_0"}}


def classifier_in(path: Path, **config: object) -> Path:
    folder = folder_of(path, **config)
    (folder / "model.safetensors").write_bytes(saved(name="score.weight"))
    Tokenizer(WordLevel({"it": 0, "is": 1}, unk_token="it")).save(str(folder / "tokenizer.json"))
    return folder


def test_a_reward_model_is_taken_with_one_output_or_with_a_label(tmp_path: Path) -> None:
    one, two = classifier_in(tmp_path / "one", **ONE), classifier_in(tmp_path / "two")
    check_reward(one)
    check_reward(two, label=1)
    check_reward(two, label="LABEL_0")


@pytest.mark.parametrize(
    ("broken", "settings"),
    [
        ("nowhere", {}),
        ("no head", {}),
        ("cut off", {}),
        ("pickle", {}),
        ("no tokenizer", {}),
        ("unknown kind", {}),
        ("too few embeddings", {}),
        ("two classes", {}),
        ("two classes", {"label": 5}),
        ("one", {"label": 5}),
        ("one", {"labels": 0}),
    ],
)
def test_a_reward_model_that_cannot_score_is_refused_before_anything_starts(
    tmp_path: Path, broken: str, settings: dict[str, object]
) -> None:
    folder = classifier_in(tmp_path / "rm", **({} if broken == "two classes" else ONE))
    weights = folder / "model.safetensors"
    if broken == "nowhere":
        shutil.rmtree(folder)
    elif broken == "no head":
        weights.write_bytes(saved())
    elif broken == "cut off":
        weights.write_bytes(weights.read_bytes()[:-2])
    elif broken == "pickle":
        weights.rename(folder / "pytorch_model.bin")
    elif broken == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    elif broken == "unknown kind":
        (folder / "config.json").write_text('{"model_type": "none of these"}')
    elif broken == "too few embeddings":
        (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 1, **ONE}))
    with pytest.raises(ConfigError, match=r"grading\.options\.model\.\w"):
        check_reward(folder, **settings)
