"""Load the configuration from the command line, or from the plain data of a run folder.

Hydra composes plain values without checking them. They are then checked against the settings classes, in one pass
that collects all faults.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, cast, get_args, get_origin

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config import checks, plain, tables
from pipeline.config.meaning import class_paths, did_you_mean, in_words, known_keys, meanings_of, unknown_key
from pipeline.config.schema import MISSING, MODEL_TEXT, PATH, Config, EvaluationConfig
from pipeline.config.tables import (
    ALGORITHMS,
    CHECKPOINT,
    TABLES,
    all_shipped,
    choices_of,
    conf_dir,
    settings_class,
)
from pipeline.errors import ConfigError, PipelineError, unknown_name

# -- explain -----------------------------------------------------------------------------------------------------
# One-line messages about invalid settings, with the valid ones.


COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError, RecursionError)
"""Errors that composing a user's configuration may raise."""
_LONGEST = 1500
"""Longest message in characters, so that a very long setting does not hide the rest of the message."""


def explain(error: Exception) -> ConfigError:
    """Return a readable error: what is wrong with the user's settings, and what to try."""
    if isinstance(error, ConfigError):
        return error
    text = _explanation(error)
    return ConfigError(text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}")


def _explanation(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the configuration is nested too deeply, or refers to itself (${...})"
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        # Hydra sets none for a choice inside a list
        return unknown_choice(group, choice, error.options or choices_of(group))
    key = getattr(error, "full_key", "") or ""
    cause = error.__cause__
    hidden = cause is not None and str(cause) not in str(error)
    text = plain.one_line(f"{error}: {cause}" if hidden else str(error))
    if name := re.search(r"Interpolation key '(.*)' not found", text):
        return f"{key}: refers to ${{{name[1]}}}, and nothing sets '{name[1]}'"
    text = text.replace("Cannot merge DictConfig with ListConfig", "must be a table, as {NAME: VALUE}, not a list")
    if not isinstance(error, COMPOSITION_ERRORS):
        text = f"this configuration cannot be composed ({type(error).__name__}: {text})"
    return f"{key}: {text}" if key else text


def unknown_choice(group: str, name: str, options: Iterable[str]) -> str:
    """Return the message for a file that a group does not have."""
    text = unknown_name({"algos": "algorithm"}.get(group, group), name, options)
    text += f" (files in {group}/ of conf/ and of --config-dir)"
    own: Mapping[str, str] = {
        "algos": f" To add your own write algos.{name}.class_path=my_module.MyAlgorithm, and leave it out here.",
        "model": f" For a folder or an id of the hub: model=hf models.hf.path={name}",
    }
    return text + own.get(group, "")


# -- as meant ----------------------------------------------------------------------------------------------------
# Fix settings of the command line that Hydra would read differently: 1.10 as a number, None as a text. The word is
# rewritten before Hydra reads it, by the type of its key:
#
# - a text is taken as typed: ``experiment.name=1.10``, ``1e3``, ``true``
# - ``None``, Python's spelling, is null if a key accepts null, and so is ``~`` for a text that is not a path
# - in texts that models read (`schema.model_text`) ``\n`` is a line break and ``\t`` a tab
# - ``KEY=~/folder`` means the home folder: bash expands it only if the key has no dot, Hydra never
#
# A word in Hydra's own quotes (``key="'None'"``) stays a text.


_MEANT = re.compile(r"^([^-=~][^=]*=)~(?=/|$)")
_ESCAPED = re.compile(r"[\\()\[\]{}:=, \t]")
"""Characters that Hydra's grammar would interpret in a value without quotes."""


_LONGEST_WORD = 10_000
"""Longest setting in characters that is searched for what was meant."""
_WORD = re.compile(r"(\+{0,2}[A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_ELEMENT = re.compile(
    r"""'(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | [^\s,\[\]{}()'"][^,\[\]{}()'"]*""", re.DOTALL | re.VERBOSE
)
"""A value inside a list, table or choice, in a table with its key before it."""
_LATEX = (
    *("nabla", "ncong", "ne", "nearrow", "neg", "neq", "newline", "nexists", "ngeq", "ni", "nleq", "nmid"),
    *("nolimits", "nonumber", "not", "notin", "nsim", "nsubseteq", "nu", "nwarrow"),
    *("tag", "tan", "tanh", "tau", "tbinom", "text", "textbf", "textit", "textrm", "texttt", "tfrac", "theta"),
    *("tilde", "times", "to", "top", "triangle", "triangleq"),
)
_ESCAPE = re.compile(rf"\\(?:\\(?=[nt])|(?!(?:{'|'.join(_LATEX)})(?![A-Za-z]))[nt])")
"""An escape that people type, but not the start of a LaTeX command."""
_MEANS = {r"\n": "\n", r"\t": "\t", "\\\\": "\\"}


def as_meant(words: Sequence[str]) -> list[str]:
    """Rewrite the settings of a command line so that Hydra reads what was meant.

    An unreadable setting stays unchanged, so that the error shows what was typed.
    """
    own = {table: dict(class_paths(table, words)) for table in ("algos", "datasets")}
    home = _ESCAPED.sub(lambda match: f"\\{match[0]}", os.path.expanduser("~"))  # noqa: PTH111 - where there is none, "~"
    return [_MEANT.sub(lambda match: f"{match[1]}{home}", _meant(word, own), count=1) for word in words]


@cache
def _declared(key: str, class_path: str | None) -> tuple[Any, Mapping[str, Any]] | None:
    """Return the type of a key and the metadata of its field; None if unknown.

    Args:
        key: Dotted.
        class_path: Path of the user's class in the key's section of a table.
    """
    table, *parts = key.split(".")
    if table not in TABLES:
        return _field(Config, [table, *parts])
    try:
        section = {"class_path": class_path}
        schemas = [settings_class(table, parts[0], section)] if class_path else all_shipped(table).values()
    except PipelineError:  # reported where it is registered
        return None
    return next((field for schema in schemas if (field := _field(schema, parts[1:]))), None)


def _field(schema: Any, parts: Sequence[str]) -> tuple[Any, Mapping[str, Any]] | None:
    hint, metadata = schema, {}
    for name in parts:
        table = next((kind for kind in plain.kinds_of(hint) if get_origin(kind) is dict), None)
        schema = next((kind for kind in plain.kinds_of(hint) if is_dataclass(kind)), None)
        if table:
            hint = get_args(table)[1]
        elif schema and name in plain.hints_of(schema):
            hint, metadata = plain.hints_of(schema)[name], schema.__dataclass_fields__[name].metadata
        else:
            return None
    return (hint, metadata) if parts else None


def _meant(word: str, own: Mapping[str, Mapping[str, str]]) -> str:
    match = _WORD.fullmatch(word) if len(word) <= _LONGEST_WORD else None
    table, name = ([*match[1].lstrip("+").split("."), ""] if match else ["", ""])[:2]
    declared = _declared(match[1].lstrip("+"), own.get(table, {}).get(name)) if match else None
    if match is None or declared is None:
        return word
    (hint, metadata), value = declared, match[2].strip()
    kinds = {kind for kind in plain.kinds_of(hint) if kind is not NoneType}
    inside = {get_args(kind)[-1] if get_origin(kind) in (list, dict) else kind for kind in kinds}
    single, is_text, optional = kinds == inside, inside == {str}, NoneType in plain.kinds_of(hint)

    def escaped(text: str) -> str:
        return _ESCAPE.sub(lambda sign: _MEANS[sign[0]], text) if MODEL_TEXT in metadata else text

    def rewritten(entry: str) -> str:
        """Return one value, rewritten if Hydra would read it differently."""
        typed = entry.strip()
        if typed in ("None", "null") and optional and single:
            return "null"
        read = _read(typed)
        if not is_text or (read is None and typed != "null"):
            return entry
        unquoted = getattr(read, "text", read if isinstance(read, str) else None)
        meant = escaped(typed if unquoted is None else unquoted)
        return entry if meant == unquoted else quoted(meant)

    def element(item: re.Match[str]) -> str:
        of_table = value[0] == "{" and item[0][0] not in "'\""
        key, colon, entry = item[0].partition(":") if of_table else ("", "", item[0])
        return f"{key}{colon} {rewritten(entry.strip())}" if colon and entry.strip() else rewritten(item[0])

    if optional and (value == "None" or (value == "~" and is_text and PATH not in metadata)):
        return f"{match[1]}=null"
    read = _read(value)
    if read is None and value != "null":  # braces of a template, say, or an apostrophe
        odd = single and is_text and value[:1] not in tuple("'\"[~")
        return f"{match[1]}={quoted(escaped(value))}" if odd else word
    if isinstance(read, str | QuotedString | int | float | NoneType):
        return f"{match[1]}={rewritten(value)}" if single else word
    return f"{match[1]}={_ELEMENT.sub(element, value)}"


def _read(value: str) -> Any:
    """Return the value as Hydra reads it; None for null, and for what it cannot read."""
    try:
        return OverridesParser.create().parse_override(f"key={value}").value()
    except (HydraException, ValueError, RecursionError):
        return None


def quoted(text: str) -> str:
    """Quote a text so that Hydra reads it as it is, whatever signs it has."""
    in_quotes: str = QuotedString(text, Quote.single).with_quotes()
    return in_quotes


# -- loading -----------------------------------------------------------------------------------------------------


VERSION_BASE = "1.3"

# Here, since a launcher of Hydra may run a job in a process that registers nothing else.
OmegaConf.register_new_resolver("shipped", lambda name: str(conf_dir() / name), replace=True)


def load_config(overrides: Sequence[str]) -> Config:
    """Compose ``conf/config.yaml`` with overrides.

    Args:
        overrides: As on the command line.

    Raises:
        ConfigError: The user's settings are wrong; the message lists all faults.
    """
    words, faults = read_settings(as_meant(overrides))
    try:
        composed = _composed(words)
    except Exception as error:  # Hydra may raise anything
        return _refused([*faults, str(explain(error))])
    return typed(composed, faults)


def read_settings(
    words: Sequence[str], *, several: bool = False, own_files: bool = False
) -> tuple[list[str], list[str]]:
    """Return the settings that Hydra can read and place, and the faults of the others.

    Args:
        words: Settings from `as_meant`.
        several: Whether a setting may have several values, one per run.
        own_files: Whether the user has own files, which only Hydra knows.
    """
    own_files = own_files or any("hydra.searchpath" in word for word in words)
    good, faults, parser = [], [], OverridesParser.create()
    for word in words:
        try:
            read = parser.parse_override(word)
        except (HydraException, ValueError, RecursionError) as error:
            faults.append(_unreadable(word, error))
            continue
        if fault := _fault_of(read, several=several, own_files=own_files):
            faults.append(fault)
        else:
            good.append(word)
    return good, faults


def _unreadable(word: str, error: Exception) -> str:
    shown = plain.brief(word).strip("'")
    if "=" not in word:
        meant = did_you_mean(word, known_keys(), "=...")
        return f"cannot read '{shown}': settings are written KEY=VALUE.{meant}"
    problem = plain.one_line(str(error))[:300]
    return f"cannot read '{shown}': {problem} A text with signs stands in quotes: 'KEY=\"a, b\"'"


def _fault_of(override: Override, *, several: bool, own_files: bool) -> str:
    """Say what is wrong with a setting, as far as its words show it; "" for nothing."""
    key, typed_value = override.key_or_group, (override.input_line or "").partition("=")[2]
    top = re.split(r"[./]", key)[0]
    if override.is_sweep_override() and not several and top != "hydra":
        advice = f"Write '{key}=[{typed_value}]' for one list, \"{key}='{typed_value}'\" for one text"
        return f"{key}={typed_value}: several values. {advice}, or have a run for each: run_parallel.py --multirun"
    value = None if override.is_sweep_override() else override.value()
    if key == "hydra.searchpath":
        folders = [str(path).removeprefix("file://") for path in (value if isinstance(value, list) else [value])]
        missing = [path for path in folders if not path.startswith("pkg://") and not Path(path).is_dir()]
        return f"hydra.searchpath={typed_value}: there is no folder {missing[0]}" if missing else ""
    if own_files or override.is_delete() or top == "hydra":
        return ""
    options = choices_of(key) if "." not in key else []
    if options and not override.is_sweep_override():
        names = [str(name) for name in (value if isinstance(value, list) else [value]) if name is not None]
        wrong = [name for name in names if name not in options]
        more = f" Unknown as well: {', '.join(wrong[1:])}." if wrong[1:] else ""
        return unknown_choice(key, wrong[0], options) + more if wrong else ""
    groups = [path.name for path in conf_dir().iterdir() if path.is_dir()]
    return "" if options or top in Config.__dataclass_fields__ else unknown_key(key, groups)


def _composed(words: Sequence[str]) -> DictConfig:
    """Compose settings with Hydra, also in a program that uses Hydra itself."""
    outer = GlobalHydra.instance().hydra
    try:
        register_schemas()
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
            return compose("config", overrides=list(words))
    finally:
        GlobalHydra.instance().hydra = outer


def register_schemas() -> None:
    """Register the defaults with Hydra as plain values, and allow further keys."""
    store = ConfigStore.instance()
    if "schema" not in store.repo:
        store.store(group="schema", name="defaults", node=_defaults(), package="_global_")


def _defaults() -> DictConfig:
    values = dict(plain.default_values(Config))
    values["evaluation"] = {**values["evaluation"], "num_prompts": UNSET}
    # All shipped algorithms are included but disabled, so that a profile may set values of one that is not
    # selected.
    values["algos"] = {
        name: {key: value for key, value in plain.default_values(schema).items() if key != "enabled"}
        for name, schema in tables.all_shipped("algos").items()
    }
    node = OmegaConf.create(values)
    for section in node.values():
        if OmegaConf.is_config(section):
            OmegaConf.set_struct(section, False)
    return node


# -- held out ----------------------------------------------------------------------------------------------------
# The default number of held-out prompts for evaluation: as many as the datasets have.


USUAL = EvaluationConfig().num_prompts
UNSET = "${usual_prompts:}"
"""Placeholder of this default while Hydra composes: a file may set the same number as the default."""

OmegaConf.register_new_resolver("usual_prompts", lambda: USUAL, replace=True)


def _fewest(config: Config) -> int:
    """Return the number of held-out prompts of the smallest dataset; invalid numbers are refused later."""
    split = f"{config.evaluation.split}_size"
    sizes = [getattr(dataset, split, None) for dataset in config.trained_on.values()]
    return min([USUAL, *(size for size in sizes if isinstance(size, int) and size > 0)])


# -- plain values as settings ------------------------------------------------------------------------------------


def typed(composed: DictConfig, faults: Sequence[str] = ()) -> Config:
    """Turn a composed configuration into dataclasses.

    Args:
        composed: Plain values.
        faults: Faults of the request found so far.

    Raises:
        ConfigError: The message lists all faults; if there are any, also those that `check_config` finds in the
            rest.
    """
    try:
        # As it was given; converting all of it takes as long as resolving all of it.
        written = OmegaConf.to_container(OmegaConf.masked_copy(composed, "evaluation"), resolve=False)
        values = cast("dict[str, Any]", OmegaConf.to_container(composed, resolve=True))
    except (*COMPOSITION_ERRORS, AttributeError) as error:
        return _refused([*faults, str(explain(error))])
    evaluation = written.get("evaluation") if isinstance(written, dict) else None
    unset = isinstance(evaluation, dict) and evaluation.get("num_prompts", UNSET) == UNSET
    wrong: list[str] = []
    config = _config(values, wrong)
    if unset:
        config.evaluation.num_prompts = _fewest(config)
    if faults or wrong:
        return _refused([*faults, *wrong, *_others(config)])
    return config


def config_from_plain(values: Mapping[str, Any]) -> Config:
    """Rebuild a `Config` from the result of `to_plain`.

    Raises:
        ConfigError: The values are not those of a `Config`.
    """
    faults: list[str] = []
    try:
        config = _config(cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.create(dict(values)))), faults)
    except COMPOSITION_ERRORS as error:
        raise explain(error) from error
    plain.refuse_all(faults)
    return config


