"""One training by several ranks gives what a single process gives, but for the order of additions."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from pipeline.engine.devices.inventory import held_port, rank_environment
from pipeline.engine.scheduler.state import JobStatus
from pipeline.errors import JobError, JobStopped
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training.distributed import Ranks, Spread, join
from pipeline.outputs.formats import read_curve
from tests.doubles import ranks as doubles
from tests.doubles import wide
from tests.doubles.engine import Engine, job, key
from tests.doubles.forked import Start, forked
from tests.integration.test_wide import check_written

TOLERANCE = 1e-5
"""Of a loss, in nats. Sums in another order differ in the last bits; 3e-7 was the most that was seen."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a single process makes, and its checkpoints after 4 steps."""
    folder = tmp_path_factory.mktemp("alone")
    for name, train in {"value": doubles.value, **doubles.POLICIES}.items():
        model, losses = train(curve=doubles.curve_in(folder / name))
        model.save_pretrained(folder / name)
        (folder / name / "losses.json").write_text(json.dumps(losses))
    calls = iter(range(100))
    with pytest.raises(JobStopped):
        doubles.value(
            checkpoint=doubles.checkpoints(folder / "half", stopping=lambda: next(calls) == 3),
            curve=doubles.curve_in(folder / "not drawn"),
        )
    return folder


def effective(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """What a model's outputs depend on: a bias of the keys adds the same to all scores of a softmax, so its
    gradient is nothing but rounding, which AdamW blows up to whole steps.
    """
    if not name.endswith("attn.c_attn.bias"):
        return tensor
    queries, _, values = tensor.chunk(3)
    return torch.cat([queries, values])


def check_same_curve(made: Path, expected: Path) -> None:
    """Numbers are of all ranks together, and of what is in the batch alone."""
    ours, theirs = read_curve(made), read_curve(expected)
    assert [(row.step, row.steps, row.tokens) for row in ours] == [
        (row.step, row.steps, row.tokens) for row in theirs
    ]
    for one, other in zip(ours, theirs, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=2 * TOLERANCE)
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-3, abs=1e-4)
        assert one.extra == pytest.approx(other.extra, abs=1e-3)


def check_equal(made: Path, expected: Path) -> None:
    losses = json.loads((made / "losses.json").read_text())
    assert losses == pytest.approx(json.loads((expected / "losses.json").read_text()), abs=TOLERANCE)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (made, expected))
    assert {name: (one.shape, one.dtype) for name, one in ours.items()} == {
        name: (one.shape, one.dtype) for name, one in theirs.items()
    }
    for name, tensor in ours.items():
        assert torch.allclose(effective(name, tensor), effective(name, theirs[name]), atol=1e-4), name
    assert json.loads((made / "config.json").read_text()) == json.loads((expected / "config.json").read_text())


def check_spreads(out: Path, alone: Path, back: Path, *spreads: str) -> None:
    """What ranks made in each way is what one process makes, and can go on from."""
    for name in spreads:
        check_equal(out / f"value {name}", alone / "value")
        ranks = sorted(path.name for path in (out / "checkpoints" / name).glob("step-*/tensors*"))
        assert len(ranks) == (2 if doubles.SPREADS[name].is_sharded else 1)
        # A checkpoint of one process, gone on from by several, and the other way round.
        check_equal(out / f"resumed {name}", alone / "value")
        check_same_curve(out / f"value {name}", alone / "value")
        check_same_curve(out / f"resumed {name}", alone / "value")
        shutil.copytree(out / "checkpoints" / name, back / name)
        _, losses = doubles.value(checkpoint=doubles.checkpoints(back / name))
        assert losses == pytest.approx(json.loads((alone / "value/losses.json").read_text()), abs=TOLERANCE)
        ValueModel.from_pretrained(out / f"value {name}")


def check_memory(stored: Path, made: Path, *logs: str) -> None:
    """A rank has never had more of its own than its part of a model, and one layer of it whole."""
    whole = 4 * sum(one.numel() for one in load_file(made / "model.safetensors").values())
    for log in logs:
        told = json.loads(log.partition("memory: ")[2].partition("\n")[0])
        assert told["weights"] == ["torch.float32"]
        assert told["left"] < 0.65 * whole, told
        assert told["most"] < 0.8 * whole, told
    before, after = (load_file(folder / "model.safetensors") for folder in (stored, made))
    for name, tensor in after.items():
        assert torch.equal(before[f"model.{name}"].float(), tensor), name


def check_logs(first: str, last: str, *spreads: str) -> None:
    """What the first and the last of the ranks have said."""
    assert "listens at ['127.0.0.1']" in first  # nobody on the network gets at the ranks
    assert "batch of 7: 2 at once x 2 ranks x 2 in turn (2 ranks, " in first
    for name in spreads:
        assert (f"\nvalue {name}: 0 of" in first) != doubles.SPREADS[name].is_sharded
    # The last rank alone was asked to stop; all did, at the same step.
    for log in (first, last):
        assert "stopped at step 1; the next attempt goes on from step 1" in log


