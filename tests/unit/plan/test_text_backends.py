"""A backend that cannot serve a request is refused before anything starts, and keys name one that does."""

import importlib.metadata
import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.install import install_command
from pipeline.config.schema import Config
from pipeline.errors import ConfigError
from pipeline.plan.build import build_plan
from pipeline.plan.compatibility import check_text_backend
from tests.doubles.composing import quick_config

PINS = ("torch==2.13.0", "transformers<5.18.0,>=5.10.4", 'torch==1.0; extra == "old"', "numpy")


def request(backend: str, *settings: str) -> Config:
    return quick_config(["experiment.name=t", f"generation.backend={backend}", *settings])


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says which versions there are; of what is left out there is none."""

    def install(**versions: str) -> None:
        def version(name: str) -> str:
            if name not in versions:
                raise PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(importlib.metadata, "version", version)
        monkeypatch.setattr(importlib.metadata, "requires", lambda _: list(PINS))

    return install


def refused(config: Config, gpu: bool) -> str:
    with pytest.raises(ConfigError) as refusal:
        check_text_backend(config, gpu=gpu)
    return str(refusal.value)


def test_what_ships_is_taken() -> None:
    check_text_backend(request("own"), gpu=False)
    check_text_backend(request("transformers"), gpu=False)


def test_vllm_that_is_not_there_is_refused_with_what_to_install(installed: Callable[..., None]) -> None:
    installed()
    assert refused(request("vllm"), gpu=True) == (
        f"generation.backend=vllm needs a package: {install_command('vllm')}, or use generation.backend=own"
    )
    without_gpus = refused(request("vllm"), gpu=False)
    assert "on GPUs, and this run has CPU slots" in without_gpus
    assert "needs a package" not in without_gpus


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"torch": "2.11.0", "transformers": "5.12.0"}, "made for torch==2.13.0, and torch 2.11.0"),
        ({"torch": "2.13.0+cu130", "transformers": "5.23.0"}, ">=5.10.4, and transformers 5.23.0"),
        ({"torch": "2.13.0+cu130", "transformers": "5.12.0"}, None),
    ],
)
def test_vllm_that_was_made_for_other_versions_is_refused(
    installed: Callable[..., None], versions: dict[str, str], said: str | None
) -> None:
    installed(vllm="0.31.0", **versions)
    if said is None:
        check_text_backend(request("vllm"), gpu=True)
        return
    message = refused(request("vllm"), gpu=True)
    assert said in message
    assert install_command("vllm") in message


def test_an_old_transformers_is_refused(installed: Callable[..., None]) -> None:
    installed(transformers="5.12.0")
    assert "it needs transformers 5.23, and 5.12.0 is installed" in refused(request("transformers"), gpu=False)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention"]}, "has layers of linear_attention"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 8}, "has latent attention"),
        ({"model_type": "gptj"}, "by code of its own"),
    ],
)
def test_models_that_it_decodes_wrongly_are_refused(tmp_path: Path, model: dict[str, Any], why: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(model))
    config = request("transformers", "model=hf", f"models.hf.path={tmp_path}")
    message = refused(config, gpu=False)
    assert why in message
    assert f"models.hf.path={tmp_path}" in message


def test_keys_name_the_backend_of_what_it_draws() -> None:
    """Not where a method guides, though it may draw from the reference as it is; nor where nothing is drawn."""
    plans = {
        name: build_plan(request(name, "algos=[PITA,DPO,BestOfN]")).jobs
        for name in ("own", "transformers", "vllm")
    }
    named = set()
    for job in plans["own"].values():
        others = {name: plans[name][job.id] for name in ("transformers", "vllm")}
        for name, other in others.items():
            told = other.determined_by["config"].get("generation", {}).get("backend")
            given = other.payload["config"].get("generation", {}).get("backend")
            assert (told, given) in [(None, None), (None, "own"), (name, name)]
            if told:
                named.add((job.algo, job.stage))
        if job.algo == "PITA" and job.stage in ("generate", "train"):
            assert {other.key for other in others.values()} == {job.key}
        if (job.algo, job.stage) in named:
            assert len({job.key, *(other.key for other in others.values())}) == 3
    assert named == {
        ("reference", "evaluate"),
        ("DPO", "generate"),
        ("DPO", "evaluate"),
        ("BestOfN", "generate"),
        ("BestOfN", "evaluate"),
    }
