"""What a user typed: settings as they were meant, and one line on what cannot be, with what there is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.plain import hints_of, kinds_of, one_line
from pipeline.config.schema import MODEL_TEXT, PATH, Config
from pipeline.config.tables import TABLES, all_shipped, conf_dir, settings_class
from pipeline.config.user_code import import_object
from pipeline.errors import ConfigError, PipelineError, unknown_name

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError, RecursionError)
"""What composing a configuration raises of what a user wrote."""
_LONGEST = 1500
"""Characters of a message, so that a setting of thousands does not bury what is said of it."""

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
    "trackers": "tracking.report_to",
    "train_dataset": "datasets.hf.path",
    "warmup_ratio": "training.warmup_steps",
}
"""What other programs call a setting, besides the arguments of TRL's configurations: its key, or the end of it."""


def known_keys() -> list[str]:
    """Every key that may be set with what ships, dotted."""
    sections = {f"{table}.{name}": schema for table in TABLES for name, schema in all_shipped(table).items()}
    return [*keys_of(Config), *(key for prefix, schema in sections.items() for key in keys_of(schema, prefix))]


def keys_of(schema: type[Any], prefix: str = "") -> list[str]:
    """The keys of a class of settings, those of settings inside it included."""
    return list(_leaves(schema(), f"{prefix}." if prefix else ""))


def _leaves(settings: Any, prefix: str) -> Iterable[str]:
    for item in fields(settings):
        value = getattr(settings, item.name)
        yield from _leaves(value, f"{prefix}{item.name}.") if is_dataclass(value) else [prefix + item.name]


def other_names(name: str, algo: str = "") -> list[str]:
    """Name the keys, or their ends, that another program calls so, of an algorithm; the name where none does."""
    keys_of = import_object("pipeline.learning.from_trl.keys_of")  # seldom needed
    found = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else list(map(str, keys_of(name, algo)))
    return [name] if not found or name in (each.rpartition(".")[2] for each in found) else found


def nearest_keys(key: str, known: Iterable[str]) -> list[str]:
    """Name what was probably meant: a key of the same section, else those that end alike, else the most alike."""
    keys = dict.fromkeys(known)
    section, _, last = key.rpartition(".")
    names = other_names(last, section.removeprefix("algos."))
    if all(name in keys or "<NAME>" in name for name in names):
        return names
    name, table = names[0], key.partition(".")[0]
    beside = {each.rpartition(".")[2]: each for each in keys if each.rpartition(".")[0] == section}
    general = dict.fromkeys(
        re.sub(r"^(\w+)\.[^.]+", r"\1.<NAME>", each) if each.partition(".")[0] in {*TABLES} - {table} else each
        for each in sorted(keys, key=lambda one: (not one.endswith(f".{name}"), one.count(".")))
    )
    ends = [each for each in general if each.endswith((f".{name}", f".{name}s"))]
    if near := [name] if name in beside else _alike(name, beside) if section or not ends else []:
        return [beside[near[0]]]
    if ends and section:  # of a section that is misspelt, or of another one
        return get_close_matches(key, ends, n=1, cutoff=0.7) or ends[:1]
    if ends or (section and beside):
        return ends[:3]
    by_name = {each.rpartition(".")[2]: each for each in reversed(general)}
    return get_close_matches(key, general, n=1, cutoff=0.7) or [by_name[each] for each in _alike(name, by_name)]


def _alike(name: str, names: Iterable[str]) -> list[str]:
    found = get_close_matches(name, names, n=1, cutoff=0.7)
    return found or [each for each in sorted(names) if each.startswith(f"{name}_")][:1]


def did_you_mean(key: str, known: Iterable[str], ending: str = "") -> str:
    """Word what follows a key that there is not, or flag: what was probably meant; "" where nothing is near."""
    near = " or ".join(f"{each}{ending}" if ending else f"'{each}'" for each in nearest_keys(key, known))
    return f" Did you mean {near}?" if near else ""


def unknown_key(key: str, known: Iterable[str] = ()) -> str:
    """Word the message for a key that there is not: the one that was meant, and which there are.

    Args:
        key: What was typed.
        known: The keys of the request; those of what ships are known besides.
    """
    keys = list(dict.fromkeys([*known, *known_keys()]))
    section = key.rpartition(".")[0]
    while section and not any(each.startswith(f"{section}.") for each in keys):
        section = section.rpartition(".")[0]
    inside = [each.removeprefix(f"{section}.") for each in keys if not section or each.startswith(f"{section}.")]
    listed = ", ".join(dict.fromkeys(each.partition(".")[0] for each in inside))
    return f"unknown key '{key}'.{did_you_mean(key, keys)} Known{f' in {section}' if section else ''}: {listed}."


def explain(error: Exception) -> ConfigError:
    """Say in one message what is wrong with what the user wrote, and what to try."""
    if isinstance(error, ConfigError):
        return error
    said = _explanation(error)
    return ConfigError(said if len(said) <= _LONGEST else f"{said[: _LONGEST // 2]} ... {said[-_LONGEST // 2 :]}")


def _explanation(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the configuration is nested too deeply, or refers to itself (${...})"
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        group, _, choice = (error.missing_cfg_file or "").rpartition(
            "/"
        )  # of one in a list Hydra gives no options
        shipped = [file.stem for file in (conf_dir() / group).glob("*.yaml")]
        return unknown_choice(group, choice, error.options or shipped)
    key = getattr(error, "full_key", "") or ""
    cause = error.__cause__
    said = one_line(f"{error}: {cause}" if cause is not None and str(cause) not in str(error) else str(error))
    if name := re.search(r"Interpolation key '(.*)' not found", said):
        return f"{key}: refers to ${{{name[1]}}}, and nothing sets '{name[1]}'"
    if not isinstance(error, COMPOSITION_ERRORS):
        said = f"this configuration cannot be composed ({type(error).__name__}: {said})"
    return f"{key}: {said}" if key else said


def unknown_choice(group: str, name: str, options: Iterable[str]) -> str:
    """What to say of a file that a group does not have."""
    said = unknown_name({"algos": "algorithm"}.get(group, group), name, options)
    said += f" (files in {group}/ of conf/ and of --config-dir)"
    own: Mapping[str, str] = {
        "algos": f" To add your own write algos.{name}.class_path=my_module.MyAlgorithm, and leave it out here.",
        "model": f" For a folder or an id of the hub: model=hf models.hf.path={name}",
    }
    return said + own.get(group, "")


# -- as meant ----------------------------------------------------------------------------------------------------
# Settings of a command line where Hydra would read others: 1.10 as a number, None as a text. What is rewritten is
# the word, before Hydra sees it, and by the type of its key alone:
#
# - what stands for a text is the text that was typed: ``experiment.name=1.10``, ``1e3``, ``true``;
# - ``None``, as Python writes it, is null where a key takes null, and so is ``~`` for a text that is no path;
# - in texts that models read (`schema.model_text`) ``\n`` is a line break and ``\t`` a tab;
# - ``KEY=~/folder`` is in the home folder: bash expands it where the key has no dot, Hydra never.
#
# In quotes of Hydra's own (``key="'None'"``) a word stays a text.


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


_LONGEST_WORD = 10_000
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
    found = _WORD.fullmatch(word) if len(word) <= _LONGEST_WORD else None
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
