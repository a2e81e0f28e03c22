"""What stored outputs were made with: versions and arithmetic, as their manifests say.

A key holds neither, so results may rest on outputs of several. That is said beside the table and in
``compute.json``; ``results.json`` holds what came out and nothing of how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

from pipeline.engine.store.store import Store
from pipeline.outputs.manifest import NotAnOutputError, read_manifest
from pipeline.plan.graph import Job

UNKNOWN = "unknown"
_LONGEST = 100


@dataclass(frozen=True, order=True)
class Maker:
    """What some outputs were made with.

    Attributes:
        arithmetic: ``portable``, or the processor or GPU.
        pipeline: Version of this package.
        torch: Version.
        transformers: Version.
        outputs: How many.
    """

    arithmetic: str
    pipeline: str
    torch: str
    transformers: str
    outputs: int = 0


_NAMES = tuple(item.name for item in fields(Maker) if item.name != "outputs")


def collect_makers(store: Store, jobs: Iterable[Job]) -> list[Maker]:
    """What the stored outputs of jobs were made with, in order."""
    found: Counter[Maker] = Counter()
    for key in {job.key for job in jobs}:
        try:
            about = read_manifest(key, store.path(key))["about"]
        except (NotAnOutputError, KeyError):
            continue  # it is not made yet, or is told of elsewhere
        parts = {name: _said(about, name) for name in _NAMES}
        found[Maker(parts["arithmetic"], parts["pipeline"], parts["torch"], parts["transformers"])] += 1
    return sorted(replace(maker, outputs=count) for maker, count in found.items())


def several_makers(makers: Sequence[Maker]) -> list[str]:
    """A line for the reader of a table that rests on outputs of several; none where all are of one."""
    if len(makers) < 2:
        return []
    differing = [at for at, name in enumerate(_NAMES) if len({getattr(maker, name) for maker in makers}) > 1]
    parts = [
        f"{', '.join(_words(_NAMES[at], astuple(maker)[at]) for at in differing)} ({maker.outputs} outputs)"
        for maker in makers
    ]
    return [f"these results rest on outputs that may differ in rounding, made with {'; '.join(parts)}"]


def _words(name: str, value: str) -> str:
    return f"{value} arithmetic" if name == "arithmetic" else f"{name} {value}"


def _said(about: object, name: str) -> str:
    value: Any = about.get(name) if isinstance(about, Mapping) else None
    return value[:_LONGEST] if isinstance(value, str) and value.isprintable() and value else UNKNOWN
