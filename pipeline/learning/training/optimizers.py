"""The optimizers of trainings, by name: each keeps tensors and plain values alone, as checkpoints can hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn

from pipeline.config.schema import Optimizer

Group = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """What a step goes by; see `TrainSettings`."""

    learning_rate: float
    weight_decay: float
    betas: tuple[float, float]
    epsilon: float


def optimizer_of(kind: Optimizer, model: nn.Module, groups: Sequence[Group], rule: Rule) -> torch.optim.Optimizer:
    """Make an optimizer.

    Args:
        kind: Which.
        model: That of the parameters.
        groups: Its parameters to train, and what belongs to each group, as optimizers of torch take them.
        rule: What steps go by.
    """
    if kind is Optimizer.adamw:
        return _adamw(groups, rule)
    if kind is Optimizer.adamw_8bit:
        found: torch.optim.Optimizer = import_module("bitsandbytes").optim.AdamW8bit(
            groups, lr=rule.learning_rate, betas=rule.betas, eps=rule.epsilon, weight_decay=rule.weight_decay
        )
        return found
    matrices = _hidden_matrices(model)
    of_muon = _only(groups, matrices, among=True)
    others = _only(groups, matrices, among=False)
    parts: list[torch.optim.Optimizer] = []
    if of_muon:
        # One rate serves both parts: with this adjustment a step is as large as one of AdamW (arXiv 2502.16982).
        parts.append(
            torch.optim.Muon(
                of_muon,
                lr=rule.learning_rate,
                weight_decay=rule.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    return Together([*parts, _adamw(others, rule)] if others else parts)


class Together(torch.optim.Optimizer):
    """Several optimizers of different parameters as one: with one state, in the order of their groups."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._parts = parts

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step of each."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        groups = iter(self.param_groups)
        for part in self._parts:
            # Both are other objects once a state has been loaded.
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state
            part.step()
        return loss


def _adamw(groups: Sequence[Group], rule: Rule) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        list(groups),
        lr=rule.learning_rate,
        betas=rule.betas,
        eps=rule.epsilon,
        weight_decay=rule.weight_decay,
        **all_at_once([weight for group in groups for weight in group["params"]]),
    )


def all_at_once(trained: Sequence[nn.Parameter]) -> dict[str, bool]:
    """How AdamW takes many parameters in one go."""
    # On the CPU `foreach` has MKL take square roots, which begin with an approximation of the processor's own.
    fused = all(weight.device.type == "cpu" and not hasattr(weight, "full_tensor") for weight in trained)
    # On a GPU it takes 4 bytes for each parameter at once beside what is kept, `fused` none.
    fused |= all(weight.device.type == "cuda" for weight in trained)
    return {"fused" if fused else "foreach": True}


def _only(groups: Sequence[Group], some: set[int], *, among: bool) -> list[Group]:
    """The groups with those parameters alone that are among some, or are not; none that is empty."""
    found = [
        {**group, "params": [one for one in group["params"] if (id(one) in some) is among]} for group in groups
    ]
    return [group for group in found if group["params"]]


def _hidden_matrices(model: nn.Module) -> set[int]:
    """Ids of what torch says Muon is for: matrices that are neither embeddings nor output layers."""
    others = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    if (outputs := getattr(model, "get_output_embeddings", lambda: None)()) is not None:
        others.add(id(outputs.weight))
    named = model.named_parameters()
    return {
        id(weight)
        for name, weight in named
        if weight.ndim == 2 and id(weight) not in others and not name.startswith("head.")
    }