def test_two_ranks_of_the_engine_write_and_train_what_one_process_does(
    engine: Engine, tmp_path: Path, alone: Path
) -> None:
    """What the engine does when one of them dies, `test_engine_gangs` tries with ranks that start sooner."""
    shutil.copytree(alone / "half", tmp_path / "half" / "full_shard")
    wide.policy().save_pretrained(tmp_path / "model")
    large = LlamaConfig(
        vocab_size=64, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8
    )
    LlamaForCausalLM(large).to(torch.bfloat16).save_pretrained(tmp_path / "large")
    payload = {
        "model": str(tmp_path / "model"),
        "half_done": str(tmp_path / "half"),
        "spreads": ["full_shard"],
        "policies": [],
        "large": str(tmp_path / "large"),
    }
    outcome = engine.run(job("both", "tests.doubles.wide:write_and_train", devices=2, payload=payload), workers=2)
    log = engine.log("both")
    assert outcome.jobs["both"] is JobStatus.done, log
    out = engine.store.path(key("both"))
    made = torch.load(out / "made.pt", weights_only=True)
    check_written(made, wide.write(wide.policy(), wide.value()), 2)
    # Of two none can be told to be wrong.
    first, second = made["about"]["disagreed"]
    assert first == second
    assert first.startswith("RanksDisagree: 2 ranks share a model, and have different tokens after ")

    check_spreads(out, alone, tmp_path / "back", "full_shard")
    of_other = (engine.run_dir / "jobs/both/log.rank1.txt").read_text()
    check_logs(log, of_other, "full_shard")
    check_memory(tmp_path / "large", out / "large", log, of_other)
    assert log.count("going on from the checkpoint of step 4") == 1


@pytest.fixture(scope="module")
def processes() -> Iterator[Start]:
    """Child processes that have torch loaded when they start."""
    with forked("tests.doubles.ranks") as start:
        yield start


def test_every_strategy_gives_the_curve_of_one_process_and_a_killed_rank_costs_what_came_after_the_checkpoint(
    processes: Start, tmp_path: Path, alone: Path
) -> None:
    """Without an engine, as those of two machines; that it starts all ranks anew, `test_engine_gangs` sees to."""
    spreads = ["ddp", "shard_grad_op"]  # full_shard by ranks of the engine, above
    for name in spreads:
        shutil.copytree(alone / "half", tmp_path / "half" / name)
    payload = {
        "half_done": str(tmp_path / "half"),
        "dying": "full_shard",
        "spreads": spreads,
        "policies": [*doubles.POLICIES],
        "unsaved": ["ddp", "full_shard"],
    }
    assert exit_codes_of_ranks(processes, tmp_path, payload, 1) == [1, -signal.SIGKILL]
    # What the other one gets of that, the engine knows to be no cause.
    assert "a failure that is transient" in (tmp_path / "rank0.txt").read_text()
    codes = exit_codes_of_ranks(processes, tmp_path, payload, 2)
    first, last = ((tmp_path / f"rank{rank}.txt").read_text() for rank in range(2))
    assert codes == [0] * 2, first
    out = tmp_path / "rank0"
    assert (out / "steps.txt").read_text() == str(doubles.STEPS - 4)
    check_equal(out / "value", alone / "value")
    check_spreads(out, alone, tmp_path / "back", *spreads)
    for name in doubles.POLICIES:
        check_equal(out / name, alone / name)
        check_same_curve(out / name, alone / name)
    GPT2LMHeadModel.from_pretrained(out / "reference")
    check_logs(first, last, *spreads)
    assert first.count("going on from the checkpoint of step 4") == 1 + len(spreads)
    for log in (first, last):
        for name in ("ddp", "full_shard"):
            unsaved = f"unsaved {name}: at step 1; the next attempt goes on from the start: nothing could be saved"
            assert unsaved in log


def exit_codes_of_ranks(
    processes: Start, folder: Path, payload: dict[str, object], attempt: int
) -> list[int | None]:
    """Have two ranks do a job; the others wait for a last one that failed, but notice one that was killed."""
    started = []
    with held_port(None) as port:
        for rank in range(2):
            (folder / f"rank{rank}").mkdir(exist_ok=True)
            environment = rank_environment(os.environ, [""] * 2, rank=rank, master_port=port)
            started.append(processes(doubles.forked_rank, rank, dict(environment), folder, payload, attempt))
        started[-1].join(600)
        waits = started[-1].exitcode in (0, -signal.SIGKILL)
        for process in started:
            process.join(600 if waits else 0)
            process.kill()
            process.join(600)
    return [process.exitcode for process in started]


def test_ranks_of_another_number_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(JobError, match="has 2 devices, but WORLD_SIZE=3"), join(0, 2, "cpu", Spread()):
        pass


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("micro", [1, 2, 5])
def test_a_batch_is_shared_out_whole(size: int, micro: int) -> None:
    rows = torch.arange(100, 107).numpy()
    shares = [list(Ranks(rank, size).share(rows, micro)) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1  # as many forward passes on every rank
    counted = [row for share in shares for part, weight in share for row in part.tolist() if weight]
    assert sorted(counted) == rows.tolist()
    assert all(0 < len(part) <= micro for share in shares for part, _ in share)