def _refused(faults: Sequence[str]) -> NoReturn:
    plain.refuse_all(list(dict.fromkeys(faults)))
    raise AssertionError  # there are faults


def _others(config: Config) -> list[str]:
    """Return further faults of a request from which invalid settings were removed."""
    try:
        return [problem for problem in checks.config_problems(config) if not problem.startswith(_FOLLOWS)]
    except PipelineError as error:
        return [str(error)]


_FOLLOWS = ("experiment.name=", "no algorithm is enabled", *(f"{table} is empty" for table in TABLES))
"""Faults that only follow from removing invalid settings."""


def _config(values: Mapping[str, Any], faults: list[str]) -> Config:
    """Convert plain values to settings; invalid ones are removed, and added to the faults."""
    values = _with_checkpoints(_with_test_sets(values))
    kept = {table: _sections(table, values.get(table), faults) for table in TABLES}
    _take_whole_files(kept["datasets"].values())
    classes = {(table, name): kind for table in kept for name, (_, kind) in kept[table].items()}

    def refuse(path: tuple[str, ...], value: Any, schema: type[Any], hint: Any) -> None:
        if path != ("experiment", "name") or value != MISSING:  # reported below
            used = classes.items() if hint is None else ()
            names = [meaning.key for at, kind in used for meaning in meanings_of(kind, ".".join(at))]  # type: ignore[arg-type]  # classes are hashable
            faults.append(_fault(path, value, schema, hint, names))

    try:
        sections: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
        for table, own in kept.items():
            for name, (node, kind) in own.items():
                sections[table][name] = plain.filled(kind, node, (table, name), refuse)
        rest = {name: value for name, value in values.items() if name not in TABLES}
        config = cast("Config", plain.filled(Config, rest, (), refuse, sections))
    except ConfigError as error:
        return _refused([*faults, str(error)])
    if config.experiment.name == MISSING:
        config.experiment.name = "unnamed"
        if not any("experiment.name" in fault for fault in faults):
            faults.append("experiment.name is missing: give it a value, for example experiment.name=first_run")
    return config


