"""``KEY=~/folder`` as it is meant: bash expands it where the key has no dot in it, and Hydra cannot read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from pipeline.config.fields import PATH
from pipeline.config.schema import Config

_MEANT = re.compile(r"([^-=~][^=]*=)~(?=/|$)")
_ESCAPED = re.compile(r"[\\()\[\]{}:=, \t]")
"""What Hydra would read as part of its grammar in a value without quotes."""
_ALSO = {"execution.shared_store"}
"""Keys that take the path of a folder, or what is none."""


def at_home(words: Sequence[str]) -> list[str]:
    """The words of a command line, settings among them with the home folder in the place of a leading ``~``.

    A ``~`` stays as it is where no path can be meant, so that it is refused as what was typed.
    """
    if not any(map(_MEANT.match, words)):
        return list(words)
    try:
        home = _ESCAPED.sub(lambda found: f"\\{found[0]}", str(Path.home()))
    except RuntimeError:  # nobody knows where that is
        return list(words)
    return [_MEANT.sub(lambda found: _expanded(found[0], found[1], home), word, count=1) for word in words]


def _expanded(typed: str, key: str, home: str) -> str:
    return f"{key}{home}" if _may_be_path(key.rstrip("=").lstrip("+")) else typed


def _may_be_path(key: str) -> bool:
    """Whether a key takes a path, as far as is known here: what classes of a user's own declare is not."""
    declared: Any = Config
    *above, last = key.split(".")
    for name in above:
        declared = get_type_hints(declared).get(name)
        if not is_dataclass(declared):
            return True
    found = next((field for field in fields(declared) if field.name == last), None)
    if found is None:
        return bool(above)  # without a dot it chooses a file of conf/
    return PATH in found.metadata or key in _ALSO
