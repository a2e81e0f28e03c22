"""Read the meaning of every key from its declaration, and find the key meant by an unknown one.

Settings of users' own classes are read in the same way, so the text below a field appears in `pipeline help` and
in the reference of all keys.
"""

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pipeline.config.plain import filled, nearest_choice, short, value_problems
from pipeline.config.schema import CHOICES, KEYED, MISSING, PATH, RANGE, Config
from pipeline.config.tables import TABLES, all_shipped, choices_of, conf_dir, groups, settings_class
from pipeline.config.user_code import import_object
from pipeline.errors import ConfigError, unknown_name

_WORDS: Mapping[object, tuple[str, str]] = {
    int: ("whole number", "whole numbers"),
    float: ("number", "numbers"),
    str: ("text", "texts"),
    bool: ("true or false", "of true or false"),
    Any: ("anything", "anything"),
}
"""Type -> singular and plural name for users."""


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """Documentation of a key.

    Attributes:
        key: Dotted, as it is typed: ``training.grad_clip``, ``algos.PITA.eta``.
        type: Type in words: ``number``, ``list of whole numbers``, ``text or null``.
        default: Default as typed; "" if a value is required.
        allowed: The range of its numbers in words, or "".
        choices: Valid choice -> its meaning, or "".
        text: Meaning, with its unit, in one paragraph; "" if not documented.
        affects_result: Whether other values change results; keys of results leave out the others.
        keyed: For a key that does not by itself: where or how results depend on it all the same, or "".
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
        """First sentence of its meaning."""
        return first_sentence(self.text)

    def must(self, value: object = None) -> str:
        """Say what a value must be: its type, range and default; for a given value also what was meant."""
        several = "a list of " if self.type.startswith("list") else ""
        if self.choices:
            texts = value if isinstance(value, list) else [value]
            odd = next((text for text in texts if text not in [*self.choices]), texts[0] if texts else None)
            near = nearest_choice(odd, self.choices) if isinstance(odd, str) else None
            meant = f"[{near}]" if several else near
            return several + " or ".join(self.choices) + (f". Did you mean {meant}?" if near else "")
        kind, *others = [self.type] if self.type == "true or false" else self.type.split(" or ")
        kind = kind if kind in ("true or false", "anything") else f"a {kind}"
        kinds = f"{kind}, {self.allowed}" if self.allowed else " or ".join([kind, *others])
        return f"{kinds} (by default {self.default})" if self.default else kinds


def shipped_meanings() -> dict[str, Meaning]:
    """Return every key that shipped code accepts, in the order of the configuration."""
    every = [meaning for meaning in meanings_of(Config, "") if meaning.key not in TABLES]
    for table in TABLES:
        for name, schema in all_shipped(table).items():
            every += meanings_of(schema, f"{table}.{name}")  # type: ignore[arg-type]  # classes are hashable
    return {meaning.key: meaning for meaning in every}


@cache
def meanings_of(schema: type[Any], prefix: str) -> tuple[Meaning, ...]:
    """Return `meanings` with the defaults of the class, cached."""
    return tuple(meanings(schema, prefix))


def shipped_sections() -> dict[str, str]:
    """Return the description of every group of keys: ``training``, ``execution.retry``, ``algos.PITA``."""
    texts = dict(sections(Config))
    for table in TABLES:
        for name, schema in all_shipped(table).items():
            texts[f"{table}.{name}"] = about(schema)
            texts |= sections(schema, f"{table}.{name}")
    return texts


def meanings(schema: type[Any], prefix: str = "", defaults: object = None) -> Iterator[Meaning]:
    """Yield the keys of a settings class, in order, including those of nested settings.

    Args:
        schema: The dataclass.
        prefix: Key of these settings, as ``algos.PITA``.
        defaults: Settings with the defaults, if other than those of the class.
    """
    hints, settings = get_type_hints(schema), defaults or schema()
    for item in fields(schema):
        key = f"{prefix}.{item.name}" if prefix else item.name
        if is_dataclass(inside := getattr(settings, item.name)):
            yield from meanings(type(inside), key, inside)
        else:
            yield _meaning(schema, item, key, hints[item.name], inside)


def sections(schema: type[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of nested settings, with their descriptions."""
    settings = schema()
    for item in fields(schema):
        if is_dataclass(inside := getattr(settings, item.name)):
            key = f"{prefix}.{item.name}" if prefix else item.name
            yield key, _written(schema, item.name) or about(type(inside))
            yield from sections(type(inside), key)


