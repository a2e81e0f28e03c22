"""A policy that several ranks share writes what it writes in one process, but for the order of additions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.engine.devices.worker_env import rank_environment
from pipeline.engine.scheduler.job_state import JobStatus
from pipeline.engine.workers.gang import held_port
from tests.doubles import wide
from tests.doubles.adapters import write_rounds
from tests.doubles.engine import Engine, job, key
from tests.doubles.forked import fork_server

TOLERANCE = 1e-4
"""Of a logit or a log-probability. Sums in another order differ in the last bits; 1e-5 was the most seen."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    wide.policy().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def alone() -> wide.Written:
    return wide.write(wide.policy(), wide.value())


def check(made: dict[str, Any], alone: wide.Written, size: int) -> None:
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


def test_two_ranks_write_what_one_does(engine: Engine, model: Path, alone: wide.Written) -> None:
    """What the engine does when one of them dies, `test_engine_gangs` tries with ranks that start sooner."""
    write = job("write", "tests.doubles.wide:write_together", devices=2, payload={"model": str(model)})
    outcome = engine.run(write, workers=2)
    assert outcome.jobs["write"] is JobStatus.done, engine.log("write")
    made = torch.load(engine.store.path(key("write")) / "made.pt", weights_only=True)
    check(made, alone, 2)
    # Of two none can be told to be wrong.
    first, second = made["about"]["disagreed"]
    assert first == second
    assert first.startswith("RanksDisagree: 2 ranks share a model, and have different tokens after ")


def test_four_ranks_write_what_one_does(tmp_path: Path, model: Path) -> None:
    """Without an engine, which starts so many as it does 2; by a policy of which adapters are stored."""
    alone = wide.write(write_rounds(wide.policy(), tmp_path), wide.value())
    with fork_server("tests.doubles.wide") as processes, held_port(None) as port:
        started = []
        for rank in range(4):
            (tmp_path / f"rank{rank}").mkdir()
            environment = rank_environment(os.environ, [""] * 4, rank=rank, master_port=port)
            args = (rank, dict(environment), tmp_path, {"model": str(tmp_path), "base": str(model)})
            started.append(processes.Process(target=wide.forked_rank, args=args))
            started[-1].start()
        for process in started:
            process.join(500)
            process.kill()  # one that waits for a rank that is gone
    assert [process.exitcode for process in started] == [0] * 4, (tmp_path / "rank0.txt").read_text()
    made = torch.load(tmp_path / "rank0" / "made.pt", weights_only=True)
    check(made, alone, 4)
    *others, odd = made["about"]["disagreed"]
    assert odd.startswith("RanksDisagree: 4 ranks share a model, and have different tokens after ")
    assert {one.partition(":")[0] for one in others} == {"ConnectionError"}
    assert all(": rank 3 has others than most" in one for one in [*others, odd])
