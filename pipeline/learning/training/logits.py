"""Log-probabilities of the tokens that were taken, without logits of all tokens at once.

A token has as many logits as the vocabulary has entries, and each takes some 12 bytes in training: 27 GB for 8
texts of 2,048 tokens and 128,000 entries. Here the output layer runs over a part of the positions at a time, and
again in the backward pass. So only on GPUs; see `pipeline.untried`.

Shapes: B sequences, T positions, V tokens of the vocabulary, H the width of the model.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint

from pipeline import untried
from pipeline.learning.generation.sampling import policy_logprobs
from pipeline.learning.memory.training import LOGITS_AT_ONCE

_plain: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Models that were looked at -> whether their logits are what the output layer makes of the last hidden states."""


def is_cut(model: nn.Module, ids: Tensor) -> bool:
    """Whether logits of a batch are too many to be there at once, and the model lets them be made part by part.

    Args:
        model: A causal language model, with adapters or without.
        ids: Shape [B, T].
    """
    if not ids.is_cuda or not untried.is_used():
        return False
    inner: Any = _inner(model)
    vocabulary = inner.config.get_text_config().vocab_size
    return ids.numel() * vocabulary > LOGITS_AT_ONCE and is_plain(model, ids)


@torch.no_grad()
def is_plain(model: nn.Module, ids: Tensor) -> bool:
    """Whether a model's logits are those of its output layer as they are: some families cap or scale them."""
    if isinstance(model, FSDPModule):
        return False  # the output layer is whole only while the whole model runs
    if model not in _plain:
        few = ids[:1, :2]
        try:
            whole = _inner(model)(input_ids=few, use_cache=False).logits
            _plain[model] = torch.equal(_head(model)(_hidden(model, few)), whole)
        except torch.OutOfMemoryError:
            raise  # which tells nothing of the model
        except (AttributeError, TypeError, RuntimeError):  # built in another way than most
            _plain[model] = False
    return _plain[model]


def taken_logprobs(
    model: nn.Module, ids: Tensor, first: int, temperature: float, at_once: int = LOGITS_AT_ONCE
) -> Tensor:
    """Log-probabilities of tokens given what precedes them.

    Args:
        model: For which `is_plain`.
        ids: Padded on the right, shape [B, T].
        first: Position before the first token that is asked for.
        temperature: Of the policy.
        at_once: Logits that may be there at a time; at least those of one position are.

    Returns:
        Of the tokens from `first` + 1 on, shape [B, T - first - 1], float32.
    """
    hidden, head = _hidden(model, ids)[:, first:-1], _head(model)
    targets = ids[:, first + 1 :]
    width = max(1, at_once // (len(ids) * _inner(model).config.get_text_config().vocab_size))
    part = partial(_part, head, temperature)
    if torch.is_grad_enabled():
        part = partial(checkpoint, part, use_reentrant=False)
    taken = [part(*both) for both in zip(hidden.split(width, 1), targets.split(width, 1), strict=True)]
    return torch.cat(taken, 1)


def _part(head: nn.Module, temperature: float, hidden: Tensor, targets: Tensor) -> Tensor:
    return policy_logprobs(head(hidden), temperature).gather(-1, targets[..., None]).squeeze(-1)


def _inner(model: nn.Module) -> Any:
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _head(model: nn.Module) -> Any:
    return _inner(model).get_output_embeddings()


def _hidden(model: nn.Module, ids: Tensor) -> Tensor:
    """The last hidden states, shape [B, T, H]."""
    hidden: Tensor = _inner(model).base_model(input_ids=ids, use_cache=False).last_hidden_state
    return hidden
