"""Half precision on a CPU that is not to use the instructions for it is told of."""

import pytest

from pipeline.plan.compatibility import nucleus_beside_logprobs, slow_precision
from tests.doubles.composing import quick_config


@pytest.mark.parametrize(
    ("overrides", "gpu", "warned"),
    [
        (["system.dtype=bfloat16"], False, True),
        (["system.dtype=bfloat16", "system.portable=false"], False, False),
        (["system.dtype=bfloat16"], True, False),
        ([], False, False),
        (["experiment=sentiment"], False, False),
    ],
)
def test_half_precision_with_portable_arithmetic_is_slow(overrides: list[str], gpu: bool, warned: bool) -> None:
    said = slow_precision(quick_config(["experiment.name=t", *overrides]), gpu)
    assert (said is not None) == warned
    if said:
        assert "use system.dtype=float32, or system.portable=false" in said


@pytest.mark.parametrize(("algo", "told"), [("GRPO", True), ("DPO", False), ("PITA", False)])
def test_a_nucleus_beside_log_probabilities_of_the_whole_is_told(algo: str, told: bool) -> None:
    config = quick_config(["experiment.name=t", f"algos=[{algo}]", "generation.top_p=0.9"])
    said = nucleus_beside_logprobs(config)
    assert (said is not None and "top_p=0.9 with GRPO" in said) is told
    assert nucleus_beside_logprobs(quick_config(["experiment.name=t", f"algos=[{algo}]"])) is None
