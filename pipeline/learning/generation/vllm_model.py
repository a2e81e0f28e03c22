"""A policy and the value model that guides it by a Q head, as one model of vLLM, which reads both in each step.

Both are vLLM's own classes, so the keys and values of both are in its blocks: what it shares, drops or reads in
parts of one, it does of the other. A row of the logits goes on with the values of the same row, so that nothing
can come between a policy's row and its guide's; `vllm_draws` takes them apart. Shapes: T tokens of a step, n rows
that are drawn, V tokens of the policy, W values of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from vllm import ModelRegistry
from vllm.compilation.backends import set_model_tag
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models.utils import AutoWeightsLoader, init_vllm_registered_model, maybe_prefix
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from pipeline.errors import ConfigError
from pipeline.learning.choices import HeadType
from pipeline.learning.generation.row_models import Way, reading_of
from pipeline.learning.generation.vllm_plugin import GUIDED, guide_folder
from pipeline.learning.memory.shape import head_size
from pipeline.learning.models.value import HEAD_WEIGHTS, head_settings, width_of

POLICY, GUIDE, HEAD = "policy", "guide", "value_head"
"""Parts of the model, which its weights are named by."""


class GuidedForCausalLM(nn.Module):
    """Computes logits of a policy beside the values of its guide.

    The policy's folder is that of vLLM's model. The guide is the value model that is saved in the folder around
    it, or in that of `additional_config["guide"]`; its weights are read from there, unless they come from memory.
    """

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        """Make both models by vLLM's classes for their architectures."""
        super().__init__()
        folder, policy = guide_folder(vllm_config), vllm_config.model_config.hf_config
        head, atoms = head_settings(folder)
        if head is not HeadType.q:
            raise ConfigError(f"{folder} has no Q head, so it is no part of a {GUIDED}: leave out --hf-overrides")
        self.policy = init_vllm_registered_model(
            vllm_config,
            hf_config=policy,
            architectures=[architecture_of(policy)],
            prefix=maybe_prefix(prefix, POLICY),
        )
        shape = AutoConfig.from_pretrained(folder)
        shape.tie_word_embeddings = True  # the layer for logits needs no memory
        own = vllm_config.with_hf_config(shape, architectures=[architecture_of(shape)])
        own.model_config.hf_text_config = shape
        own.model_config.model_arch_config = own.model_config.get_model_arch_config()
        with set_model_tag(GUIDE):  # what is compiled of the two is kept apart
            self.guide = initialize_model(own, prefix=maybe_prefix(prefix, GUIDE))
        for name, layer in list(self.guide.named_children()):
            if isinstance(layer, ParallelLMHead):
                setattr(self.guide, name, nn.Identity())
        self.value_head = nn.Linear(width_of(shape), shape.vocab_size * atoms)
        self._head = folder / HEAD_WEIGHTS
        inside = getattr(transformers, architecture_of(shape)).base_model_prefix
        self.secondary_weights = (
            DefaultModelLoader.Source(
                str(folder), None, prefix=f"{GUIDE}.{inside}.", allow_patterns_overrides=["model*.safetensors"]
            ),
        )

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return the policy's embeddings, which nothing asks for: tokens are given."""
        embeddings: Tensor = self.policy.embed_input_ids(input_ids)
        return embeddings

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states of both, side by side, shape [T, ...]."""
        # A copy: where vLLM records parts of models as CUDA graphs, the memory of a result is free for the graphs
        # that are recorded next.
        of_policy = self.policy(input_ids, positions, intermediate_tensors, inputs_embeds).clone()
        return torch.cat([of_policy, self.guide(input_ids, positions, None, None)], -1)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return logits and values, side by side, shape [n, V + W]."""
        width = self.value_head.in_features
        logits = self.policy.compute_logits(hidden_states[:, :-width].contiguous())
        return torch.cat([logits, self.value_head(hidden_states[:, -width:].contiguous())], -1)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load weights: of the guide and its head by their parts' names, all others are the policy's."""
        loaded: set[str] = set()
        for part, named in groupby(weights, key=lambda weight: _part(weight[0])):
            loaded |= self._load(part, ((name.removeprefix(f"{part}."), weight) for name, weight in named))
        if not any(name.startswith(HEAD) for name in loaded) and self._head.is_file():
            loaded |= self._load(HEAD, load_file(self._head).items())
        return loaded

    def _load(self, part: str, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        module = getattr(self, part)
        load: Callable[..., Any] = getattr(module, "load_weights", AutoWeightsLoader(module).load_weights)
        return {f"{part}.{name}" for name in load(weights) or ()}


def _part(name: str) -> str:
    begin = name.partition(".")[0]
    return begin if begin in (GUIDE, HEAD) else POLICY


def architecture_of(config: PreTrainedConfig) -> str:
    """Return the class of language models with a configuration; "" if there is none."""
    name: str = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, "")
    return name


def has_class(name: str) -> bool:
    """Return whether vLLM has a class of its own for an architecture."""
    models = ModelRegistry.models
    return name in models and "transformers" not in str(models[name])


def why_apart(policy: PreTrainedConfig, guide: PreTrainedConfig, device: str) -> str | None:
    """Return why vLLM cannot read a guide with a policy, by their configurations; None if it can."""
    for config in (policy, guide):
        kind = config.model_type
        if config is not config.get_text_config():
            return f"{kind} does not read text alone"
        if reading_of(config) is not Way.slots or getattr(config, "kv_lora_rank", None):
            return f"{kind} keeps more, or something else, than the keys and values of all tokens"
        if not has_class(architecture_of(config)):
            return f"vLLM has no class for {kind}"
    size, most = head_size(guide), head_size(policy)
    # Some kernels for GPUs reserve memory for heads of the size of the policy's.
    fits = size in CPUAttentionBackend.get_supported_head_sizes() if device == "cpu" else size <= most
    return None if fits else f"heads of {size} numbers beside those of {most}"
