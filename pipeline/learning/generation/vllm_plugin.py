"""Register what this package adds to vLLM: its entry point `vllm.general_plugins`.

Each process of every vLLM calls it in an environment that has this package, so it imports little.
"""

from pathlib import Path
from typing import Any

GUIDED = "GuidedForCausalLM"
"""Architecture of a policy and its guide as one model (`vllm_model`)."""


def register() -> None:
    """Register the model, unless a program has done so."""
    from vllm import ModelRegistry

    if GUIDED not in ModelRegistry.models:
        ModelRegistry.register_model(GUIDED, f"pipeline.learning.generation.vllm_model:{GUIDED}")


def guide_folder(vllm_config: Any) -> Path:
    """Return the folder of the value model: the one that is named, or that around the model."""
    named, served = (vllm_config.additional_config or {}).get("guide"), Path(vllm_config.model_config.model)
    return Path(named).expanduser() if named else served.resolve().parent
