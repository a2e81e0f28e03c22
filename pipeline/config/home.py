"""``KEY=~/folder`` as it is meant: bash expands it where the key has no dot in it, and Hydra cannot read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_MEANT = re.compile(r"([^-=~][^=]*=)~(?=/|$)")
_ESCAPED = re.compile(r"[\\()\[\]{}:=, \t]")
"""What Hydra would read as part of its grammar in a value without quotes."""


def at_home(words: Sequence[str]) -> list[str]:
    """The words of a command line, settings among them with the home folder in the place of a leading ``~``."""
    if not any(map(_MEANT.match, words)):
        return list(words)
    try:
        home = _ESCAPED.sub(lambda found: f"\\{found[0]}", str(Path.home()))
    except RuntimeError:  # nobody knows where that is
        return list(words)
    return [_MEANT.sub(lambda found: f"{found[1]}{home}", word, count=1) for word in words]