def _with_checkpoints(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values with the checkpoints of `evaluation.also` among the algorithms; null leaves one out."""
    evaluation, algos = values.get("evaluation"), values.get("algos") or {}
    also = evaluation.get("also") if isinstance(evaluation, dict) else None
    if not isinstance(evaluation, dict) or not isinstance(also, dict) or not isinstance(algos, dict):
        return values
    # YAML reads the name of a folder such as 1000, true or nan as a value.
    also = {
        name if isinstance(name, str) else str(name).lower(): source
        for name, source in also.items()
        if source is not None
    }
    values = {**values, "evaluation": {**evaluation, "also": also}}
    merged = dict(algos)
    for name, source in also.items():
        if isinstance(source, str):
            path, _, revision = source.partition("@") if not Path(source).exists() else (source, "", "")
            own = merged.get(name)
            set_by_user = own if isinstance(own, dict) else {}
            if set_by_user.get("class_path", CHECKPOINT) == CHECKPOINT and name not in ALGORITHMS:
                at = {"path": path, "revision": revision or None}
                merged[name] = {**at, **set_by_user, "class_path": CHECKPOINT, "enabled": True}
    return {**values, "algos": merged}


def _with_test_sets(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the sections of shipped datasets that `evaluation.on` names and the run has not chosen."""
    evaluation, datasets = values.get("evaluation"), values.get("datasets") or {}
    named = evaluation.get("on") if isinstance(evaluation, dict) else None
    merged = dict(datasets) if isinstance(datasets, dict) else {}
    files = choices_of(TABLES["datasets"].group)
    for name in (name for name in (named if isinstance(named, list) else ()) if name in files):
        own = merged.get(name) or {}
        if isinstance(own, dict) and own.get("kind", MISSING) == MISSING and own.get("class_path") is None:
            file = conf_dir() / TABLES["datasets"].group / f"{name}.yaml"
            shipped = cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.load(file), resolve=True))
            set_by_user = {key: value for key, value in own.items() if value != MISSING}
            merged[name] = {**shipped, "trained_on": False, **set_by_user}
    return {**values, "datasets": merged} if isinstance(datasets, dict) else values


