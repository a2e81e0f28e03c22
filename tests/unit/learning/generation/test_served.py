"""What a server of a guided policy takes from a request, without vLLM."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import ConfigError

OURS = ("pipeline.vllm", "pipeline.learning.generation.vllm_draws")
PARENTS = ["vllm", "vllm.v1", "vllm.v1.sample"]


@dataclass
class Params:
    """Stands in for vLLM's settings of a request."""

    top_k: int = 0
    min_tokens: int = 0
    seed: int | None = None
    logprob_token_ids: list[int] | None = None
    prompt_logprob_token_ids: NDArray[np.int32] | None = None
    extra_args: dict[str, Any] | None = None


@pytest.fixture(scope="module")
def served() -> Iterator[ModuleType]:
    """The module, beside a stand-in for vLLM; both are gone afterwards."""
    names = ("BatchUpdate", "LogitsProcessor", "MoveDirectionality")
    with pytest.MonkeyPatch.context() as patch:
        for parent in PARENTS:
            patch.setitem(sys.modules, parent, ModuleType(parent))
        stands: Any = SimpleNamespace(**{name: type(name, (), {}) for name in names})
        patch.setitem(sys.modules, "vllm.v1.sample.logits_processor", stands)
        for name in OURS:
            patch.delitem(sys.modules, name, raising=False)
        yield importlib.import_module(OURS[0])
        for name in OURS:
            parent, _, child = name.rpartition(".")
            delattr(sys.modules[parent], child)
            del sys.modules[name]


@pytest.mark.parametrize(("given", "eta"), [(0.3, 0.3), (2, 2.0), ("0.3", 0.3), ("inf", math.inf), (1e-6, 1e-6)])
def test_a_request_has_a_strength_of_its_own(served: ModuleType, given: object, eta: float) -> None:
    params = Params(extra_args={"eta": given})
    served.Guided.validate_params(params)
    assert served._eta(params, 1.0) == eta


def test_a_request_without_a_strength_has_that_of_the_run(served: ModuleType) -> None:
    for extra in (None, {}, {"session_id": "x"}):
        params = Params(extra_args=extra)
        served.Guided.validate_params(params)
        assert served._eta(params, 0.7) == 0.7


@pytest.mark.parametrize("given", [0, -1, "abc", "1_0", "nan", math.nan, True, "true", None, [1]])
def test_another_strength_is_refused_with_what_is_allowed(served: ModuleType, given: object) -> None:
    with pytest.raises(ValueError, match=r'eta=.*: must be a number of at least 1e-06, or "inf"'):
        served.Guided.validate_params(Params(extra_args={"eta": given}))


@pytest.mark.parametrize(
    ("params", "named"),
    [
        (Params(min_tokens=2), "min_tokens"),
        (Params(top_k=5), "top_k"),
        (Params(seed=-2), "seed=-2"),
        (Params(logprob_token_ids=[1, 2]), "logprob_token_ids"),
        (Params(prompt_logprob_token_ids=np.ones((2, 3), np.int32)), "prompt_logprob_token_ids"),
        (Params(extra_args={"ate": 1}), "'ate'. Known: eta"),
    ],
)
def test_what_a_guided_policy_lacks_is_refused(served: ModuleType, params: Params, named: str) -> None:
    served.Guided.validate_params(Params())
    with pytest.raises(ValueError, match=named):
        served.Guided.validate_params(params)


def config(**given: Any) -> Any:
    model = SimpleNamespace(get_head_size=lambda: 64)
    parallel = SimpleNamespace(world_size=1)
    return SimpleNamespace(
        **{"speculative_config": None, "parallel_config": parallel, "model_config": model, **given}
    )


def test_a_server_that_would_mark_what_it_does_not_draw_is_refused(served: ModuleType) -> None:
    served._check(config(), "cpu")
    served._check(config(watermark_config=None), "cpu")
    with pytest.raises(ConfigError, match="--watermark-config"):
        served._check(config(watermark_config=object()), "cpu")
