"""A bound on the runs of a sweep, counted by arithmetic before Hydra lists them: ranges may be of any length.

Other sweepers than Hydra's own have bounds of their own, mostly a number of trials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from hydra.core.override_parser.types import Override, RangeSweep
from hydra.core.plugins import Plugins

from pipeline.errors import ConfigError

MOST_RUNS = 10_000
_SHOWN = 80
_LISTED = 10**12
"""Numbers of values from here on are not written out."""


def bound_sweeps() -> None:
    """Have Hydra's sweeper look at what it is given before it makes a list of the runs.

    Changed in place, for the reasons of `pipeline.config.limits.bound_files`.
    """
    Plugins.instance()  # which imports the modules of all plugins anew: their classes are others before
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    hydras = BasicSweeper.split_arguments
    if hydras.__module__ == __name__:
        return

    def split_arguments(overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:
        check_sweep(overrides)
        return hydras(overrides, max_batch_size)

    setattr(BasicSweeper, "split_arguments", staticmethod(split_arguments))  # noqa: B010


def check_sweep(overrides: Sequence[Override]) -> None:
    """Refuse a sweep without runs, and one of more runs than anybody could wait for.

    Args:
        overrides: Settings as Hydra has parsed them, those of `hydra.sweeper.params` included.

    Raises:
        ConfigError: Names the key that makes it so.
    """
    swept = {each.get_key_element(): each for each in overrides if each.is_discrete_sweep()}
    lengths = {key: _length(each) for key, each in swept.items()}
    empty = next((key for key, length in lengths.items() if length == 0), None)
    if empty is not None:
        raise ConfigError(f"the sweep has no runs: {_given(swept[empty])} stands for no value at all")
    if math.prod(lengths.values()) > MOST_RUNS:
        largest = max(lengths, key=lambda key: lengths[key])
        counts = ", ".join(f"{key} {_count(length)}" for key, length in lengths.items())
        raise ConfigError(
            f"the sweep has more than {MOST_RUNS:,} runs, the most of one command. It is {largest} above all: "
            f"{_given(swept[largest])} (values of each: {counts})"
        )


def _length(override: Override) -> int | float:
    """How many values a sweep goes through; a range is not listed for it."""
    value = override.value()
    if not isinstance(value, RangeSweep):
        return sum(1 for _ in override.sweep_iterator())
    start, stop, step = value.start or 0, value.stop or 0, value.step
    if not all(map(math.isfinite, (start, stop, step))):
        return math.inf
    if step == 0:
        return 1  # which Hydra refuses with a good message
    return max(0, math.ceil((Fraction(stop) - Fraction(start)) / Fraction(step)))


def _given(override: Override) -> str:
    text = override.input_line or override.get_key_element()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _count(length: float) -> str:
    return f"{length:,}" if length < _LISTED else "without end"
