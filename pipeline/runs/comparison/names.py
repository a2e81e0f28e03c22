"""What runs are called where several stand together: names that tell them apart. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pipeline.runs.comparison.runs import Key, headings_of, settings_of

_LONGEST = 32
"""Characters of a value."""


class NamedRun(Protocol):
    """What of a run its name is made of."""

    @property
    def name(self) -> str:
        """Of its experiment."""

    @property
    def stamp(self) -> str:
        """Its timestamp."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration, plain."""


def run_names(runs: Sequence[NamedRun]) -> list[str]:
    """A name for each run: of its experiment, or of several runs of one the settings that tell them apart.

    ``eta=0.3`` and ``eta=1``, with the timestamp where settings do not suffice, and with the experiment before
    them where it is not that of all.
    """
    groups: dict[str, list[NamedRun]] = {}
    for run in runs:
        groups.setdefault(run.name, []).append(run)
    told = {id(run): name for own in groups.values() for run, name in zip(own, _told_apart(own), strict=True)}
    if len(groups) == 1:
        return [told[id(run)] for run in runs]
    alone = {name for name, own in groups.items() if len(own) == 1}
    return [run.name if run.name in alone else f"{run.name} {told[id(run)]}" for run in runs]


def _told_apart(runs: Sequence[NamedRun]) -> list[str]:
    """Names for runs of one experiment."""
    if len(runs) == 1:
        return [runs[0].name]
    names = _by_settings([dict(settings_of(run.config)) for run in runs])
    times = Counter(names)
    return [
        name if name and times[name] == 1 else ", ".join(filter(None, (name, run.stamp)))
        for run, name in zip(runs, names, strict=True)
    ]


def _by_settings(settings: Sequence[Mapping[Key, str]]) -> list[str]:
    """Of the settings that several runs have with different values the first ones that part these runs."""
    chosen: list[Key] = []
    parts = 1
    for key in dict.fromkeys(key for own in settings for key in own):
        if len({own[key] for own in settings if key in own}) < 2:
            continue
        parted = len({tuple(own.get(one) for one in (*chosen, key)) for own in settings})
        if parted > parts:
            chosen, parts = [*chosen, key], parted
    headings = headings_of([".".join(key) for key in chosen])
    return [
        ", ".join(f"{headings['.'.join(key)]}={_short(own[key])}" for key in chosen if key in own)
        for own in settings
    ]


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 1]}…"
