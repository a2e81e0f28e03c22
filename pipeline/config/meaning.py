"""What every key means, read from where it is declared: type, default, range, and the text that stands below it.

Settings of users' own classes are read in the same way, so what is written of a field once is what `pipeline help`
says and what the reference of all keys has.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pipeline.config.plain import filled, nearest_choice, short, value_problems
from pipeline.config.schema import CHOICES, KEYED, MISSING, PATH, RANGE, Config
from pipeline.config.tables import TABLES, all_shipped
from pipeline.errors import ConfigError, unknown_name

_WORDS: Mapping[object, tuple[str, str]] = {
    int: ("whole number", "whole numbers"),
    float: ("number", "numbers"),
    str: ("text", "texts"),
    bool: ("true or false", "of true or false"),
    Any: ("anything", "anything"),
}
"""Type -> what one and what several of it are called."""


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What is known of a key.

    Attributes:
        key: Dotted, as it is typed: ``training.grad_clip``, ``algos.PITA.eta``.
        type: In words: ``number``, ``list of whole numbers``, ``text or null``.
        default: As it is typed; "" where a value must be given.
        allowed: The range of its numbers in words, or "".
        choices: What may be chosen -> what that means, or "".
        text: What it means, with its unit, in one paragraph; "" where nothing is written.
        affects_result: Whether other values lead to other results; what does not is in no key of a result.
        keyed: Of what does not by itself: where or by what they do all the same, or "".
    """

    key: str
    type: str
    default: str
    allowed: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    affects_result: bool = True
    keyed: str = ""

    @property
    def line(self) -> str:
        """The first sentence of what it means."""
        return first_sentence(self.text)

    def must(self, given: object = None) -> str:
        """What a value must be, in words: its type, range and default; of one that was given, what was meant."""
        several = "a list of " if self.type.startswith("list") else ""
        if self.choices:
            texts = given if isinstance(given, list) else [given]
            odd = next((each for each in texts if each not in [*self.choices]), texts[0] if texts else None)
            near = nearest_choice(odd, self.choices) if isinstance(odd, str) else None
            meant = f"[{near}]" if several else near
            return several + " or ".join(self.choices) + (f". Did you mean {meant}?" if near else "")
        kind, *others = [self.type] if self.type == "true or false" else self.type.split(" or ")
        kind = kind if kind in ("true or false", "anything") else f"a {kind}"
        told = f"{kind}, {self.allowed}" if self.allowed else " or ".join([kind, *others])
        return f"{told} (by default {self.default})" if self.default else told


def shipped_meanings() -> dict[str, Meaning]:
    """Every key that may be set with what ships, in the order of the configuration."""
    found = [each for each in meanings_of(Config, "") if each.key not in TABLES]
    for table in TABLES:
        for name, schema in all_shipped(table).items():
            found += meanings_of(schema, f"{table}.{name}")  # type: ignore[arg-type]  # classes are hashable
    return {each.key: each for each in found}


@cache
def meanings_of(schema: type[Any], prefix: str) -> tuple[Meaning, ...]:
    """`meanings` with the defaults of the class, read once."""
    return tuple(meanings(schema, prefix))


def shipped_sections() -> dict[str, str]:
    """What every group of keys is about: ``training``, ``execution.retry``, ``algos.PITA``."""
    found = dict(sections(Config))
    for table in TABLES:
        for name, schema in all_shipped(table).items():
            found[f"{table}.{name}"] = about(schema)
            found |= sections(schema, f"{table}.{name}")
    return found


def meanings(schema: type[Any], prefix: str = "", defaults: object = None) -> Iterator[Meaning]:
    """The keys of a class of settings, in its order; those of settings inside it follow where they stand.

    Args:
        schema: The dataclass.
        prefix: The key of such settings, as ``algos.PITA``.
        defaults: Settings that have the defaults, where these are not those of the class.
    """
    hints, settings = get_type_hints(schema), defaults or schema()
    for item in fields(schema):
        key = f"{prefix}.{item.name}" if prefix else item.name
        if is_dataclass(inside := getattr(settings, item.name)):
            yield from meanings(type(inside), key, inside)
        else:
            yield _meaning(schema, item, key, hints[item.name], inside)


