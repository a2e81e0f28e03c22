"""Fills the page of all keys when the site is built: a hook of MkDocs, named in mkdocs.yml.

A part stands between ``<!-- made: keys WHAT ... -->`` and ``<!-- end -->``; everything else is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.config.meaning import Meaning, shipped_meanings, shipped_sections
from pipeline.config.tables import TABLES

_PART = re.compile(r"(<!-- made: keys ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill the parts of a page."""
    return _PART.sub(lambda found: f"{found[1]}\n{_keys(found[2].split())}\n\n{found[3]}", markdown)


def _keys(what: Sequence[str]) -> str:
    """Tables of the keys of the run, of all sections, or of a table of algorithms, datasets or models."""
    sections = [key for key in shipped_sections() if "." not in key]
    asked = [each for word in what for each in (sections if word == "sections" else [word])]
    return "\n\n".join(table for section in asked for table in _key_tables(section))


def _key_tables(section: str) -> Iterator[str]:
    found, about = shipped_meanings(), shipped_sections()
    if section == "run":
        yield _key_table([each for key, each in found.items() if "." not in key], "")
    elif section not in TABLES:
        prefix = f"{section}."
        yield f"### `{section}`\n\n{about[section]}\n\n" + _key_table(
            [each for key, each in found.items() if key.startswith(prefix)], prefix
        )
    else:
        yield from _table_of_tables(section)


def _table_of_tables(table: str) -> Iterator[str]:
    """What all entries of a table have once, then what is each entry's own."""
    found, about = shipped_meanings(), shipped_sections()
    names = [key.split(".")[1] for key in about if key.startswith(f"{table}.") and key.count(".") == 1]
    of = {
        name: {
            key.removeprefix(f"{table}.{name}."): each
            for key, each in found.items()
            if key.startswith(f"{table}.{name}.")
        }
        for name in names
    }
    shared = [
        key
        for key in of[names[0]]
        if len({_row(of[name][key], key) if key in of[name] else "" for name in names}) == 1
    ]
    yield f"### `{table}.NAME`\n\nWhat all of them have, with the same default.\n\n" + _rows(
        [_row(of[names[0]][key], key) for key in shared]
    )
    for name in names:
        rows = [_row(each, key) for key, each in of[name].items() if key not in shared]
        said = about[f"{table}.{name}"]
        yield f"### `{table}.{name}`\n\n{said}\n\n" + (_rows(rows) if rows else "Nothing besides.")


def _key_table(found: Sequence[Meaning], prefix: str) -> str:
    return _rows([_row(each, each.key.removeprefix(prefix)) for each in found])


def _rows(rows: Sequence[str]) -> str:
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def _row(each: Meaning, name: str) -> str:
    choices = "; ".join(f"`{choice}`" + (f": {said}" if said else "") for choice, said in each.choices.items())
    allowed = each.allowed.partition(", or null")[0]
    kind = each.type if not allowed else f"{each.type}, {allowed}"
    said = " ".join(part for part in (_ended(each.text), _ended(choices or kind)) if part)
    default = f"`{each.default}`" if each.default else "none: must be given"
    return f"| `{name}` | {_cell(default)} | {_cell(said)} |"


def _ended(text: str) -> str:
    text = text.strip()
    text = text[:1].upper() + text[1:] if not text.startswith("`") else text
    return text if not text or text.endswith((".", ";", ":")) else f"{text}."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
