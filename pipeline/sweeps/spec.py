"""What a sweep file asks for, checked: plain data from here on.

The file is W&B's, whole; what only this program understands stands in its block ``pipeline:``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from pipeline.sweeps.space import Parameter


class Method(Enum):
    """How settings are chosen."""

    grid = "grid"
    random = "random"
    bayes = "bayes"


class Goal(Enum):
    """Which values of the metric are better."""

    minimize = "minimize"
    maximize = "maximize"


class Impute(Enum):
    """Which value stands for that of a trial that has none."""

    worst = "worst"
    best = "best"
    latest = "latest"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What trials are judged by.

    Attributes:
        name: As the program logs it.
        goal: Which values are better.
        target: No trial is begun once one has reached it; None for none.
        impute: The value that a failed trial counts as in a search.
        impute_while_running: That of one that still runs; None for none.
    """

    name: str
    goal: Goal = Goal.minimize
    target: float | None = None
    impute: Impute = Impute.worst
    impute_while_running: Impute | None = None


@dataclass(frozen=True, kw_only=True)
class Hyperband:
    """When a trial is stopped before its end.

    Attributes:
        bands: Numbers of logged values at which trials are compared, ascending.
        eta: One of so many goes on.
        strict: Compare what a trial has at the band, rather than its best so far.
    """

    bands: tuple[int, ...]
    eta: float = 3.0
    strict: bool = True


class Launcher(Enum):
    """How a trial is started on several devices."""

    torchrun = "torchrun"  # a process for each
    none = "none"  # once, as for programs that start their ranks themselves


@dataclass(frozen=True, kw_only=True)
class Options:
    """The block ``pipeline:`` of the file.

    Attributes:
        num_gpus: Devices of a trial, where `num_gpus` is no parameter.
        launcher: How a trial with several devices is started.
        distributed_program: In place of ``program`` for a trial with several devices; "" for the same one.
        max_attempts: Times that a trial is begun before it counts as failed.
        max_failures: Failed trials in a row after which the sweep stops.
        seed: Of the search.
        prepare: A command that is run once before the first trial, with the macros of ``command``.
        environment: Variables that trials have besides those of this process.
    """

    num_gpus: int = 1
    launcher: Launcher = Launcher.torchrun
    distributed_program: str = ""
    max_attempts: int = 2
    max_failures: int = 3
    seed: int = 0
    prepare: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep as it was asked for.

    Attributes:
        name: Of its folder: a name as that of an experiment.
        method: How settings are chosen.
        metric: What trials are judged by; None for grid and random ones that are not.
        parameters: By dotted name, in the order of the file, those of tables inside it too.
        program: What a trial runs; "" where `command` says all.
        command: How it is called, with W&B's macros.
        run_cap: The most trials; None for no bound.
        early_terminate: When trials are stopped early; None for never.
        options: What W&B does not know.
        given: The file as plain data, numbers as numbers, without the block ``pipeline:``; what W&B is given.
        folder: Where programs are found and trials start: the folder in which the sweep was begun.
        notes: What is worth telling before it starts, a line each.
    """

    name: str
    method: Method
    metric: Metric | None
    parameters: Mapping[str, Parameter]
    program: str
    command: tuple[str, ...]
    run_cap: int | None = None
    early_terminate: Hyperband | None = None
    options: Options = field(default_factory=Options)
    given: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)
    notes: tuple[str, ...] = ()