def sections(schema: type[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The key of all settings inside of others, and what they are about."""
    settings = schema()
    for item in fields(schema):
        if is_dataclass(inside := getattr(settings, item.name)):
            key = f"{prefix}.{item.name}" if prefix else item.name
            yield key, _written(schema, item.name) or about(type(inside))
            yield from sections(type(inside), key)


def first_sentence(text: str) -> str:
    """Up to the first full stop, or semicolon, that ends a sentence."""
    for at, sign in enumerate(text):
        if sign in ".;" and text[at + 1 : at + 2] in ("", " ") and not text[:at].endswith(("e.g", "i.e")):
            return text[:at]
    return text


def typed(value: Any) -> str:
    """A value as one types it behind ``KEY=``."""
    if isinstance(value, Enum):
        return str(value.name)
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, float):
        return short(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(typed, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}: {typed(each)}' for name, each in value.items())}}}"
    return "" if value == MISSING else str(value)


def _meaning(schema: type[Any], item: Field[Any], key: str, hint: Any, default: Any) -> Meaning:
    enum = next(
        (kind for kind in (hint, *get_args(hint)) if inspect.isclass(kind) and issubclass(kind, Enum)), None
    )
    allowed, choices = item.metadata.get(RANGE), item.metadata.get(CHOICES)
    return Meaning(
        key=key,
        type="choice"
        if choices
        else in_words(hint, words=() if allowed is None else allowed.words, path=PATH in item.metadata),
        default=typed(default),
        allowed="" if allowed is None else str(allowed),
        choices=choices or ({} if enum is None else {each.name: _written(enum, each.name) for each in enum}),
        text=_written(schema, item.name) or (about(enum) if enum else ""),
        affects_result=item.metadata.get("affects_result", True),
        keyed=item.metadata.get(KEYED, ""),
    )


def in_words(hint: Any, *, several: bool = False, words: Sequence[str] = (), path: bool = False) -> str:
    """A type in words: ``list of whole numbers``."""
    if get_origin(hint) in (Union, UnionType):
        kinds = [in_words(kind, words=words, path=path) for kind in get_args(hint) if kind is not NoneType]
        return " or ".join([*kinds, *(["null"] if NoneType in get_args(hint) else [])])
    if hint is str and (words or path):
        return "path" if path else " or ".join(words)
    if get_origin(hint) in (list, tuple):
        return f"list of {in_words(get_args(hint)[0], several=True)}"
    if get_origin(hint) is dict:
        return f"table of {in_words(get_args(hint)[1], several=True)}"
    if inspect.isclass(hint) and issubclass(hint, Enum):
        return "choices" if several else "choice"
    other = str(getattr(hint, "__name__", hint))
    return _WORDS.get(hint, (other, other))[several]


def settings_of(schema: type[Any], given: Mapping[str, Any], key: str = "") -> Any:
    """Make settings of single values that a program or an option gives.

    Args:
        schema: Their class.
        given: Plain values; whatever is absent keeps its default.
        key: What stands before their names in messages.

    Raises:
        ConfigError: Names a value that is none of a setting.
    """

    def refuse(path: tuple[str, ...], value: Any, _: object, hint: Any) -> None:
        said = f"={value!r}: must be {in_words(hint)}" if hint else f": {unknown_name('setting', path[0], names)}"
        raise ConfigError(f"{key}{path[0]}{said}")

    names = [item.name for item in fields(schema)]
    found = filled(schema, given, refuse=refuse)
    for problem in value_problems(found):
        raise ConfigError(f"{key}{problem}")
    return found


def about(kind: type[Any]) -> str:
    """The first paragraph of a class's own docstring."""
    return " ".join((vars(kind).get("__doc__") or "").partition("\n\n")[0].split())


# -- what is written in the source -----------------------------------------------------------------------------


def _written(schema: type[Any], name: str) -> str:
    """What is written of a field or member; where a class declares it anew without a word, what its base says."""
    return next((text for kind in schema.__mro__ if (text := _texts(kind).get(name))), "")


@cache
def _texts(kind: type[Any]) -> dict[str, str]:
    """Field -> the text below it, else the remark behind it, of what a class itself declares."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    found = _classes(file).get(kind.__qualname__) if file else None
    return found or {}


@cache
def _classes(file: str) -> dict[str, dict[str, str]]:
    """Class -> what is written of its fields, of all classes in a file; nothing where it cannot be read."""
    try:
        source = Path(file).read_text(encoding="utf-8")
        remarks = _remarks(source)
        return {name: _of_class(node, remarks) for name, node in _class_nodes(ast.parse(source).body, "")}
    except (OSError, ValueError, SyntaxError, tokenize.TokenError):
        return {}


def _class_nodes(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield f"{prefix}{node.name}", node
            yield from _class_nodes(node.body, f"{prefix}{node.name}.")


def _of_class(node: ast.ClassDef, remarks: Mapping[int, str]) -> dict[str, str]:
    texts = {}
    for one, after in zip(node.body, [*node.body[1:], None], strict=True):
        target = (
            one.target
            if isinstance(one, ast.AnnAssign)
            else one.targets[0]
            if isinstance(one, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name):
            texts[target.id] = _string(after) or remarks.get(one.end_lineno or 0, "")
    return texts


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def _remarks(source: str) -> dict[int, str]:
    """Line -> the remark at its end; those for the tools that check code are none."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    remarks = {
        token.start[0]: token.string.lstrip("#:").strip() for token in tokens if token.type == tokenize.COMMENT
    }
    return {line: text for line, text in remarks.items() if not text.startswith(("noqa", "type:", "pragma"))}
