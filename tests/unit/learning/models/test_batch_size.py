"""Batch sizes that fit: what is halved, what is remembered, and what is let go of before the next try."""

import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from pipeline.engine.workers.messages import FailureKind, classify
from pipeline.errors import OUT_OF_MEMORY_TEXTS, JobError, OutOfMemory
from pipeline.learning.models.batch_size import BatchSize, BatchSizes, on_device

MODEL = nn.Linear(2, 2)


def fits(batch: BatchSize, limit: int, tried: list[int] | None = None) -> int:
    """Do work that does not fit above a limit; returns the size at which it was done."""

    def work() -> int:
        if tried is not None:
            tried.append(batch.size)
        if batch.size > limit:
            raise torch.OutOfMemoryError(f"tried to allocate {batch.size} GiB\nand more")
        return batch.size

    return batch.run(work)


@pytest.mark.parametrize(
    ("configured", "group", "limit", "tried"),
    [
        (128, 1, 128, [128]),
        (128, 1, 40, [128, 64, 32]),
        (64, 8, 20, [64, 32, 16]),
        (60, 8, 9, [56, 24, 8]),  # whole groups only
        (3, 8, 8, [8]),  # a group is never split, even where less is configured
    ],
)
def test_whole_groups_are_halved_until_they_fit(configured: int, group: int, limit: int, tried: list[int]) -> None:
    found: list[int] = []
    assert fits(BatchSize(configured, group=group), limit, found) == tried[-1]
    assert found == tried


def test_models_of_earlier_jobs_go_before_anything_is_halved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the size, and with it the last bits, would depend on what a worker happens to hold."""
    had_more, tried = iter([True, False]), list[int]()
    batch = BatchSizes(tmp_path, "cpu", MODEL).begin("train", 64, length=8)
    with on_device(shared=False, make_room=lambda: next(had_more)):
        fits(batch, 40, tried)
    assert tried == [64, 64, 32]
    assert capsys.readouterr().out.startswith("out of memory: let go of models of earlier jobs")


def test_nothing_is_halved_on_a_device_that_others_share(tmp_path: Path) -> None:
    """Memory may have run out because of them; halving would change the result, and be remembered."""
    tried: list[int] = []
    batch = BatchSizes(tmp_path, "cpu", MODEL).begin("train", 64, length=8)
    with on_device(shared=True), pytest.raises(torch.OutOfMemoryError) as caught:
        fits(batch, 20, tried)
    assert tried == [64]
    assert classify(caught.value) is FailureKind.out_of_memory
    assert not list(tmp_path.rglob("*.json"))
    assert fits(batch, 20) == 16  # the device is its own again


def test_where_other_ranks_wait_the_next_attempt_begins_with_half(tmp_path: Path) -> None:
    """The work cannot be done again by one of them alone."""
    sizes, tried = BatchSizes(tmp_path, "cpu", MODEL), list[int]()
    batch = sizes.begin("generate", 64, length=8)

    def work() -> None:
        tried.append(batch.size)
        raise torch.OutOfMemoryError("x")

    with pytest.raises(OutOfMemory):
        batch.run(work, together=True)
    assert tried == [64]
    assert sizes.begin("generate", 64, length=8).size == 32


def test_what_does_not_fit_in_one_group_is_an_error_that_says_what_was_tried() -> None:
    with pytest.raises(OutOfMemory) as caught:
        fits(BatchSize(32, group=8, remedy="Try less."), 0)
    assert str(caught.value) == (
        "out of memory with a single group of 8 sequences at once (batch sizes tried: 32, 16, 8). Try less. "
        "The allocator said: tried to allocate 8 GiB"
    )
    assert caught.value.tried == (32, 16, 8)
    assert isinstance(caught.value, JobError)
    assert classify(caught.value) is FailureKind.out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("x"),
        *(RuntimeError(f"{text}; call it again with less") for text in OUT_OF_MEMORY_TEXTS),
        MemoryError(),
    ],
    ids=str,
)
def test_every_allocators_way_of_saying_it_is_understood(error: Exception) -> None:
    """By who makes batches smaller, and by who judges the error where that does not help."""
    batch = BatchSize(2)

    def work() -> int:
        if batch.size == 2:
            raise error
        return batch.size

    assert batch.run(work) == 1
    assert classify(error) is FailureKind.out_of_memory


def test_nothing_of_a_failed_try_is_alive_when_the_next_begins() -> None:
    """A traceback holds the frames it went through, and they hold tensors; cycles hold them longer still."""
    kept: list[weakref.ref[torch.Tensor]] = []

    def deep() -> None:
        big = torch.zeros(10)
        cycle: list[object] = [big]
        cycle.append(cycle)
        kept.append(weakref.ref(big))
        raise torch.OutOfMemoryError("no")

    batch = BatchSize(4)

    def work() -> int:
        if batch.size > 1:
            deep()
        return sum(ref() is not None for ref in kept)

    assert batch.run(work) == 0
    assert len(kept) == 2


def test_a_short_batch_is_halved_rather_than_a_size_it_does_not_reach() -> None:
    batch, tried = BatchSize(256), []

    def work() -> int:
        tried.append(min(batch.size, 10))
        if tried[-1] > 3:
            raise torch.OutOfMemoryError("no")
        return tried[-1]

    assert batch.run(work, used=lambda: min(batch.size, 10)) == 2
    assert tried == [10, 5, 2]


def begin(hints: Path, configured: int = 64, **changes: object) -> BatchSize:
    settings = {"work": "train", "length": 100, "group": 1, "model": MODEL, **changes}
    sizes = BatchSizes(hints, "cpu", settings.pop("model"))  # type: ignore[arg-type]
    return sizes.begin(settings.pop("work"), configured, **settings)  # type: ignore[arg-type]


def test_a_hint_never_makes_a_batch_larger_than_configured(tmp_path: Path) -> None:
    fits(begin(tmp_path), 20)
    assert begin(tmp_path, 4).size == 4
    assert begin(tmp_path, 1000).size == 16
    assert begin(tmp_path, 64, group=12).size == 12
    assert begin(tmp_path, 64, group=40).size == 40


def test_a_hint_holds_for_its_own_kind_of_work_only(tmp_path: Path) -> None:
    fits(begin(tmp_path), 20)
    assert begin(tmp_path, length=65).size == 16
    for other in ({"length": 129}, {"length": 64}, {"work": "generate"}, {"model": nn.Linear(2, 3)}):
        assert begin(tmp_path, **other).size == 64
    assert begin(tmp_path, model=nn.Linear(2, 2)).size == 16  # other weights, the same memory