def _take_whole_files(sections: Collection[tuple[dict[str, Any], type[Any]]]) -> None:
    """Set `evaluation_only` for test sets of one local file, so that nothing is held out for training.

    A file that the run trains on as well is cut as there, so that no row of training is evaluated on.
    """
    files = [_file_of(node) for node, _ in sections]
    trained_on = {
        file
        for file, (node, _) in zip(files, sections, strict=True)
        if node.get("trained_on", True) and not node.get("evaluation_only")
    }
    for file, (node, kind) in zip(files, sections, strict=True):
        if file is not None and file not in trained_on and "evaluation_only" in kind.__dataclass_fields__:
            node.setdefault("evaluation_only", True)


def _file_of(node: Mapping[str, Any]) -> Path | None:
    """Return the only file of a dataset; None if it has several or none."""
    path, *others = (node.get(name) for name in ("path", "test_path", "validation_path"))
    return Path(path).resolve() if isinstance(path, str) and not any(others) and Path(path).is_file() else None


def _sections(table: str, nodes: object, faults: list[str]) -> dict[str, tuple[dict[str, Any], type[Any]]]:
    """Return the sections of a table, each with its class; a front is replaced by its points."""
    table_info, sections = TABLES[table], dict[str, tuple[dict[str, Any], type[Any]]]()
    if not isinstance(nodes, dict | NoneType):
        choose = f"choose one with {table_info.group}={nodes}"
        faults.append(f"{table}={plain.brief(nodes)}: holds the settings of each; {choose}")
        nodes = None
    for name, node in (nodes or {}).items():
        try:
            if not isinstance(name, str) or not isinstance(node, dict):
                problem = f"must be a table of settings, for example {{{table_info.example}}}"
                raise ConfigError(f"{table}.{name}={plain.brief(node)}: {problem}")
            for key in ("kind", "class_path"):
                if not isinstance(node.get(key), str | None):
                    raise ConfigError(f"{table}.{name}.{key}={plain.brief(node[key])}: must be a name")
            for point, section in _points(table, name, node).items():
                sections[point] = section, tables.settings_class(table, point, section)
        except ConfigError as error:
            faults.append(str(error))
    return sections


