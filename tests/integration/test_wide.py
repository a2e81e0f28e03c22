"""A policy that several ranks share writes what it writes in one process, but for the order of additions.

Two ranks that the engine starts `test_training_ranks` has, in a job that also trains.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.engine.devices.inventory import held_port, rank_environment
from tests.doubles import wide
from tests.doubles.forked import forked
from tests.doubles.models import write_rounds

TOLERANCE = 1e-4
"""Of a logit or a log-probability. Sums in another order differ in the last bits; 1e-5 was the most seen."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    wide.policy().save_pretrained(folder)
    return folder


def check_written(made: dict[str, Any], alone: wide.Written, size: int) -> None:
    written, about = wide.Written(**made["written"]), made["about"]
    assert (written.greedy, written.drawn, written.guided) == (alone.greedy, alone.drawn, alone.guided)
    assert written.guided != written.drawn
    assert torch.allclose(written.logits, alone.logits, atol=TOLERANCE, rtol=0)
    assert written.scores == pytest.approx(alone.scores, abs=TOLERANCE)
    assert len({tuple(bits) for bits in about["bits"]}) == 1  # the same logits everywhere
    # Each has its part of the weights, and norms.
    whole = sum(one.numel() for one in wide.policy().parameters())
    assert all(held < 1.05 * whole / size for (held,) in about["held"])
    assert about["asked"] == ["by rank 0"] * size
    assert about["identity"].startswith(f"1/{size} of LlamaForCausalLM")


def test_four_ranks_write_what_one_does(tmp_path: Path, model: Path) -> None:
    """Without an engine, which starts so many as it does 2; by a policy of which adapters are stored."""
    alone = wide.write(write_rounds(wide.policy(), tmp_path), wide.value())
    with forked("tests.doubles.wide") as start, held_port(None) as port:
        started = []
        for rank in range(4):
            (tmp_path / f"rank{rank}").mkdir()
            environment = rank_environment(os.environ, [""] * 4, rank=rank, master_port=port)
            payload = {"model": str(tmp_path), "base": str(model)}
            started.append(start(wide.forked_rank, rank, dict(environment), tmp_path, payload))
        for process in started:
            process.join(500)
            process.kill()  # one that waits for a rank that is gone
    assert [process.exitcode for process in started] == [0] * 4, (tmp_path / "rank0.txt").read_text()
    made = torch.load(tmp_path / "rank0" / "made.pt", weights_only=True)
    check_written(made, alone, 4)
    *others, odd = made["about"]["disagreed"]
    assert odd.startswith("RanksDisagree: 4 ranks share a model, and have different tokens after ")
    assert {one.partition(":")[0] for one in others} == {"ConnectionError"}
    assert all(": rank 3 has others than most" in one for one in [*others, odd])
