"""What is said below tables of results of rows that are not like the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

_MOST_FEW = 6
"""Names in one sentence."""


def first_few(names: list[str], what: str) -> list[str]:
    """The first of them, and of ``what`` how many more there are."""
    more = [f"and {len(names) - _MOST_FEW} more {what}"] if len(names) > _MOST_FEW else []
    return [*names[:_MOST_FEW], *more]


class Chains(NamedTuple):
    """Numbers of references and of seeds that a row rests on."""

    references: int
    seeds: int


def about_fewer_chains(rows: Mapping[str, Chains], others: Iterable[Chains] = ()) -> list[str]:
    """Which rows lack references or seeds that other rows have, and so say less; nothing where none does.

    Args:
        rows: Row in words -> what it rests on.
        others: What rows of other tables of the same dataset and model rest on.
    """
    every = [*rows.values(), *others]
    fewer = [
        f"{row}: {chains[at]} of {most} {what}"
        for at, what in enumerate(Chains._fields)
        for most in [max((chains[at] for chains in every), default=0)]
        for row, chains in rows.items()
        if chains[at] < most
    ]
    return ["; ".join(first_few(fewer, "rows"))] if fewer else []


def about_starts(starts: Mapping[str, str], shown: Collection[str]) -> list[str]:
    """Which methods begin with the policy of another one; nothing where none does.

    Args:
        starts: Method -> that one.
        shown: Methods of the table.
    """
    begun: dict[str, list[str]] = {}
    for name in sorted(starts.keys() & set(shown)):
        begun.setdefault(starts[name], []).append(name)
    return [
        f"{', '.join(first_few(names, 'methods'))}: from the last policy of {start}, whose costs count; KL is "
        "from the reference."
        for start, names in begun.items()
    ]


def about_bounds(bounded: list[str], shown: Collection[str], so: str = "") -> list[str]:
    """What to say below numbers that rest on a divergence which is a bound; nothing where it is exact for all.

    Args:
        bounded: Methods of the table whose divergence is a bound.
        shown: Headings of the columns that are shown; without divergences there is nothing to say of them.
        so: What follows for other numbers of the table.
    """
    if not bounded or not (so or "KL/seq" in shown or "KL/token" in shown):
        return []
    return [f"{', '.join(first_few(bounded, 'methods'))}: KL is an upper bound{f', so {so}' if so else ''}."]
