from collections.abc import Mapping
from typing import Any

import pytest

from pipeline.sweeps.batch import effective_batch


@pytest.mark.parametrize(
    ("parameters", "num_gpus", "batch"),
    [
        ({"batch_size": 8, "num_gpus": 4}, 4, 32),
        ({"batch_size": 8, "num_gpus": 4, "gradient_accumulation_steps": 2}, 4, 64),
        ({"batch_size": 8}, 4, 32),
        ({"trainer.batch_size": 8, "trainer.gradient_accumulation_steps": 2}, 2, 32),
        ({"batch_size": 8}, 1, None),
        ({"algos.PITA.batch_size": 64}, 4, None),  # the batch of all devices together
        ({"batch_size": "8", "num_gpus": 4}, 4, None),
        ({"batch_size": True, "num_gpus": 4}, 4, None),
        ({"lr": 0.1}, 8, None),
    ],
)
def test_a_step_sees_the_batch_of_every_device_and_micro_batch(
    parameters: Mapping[str, Any], num_gpus: int, batch: int | None
) -> None:
    assert effective_batch(parameters, num_gpus) == batch
