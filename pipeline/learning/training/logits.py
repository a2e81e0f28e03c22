"""Log-probabilities of the tokens that were taken, without logits of all tokens at once.

A token has as many logits as the vocabulary has entries, and each takes some 12 bytes in training: 25 GB for 8
texts of 2,048 tokens and 128,000 entries. Here the output layer runs over a part of the positions at a time, and
again in the backward pass. So only on GPUs.

Shapes: B sequences, T positions, V tokens of the vocabulary, H the width of the model.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint

from pipeline.learning.generation.sampling import policy_logprobs
from pipeline.learning.memory.training import LOGITS_AT_ONCE

_CACHED = 1 << 18
_LOWEST = torch.finfo(torch.float32).min
_plain: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Models that were looked at -> whether their logits are what the output layer makes of the last hidden states."""


def is_cut(model: nn.Module, ids: Tensor) -> bool:
    """Whether logits of a batch are too many to be there at once, and the model lets them be made part by part.

    Args:
        model: A causal language model, with adapters or without.
        ids: Shape [B, T].
    """
    return ids.is_cuda and is_too_much(model, ids.numel()) and is_plain(model, ids)


def is_too_much(model: nn.Module, tokens: int) -> bool:
    """Whether the logits of so many tokens are more than may be there at once."""
    return tokens * _vocabulary(model) > LOGITS_AT_ONCE


@torch.no_grad()
def is_plain(model: nn.Module, ids: Tensor) -> bool:
    """Whether a model's logits are those of its output layer as they are: some families cap or scale them."""
    if isinstance(model, FSDPModule):
        return False  # the output layer is whole only while the whole model runs
    if model not in _plain:
        few = ids[:1, :2]
        try:
            whole = inner_model(model)(input_ids=few, use_cache=False).logits
            _plain[model] = torch.equal(_head(model)(_hidden(model, few)), whole)
        except torch.OutOfMemoryError:
            raise  # which tells nothing of the model
        except (AttributeError, TypeError, RuntimeError):  # built in another way than most
            _plain[model] = False
    return _plain[model]


def taken_logprobs(
    model: nn.Module,
    ids: Tensor,
    first: int,
    temperature: float,
    at_once: int = LOGITS_AT_ONCE,
    *,
    entropy: bool = False,
) -> Tensor:
    """Log-probabilities of tokens given what precedes them.

    Args:
        model: For which `is_plain`.
        ids: Padded on the right, shape [B, T].
        first: Position before the first token that is asked for.
        temperature: Of the policy.
        at_once: Logits that may be there at a time; at least those of one position are.
        entropy: Whether that of each distribution is asked for too.

    Returns:
        Of the tokens from `first` + 1 on, shape [B, T - first - 1], float32; with entropies [B, T - first - 1, 2].
    """
    hidden, head = _hidden(model, ids)[:, first:-1], _head(model)
    targets = ids[:, first + 1 :]
    width = max(1, at_once // (len(ids) * _vocabulary(model)))
    part = partial(_part, head, temperature, entropy)
    if torch.is_grad_enabled():
        part = partial(checkpoint, part, use_reentrant=False)
    taken = [part(*both) for both in zip(hidden.split(width, 1), targets.split(width, 1), strict=True)]
    return torch.cat(taken, 1)


def _part(head: nn.Module, temperature: float, entropy: bool, hidden: Tensor, targets: Tensor) -> Tensor:
    return read_off(policy_logprobs(head(hidden), temperature), targets, entropy=entropy)


def read_off(logprobs: Tensor, targets: Tensor, *, entropy: bool) -> Tensor:
    """Log-probabilities of tokens, and the entropies of their distributions in nats if asked for.

    Args:
        logprobs: Shape [..., V].
        targets: Shape [...].
        entropy: Whether to give both.

    Returns:
        Shape [...], or [..., 2].
    """
    taken = logprobs.gather(-1, targets[..., None]).squeeze(-1)
    if not entropy:
        return taken
    # What has no probability is -inf, which 0 times is no number.
    return torch.stack([taken, -(logprobs.exp() * logprobs.clamp(min=_LOWEST)).sum(-1)], -1)


def logprobs_in_parts(
    model: nn.Module,
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    at_once: int = LOGITS_AT_ONCE,
    *,
    entropy: bool = False,
) -> Tensor:
    """Log-probabilities of tokens given what precedes them, of some tokens at a time.

    Args:
        model: For which `is_plain`.
        hidden: Last hidden states before the tokens, shape [M, H].
        targets: The tokens, shape [M].
        temperature: Of the policy.
        at_once: Logits that may be there at a time; at least those of one token are.
        entropy: See `taken_logprobs`.

    Returns:
        Shape [M], float32; with entropies [M, 2].
    """
    head, count = _head(model), max(1, at_once // _vocabulary(model))

    def part(hidden: Tensor, targets: Tensor) -> Tensor:
        return taken_of(head(hidden), targets, temperature, entropy=entropy)

    parts = zip(hidden.split(count), targets.split(count), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([part(*both) for both in parts])
    return torch.cat([checkpoint(part, *both, use_reentrant=False) for both in parts])


def taken_of(logits: Tensor, targets: Tensor, temperature: float = 1.0, *, entropy: bool = False) -> Tensor:
    """Log-probabilities of tokens, in the memory that their logits have, which are of no use afterwards.

    Log-probabilities take the place of logits, and gradients theirs. As torch has it each is kept by itself.

    Args:
        logits: Shape [M, V], any floating type.
        targets: Shape [M].
        temperature: Of the policy.
        entropy: See `taken_logprobs`; then each is kept by itself here too.

    Returns:
        Shape [M], float32; with entropies [M, 2].
    """
    if entropy:
        return read_off(policy_logprobs(logits, temperature), targets, entropy=True)
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    taken: Tensor = _Taken.apply(logits, targets)
    return taken


class _Taken(torch.autograd.Function):
    """Whoever asks for gradients a second time is told by torch that what they need was changed in place."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        for part in logits.split(_rows_at_once(logits)):
            part.copy_(part.log_softmax(-1))
        ctx.save_for_backward(logits, targets)
        return logits.gather(1, targets[:, None]).squeeze(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logprobs, targets = ctx.saved_tensors
        of_each, chosen = gradients[0][:, None], targets[:, None]
        rows = _rows_at_once(logprobs)
        for part, gradient in zip(logprobs.split(rows), of_each.split(rows), strict=True):
            part.exp_().mul_(-gradient)
        return logprobs.scatter_(1, chosen, logprobs.gather(1, chosen) + of_each), None


def _rows_at_once(logits: Tensor) -> int:
    """So many that a processor's cache holds them from one operation to the next."""
    return max(1, _CACHED // logits.shape[1]) if not logits.is_cuda else max(1, len(logits))


def _vocabulary(model: nn.Module) -> int:
    return int(inner_model(model).config.get_text_config().vocab_size)


def inner_model(model: nn.Module) -> Any:
    """A model without the adapters that are around it."""
    peft: Any = sys.modules.get("peft")  # which takes long to import, and has made what is around a model
    return model.get_base_model() if peft is not None and isinstance(model, peft.PeftModel) else model


def _head(model: nn.Module) -> Any:
    return inner_model(model).get_output_embeddings()


def _hidden(model: nn.Module, ids: Tensor) -> Tensor:
    """The last hidden states, shape [B, T, H]."""
    hidden: Tensor = inner_model(model).base_model(input_ids=ids, use_cache=False).last_hidden_state
    return hidden
