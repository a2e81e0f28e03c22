"""Texts in YAML files that YAML reads as something else: ``name: 1.10`` is the number 1.1, ``None`` a text.

What was typed is lost once the file is read, so such a file is refused, with what to write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from omegaconf import OmegaConf

from pipeline.config.schema import Config
from pipeline.config.tables import TABLES, all_shipped
from pipeline.config.told import refuse_all
from pipeline.config.words import Declared, declared_in

_MAY_BE = re.compile(r"[:\[,-]\s+([-+.]?\d[\w.:+-]*|[A-Za-z]{2,5})\s*(?=[\s,\]}#]|$)", re.MULTILINE)
"""A value without quotes that may be a number, a truth value or None."""
_WORDS = {"on", "off", "yes", "no", "true", "false", "none"}
_FREE = {"hydra"}


def check_texts(text: str, path: Path) -> None:
    """Refuse a file whose texts YAML reads as numbers or truth values, or that says None for nothing.

    Raises:
        ConfigError: Names each line, and what to write.
    """
    found = (each[1] for each in _MAY_BE.finditer(text))
    if any(word.lower() in _WORDS or not word.isalpha() for word in found):
        refuse_all([f"{path}: {problem}" for problem in _problems(yaml.compose(text, yaml.SafeLoader), "", None)])


def _problems(node: Any, key: str, about: Declared | None) -> Iterator[str]:
    match node:
        case yaml.MappingNode():
            for name, value in node.value:
                # What stands inside a table of texts is one whatever it is called.
                known = _by_last_part().get(str(name.value)) if about is None else about
                if name.value not in _FREE and (known is None or not known.free):
                    yield from _problems(value, str(name.value), known)
        case yaml.SequenceNode() if about is not None:
            for value in node.value:
                yield from _problems(value, key, about)
        case yaml.ScalarNode() if about is not None and node.style is None:
            yield from _scalar(node, key, about)


def _scalar(node: yaml.ScalarNode, key: str, about: Declared) -> Iterator[str]:
    line, typed = node.start_mark.line + 1, node.value
    if typed == "None" and about.optional:
        quoted = ", or 'None' in quotes for the text" if about.text else ""
        yield f"line {line}: {key}: None is a text in YAML: write null for nothing{quoted}"
    elif about.text:
        plain: Any = OmegaConf.to_container(OmegaConf.load(StringIO(f"value: {typed}")))
        read = plain["value"]
        if read is not None and not isinstance(read, str) and str(read) != typed:
            yield f"line {line}: {key}: {typed} is read as {read}: for the text write it in quotes, '{typed}'"


@cache
def _by_last_part() -> dict[str, Declared]:
    """What is declared of a key by its last part, where all keys that end so are alike in it."""
    schemas: list[Any] = [Config, *(schema for table in TABLES for schema in all_shipped(table).values())]
    found: dict[str, Declared | None] = {}
    while schemas:
        schema = schemas.pop()
        for each in fields(schema):
            if schema is Config and each.name in TABLES:
                continue
            inside = get_type_hints(schema)[each.name]
            about = declared_in(schema, each.name)
            if is_dataclass(inside):
                schemas.append(inside)
            elif about is not None and about.alike(found.setdefault(each.name, about)):
                continue
            found[each.name] = None
    return {name: about for name, about in found.items() if about is not None}
