"""Deals the rows of a source into train, validation and test, so that no prompt is in two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.learning.datasets.base import permutation

_PURPOSE = {"train": 0, "validation": 5, "test": 6}
"""Streams of the permutations that order the splits."""


@dataclass(frozen=True)
class SplitRows:
    """Which rows each split has.

    Attributes:
        splits: Split -> positions among the rows that were read for it (of train, where it was cut), in order.
        cut: Splits that were cut from train.
        warnings: What a user should know: rows left out, splits smaller than asked.
    """

    splits: Mapping[str, NDArray[np.int64]]
    cut: frozenset[str]
    warnings: tuple[str, ...]


def deal(prompts: Mapping[str, Sequence[bytes]], sizes: Mapping[str, int], seed: int) -> SplitRows:
    """Deal rows into splits, the same way for the same prompts, sizes and seed.

    Splits that the source has are kept: test as it is, validation and train without the prompts of those before.
    Splits that it lacks are cut from train, each prompt once. Every split is shuffled, so that its first rows are
    a fair sample.

    Args:
        prompts: Split that was read -> an identity of each row's prompt; ``train`` is always there.
        sizes: Prompts at most of ``test`` and ``validation``.
        seed: Of the shuffles.

    Raises:
        DataError: Nothing is left to train on.
    """
    warnings: list[str] = []
    splits: dict[str, NDArray[np.int64]] = {}
    taken: set[bytes] = set()
    for name in ("test", "validation"):
        if name in prompts:
            order = _without(name, prompts[name], taken, seed, warnings)
            splits[name] = order[: sizes[name]]
            taken.update(prompts[name])
            if len(order) < sizes[name]:
                warnings.append(
                    f"{name} has {_rows(len(order))}, fewer than the {sizes[name]} asked for: all are used"
                )
    train = _without("train", prompts["train"], taken, seed, warnings)
    if not len(train):
        raise _nothing_left()
    cut = [name for name in ("test", "validation") if name not in prompts]
    if cut:
        train = _cut(prompts["train"], train, {name: sizes[name] for name in cut}, splits, warnings)
    if not len(train):
        raise _nothing_left()
    return SplitRows({"train": train, **splits}, frozenset(cut), tuple(warnings))


def _nothing_left() -> DataError:
    return DataError("no row is left to train on: every prompt of train is in test or validation as well")


def _without(
    name: str, prompts: Sequence[bytes], taken: set[bytes], seed: int, warnings: list[str]
) -> NDArray[np.int64]:
    order = permutation(seed, _PURPOSE[name], len(prompts))
    kept = np.array([place for place in order.tolist() if prompts[place] not in taken], np.int64)
    if len(kept) < len(order):
        warnings.append(
            f"{_rows(len(order) - len(kept))} of {name} left out: prompts that are held out for evaluation"
        )
    return kept


def _cut(
    prompts: Sequence[bytes],
    train: NDArray[np.int64],
    sizes: Mapping[str, int],
    splits: dict[str, NDArray[np.int64]],
    warnings: list[str],
) -> NDArray[np.int64]:
    """Cut splits off the front of `train` and return what remains."""
    first: dict[bytes, int] = {}
    for place in train.tolist():
        first.setdefault(prompts[place], place)
    different = list(first.values())
    if len(different) <= len(sizes):
        besides = " besides those of the other splits" if len(train) < len(prompts) else ""
        raise DataError(
            f"only {len(different)} different prompt{'s' * (len(different) != 1)}{besides}: too few to cut "
            f"{' and '.join(sizes)} from train. There must be {len(sizes) + 1} at least"
        )
    asked, room = sum(sizes.values()), max(len(different) // 2, len(sizes))
    start, held_out = 0, set[bytes]()
    for name, size in sizes.items():
        given = size if asked <= room else max(1, size * room // asked)
        if given < size:
            warnings.append(
                f"{name} has {_rows(given)}, fewer than the {size} asked for: half of the {len(different)} "
                "different prompts stay in train"
            )
        splits[name] = np.array(different[start : start + given], np.int64)
        held_out.update(prompts[place] for place in different[start : start + given])
        start += given
    rest = np.array([place for place in train.tolist() if prompts[place] not in held_out], np.int64)
    repeated = len(train) - len(rest) - start
    if repeated:
        warnings.append(f"{_rows(repeated)} left out: repeated prompts that were cut from train for evaluation")
    return rest


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
