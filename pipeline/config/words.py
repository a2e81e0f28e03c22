r"""Settings of a command line as they were meant, where Hydra reads others: 1.10 as a number, None as a text.

What is rewritten is the word, before Hydra sees it, and by the type of its key alone:

- what stands for a text is the text that was typed: ``experiment.name=1.10``, ``1e3``, ``true``;
- ``None``, as Python writes it, is null where a key takes null, and so is ``~`` for a text that is no path;
- in texts that models read (`fields.model_text`) ``\n`` is a line break and ``\t`` a tab, as Hydra knows neither.

In quotes of Hydra's own (``key="'None'"``) a word stays a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

from pipeline.config.bounds import LONGEST_OVERRIDE
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


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What is declared of a key.

    Attributes:
        shape: ``list``, ``dict`` or, for a single value, ``str``.
        text: Whether its values are texts and nothing else.
        free: Whether it is a table of whatever the user puts there.
        optional: Whether null may stand in its place.
        metadata: Of its field.
    """

    shape: type
    text: bool
    free: bool
    optional: bool
    metadata: Any

    def alike(self, other: Declared | None) -> bool:
        """Whether two keys read what is typed in the same way."""
        return other is not None and (self.shape, self.text, self.free, self.optional) == (
            *(other.shape, other.text),
            *(other.free, other.optional),
        )


def as_meant(words: Sequence[str]) -> list[str]:
    """The words of a command line, settings among them rewritten so that Hydra reads what was meant.

    What cannot be read stays as it is, to be refused as what was typed.
    """
    own = {table: dict(class_paths(table, words)) for table in ("algos", "datasets")}

    def of_key(key: str) -> Declared | None:
        table, name = (*key.split("."), "")[:2]
        return declared_of(key, own.get(table, {}).get(name))

    return at_home([_meant(word, of_key) for word in words])


def class_paths(table: str, overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and classes that a command line adds to a table."""
    for override in overrides:
        if match := re.fullmatch(rf"\+{{0,2}}{table}\.([\w-]+)\.class_path=(['\"]?)([^'\"]+)\2", override):
            yield match[1], match[3]


@cache
def declared_of(key: str, class_path: str | None = None) -> Declared | None:
    """What is declared of a key; None where that is not known, or where what ships differs in it.

    Args:
        key: Dotted.
        class_path: Of the class of the user's own that its section of a table belongs to.
    """
    table, _, rest = key.partition(".")
    if table not in TABLES:
        return _declared(Config, key.split("."))
    name, _, setting = rest.partition(".")
    try:
        schemas = (
            [settings_class(table, name, {"class_path": class_path})]
            if class_path
            else all_shipped(table).values()
        )
    except PipelineError:  # told by whoever registers it
        return None
    found = [each for schema in schemas if setting and (each := _declared(schema, setting.split(".")))]
    return found[0] if found and all(map(found[0].alike, found)) else None


def _declared(schema: Any, parts: Sequence[str]) -> Declared | None:
    for name in parts[:-1]:
        entry = declared_in(schema, name)
        if entry is not None and entry.shape is dict:  # an entry of a table of texts is one
            return replace(entry, shape=str, optional=False) if entry.text and name == parts[-2] else None
        schema = get_type_hints(schema).get(name) if is_dataclass(schema) else None
    return declared_in(schema, parts[-1])


def declared_in(schema: Any, name: str) -> Declared | None:
    """What a class of settings declares of one of its fields; None where it has none of that name."""
    known: dict[str, Field[Any]] = {each.name: each for each in fields(schema)} if is_dataclass(schema) else {}
    if name not in known:
        return None
    hint = get_type_hints(schema)[name]
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    given = [kind for kind in kinds if kind is not NoneType]
    origin = get_origin(given[0])
    inside = get_args(given[0])[-1:] if origin in (list, dict) else given
    return Declared(
        shape=origin if origin in (list, dict) else str,
        text=list(inside) == [str],
        free=Any in inside,
        optional=NoneType in kinds,
        metadata=known[name].metadata,
    )


def _meant(word: str, of_key: Callable[[str], Declared | None]) -> str:
    found = _WORD.fullmatch(word) if len(word) <= LONGEST_OVERRIDE else None
    about = of_key(found[1].lstrip("+")) if found else None
    if found is None or about is None:
        return word
    value = found[2].strip()
    if about.optional and (value == "None" or (value == "~" and about.text and PATH not in about.metadata)):
        return f"{found[1]}=null"
    read = _read(value)
    if read is None and value != "null":  # braces of a template, say, or an apostrophe
        is_text = about.shape is str and about.text and value[:1] not in tuple("'\"[~")
        return f"{found[1]}={_quoted(_said(value, about))}" if is_text else word
    if isinstance(read, (str, QuotedString, int, float, NoneType)):
        return f"{found[1]}={_one(value, about)}" if about.shape is str else word
    tabled = isinstance(read, dict)
    return f"{found[1]}=" + _ELEMENT.sub(lambda each: _element(each[0], about, tabled=tabled), value)


def _element(given: str, about: Declared, *, tabled: bool) -> str:
    """A value inside brackets, or between commas."""
    if not tabled or given[0] in "'\"":
        return _one(given, about)
    key, colon, value = given.partition(":")
    return f"{key}{colon} {_one(value.strip(), about)}" if value.strip() else given


def _one(given: str, about: Declared) -> str:
    """One value, rewritten where Hydra would read it otherwise."""
    value = given.strip()
    if value in ("None", "null") and about.optional and about.shape is str:
        return "null"
    read = _read(value)
    if not about.text or (read is None and value != "null"):
        return given
    if not isinstance(read, (str, QuotedString)):
        return _quoted(value)
    text = read.text if isinstance(read, QuotedString) else read
    said = _said(text, about)
    return given if said == text else _quoted(said)


def _said(text: str, about: Declared) -> str:
    return _ESCAPE.sub(lambda found: _MEANS[found[0]], text) if MODEL_TEXT in about.metadata else text


def _read(value: str) -> Any:
    """What Hydra reads; None for null, and for what it cannot read."""
    try:
        return OverridesParser.create().parse_override(f"key={value}").value()
    except (HydraException, ValueError, RecursionError):
        return None


def _quoted(text: str) -> str:
    quoted: str = QuotedString(text, Quote.single).with_quotes()
    return quoted
