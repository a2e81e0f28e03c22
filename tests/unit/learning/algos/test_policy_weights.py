"""Which weights log-probabilities of drawn texts are computed by."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.schema import DType
from pipeline.learning.algos import opening
from pipeline.learning.algos.opening import exact_logprobs


@pytest.mark.parametrize(
    ("dtype", "rank", "bits", "by"),
    [
        (DType.float32, 0, None, "those that drew"),
        (DType.float16, 0, None, "others"),
        (DType.float16, 8, None, "those that drew"),
        (DType.float16, 8, 4, "others"),
    ],
)
def test_a_model_is_loaded_again_only_where_training_is_more_precise(
    dtype: DType, rank: int, bits: int | None, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logprobs(prompts: object, tokens: object, exact: str | None = None) -> list[str]:
        return [exact or "those that drew"]

    monkeypatch.setattr(opening, "loaded", lambda *_, **__: "others")
    config = SimpleNamespace(system=SimpleNamespace(dtype=dtype), model=SimpleNamespace(in_bits=bits))
    ctx: Any = SimpleNamespace(config=config, device="cpu")
    algo: Any = SimpleNamespace(lora=SimpleNamespace(rank=rank), wants_logprobs=True, draws_to_train=False)
    policy: Any = SimpleNamespace(logprobs=logprobs)
    groups: Any = SimpleNamespace(prompts=[], tokens=[])
    assert exact_logprobs(ctx, algo, policy, groups) == [by]
