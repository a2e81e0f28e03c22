"""What OmegaConf says of a value of a wrong type, in our words: what its key takes, and the default."""

from __future__ import annotations

import re

from pipeline.config.meaning import Meaning, shipped_meanings
from pipeline.config.values import nearest_choice

_ARTICLES = {"whole number": "a whole number", "number": "a number", "text": "a text", "path": "a path"}
_SAID = {
    r"could not be converted to Integer": "a whole number",
    r"could not be converted to Float": "a number",
    r"is not a valid bool": "true or false",
    r"Cannot convert '\w+' to string": "a text",
    r"Cannot merge DictConfig with ListConfig": "a table",
    r"is not a subclass of \w+Config\b": "",
    r"Invalid value '.*', expected one of \[(.*)\]": "",
    r"is not a valid input for <enum": "another value",
    r"is not Optional": "a value",
    r"is incompatible with type hint '": "of another type",
}
"""What is said of a value of a wrong type -> what would be right, where nothing else says it."""


def type_in_words(key: str, said: str) -> str | None:
    """What a key takes, to follow its name and the value that was given.

    Args:
        key: Dotted, without indices; "" where a whole file is meant.
        said: Of OmegaConf.

    Returns:
        ``must be a whole number, at least 1 (by default 2)``; None where this is about no type.
    """
    found = ((match, word) for sign, word in _SAID.items() if (match := re.search(sign, said)))
    match, word = next(found, (None, ""))
    if match is None:
        return None
    if not key:  # of a whole file
        return "must be a table of settings, each written NAME: VALUE; `python -m pipeline help` lists them"
    if "Config" in match[0] or (word == "a value" and key not in shipped_meanings()):
        listed = f"`python -m pipeline help {key}` lists them"
        return f"must be a table of settings; {listed}, each written {key}.NAME=VALUE"
    meaning = shipped_meanings().get(key)
    choices = [*meaning.choices] if meaning else match[1].split(", ") if match.groups() else []
    if choices:
        given = re.search(r"Invalid value '(.*)', expected", said)
        near = nearest_choice(given[1], choices) if given else None
        hint = f". Did you mean {near}?" if near else ""
        several = meaning is not None and meaning.type.startswith("list")
        return f"must be {'a list of ' if several else ''}{' or '.join(choices)}{hint}"
    return f"must be {_kind(meaning) if meaning else word}"


def _kind(meaning: Meaning) -> str:
    """Its type, its range and its default."""
    kind, *others = meaning.type.split(" or ") if meaning.type != "true or false" else [meaning.type]
    kind = _ARTICLES.get(kind, f"a {kind}" if kind.startswith(("list", "table")) else kind)
    told = f"{kind}, {meaning.allowed}" if meaning.allowed else " or ".join([kind, *others])
    return f"{told} (by default {meaning.default})" if meaning.default else told