def first_sentence(text: str) -> str:
    """Return the text up to the first full stop or semicolon that ends a sentence."""
    for at, sign in enumerate(text):
        if sign in ".;" and text[at + 1 : at + 2] in ("", " ") and not text[:at].endswith(("e.g", "i.e")):
            return text[:at]
    return text


def typed(value: Any) -> str:
    """Format a value as typed after ``KEY=``."""
    if isinstance(value, Enum):
        return str(value.name)
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, float):
        return short(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(typed, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}: {typed(entry)}' for name, entry in value.items())}}}"
    return "" if value == MISSING else str(value)


def _meaning(schema: type[Any], item: Field[Any], key: str, hint: Any, default: Any) -> Meaning:
    kinds = [kind for kind in (hint, *get_args(hint)) if inspect.isclass(kind)]
    enum = next((kind for kind in kinds if issubclass(kind, Enum)), None)
    allowed, choices = item.metadata.get(RANGE), item.metadata.get(CHOICES)
    words = () if allowed is None else allowed.words
    return Meaning(
        key=key,
        type="choice" if choices else in_words(hint, words=words, path=PATH in item.metadata),
        default=typed(default),
        allowed="" if allowed is None else str(allowed),
        choices=choices or ({} if enum is None else {member.name: _written(enum, member.name) for member in enum}),
        text=_written(schema, item.name) or (about(enum) if enum else ""),
        affects_result=item.metadata.get("affects_result", True),
        keyed=item.metadata.get(KEYED, ""),
    )


def in_words(hint: Any, *, several: bool = False, words: Sequence[str] = (), path: bool = False) -> str:
    """Format a type in words: ``list of whole numbers``."""
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


def settings_of(schema: type[Any], values: Mapping[str, Any], key: str = "") -> Any:
    """Make settings from single values that a program or an option passes.

    Args:
        schema: Their class.
        values: Plain values; whatever is absent keeps its default.
        key: Prefix of their names in messages.

    Raises:
        ConfigError: A value is invalid; the message names its setting.
    """

    def refuse(path: tuple[str, ...], value: Any, _: object, hint: Any) -> None:
        must = f"={value!r}: must be {in_words(hint)}" if hint else f": {unknown_name('setting', path[0], names)}"
        raise ConfigError(f"{key}{path[0]}{must}")

    names = [item.name for item in fields(schema)]
    settings = filled(schema, values, refuse=refuse)
    for problem in value_problems(settings):
        raise ConfigError(f"{key}{problem}")
    return settings


def about(kind: type[Any]) -> str:
    """Return the first paragraph of a class's own docstring."""
    return " ".join((vars(kind).get("__doc__") or "").partition("\n\n")[0].split())


# -- what is written in the source -----------------------------------------------------------------------------


def _written(schema: type[Any], name: str) -> str:
    """Return the documentation of a field or member; an undocumented override inherits it."""
    return next((text for kind in schema.__mro__ if (text := _texts(kind).get(name))), "")


@cache
def _texts(kind: type[Any]) -> dict[str, str]:
    """Return field -> the text below it, else the comment behind it, for fields that a class itself declares."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    by_field = _classes(file).get(kind.__qualname__) if file else None
    return by_field or {}


@cache
def _classes(file: str) -> dict[str, dict[str, str]]:
    """Return class -> documentation of its fields, for all classes in a file; empty if it cannot be read."""
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
    for line, after in zip(node.body, [*node.body[1:], None], strict=True):
        match line:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name), *_]):
                texts[name] = _string(after) or remarks.get(line.end_lineno or 0, "")
    return texts


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def _remarks(source: str) -> dict[int, str]:
    """Return line -> the comment at its end, except directives of linters."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    remarks = {token.start[0]: token.string.lstrip("#:").strip() for token in comments}
    return {line: text for line, text in remarks.items() if not text.startswith(("noqa", "type:", "pragma"))}


# -- which was meant --------------------------------------------------------------------------------------------


_OTHER_NAMES = {
    "deepspeed": "training.strategy",
    "eval_steps": "rounds_of_training",
    "file": "path",
    "filename": "path",
    "kl_coef": "algos.<NAME>.beta",
    "lora_alpha": "alpha",
    "lora_r": "rank",
    "lr": "learning_rate",
    "max_prompt_length": "generation.long_prompts",
    "model_name_or_path": "models.hf.path",
    "r": "rank",
    "ref_model": "reference",
    "reward_funcs": "rewards",
    "rounds": "rounds_of_training",
    "trackers": "tracking.report_to",
    "train_dataset": "datasets.hf.path",
    "warmup_ratio": "training.warmup_steps",
}
"""Names of settings in other programs besides TRL's arguments -> the key here, or its end."""


def known_keys() -> list[str]:
    """Return every key that shipped code accepts, dotted."""
    return [*shipped_meanings(), *TABLES]


def other_names(name: str, algo: str = "") -> list[str]:
    """Return the keys, or their ends, for another program's name of a setting.

    The name itself if there are none.
    """
    keys_of = import_object("pipeline.learning.from_trl.keys_of")  # rarely needed
    names = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else list(map(str, keys_of(name, algo)))
    return [name] if not names or name in (key.rpartition(".")[2] for key in names) else names


def nearest_keys(key: str, every: Iterable[str]) -> list[str]:
    """Return the keys that were probably meant: of the same section, with the same end, or the most similar."""
    keys = dict.fromkeys(every)
    section, _, last = key.rpartition(".")
    names = other_names(last, section.removeprefix("algos."))
    if all(name in keys or "<NAME>" in name for name in names):
        return names
    name, table = names[0], key.partition(".")[0]
    beside = {other.rpartition(".")[2]: other for other in keys if other.rpartition(".")[0] == section}
    general = dict.fromkeys(
        re.sub(r"^(\w+)\.[^.]+", r"\1.<NAME>", other) if other.partition(".")[0] in {*TABLES} - {table} else other
        for other in sorted(keys, key=lambda full: (not full.endswith(f".{name}"), full.count(".")))
    )
    ends = [other for other in general if other.endswith((f".{name}", f".{name}s"))]
    if near := [name] if name in beside else _alike(name, beside) if section or not ends else []:
        return [beside[near[0]]]
    if ends and section:  # of a misspelt section, or of another one
        return get_close_matches(key, ends, n=1, cutoff=0.7) or ends[:1]
    if ends or (section and beside):
        return ends[:3]
    by_name = {other.rpartition(".")[2]: other for other in reversed(general)}
    return get_close_matches(key, general, n=1, cutoff=0.7) or [by_name[other] for other in _alike(name, by_name)]


def _alike(name: str, names: Iterable[str]) -> list[str]:
    near = get_close_matches(name, names, n=1, cutoff=0.7)
    return near or [other for other in sorted(names) if other.startswith(f"{name}_")][:1]


def did_you_mean(key: str, keys: Iterable[str], ending: str = "") -> str:
    """Return a suffix for the message about an unknown key or flag: what was probably meant.

    "" if nothing is similar.
    """
    near = " or ".join(f"{name}{ending}" if ending else f"'{name}'" for name in nearest_keys(key, keys))
    return f" Did you mean {near}?" if near else ""


def unknown_key(key: str, more: Iterable[str] = ()) -> str:
    """Return the message for an unknown key: the key that was meant, and the keys that exist.

    Args:
        key: Key that was typed.
        more: The keys of the request; those of shipped code are always known.
    """
    keys = list(dict.fromkeys([*more, *known_keys()]))
    section = key.rpartition(".")[0]
    while section and not any(name.startswith(f"{section}.") for name in keys):
        section = section.rpartition(".")[0]
    inside = [name.removeprefix(f"{section}.") for name in keys if not section or name.startswith(f"{section}.")]
    listed = ", ".join(dict.fromkeys(name.partition(".")[0] for name in inside))
    return f"unknown key '{key}'.{did_you_mean(key, keys)} Known{f' in {section}' if section else ''}: {listed}."


def class_paths(table: str, overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the names and classes that a command line adds to a table."""
    for override in overrides:
        if match := re.fullmatch(rf"\+{{0,2}}{table}\.([\w-]+)\.class_path=(['\"]?)([^'\"]+)\2", override):
            yield match[1], match[3]


# -- help keys ---------------------------------------------------------------------------------------------------
# ``python -m pipeline help KEY``: explain a key, or list keys, from their declarations.


_COLUMN = 11
_NO_EFFECT = "do not depend on this value itself: with another one, what is stored counts as it is"
Line = tuple[str, str]
"""A text and its style."""


def help_on(word: str, settings: Sequence[str] = ()) -> Iterator[Line]:
    """Yield the help on a word, line by line.

    Args:
        word: A key or the end of one, a group of keys or of files, or one of their names; "" for an overview.
        settings: Settings as for a run; they make the user's own algorithms and datasets known.

    Raises:
        ConfigError: Nothing has that name; the message says what was meant.
    """
    word = word.lstrip("+~").partition("=")[0].strip(".")
    keys, named = _keys_and_groups(settings)
    if not word:
        return _overview(keys, named)
    if word in keys:
        return _help_key(keys, [word])
    if word in named or word in TABLES:
        return _help_section(keys, named, word)
    if (conf_dir() / word).is_dir():
        return _files_of(word)
    leaf = word.rpartition(".")[2]
    others = [other.removeprefix("algos.<NAME>.") for other in other_names(leaf)]
    if ends := [key for key in keys if key.endswith(f".{word}")]:
        return _same_end(keys, ends)
    if inside := [section for section in named if section.endswith(f".{word}")]:
        return chain.from_iterable(_help_section(keys, named, section) for section in inside)
    if spelled := next((name for name in (*named, *keys) if f".{name}".lower().endswith(f".{word.lower()}")), ""):
        return help_on(spelled, settings)
    if others != [leaf]:
        headline = [(f"{leaf} is called {' or '.join(others)} here:", "bold")]
        return chain(headline, *(help_on(other, settings) for other in others))
    raise ConfigError(f"{unknown_key(word, keys)} `python -m pipeline help` lists what there is.")


def _keys_and_groups(settings: Sequence[str]) -> tuple[dict[str, Meaning], dict[str, str]]:
    """Return keys, and groups with descriptions: of shipped code, of files in ``conf/``, and of settings."""
    if wrong := [setting for setting in settings if "=" not in setting]:
        raise ConfigError(f"cannot read '{wrong[0]}'. After the key come settings as for a run: KEY=VALUE.")
    keys, named = dict(shipped_meanings()), dict(shipped_sections())

    def add(table: str, name: str, section: Mapping[str, Any]) -> None:
        schema, prefix = settings_class(table, name, section), f"{table}.{name}"
        keys.update((meaning.key, meaning) for meaning in meanings_of(schema, prefix))  # type: ignore[arg-type]  # classes are hashable
        named.update({prefix: about(schema), **dict(sections(schema, prefix))})

    for table, group in (("datasets", "dataset"), ("models", "model")):
        for name, kind in _kinds_of_files(group).items():
            add(table, name, {"kind": kind})
    for table in ("algos", "datasets"):
        for name, path in class_paths(table, settings):
            add(table, name, {"class_path": path})
    return keys, named


def _kinds_of_files(group: str) -> dict[str, str]:
    """Return the kind of each file of a group, by the file's name."""
    files = sorted((conf_dir() / group).glob("*.yaml"))
    matches = {path.stem: re.search(r"^kind: (\w+)", path.read_text(), re.MULTILINE) for path in files}
    return {name: kind[1] for name, kind in matches.items() if kind}


def _overview(keys: Mapping[str, Meaning], named: Mapping[str, str]) -> Iterator[Line]:
    yield "Groups of keys; `python -m pipeline help GROUP` lists them:", "bold"
    for section, text in named.items():
        if "." not in section:
            yield from _named(section, text)
    yield "\nKeys of their own:", "bold"
    for key, meaning in keys.items():
        if "." not in key:
            yield from _named(key, meaning.line)
    yield "\nWith a section for each that a run uses, as algos.PITA or datasets.addition:", "bold"
    for table in TABLES:
        names = [section.split(".")[1] for section in named if re.fullmatch(rf"{table}\.[^.]+", section)]
        yield from _named(table, ", ".join(names))
    yield "\nFiles to choose from, GROUP=CHOICE:", "bold"
    for group in groups():
        yield from _named(group, ", ".join(choices_of(group)))


def _help_section(keys: Mapping[str, Meaning], named: Mapping[str, str], section: str) -> Iterator[Line]:
    yield section, "bold"
    if text := named.get(section):
        yield f"    {text}", ""
    if section in TABLES:
        for name in (name for name in named if re.fullmatch(rf"{section}\.[^.]+", name)):
            yield from _named(name, named[name])
        return
    yield "", ""
    for key, meaning in keys.items():
        if key.startswith(f"{section}."):
            yield from _named(f"{key}={meaning.default}", meaning.line)


def _files_of(group: str) -> Iterator[Line]:
    yield f"{group}=CHOICE", "bold"
    for name in choices_of(group):
        text = (conf_dir() / group / f"{name}.yaml").read_text(encoding="utf-8")
        remarks = [line[1:].strip() for line in text.splitlines() if line[:1] == "#"]
        texts = [line for line in remarks if not line.startswith("@package")]
        yield from _named(f"{group}={name}", texts[0] if texts else "")
    table = next((table for table, entry in TABLES.items() if entry.group == group), "")
    if table:
        yield f"\nIts settings: python -m pipeline help {table}.NAME", ""


def _same_end(by_key: Mapping[str, Meaning], keys: Sequence[str]) -> Iterator[Line]:
    """Yield keys with the same end; those with the same meaning are explained together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for key in keys:
        alike.setdefault((by_key[key].text, by_key[key].allowed), []).append(key)
    for number, same in enumerate(alike.values()):
        if number:
            yield "", ""
        yield from _help_key(by_key, same)


def _help_key(by_key: Mapping[str, Meaning], keys: Sequence[str]) -> Iterator[Line]:
    first = by_key[keys[0]]
    for key in keys:
        yield f"{key}={by_key[key].default or '...'}", "bold"
    yield f"    {first.text or 'nothing is written below this field'}", ""
    yield "", ""
    effect = "depend on it" if first.affects_result or first.keyed else _NO_EFFECT
    rows = [
        ("type", first.type),
        ("must be", first.allowed),
        ("default", "" if first.default else "none: a value must be given"),
        *(("choice", f"{choice}{f': {text}' if text else ''}") for choice, text in first.choices.items()),
        ("results", effect if first.affects_result or not first.keyed else f"{effect} {first.keyed}"),
    ]
    yield from ((f"    {name:<{_COLUMN}}{text}", "") for name, text in rows if text)


def _named(name: str, text: str) -> Iterator[Line]:
    yield f"    {name}", "bold"
    if text:
        yield f"        {text}", ""