def _points(table: str, name: str, node: dict[str, Any]) -> dict[str, Any]:
    """Return a section with the settings that its name and class imply, or the points of its front."""
    is_own = node.get("class_path") is not None
    if table == "algos":
        node = {"enabled": is_own, **node}
        if not (node["enabled"] and node.get("front")):
            return {name: node}
        return tables.points_of(name, {**plain.default_values(tables.settings_class(table, name, node)), **node})
    if node.get("kind", MISSING) != MISSING:
        return {name: node}
    if is_own:
        return {name: {**node, "kind": name}}
    group = TABLES[table].group
    if name in (files := choices_of(group)):
        raise ConfigError(f"{table}.{name}: the run has no {group} '{name}'. Choose it with {group}={name}.")
    own = f"For one of your own add {table}.{name}.class_path=my_module.MyClass."
    raise ConfigError(f"{table}.{name}: {unknown_name(group, name, files)} {own}")


def _fault(path: tuple[str, ...], value: Any, schema: type[Any], hint: Any, names: Sequence[str]) -> str:
    """Return the message for a value that a settings class does not accept."""
    if path[0] == "algos" and len(path) > 2:  # a value of a front was typed under its key
        algo, point = tables.point_of(path[1])
        path = ("algos", algo, *(["front"] if path[2] in tables.settings_of(point) else []), *path[2:])
    key = ".".join(path)
    if hint is None:
        while isinstance(value, dict) and len(value) == 1:
            ((last, value),) = value.items()
            key = f"{key}.{last}"
        return unknown_key(key, names)
    if plain.is_no_value(value, None):
        return f"{key} is missing ('{MISSING}'): give it a value"
    shown = f"{key}={plain.brief(value).strip(chr(39))}: "
    if any(map(is_dataclass, plain.kinds_of(hint))):
        return f"{shown}must be a table of settings; `python -m pipeline help {key}` lists them"
    if value == "None":
        return f"{shown}for nothing write null"
    of_key = (entry for entry in meanings_of(schema, "") if entry.key == path[-1])  # type: ignore[arg-type]  # classes are hashable
    meaning = next(of_key, None)
    must = meaning.must(value) if meaning else in_words(hint)
    quoted = value is not None and not isinstance(value, str) and ("text" in must or "path" in must)
    advice = ". A text that reads as a number or truth value stands in quotes" if quoted else ""
    return f"{shown}must be {must}{advice}"
