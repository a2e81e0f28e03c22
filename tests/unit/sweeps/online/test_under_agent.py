"""Ranks of a program that W&B's agent runs on devices of its own."""

import pytest

from pipeline.errors import PipelineError
from pipeline.sweeps.online.at_wandb import ranks_of


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        (["train.py", "--lr=1"], 4),
        (["train.py", "--num_gpus=2"], 2),
        (["train.py", "--num_gpus", "1", "--lr=1"], 1),
        (["num_gpus=4"], 4),
    ],
)
def test_a_program_has_as_many_ranks_as_it_is_told_else_one_on_each_device(words: list[str], ranks: int) -> None:
    assert ranks_of(words, 4) == ranks


@pytest.mark.parametrize("given", ["5", "0", "many"])
def test_a_number_that_its_devices_do_not_do_for_is_refused(given: str) -> None:
    with pytest.raises(PipelineError, match=f"this trial needs num_gpus={given}, and its agent has 4"):
        ranks_of(["train.py", "--num_gpus", given], 4)
