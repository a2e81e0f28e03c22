"""What the page of a sweep shows, as plain data, from which its scripts draw. Lists are columns of trials."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pipeline.runs.looks import Looks
from pipeline.runs.report.page.html import Numbers, PageTable


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A parameter that trials differ in.

    Attributes:
        name: Its dotted name.
        heading: As short as it can be without being another one.
        kind: How it is drawn: ``choices`` in equal distances.
        values: Of each trial; of choices the index; None where a trial has none.
        choices: In words, in order.
    """

    name: str
    heading: str
    kind: Literal["linear", "log", "choices"]
    values: Numbers
    choices: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Something that was measured of trials.

    Attributes:
        name: A metric, or ``seconds``.
        goal: Which values are better, as far as anyone has said or its name says.
        values: Of each trial.
    """

    name: str
    goal: Literal["minimize", "maximize"]
    values: Numbers


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The metric while a trial ran: its steps, or how many times it was logged, and values."""

    trial: int
    steps: list[int]
    values: Numbers


@dataclass(frozen=True, kw_only=True)
class FailedTrial:
    """A trial that has no value.

    Attributes:
        trial: Its number.
        state: In one word.
        attempts: How often it was begun.
        reason: In words.
        parameters: In a line.
        log: Of its last attempt, in the sweep's folder.
        tail: The last lines of that.
    """

    trial: int
    state: str
    attempts: int
    reason: str
    parameters: str
    log: str
    tail: str


@dataclass(frozen=True, kw_only=True)
class SweepPage:
    """A sweep.

    Attributes:
        title: Of the page.
        made: When it was written, in words.
        version: Of this package.
        state: In one word.
        unfinished: What a reader must know first, a line each.
        facts: Label and value of what stands at the top.
        metric: What trials are judged by, or "".
        goal: Which values of it are better.
        target: A value that would do, or None.
        numbers: Of the trials.
        states: Of each, in one word.
        values: Of the metric, or what was logged of it last.
        ended: Seconds from the begin of the sweep to the end of each, or until now.
        words: Parameters of each in a line.
        ranking: Places of trials in these columns, those with the best values first.
        axes: Parameters that differ.
        measures: What was measured, the metric first.
        curves: Of trials that have logged it more than once.
        curves_about: How many of how many points these are.
        importance: Parameter and its share.
        importance_about: What these shares are, or why there are none.
        table: All trials.
        tested: The best trial on held-out data.
        failures: Trials without a value.
        file: The sweep file as it was given.
        command: Goes on with the sweep; "" of one that is finished.
        about: Label and value of what else is known.
        looks: What lines and points are told apart by.
    """

    title: str
    made: str
    version: str
    state: str
    unfinished: list[str]
    facts: list[tuple[str, str]]
    metric: str
    goal: Literal["minimize", "maximize"]
    target: float | None
    numbers: list[int]
    states: list[str]
    values: Numbers
    ended: Numbers
    words: list[str]
    ranking: list[int]
    axes: list[Axis]
    measures: list[Measure]
    curves: list[Curve]
    curves_about: str
    importance: list[tuple[str, float]]
    importance_about: str
    table: PageTable
    tested: list[tuple[str, str]]
    failures: list[FailedTrial]
    file: str
    command: str
    about: list[tuple[str, str]]
    looks: Looks = field(default_factory=Looks)
