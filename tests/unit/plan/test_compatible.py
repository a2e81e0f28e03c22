"""What devices and packages do not go with is refused before anything starts."""

import importlib.metadata
from importlib.metadata import PackageNotFoundError

import pytest

from pipeline.errors import ConfigError, install_command
from pipeline.plan.compatibility import check_compatible
from tests.doubles.composing import quick_config

BITS = ["model=hf", "models.hf.path=some/model", "models.hf.quantization=4bit"]


@pytest.mark.parametrize(
    ("settings", "gpu", "release", "said"),
    [
        ([], False, None, None),
        (["generation.backend=vllm"], True, None, install_command("vllm")),
        (["generation.backend=vllm"], False, None, "generation.backend=own"),
        (["generation.backend=vllm"], True, "0.31", None),
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
    def version(name: str) -> str:
        if release is None:
            raise PackageNotFoundError(name)
        return release

    config = quick_config(["experiment.name=t", "algos=[PITA]", *settings])
    monkeypatch.setattr(importlib.metadata, "version", version)
    if said is None:
        check_compatible(config, gpu=gpu)
        return
    with pytest.raises(ConfigError) as refused:
        check_compatible(config, gpu=gpu)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
