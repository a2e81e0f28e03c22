"""What a value of CUDA_VISIBLE_DEVICES means: as CUDA reads it, with word of what CUDA would silently drop.

The grammar is the driver's, as torch's own parser has it: numbers are read like C's `strtoul`, the first invalid
entry ends the list, an entry given twice empties it, and names are prefixes that must be unique.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VISIBLE = "CUDA_VISIBLE_DEVICES"
NOTHING = ("", "-1", "NoDevFiles")
"""Values that hide every GPU on purpose; Slurm sets the last."""
_NUMBER = re.compile(r"[+-]?[0-9]+")
_PREFIXES = ("GPU-", "MIG-")


@dataclass(frozen=True)
class Seen:
    """What a process with a mask sees.

    Attributes:
        uuids: Devices in the order in which CUDA numbers them.
        fault: Which part of the mask CUDA would drop without a word, and why; None where it takes all of it.
    """

    uuids: tuple[str, ...]
    fault: str | None = None


def read_mask(mask: str | None, gpus: Sequence[str], slices: Mapping[str, str] | None = None) -> Seen:
    """Read a mask.

    Args:
        mask: The variable's value; None is a variable that is not set.
        gpus: UUIDs of the GPUs in PCI bus order.
        slices: MIG slices: UUID -> its older name ``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``.
    """
    slices = slices or {}
    if mask is None:
        return Seen((*gpus, *slices))
    if mask.strip() in NOTHING:
        return Seen(())
    entries, fault = entries_of(mask)
    kept: list[str] = []
    for entry in entries:
        uuid, wrong = _find(entry, gpus, slices)
        if uuid is None:
            return Seen(tuple(kept), wrong)
        if uuid in kept:
            return Seen((), f"'{entry}' names a GPU that was named before, which leaves none at all")
        kept.append(uuid)
    return Seen(tuple(kept), fault)


def entries_of(mask: str) -> tuple[list[int] | list[str], str | None]:
    """Split a mask into numbers, or into names where it begins with one, up to the first entry that is neither.

    Returns:
        The entries, and what was dropped, or None.
    """
    prefix = next((prefix for prefix in _PREFIXES if mask.startswith(prefix)), None)
    return _numbers(mask.split(",")) if prefix is None else _names(mask.split(","), prefix)


def _numbers(entries: Sequence[str]) -> tuple[list[int], str | None]:
    found: list[int] = []
    for place, entry in enumerate(entries):
        match = _NUMBER.match(entry.strip())
        number = int(match.group()) if match else -1
        if number in found:
            return [], f"'{entry}' is given twice, which leaves no GPU at all"
        if number < 0:
            closes = entry.strip() == "-1" and place == len(entries) - 1
            return found, None if closes else f"'{entry}' is no GPU; it and what follows are dropped"
        found.append(number)
    return found, None


def _names(entries: Sequence[str], prefix: str) -> tuple[list[str], str | None]:
    found: list[str] = []
    for entry in entries:
        if entry in found:
            return [], f"'{entry}' is given twice, which leaves no GPU at all"
        if not entry.startswith(prefix):
            return found, (
                f"'{entry}' is not a name that begins with {prefix}, as the first one does (numbers, names and "
                "spaces do not mix); it and what follows are dropped"
            )
        found.append(entry)
    return found, None


def _find(entry: int | str, gpus: Sequence[str], slices: Mapping[str, str]) -> tuple[str | None, str | None]:
    if isinstance(entry, int):
        if entry < len(gpus):
            return gpus[entry], None
        return None, f"'{entry}' names no GPU of this machine; it and what follows are dropped"
    names = {uuid: (uuid,) for uuid in gpus} if entry.startswith("GPU-") else _slice_names(slices)
    found = [uuid for uuid, known in names.items() if any(name.startswith(entry) for name in known)]
    if len(found) == 1:
        return found[0], None
    what = "matches several GPUs" if found else "names no GPU of this machine"
    return None, f"'{entry}' {what}; it and what follows are dropped"


def _slice_names(slices: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {uuid: (uuid, older) for uuid, older in slices.items()}
