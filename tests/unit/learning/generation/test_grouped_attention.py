"""One query a row attends by heads of keys, to the bit as transformers' own does that does so."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.integrations import sdpa_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from pipeline.learning.generation.row_models import attention

GROUPS = 4


def given(queries: int = 1, mask: Tensor | None = None) -> tuple[Any, ...]:
    numbers = torch.Generator().manual_seed(0)
    query = torch.randn(3, 2 * GROUPS, queries, 16, generator=numbers)
    key, value = (torch.randn(3, 2, 21, 16, generator=numbers) for _ in range(2))
    if mask is None:
        mask = torch.zeros(3, 1, queries, 21).masked_fill(
            torch.arange(21) > torch.tensor([[[[20]]], [[[5]]], [[[0]]]]), -1e9
        )
    return SimpleNamespace(num_key_value_groups=GROUPS, is_causal=True), query, key, value, mask


def repeated(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """As before: a head of keys for each of queries."""
    key, value = (states.repeat_interleave(GROUPS, 1) for states in (key, value))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)


@pytest.mark.parametrize("kind", ["numbers", "marks", "one row of it"])
def test_one_query_sees_what_it_saw(kind: str) -> None:
    module, query, key, value, mask = given()
    mask = {"numbers": mask, "marks": mask == 0, "one row of it": mask[:1]}[kind]
    ours, nothing = attention(module, query, key, value, mask)
    assert nothing is None
    assert torch.allclose(ours, repeated(module, query, key, value, mask), atol=1e-6)
    if hasattr(sdpa_attention, "pack_gqa"):
        assert torch.equal(ours, sdpa_attention_forward(module, query, key, value, mask)[0])


@pytest.mark.parametrize("queries", [1, 4])
def test_all_else_is_left_to_transformers(queries: int) -> None:
    module, query, key, value, mask = given(queries)
    options = {"position_bias": torch.ones(1, 2 * GROUPS, queries, 21)} if queries == 1 else {}
    ours = attention(module, query, key, value, mask, **options)[0]
    assert torch.equal(ours, sdpa_attention_forward(module, query, key, value, mask, **options)[0])
    without = attention(module, query[:, :2], key, value, None)[0]
    assert without.shape == (3, queries, 2, 16)
