"""Whatever Hydra, OmegaConf and PyYAML raise, in one message: what is wrong with a request, and what to try."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from pipeline.config.checks import check_config
from pipeline.config.install import conf_dir
from pipeline.config.known import (
    GROUPS,
    NAMED_GROUPS,
    advice_on,
    known_keys,
    meant_by_word,
    nearest_setting,
    other_name,
    own_keys,
)
from pipeline.config.meaning import Meaning, shipped_meanings
from pipeline.config.schema import Config
from pipeline.config.told import one_line, refuse_all
from pipeline.config.values import nearest_choice
from pipeline.errors import ConfigError, unknown_name

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError)
"""What composing a configuration raises on purpose; what the user wrote may lead to any other error in Hydra."""

_LONGEST = 1500
"""Characters of a message, so that a setting of thousands does not bury what is said of it."""


_FEW = 2
"""Keys that a message suggests at most."""
_FAMILY = 5
"""Keys that it suggests at most where all end as the given one does."""


_SINGLE = {"number", "whole number", "choice"}
"""Types of keys that have one value, which is no text."""


_WORDS = {"float": "a number", "int": "a whole number", "str": "a text", "bool": "true or false"}


_COLUMNS = {"prompt", "completion", "chosen", "rejected", "messages", "solution"}
"""Of rows; who names one as if it were a setting means which column of a file it is."""


_EXAMPLES = {"algos": ("algorithm", "MyAlgorithm"), "datasets": ("dataset", "MyDataset")}


def explain(error: Exception) -> ConfigError:
    """Say in one message what is wrong with what the user wrote, and what to try."""
    if isinstance(error, ConfigError):
        return error
    said = _explanation(error)
    if len(said) > _LONGEST:
        said = f"{said[: _LONGEST // 2]} ... {said[-_LONGEST // 2 :]}"
    return ConfigError(said)


def _explanation(error: Exception) -> str:
    cause = _root(error)
    if isinstance(cause, RecursionError):
        return "the configuration is nested too deeply, or refers to itself (${...})"
    text = str(error)
    key = (cause.full_key or "") if isinstance(cause, OmegaConfBaseException) else ""
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is missing: give it a value, for example {error.full_key}=first_run"
    if unknown := re.search(r"Could not override '([^']*)'", text):
        given = re.search(r"use \+[^\s=]+=(.*)", text)
        return unknown_key(key if key.startswith(f"{unknown[1]}.") else unknown[1], given[1] if given else "")
    if isinstance(error, MissingConfigException):
        return _missing_file(error)
    if isinstance(error, OverrideParseException):
        return (
            f"cannot read '{error.override}': {meant_by_word(error.override) or _unreadable(error.override, text)}"
        )
    if several := re.search(r"Ambiguous value for argument '\+*([^=']+)=(.*)'", text):
        return _several_values(*several.groups())
    if merging := re.search(r"Error merging override \+*([^\s=]+)(=.*)?", text):
        return _wrong_value(merging[1], (merging[2] or "").removeprefix("="), str(cause))
    if in_file := re.match(r"In '([^']*)': (\w+) raised while composing config:\s*(.*)", text, re.DOTALL):
        return _wrong_file(*in_file.groups())
    if key.partition(".")[0] not in {"", *_EXAMPLES} and isinstance(cause, (ConfigKeyError, ConfigAttributeError)):
        return unknown_key(key)
    said = one_line(text if cause is error else ": ".join(filter(None, (text, str(cause)))))
    if name := re.search(r"Interpolation key '(.*)' not found", said):
        return f"{key}: refers to ${{{name[1]}}}, and there is no key '{name[1]}'"
    if name := re.search(r"Unsupported interpolation type (\S+?)\.?$", said):
        return f"{key}: refers to ${{{name[1]}:...}}, and nothing is called so; ${{KEY}} stands for another key"
    if not isinstance(error, COMPOSITION_ERRORS):
        said = f"this configuration cannot be composed ({type(error).__name__}: {said})"
    return f"{key}: {type_or_line(key, said)}" if key else said


def _root(error: Exception) -> BaseException:
    """What led to an error, followed as far as it is about what the user wrote."""
    chain: list[BaseException] = [error]
    # OmegaConf raises some errors from themselves.
    while isinstance(cause := chain[-1].__cause__, (*COMPOSITION_ERRORS, RecursionError)) and cause not in chain:
        chain.append(cause)
    return chain[-1]


def _wrong_file(file: str, kind: str, said: str) -> str:
    found = re.search(r"^\s*full_key: (\S+)", said, re.MULTILINE)
    key = found[1] if found else ""
    if key and kind in (ConfigKeyError.__name__, ConfigAttributeError.__name__):
        return f"{file}.yaml: {unknown_key(key)}"
    return f"{file}.yaml: " + (f"{key}: " if key else "") + type_or_line(key, said)


def _unreadable(given: str | None, text: str) -> str:
    if "~" in (given or "") and "Lexer" in text:
        return (
            "~ is your home folder at the beginning of a path alone, as output_dir=~/FOLDER; elsewhere in one "
            "write $HOME. For nothing write null."
        )
    key, equals, value = (given or "").partition("=")
    if "Lexer" in text and equals and not {*value} & {*"\"'{}"}:
        several = value[1:-1].split(",") if value.startswith("[") and value.endswith("]") else []
        quoted = f"[{','.join(json.dumps(each.strip(), ensure_ascii=False) for each in several)}]"
        typed = shlex.quote(f"{key}={quoted}" if several else f'{key}="{value}"')
        return f"a text with letters that are not of ASCII, or with signs, stands in quotes of its own: {typed}."
    return f"{one_line(text)} Write KEY=VALUE."


def _wrong_value(key: str, given: str, said: str) -> str:
    """A value that is of another type than its key."""
    if key in GROUPS and "Cannot assign" in said:
        return f"{key}={given}: `{key}` holds the settings of each; choose one with {GROUPS[key]}={given}"
    if "is not a ListConfig" in said or (given.startswith("{") and "with ListConfig" in said):
        example = "VALUE" if given.startswith("{") else given
        return f"{key}={given}: must be a list: '{key}=[{example}]'"
    if "with ListConfig" in said or re.search(r"Cannot assign \w+ to Dict\[", said):
        return f"{key}={given}: must be a table: '{key}={{NAME: VALUE}}'"
    if other := re.search(r"Invalid type assigned: (\w+) is not a subclass of (float|int|str|bool)", said):
        found = "null" if other[1] == "NoneType" else f"a {other[1]}"
        return f"{key}={given}: holds {found}, where {_WORDS[other[2]]} must be"
    return f"{key}={given}: {type_or_line(key, said)}"


def _several_values(key: str, given: str) -> str:
    """Values with commas in a command that is no multirun."""
    from pipeline.config.meaning import shipped_meanings  # reads what is written of all keys

    given = given.replace(" ", "")
    meaning = shipped_meanings().get(key)
    kind = meaning.type if meaning else ""
    if kind.startswith("list") and "[" in given:
        return f"{key}={given}: several values, where one list is taken; add --multirun for a run for each"
    if kind.startswith("list"):
        lists = ",".join(f"[{each}]" for each in given.split(","))
        return (
            f"{key}={given}: several values. Write '{key}=[{given}]' for one list, or add --multirun and write "
            f"'{key}={lists}' for a run for each"
        )
    if kind.partition(" or ")[0] in _SINGLE or kind == "true or false":
        front = re.fullmatch(r"(algos\.[^.]+)\.(?!enabled$)(\w+)", key)
        one_run = (
            f"write '{front[1]}.front={{{front[2]}: [{given}]}}' for all of them in one run, or " if front else ""
        )
        return f"{key}={given}: several values, where one is taken; {one_run}add --multirun for a run for each"
    if kind.partition(" or ")[0] in ("path", "text"):
        return (
            f"{key}={given}: several values, where one is taken; write \"{key}='{given}'\" if the "
            "commas are part of it, or add --multirun for a run for each"
        )
    text = "" if key in NAMED_GROUPS else f"\"{key}='{given}'\" for one text, "
    return (
        f"{key}={given}: several values. Write '{key}=[{given}]' for a list, {text}or add --multirun for a run "
        "for each"
    )


def unknown_key(key: str, given: str = "") -> str:
    """What to say of a key that there is not: the one that was meant, and which there are.

    Args:
        key: What was typed.
        given: The value that was given with it.
    """
    known = list(dict.fromkeys([*known_keys(), *own_keys()]))
    table, name = (*key.split("."), "")[:2]
    if key in known and table in GROUPS:
        group = GROUPS[table]
        return f"{key}: the run has no {group} '{name}'. Choose it with {group}={name}, or {group}=[{name},...]."
    if key in known and "." not in key:
        return _not_on_ours(key)
    of_table = {each.split(".")[1] for each in known if each.startswith(f"{table}.")}
    if table in _EXAMPLES and name and name not in of_table:
        what, example = _EXAMPLES[table]
        return unknown_name(what, name, of_table) + (
            f" For one of your own add {table}.{name}.class_path=my_module.{example}; if a file of yours says "
            f"that, write +{key}=... for what the file does not set."
        )
    sections = {each.partition(".")[0] for each in known}
    groups = [path.name for path in conf_dir().iterdir() if path.is_dir() and path.name != key]
    near = (
        _by_other_name(key, known)
        or _with_end(key, known)
        or _in_other_sections(key, known)
        or _alike(key, known, [*sections, *groups])
    )
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    is_a_setting = any(each.endswith(f".{key}") for each in known)  # then it means no section or group like it
    if (
        "." not in key
        and (not near or (is_a_setting and near[0] not in known))
        and (setting := nearest_setting(key, [given.strip("[]")] if given else []))
    ):
        hint = f" Did you mean {setting}?"
    leaf = key.rpartition(".")[2]
    if (
        "." in key
        and not any(each.endswith(f".{leaf}") for each in near)
        and any(each.endswith(f".{leaf}") for each in known)
        and (setting := nearest_setting(leaf, [given.strip("[]")] if given else []))
        and not setting.startswith(f"{table}.")
    ):  # a setting of another kind of section, as of every algorithm
        hint = f" Did you mean {setting}?"
    if advice := advice_on(key, given):
        hint = f" {advice}"
    if has := _which_have(key, known):
        hint = f" {has}"
    section = key.rpartition(".")[0]
    while "." in section and not any(each.startswith(f"{section}.") for each in known):
        section = section.rpartition(".")[0]
    if leaf in _COLUMNS and f"{section}.columns" in known:
        hint = f" For a column that is called otherwise write '{section}.columns={{{leaf}: {given or 'NAME'}}}'."
    inside = [name.removeprefix(f"{section}.") for name in known if section and name.startswith(f"{section}.")]
    here = list(dict.fromkeys(name.partition(".")[0] for name in inside))
    where = f" Known in {section}" if here else " Known"
    listed = here or sorted({name.split(".")[0] for name in known})
    return f"unknown key '{key}'.{hint}{where}: {', '.join(listed)}."


def _not_on_ours(key: str) -> str:
    """What to say of a key that there is, where the configuration that was named does not have it."""
    return (
        f"the configuration of --config-name has no key '{key}', since it does not build on that of this program. "
        "Let it begin with the lines `defaults:`, `  - config`, `  - _self_`; or leave --config-name out"
    )


def _which_have(key: str, known: Sequence[str]) -> str:
    """Whose settings a group such as `lora` is, where the algorithm of a key has none."""
    table, name, group = (*key.split("."), "", "")[:3]
    parts = [each.split(".") for each in known if each.startswith(f"{table}.") and each.count(".") > 2]
    have = dict.fromkeys(each[1] for each in parts if each[2] == group)
    return f"{name} has no `{group}`, a setting of {', '.join(have)}." if have and name not in have else ""


def _by_other_name(key: str, known: Sequence[str]) -> list[str]:
    """The key of the same section, or else the one there is, that another program calls so."""
    section, _, last = key.rpartition(".")
    here = other_name(last)
    if not section or here == last:
        return []
    found = [each for each in known if each == here or each.endswith(f".{here}")]
    of_section = [each for each in found if each.startswith(f"{section}.")]
    return of_section[:1] or (found if len(found) == 1 else [])


def _with_end(key: str, known: Sequence[str]) -> list[str]:
    """The first keys of which the given one lacks the first sections: as ``lora.rank``."""
    found = [each for each in known if "." in key and each.endswith(f".{key}")]
    return found[:_FAMILY]


def _alike(key: str, known: Sequence[str], sections: Iterable[str]) -> list[str]:
    """The one that resembles a key most; what is no more than a word resembles whole keys by chance."""
    if "." in key:
        return get_close_matches(key, [*known, *sections], n=1, cutoff=0.6)
    return get_close_matches(key, list(sections), n=1, cutoff=0.7)


def _in_other_sections(key: str, known: Sequence[str]) -> list[str]:
    """Up to two keys that begin as the given one does, where no key of its own section resembles it."""
    section, _, name = key.rpartition(".")
    leaves = {each: each.rpartition(".")[2] for each in known}
    if get_close_matches(name, [leaf for each, leaf in leaves.items() if each == f"{section}.{leaf}"], cutoff=0.6):
        return []
    found = [each for each, leaf in leaves.items() if leaf == name or leaf.startswith(f"{name}_")]
    return found if len(found) <= _FEW else []


def _missing_file(error: MissingConfigException) -> str:
    file = error.missing_cfg_file or ""
    named_by = re.match(r"In '([^']*)': ", str(error))
    owner = f"{named_by[1]}.yaml: " if named_by and named_by[1] != "config" else ""
    if not file:
        return one_line(str(error))
    in_group = (conf_dir() / file).parent
    if error.options is None and (owner or not in_group.is_dir()):
        return f"{owner}its `defaults` name '{file}', and there is no file {file}.yaml"
    group, _, name = (
        file.partition("/") if (conf_dir() / file.partition("/")[0]).is_dir() else file.rpartition("/")
    )
    if not group:
        if name == "config":
            return "--config-path replaces all files that ship. For a folder of your own beside them: --config-dir"
        return (
            f"there is no configuration '{name}' (--config-name): neither in conf/ nor in the folder of "
            f"--config-dir. For a file of conf/experiment/ write experiment={name}"
        )
    found = error.options if error.options is not None else [each.stem for each in in_group.glob("*.yaml")]
    options = [option for option in found if not option.endswith("_schema")]
    said = unknown_name({"algos": "algorithm"}.get(group, group), name, options)
    if group == "model":
        said += f" For a folder or an id of the hub: model=hf models.hf.path={name}"
    said += f" (files in {group}/ of conf/ and of --config-dir)"
    if group == "algos":
        said += f" To add your own write algos.{name}.class_path=my_module.MyAlgorithm, and leave it out here."
    return f"{owner}{said}"


def type_or_line(key: str, said: str) -> str:
    """What OmegaConf says of a value: in our words if it is about a type, else in one line."""
    return type_in_words(re.sub(r"\[\w+\]", "", key), said) or one_line(said)


# -- wrong type --------------------------------------------------------------------------------------------------
# What OmegaConf says of a value of a wrong type, in our words: what its key takes, and the default.


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


# -- faults ------------------------------------------------------------------------------------------------------
# All faults of a request that cannot be composed, where Hydra and OmegaConf stop at the first. The setting
# that a message is about is left out and the rest composed again, until nothing is refused or the message is
# about no setting. That is done only once a request is refused.


_MOST = 20
"""Faults that are looked for."""
_ADVICE = re.compile(r"\. Did you mean|\bKnown\b")
_LISTED = re.compile(r"^\d+ settings are wrong:\n")


def all_faults(first: Exception, words: Sequence[str], compose: Callable[[Sequence[str]], Config]) -> ConfigError:
    """What is wrong with a request, all of it where that can be found out.

    Args:
        first: What was raised of all words.
        words: Settings, as they were given to Hydra.
        compose: Makes the configuration of some of them.
    """
    problems, left, error = [str(explain(first))], list(words), first
    for _ in range(_MOST):
        rest = _without_culprit(left, str(explain(error)))
        if rest is None:
            break
        left = rest
        try:
            config = compose(left)
        except Exception as another:  # Hydra may raise anything
            error = another
            problems += [str(explain(error))]
            continue
        try:
            check_config(config)
        except ConfigError as others:
            problems += _each(str(others))
        break
    try:
        refuse_all(list(dict.fromkeys(problems)))
    except ConfigError as all_of_them:
        return all_of_them
    return explain(first)


def _each(said: str) -> list[str]:
    """The problems that one message lists, each by itself."""
    if not _LISTED.match(said):
        return [said]
    return [line.removeprefix("  - ") for line in said.split("\n")[1:]]


def _without_culprit(words: list[str], said: str) -> list[str] | None:
    """The settings without the one that a message is about, or with the one that it misses; None for no such."""
    if missing := re.match(r"([\w.]+) is missing", said):
        return [*words, f"{missing[1]}=x"] if f"{missing[1]}=x" not in words else None
    found = [word for word in words if _is_about(said, word)]
    if not found:
        return None
    culprit = max(found, key=lambda word: len(word.partition("=")[0]))
    return [word for word in words if word != culprit]


def _is_about(said: str, word: str) -> bool:
    key, _, value = word.lstrip("+~").partition("=")
    if word in said or re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", _ADVICE.split(said)[0]):
        return True
    return "." not in key and bool(value) and f"'{value.strip('[]')}'" in said
