"""What is said below tables of results of rows that are not like the others."""

from __future__ import annotations

_MOST_FEW = 6
"""Names in one sentence."""


def first_few(names: list[str], what: str) -> list[str]:
    """The first of them, and of ``what`` how many more there are."""
    more = [f"and {len(names) - _MOST_FEW} more {what}"] if len(names) > _MOST_FEW else []
    return [*names[:_MOST_FEW], *more]


def about_bounds(bounded: list[str], so: str = "") -> list[str]:
    """What to say below numbers that rest on a divergence which is a bound; nothing where it is exact for all.

    Args:
        bounded: Methods of the table whose divergence is a bound.
        so: What follows for other numbers of the table.
    """
    if not bounded:
        return []
    return [f"{', '.join(first_few(bounded, 'methods'))}: KL is an upper bound{f', so {so}' if so else ''}."]
