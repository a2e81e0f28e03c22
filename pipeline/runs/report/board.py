"""Write one page for many bundles: a leaderboard without scripts that ranks only like things together."""

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from pipeline.config.tables import is_mean
from pipeline.learning.algos.base import REFERENCE
from pipeline.plan.recorded import RecordedPlan
from pipeline.runs.bundle import Source
from pipeline.runs.record import PRIMARY_METRICS, ByMetric, PooledRow, Results
from pipeline.runs.report.format import beginning, decimal, interval
from pipeline.terminal.streams import on_one_line

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin-bottom: 2rem; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8884; vertical-align: top; }
td { overflow-wrap: anywhere; min-width: 5rem; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; min-width: 0; }
.wrong { color: #c00; font-weight: 600; }
:root { color-scheme: light dark; }
"""
_HEADINGS = ("", "method", "metric", "value", "interval", "vs reference", "KL/seq", "rounds", "seeds", "prompts")
_SAME = ("dataset", "model", "evaluation", "generation")
"""Sections of the configuration that make two evaluations alike."""
_LONGEST = 2_000
"""Characters of a text of a bundle, which may be of a stranger."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A checked bundle.

    Attributes:
        name: Name of its file.
        digest: SHA-256 sum of the file.
        source: How the run was made.
        results: Its recorded results.
        plan: Its jobs.
        verified: What was checked, in words.
        is_sound: Whether nothing speaks against it.
    """

    name: str
    digest: str
    source: Source
    results: Results
    plan: RecordedPlan
    verified: str
    is_sound: bool


@dataclass(frozen=True)
class Unread:
    """A bundle that cannot be read.

    Attributes:
        name: Name of its file.
        problem: Why, in words.
    """

    name: str
    problem: str


@dataclass(frozen=True)
class _Ranked:
    entry: Entry
    row: PooledRow
    kl: PooledRow | None


def board_page(entries: Sequence[Entry], unread: Iterable[Unread] = ()) -> str:
    """Return the page: a table for each dataset, model and protocol of evaluation, the best method first.

    Args:
        entries: The bundles.
        unread: Those that only the table of bundles names.
    """
    names: dict[str, dict[str, None]] = {}  # a bundle that is given twice counts once, under both names
    for entry in entries:
        names.setdefault(entry.digest, {})[entry.name] = None
    once = {entry.digest: entry for entry in entries}
    entries = [replace(once[digest], name=", ".join(own)) for digest, own in names.items()]
    groups: dict[tuple[str, str, str], list[_Ranked]] = {}
    for entry in entries:
        for (dataset, model, _), cell in _last(entry.results.pooled).items():
            metric = next((name for name in PRIMARY_METRICS if name in cell), None)
            if metric is None or is_mean(dataset):
                continue
            ranked = _Ranked(entry, cell[metric], cell.get("kl_per_sequence"))
            protocol = f"{_protocol(entry, dataset, model)} {metric}"
            groups.setdefault((dataset, model, protocol), []).append(ranked)
    parts = [_table(place, ranked) for place, ranked in sorted(groups.items())]
    policy = f"default-src 'none'; style-src 'sha256-{_hash(_STYLE)}'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Leaderboard</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>\n'
        f"<h1>Leaderboard</h1>\n<p>Methods after their last round. Each table has one dataset, model and "
        f"protocol of evaluation, by what keys of jobs cover. Intervals of two bundles that overlap tell "
        f"nothing apart. A KL with ≤ is an upper bound. Bundles that are not verified come last.</p>\n"
        f"{''.join(parts)}{_bundles(entries, unread)}</body></html>\n"
    )


def _last(pooled: Iterable[PooledRow]) -> dict[tuple[str, str, str], ByMetric]:
    """Return dataset, model and method -> its numbers after its last round, also those without a value."""
    found: dict[tuple[str, str, str], dict[str, PooledRow]] = {}
    for row in sorted(pooled, key=lambda row: row.round):
        cell = found.setdefault((row.dataset, row.model, row.algo), {})
        if any(other.round < row.round for other in cell.values()):
            cell.clear()
        cell[row.metric] = row
    return dict(found)


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _protocol(entry: Entry, dataset: str, model: str) -> str:
    """Return a digest of what makes evaluations alike: data, reference, settings of drawing and measuring."""
    for job in entry.plan.jobs.values():
        if (job.algo, job.stage, job.dataset, job.model) == (REFERENCE, "evaluate", dataset, model):
            sections = entry.plan.config(job.id)
            if sections:
                known = {name: _without_seeds(sections.get(name)) for name in _SAME}
                return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:8]
    return f"alone {entry.digest[:8]}"  # without settings nothing is known to be like it


def _without_seeds(section: Any) -> Any:
    if isinstance(section, Mapping):
        return {name: value for name, value in section.items() if name not in ("seeds", "front", "grown_from")}
    return section


def _table(place: tuple[str, str, str], ranked: Iterable[_Ranked]) -> str:
    dataset, model, alike = place
    order = sorted(ranked, key=lambda one: (not one.entry.is_sound, -_value(one), one.entry.name))
    values = [_value(one) for one in order if one.entry.is_sound]
    rows = "".join(_row(1 + sum(value > _value(one) for value in values), one) for one in order)
    head = "".join(f"<th>{heading}</th>" for heading in (*_HEADINGS, "bundle"))
    protocol = alike.partition(" ")[0]
    return (
        f"<h2>{_text(dataset)} · {_text(model)}</h2><p>Protocol <code>{_text(protocol)}</code></p>\n"
        f"<table><tr>{head}</tr>\n{rows}</table>\n"
    )


def _value(one: _Ranked) -> float:
    return -math.inf if one.row.value is None else one.row.value


def _row(number: int, one: _Ranked) -> str:
    row, kl = one.row, one.kl
    difference = "" if row.difference is None else decimal(row.difference, "+")
    at_most = "≤ " if one.entry.results.bounded_among([row.algo]) else ""
    apart = f"{difference} {interval(row.difference_low, row.difference_high, '+')}".strip()
    cells = [
        (str(number) if one.entry.is_sound and row.value is not None else "-", True),
        (row.algo, False),
        (row.metric, False),
        ("-" if row.value is None else decimal(row.value), True),
        (interval(row.ci_low, row.ci_high), True),
        (apart, True),
        ("" if kl is None or kl.value is None else f"{at_most}{decimal(kl.value)}", True),
        (str(row.round), True),
        (f"{row.seeds} x {row.references}" if row.references > 1 else str(row.seeds), True),
        (f"{row.n:,}", True),
    ]
    told = "".join(f"<td{' class=number' * right}>{_text(text)}</td>" for text, right in cells)
    mark = "" if one.entry.is_sound else ' class="wrong"'
    return (
        f"<tr>{told}<td{mark}>{_text(one.entry.name)} {'' if one.entry.is_sound else '(not verified)'}</td></tr>\n"
    )


def _bundles(entries: Iterable[Entry], unread: Iterable[Unread]) -> str:
    return f"<h2>Bundles</h2>\n<table>{''.join(_lines(entries, unread))}</table>\n"


def _lines(entries: Iterable[Entry], unread: Iterable[Unread]) -> Iterator[str]:
    yield "<tr><th>file</th><th>verified</th><th>made with</th><th>SHA-256 and command</th></tr>\n"
    for one in entries:
        versions = ", ".join(f"{name} {version}" for name, version in one.source.versions.items())
        mark = "" if one.is_sound else ' class="wrong"'
        yield (
            f"<tr><td>{_text(one.name)}</td><td{mark}>{_text(one.verified)}</td>"
            f"<td>{_text(one.source.processor)}<br>{_text(versions)}</td>"
            f"<td><code>{one.digest}</code><br><code>{_text(one.source.command)}</code></td></tr>\n"
        )
    for left in unread:
        said = f'<td class="wrong" colspan="3">not ranked: {_text(left.problem)}</td>'
        yield f"<tr><td>{_text(left.name)}</td>{said}</tr>\n"


def _text(text: str) -> str:
    return escape(on_one_line(beginning(text, _LONGEST)))
