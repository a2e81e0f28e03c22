"""Count the FLOPs of a stage, where the tokens are known.

They are model FLOPs, as in MFU (Chowdhery et al., arXiv 2204.02311, appendix B): matrix products alone, each
multiplication with its addition being two. Work that depends on batching and not on the tokens is left out:
padding, layers that gradient checkpointing computes again, attempts that failed. So the number follows from models
and tokens, and is the same on every machine.

    a token             2 x the weights that it is multiplied with; of experts, those that it is given to
    attention           4 x layers x width of all heads, for each position that is attended to; layers that carry a
                        state along instead have none, and what they do with the state is left out
    a text read whole   every token attends to all T positions, as in the paper and in torch's own counter
    a token after it    attends to those before it and to itself: their keys and values are cached
    a gradient          that of activations costs a forward pass, that of trained weights another one
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

Purpose = Literal["decoding", "guidance", "scoring", "rewards", "training"]
"""Purposes of FLOPs.

    decoding    the policy that writes
    guidance    value models that steer it, reward models that pick
    scoring     log-probabilities, divergences, calibration
    rewards     scores of reward models
    training    forward and backward passes of trainings
"""


@dataclass(frozen=True)
class Pass:
    """Tokens that a model reads.

    Attributes:
        tokens: Number of tokens.
        positions: Number of positions that each token attends to, summed.
        outputs: Positions whose outputs are computed, for example by the output head of a policy.
    """

    tokens: int
    positions: int
    outputs: int

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.tokens + other.tokens, self.positions + other.positions, self.outputs + other.outputs)

    def __mul__(self, times: int) -> Pass:
        return Pass(self.tokens * times, self.positions * times, self.outputs * times)


def whole_texts(lengths: NDArray[np.integer[Any]], outputs: int | None = None) -> Pass:
    """Count texts that a model reads whole.

    Args:
        lengths: Tokens of each text, shape [N].
        outputs: Positions whose outputs are computed; None for all.
    """
    sizes = np.asarray(lengths, np.int64)
    tokens = int(sizes.sum())
    return Pass(tokens, int((sizes * sizes).sum()), tokens if outputs is None else outputs)


def continued(before: NDArray[np.integer[Any]], tokens: NDArray[np.integer[Any]]) -> Pass:
    """Count texts that are continued token by token, with keys and values of earlier tokens in a cache.

    Args:
        before: Tokens that were read before, shape [N].
        tokens: Further tokens to read, shape [N].
    """
    start, more = np.asarray(before, np.int64), np.asarray(tokens, np.int64)
    read = int(more.sum())
    return Pass(read, int((more * start + more * (more + 1) // 2).sum()), read)


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """Cost of a model, in products of two numbers: half of the FLOPs.

    Attributes:
        body: Per token: weights that the token is multiplied with, without those of the output head.
        head: Per output.
        attention: Per position that a token attends to.
        trained_body: Weights of the body that are trained.
        trained_head: Weights of the head that are trained.
    """

    body: int
    head: int
    attention: int
    trained_body: int
    trained_head: int

    def forward(self, read: Pass) -> int:
        """Return the FLOPs of reading tokens."""
        return 2 * (self.body * read.tokens + self.head * read.outputs + self.attention * read.positions)

    def frozen(self) -> ModelCost:
        """Return the cost without the weights that are trained, such as adapters."""
        body, head = self.body - self.trained_body, self.head - self.trained_head
        return replace(self, body=body, head=head, trained_body=0, trained_head=0)

    def training(self, read: Pass) -> int:
        """Return the FLOPs of reading tokens and of all gradients."""
        weights = self.trained_body * read.tokens + self.trained_head * read.outputs
        # Both factors of a product in attention are activations, so its gradient takes two products.
        return 2 * self.forward(read) + 2 * (weights + self.attention * read.positions)


def model_cost(model: nn.Module) -> ModelCost:
    """Return the cost of a model, by its weights and its configuration.

    Args:
        model: A model of transformers, or a value model; possibly with adapters. Weights that require gradients
            count as trained.
    """
    head = _output_head(model)
    outer = set() if head is None else {id(part) for part in head.modules()}
    counts: Counter[str] = Counter()
    for module in _read_parts(model, head):
        side = "head" if id(module) in outer else "body"
        for count, is_trained in _weights(module, model):
            counts[side] += count
            counts[f"trained_{side}"] += count if is_trained else 0
    return ModelCost(
        body=counts["body"],
        head=counts["head"],
        attention=_attention(model),
        trained_body=counts["trained_body"],
        trained_head=counts["trained_head"],
    )


def _read_parts(model: Any, head: nn.Module | None) -> Iterable[nn.Module]:
    """Return the modules that process text: all of them, except in a model that also sees or hears."""
    config = getattr(model, "config", None)
    if head is None or config is None or config.get_text_config() is config or not hasattr(model, "get_decoder"):
        whole: Iterable[nn.Module] = model.modules()
        return whole
    return chain(model.get_decoder().modules(), head.modules())


def _output_head(model: Any) -> nn.Module | None:
    """Return the module that is computed only where outputs are requested; None if there is none."""
    from pipeline.learning.models.value import ValueModel

    head: nn.Module | None = model.head if isinstance(model, ValueModel) else model.get_output_embeddings()
    return head


def _weights(module: nn.Module, model: Any) -> Iterator[tuple[int, bool]]:
    """Yield the number of weights in a module that tokens are multiplied with, and whether they are trained."""
    from torch import nn

    if isinstance(module, nn.Embedding):
        return  # looked up, not multiplied
    for name, weight in module.named_parameters(recurse=False):
        if name.endswith(_NO_PRODUCT):
            continue
        if isinstance(module, nn.Linear) and not weight.is_floating_point():  # in few bits, several to a number
            yield module.in_features * module.out_features, False
            continue
        if weight.ndim == 2 and (experts := getattr(module, "moe_num_experts", None)):  # as those below, of DBRX
            yield weight.numel() * _shape(model).ffn_config.moe_top_k // experts, weight.requires_grad
        elif weight.ndim == 2 or (weight.ndim == 3 and isinstance(module, nn.Conv1d)):
            yield weight.numel(), weight.requires_grad
        elif weight.ndim == 3:  # experts side by side, each token uses a few of them
            active = getattr(_shape(model), "num_experts_per_tok", None) or len(weight)
            yield weight.numel() * active // len(weight), weight.requires_grad


_NO_PRODUCT = ("bias", "A_log")
"""Endings of names of weights that are added or raised to a power: in experts and state spaces these are no
vectors."""
_WITHOUT_ATTENTION = ("linear_attention", "conv", "mamba", "recurrent", "moe", "mlp")
"""Kinds of layers that attend to no positions."""


def _attention(model: Any) -> int:
    shape = _shape(model)
    kinds = getattr(shape, "layer_types", None) or [""] * (getattr(shape, "num_hidden_layers", None) or 0)
    layers = [kind not in _WITHOUT_ATTENTION for kind in kinds]
    if getattr(shape, "is_heterogeneous", False):  # every layer may have a shape of its own
        return sum(
            _attention_of_layer(layer)
            for layer, attends in zip(shape.per_layer_config, layers, strict=True)
            if attends
        )
    return sum(layers) * _attention_of_layer(shape)


def _attention_of_layer(shape: Any) -> int:
    heads = getattr(shape, "num_attention_heads", None) or 0  # a model without attention has none
    if not heads:
        return 0
    width = getattr(shape, "head_dim", None) or shape.hidden_size // heads
    of_keys, of_values = width, width
    if getattr(shape, "kv_lora_rank", None) and getattr(shape, "v_head_dim", None):  # latent attention
        of_keys, of_values = shape.qk_nope_head_dim + shape.qk_rope_head_dim, shape.v_head_dim
    return int(heads * (of_keys + of_values))


def _shape(model: Any) -> Any:
    from pipeline.learning.models.value import ValueModel

    config: Any = model.config.backbone if isinstance(model, ValueModel) else model.config
    return config.get_text_config()


# -- what a stage has spent ------------------------------------------------------------------------------------


class Meter:
    """FLOPs of all computations while this meter is the current one.

    Attributes:
        flops: FLOPs by purpose.
        answers: Completions that an evaluation gives, over which the FLOPs of decoding and guidance are divided.
    """

    def __init__(self) -> None:
        self.flops: Counter[Purpose] = Counter()
        self.answers = 0

    @property
    def total(self) -> int:
        """Sum over all purposes."""
        return sum(self.flops.values())


_current: ContextVar[Meter | None] = ContextVar("_current", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Count computations inside this context; an outer meter does not count them too."""
    meter = Meter()
    token = _current.set(meter)
    try:
        yield meter
    finally:
        _current.reset(token)


def is_metered() -> bool:
    """Return whether a meter is active."""
    return _current.get() is not None


def spend(purpose: Purpose, flops: int) -> None:
    """Count FLOPs of the running stage; without an active meter, do nothing.

    Args:
        purpose: Purpose of the computation.
        flops: Number of FLOPs.
    """
    meter = _current.get()
    if meter is not None:
        meter.flops[purpose] += flops


def answered(count: int) -> None:
    """Count completions that the running stage gives as answers; without an active meter, do nothing.

    Args:
        count: Number of completions.
    """
    meter = _current.get()
    if meter is not None:
        meter.answers += count
