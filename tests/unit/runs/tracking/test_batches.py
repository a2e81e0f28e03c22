"""What trackers are told of an output: numbers at their places, and texts that do no harm."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.plan.graph import Job
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.tracking.batches import Batch, BatchReader, tracked_chains
from tests.doubles.tracked import TrackedRun, job_id, points


def reader(run: TrackedRun, samples: int = 8) -> BatchReader:
    recorded = LoadedRun(run.folder)
    [chain] = tracked_chains(recorded.plan, "x")
    return BatchReader(chain, recorded.store, samples)


def rounds(*numbers: int) -> Callable[[Job], bool]:
    return lambda job: job.round in numbers


def told(batches: list[Batch]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for batch in batches:
        for row in batch.rows:
            for name, value in row.values.items():
                found.setdefault(name, []).append((row.at, value))
    return found


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    made = TrackedRun(tmp_path)
    made.make_round(1)
    made.make_round(2)
    return made


def test_rounds_follow_each_other_whether_they_are_read_at_once_or_one_by_one(run: TrackedRun) -> None:
    at_once, by_round = reader(run), reader(run)
    found = list(at_once.new(rounds(1, 2)))
    assert [*by_round.new(rounds(1)), *by_round.new(rounds(1, 2))] == found
    assert not list(at_once.new(rounds(1, 2)))
    assert points().items() <= told(found).items()


def test_what_is_not_known_is_left_out_and_the_methods_own_numbers_are_not(run: TrackedRun) -> None:
    names = told(list(reader(run).new(rounds(1)))).keys()
    assert {"train/policy/kl", "train/policy/tokens", "interval/pass@1/low", "interval/odd/high"} <= names
    assert not {"train/policy/grad_norm", "eval/odd"} & names


def test_samples_are_bounded_and_cannot_move_a_cursor(run: TrackedRun) -> None:
    [_, few] = reader(run, samples=3).new(rounds(1))
    assert len(few.samples) == 3
    prompt = str(few.samples[0]["prompt"])
    assert "\\x1b[2J\\u202e" in prompt
    assert "\x1b" not in prompt
    assert "<script>" in prompt, "a text stays what it is; whoever shows it shows it as text"
    [_, none] = reader(run, samples=0).new(rounds(1))
    assert not none.samples


def test_a_long_text_is_cut(tmp_path: Path) -> None:
    run = TrackedRun(tmp_path)
    run.make(1, "metrics", text="x" * 5000)
    [batch] = reader(run).new(lambda job: job.stage == "metrics" and job.round == 1)
    assert all(len(str(sample["prompt"])) < 2010 for sample in batch.samples)


@pytest.mark.parametrize("content", ["", "{", '{"rows": 3}', "[" * 100_000], ids=["empty", "cut", "other", "deep"])
def test_a_file_that_is_wrong_costs_what_is_in_it(run: TrackedRun, content: str) -> None:
    output = run.store.path(run.plan.jobs[job_id(1, "metrics")].key)
    (output / "metrics.json").write_text(content)
    train, measured = reader(run).new(rounds(1))
    assert train.rows
    assert measured.samples
    assert not measured.rows


def test_an_output_that_is_gone_has_nothing_to_tell(tmp_path: Path) -> None:
    assert [batch.rows for batch in reader(TrackedRun(tmp_path)).new(rounds(1))] == [[], []]
