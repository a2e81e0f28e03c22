"""How many workers find room on the nodes of a Ray cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def places_of(there: Mapping[str, float], taken: Mapping[str, float]) -> int:
    """How many workers find room on a node."""
    return min((int(there.get(name, 0) / amount) for name, amount in taken.items() if amount), default=0)


def present_with(nodes: Sequence[int], present: int, room: int, *, whole: bool) -> int:
    """How many places can be asked for now, of which earlier ones were already.

    Args:
        nodes: Of each place, its node.
        present: How many could before.
        room: How many find room in the cluster as it is.
        whole: Whether the places of a node come together or not at all.
    """
    while present < len(nodes):
        size = nodes[present:].count(nodes[present]) if whole else 1
        if present + size > room:
            break
        present += size
    return present
