"""What of a run may be told to everybody: how it was made, and neither on which machine nor in whose folders."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

_WHERE = {"execution", "tracking", "hydra", "output_dir"}
"""Keys and sections of keys that say where and how work was done, or who was told of it."""
_STAYS = "execution.shard_size"
"""On which results depend all the same."""
_PATH = re.compile(r"(?:file://|~|\$\{?HOME\}?)?/[^\s/]+/")
"""How a text begins that is one whole path; names in it may have spaces."""
_FOLDERS = re.compile(
    r"(?:(?<![\w./:~$])|(?<=:)(?!//))(?:file://|~|\$\{?HOME\}?)?/(?:[^\s/,'\"\[\]{}=:]+/)*(?=[^\s/,'\"\[\]{}=:])"
)
"""Those of a whole path, without its last name: names of hubs and addresses of the web begin otherwise."""


def command_for_all(words: Sequence[str]) -> str:
    """The command that repeats a run, as it is typed anywhere.

    Args:
        words: As the run recorded it; none where it did not.
    """
    return shlex.join(name_for_all(word) for word in words if not _says_where(word))


def name_for_all(text: str) -> str:
    """A text in which whole paths are names: they lead nowhere for others."""
    if _PATH.match(text):
        return text.rstrip("/").rpartition("/")[2]
    key, equals, value = text.partition("=")
    quote = value[:1]
    if quote in ("'", '"') and value[1:].endswith(quote) and _PATH.match(value[1:]):
        return f"{key}{equals}{quote}{name_for_all(value[1:-1])}{quote}"
    return text if any(map(str.isspace, text)) else _FOLDERS.sub("", text)


def settings_for_all(settings: Any) -> Any:
    """Plain settings, likewise."""
    if isinstance(settings, dict):
        return {key: settings_for_all(value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [settings_for_all(value) for value in settings]
    return name_for_all(settings) if isinstance(settings, str) else settings


def _says_where(word: str) -> bool:
    key, is_setting, _ = word.lstrip("+").partition("=")
    return bool(is_setting) and key != _STAYS and key.partition(".")[0] in _WHERE
