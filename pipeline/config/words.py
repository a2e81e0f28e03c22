r"""Settings of a command line as they were meant, where Hydra reads others: 1.10 as a number, None as a text.

What is rewritten is the word, before Hydra sees it, and by the type of its key alone:

- what stands for a text is the text that was typed: ``experiment.name=1.10``, ``1e3``, ``true``;
- ``None``, as Python writes it, is null where a key takes null, and so is ``~`` for a text that is no path;
- in texts that models read (`schema.model_text`) ``\n`` is a line break and ``\t`` a tab, as Hydra knows neither.

In quotes of Hydra's own (``key="'None'"``) a word stays a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

from pipeline.config.plain import hints_of, kinds_of
from pipeline.config.schema import MODEL_TEXT, PATH, Config
from pipeline.config.tables import TABLES, all_shipped, settings_class
from pipeline.errors import PipelineError

# -- home --------------------------------------------------------------------------------------------------------
# ``KEY=~/folder`` as it is meant: bash expands it where the key has no dot in it, and Hydra cannot read it.


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


_LONGEST = 10_000
"""Characters of a setting that is looked at for what was meant."""
_WORD = re.compile(r"(\+{0,2}[A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_ELEMENT = re.compile(
    r"""'(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | [^\s,\[\]{}()'"][^,\[\]{}()'"]*""", re.DOTALL | re.VERBOSE
)
"""A value inside a list, a table or a choice, in a table with its key before it."""
_LATEX = (
    *("nabla", "ncong", "ne", "nearrow", "neg", "neq", "newline", "nexists", "ngeq", "ni", "nleq", "nmid"),
    *("nolimits", "nonumber", "not", "notin", "nsim", "nsubseteq", "nu", "nwarrow"),
    *("tag", "tan", "tanh", "tau", "tbinom", "text", "textbf", "textit", "textrm", "texttt", "tfrac", "theta"),
    *("tilde", "times", "to", "top", "triangle", "triangleq"),
)
_ESCAPE = re.compile(rf"\\(?:\\(?=[nt])|(?!(?:{'|'.join(_LATEX)})(?![A-Za-z]))[nt])")
"""An escape that people type; what a command of LaTeX begins with is none."""
_MEANS = {r"\n": "\n", r"\t": "\t", "\\\\": "\\"}


def as_meant(words: Sequence[str]) -> list[str]:
    """Rewrite the settings of a command line so that Hydra reads what was meant.

    What cannot be read stays as it is, to be refused as what was typed.
    """
    own = {table: dict(class_paths(table, words)) for table in ("algos", "datasets")}
    return at_home([_meant(word, own) for word in words])


def class_paths(table: str, overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and classes that a command line adds to a table."""
    for override in overrides:
        if match := re.fullmatch(rf"\+{{0,2}}{table}\.([\w-]+)\.class_path=(['\"]?)([^'\"]+)\2", override):
            yield match[1], match[3]


@cache
def _declared(key: str, class_path: str | None) -> tuple[Any, Mapping[str, Any]] | None:
    """Return the type of a key and what else its field declares; None where that is not known.

    Args:
        key: Dotted.
        class_path: Of the class of the user's own that its section of a table belongs to.
    """
    table, *parts = key.split(".")
    if table not in TABLES:
        return _field(Config, [table, *parts])
    try:
        given = {"class_path": class_path}
        schemas = [settings_class(table, parts[0], given)] if class_path else all_shipped(table).values()
    except PipelineError:  # told by whoever registers it
        return None
    return next((found for schema in schemas if (found := _field(schema, parts[1:]))), None)


def _field(schema: Any, parts: Sequence[str]) -> tuple[Any, Mapping[str, Any]] | None:
    hint, metadata = schema, {}
    for name in parts:
        table = next((kind for kind in kinds_of(hint) if get_origin(kind) is dict), None)
        schema = next((kind for kind in kinds_of(hint) if is_dataclass(kind)), None)
        if table:
            hint = get_args(table)[1]
        elif schema and name in hints_of(schema):
            hint, metadata = hints_of(schema)[name], schema.__dataclass_fields__[name].metadata
        else:
            return None
    return (hint, metadata) if parts else None


def _meant(word: str, own: Mapping[str, Mapping[str, str]]) -> str:
    found = _WORD.fullmatch(word) if len(word) <= _LONGEST else None
    table, name = ([*found[1].lstrip("+").split("."), ""] if found else ["", ""])[:2]
    about = _declared(found[1].lstrip("+"), own.get(table, {}).get(name)) if found else None
    if found is None or about is None:
        return word
    (hint, metadata), value = about, found[2].strip()
    kinds = {kind for kind in kinds_of(hint) if kind is not NoneType}
    inside = {get_args(kind)[-1] if get_origin(kind) in (list, dict) else kind for kind in kinds}
    single, is_text, optional = kinds == inside, inside == {str}, NoneType in kinds_of(hint)

    def escaped(text: str) -> str:
        return _ESCAPE.sub(lambda each: _MEANS[each[0]], text) if MODEL_TEXT in metadata else text

    def one(given: str) -> str:
        """One value, rewritten where Hydra would read it otherwise."""
        typed = given.strip()
        if typed in ("None", "null") and optional and single:
            return "null"
        read = _read(typed)
        if not is_text or (read is None and typed != "null"):
            return given
        text = getattr(read, "text", read if isinstance(read, str) else None)
        meant = escaped(typed if text is None else text)
        return given if meant == text else _quoted(meant)

    def element(each: re.Match[str]) -> str:
        key, colon, entry = (
            each[0].partition(":") if value[0] == "{" and each[0][0] not in "'\"" else ("", "", each[0])
        )
        return f"{key}{colon} {one(entry.strip())}" if colon and entry.strip() else one(each[0])

    if optional and (value == "None" or (value == "~" and is_text and PATH not in metadata)):
        return f"{found[1]}=null"
    read = _read(value)
    if read is None and value != "null":  # braces of a template, say, or an apostrophe
        odd = single and is_text and value[:1] not in tuple("'\"[~")
        return f"{found[1]}={_quoted(escaped(value))}" if odd else word
    if isinstance(read, str | QuotedString | int | float | NoneType):
        return f"{found[1]}={one(value)}" if single else word
    return f"{found[1]}={_ELEMENT.sub(element, value)}"


def _read(value: str) -> Any:
    """What Hydra reads; None for null, and for what it cannot read."""
    try:
        return OverridesParser.create().parse_override(f"key={value}").value()
    except (HydraException, ValueError, RecursionError):
        return None


def _quoted(text: str) -> str:
    quoted: str = QuotedString(text, Quote.single).with_quotes()
    return quoted
