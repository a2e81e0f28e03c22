"""From the command line to typed configuration, and from typed configuration to plain data and back.

Hydra composes, OmegaConf checks types against the schema, and `explain` turns what they raise into one readable
message. Workers receive the plain form and rebuild the typed one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, QuotedString, Sweep
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from pipeline.config.declared import declared, filled
from pipeline.config.fronts import point_of, settings_of, with_points
from pipeline.config.known import GROUPS, NAMED_GROUPS, known_keys, meant_by_word, nearest_setting, own_keys
from pipeline.config.limits import bound_files, check_overrides
from pipeline.config.schema import (
    ALGO_SCHEMAS,
    DATASET_SCHEMAS,
    MODEL_SCHEMAS,
    AlgoConfig,
    Config,
    DatasetConfig,
    StageConfig,
)
from pipeline.config.sweeps import bound_sweeps
from pipeline.config.user_code import check_settings_class, import_object
from pipeline.config.values import brief, value_problems
from pipeline.errors import ConfigError, unknown_name

VERSION_BASE = "1.3"
COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError)
"""What composing a configuration raises on purpose; what the user wrote may lead to any other error in Hydra."""
_Settings = TypeVar("_Settings")


def conf_dir() -> Path:
    """The folder of configuration groups: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


# Here, since a launcher of Hydra's may carry out a run in a process that never registers the schemas.
OmegaConf.register_new_resolver("shipped", lambda name: str(conf_dir() / name), replace=True)


def register_schemas(overrides: Sequence[str] = ()) -> None:
    """Tell Hydra the schema, algorithms and datasets of the user's own included.

    Args:
        overrides: The command line; ``algos.NAME.class_path=...`` makes NAME a known algorithm with the
            settings of its class, ``datasets.NAME.class_path=...`` a known dataset.

    Raises:
        ConfigError: A class cannot be imported, or has no settings of the right kind, or the command line is far
            too long.
    """
    check_overrides(overrides)
    _check_choices(overrides)
    bound_files()
    bound_sweeps()
    store = ConfigStore.instance()
    _register_shipped(store)
    # Algorithms that ship are all there, disabled, so that a profile may set values of one that is not chosen.
    shipped = {name: _with_open_front(schema) for name, schema in ALGO_SCHEMAS.items()}
    own = {
        name: _with_open_tables(algo_schema(name, path), enabled=True)
        for name, path in _class_paths("algos", overrides)
    }
    # What has a file is composed of it, and may have a class of the user's own on top.
    datasets = {
        name: _with_open_tables(_dataset_schema(name, {"class_path": path}), kind=name)
        for name, path in _class_paths("datasets", overrides)
        if not (conf_dir() / "dataset" / f"{name}.yaml").is_file()
    }
    store.store(name="schema", node=_Composed(algos={**shipped, **own}, datasets=datasets))


def _register_shipped(store: ConfigStore) -> None:
    """The datasets and models that ship, once: they are the same for every request."""
    for name, dataset in DATASET_SCHEMAS.items():
        if f"{name}_schema.yaml" not in store.repo.get("dataset", {}):
            node = _with_open_tables(dataset)
            store.store(group="dataset", name=f"{name}_schema", package=f"datasets.{name}", node=node)
    for name, model in MODEL_SCHEMAS.items():
        if f"{name}_schema.yaml" not in store.repo.get("model", {}):
            store.store(group="model", name=f"{name}_schema", package=f"models.{name}", node=model)


@dataclass(kw_only=True)
class _Composed(Config):
    """The schema while Hydra composes: a file may hold settings of a class that is known only afterwards."""

    algos: dict[str, Any] = field(default_factory=dict)
    datasets: dict[str, Any] = field(default_factory=dict)


def _with_open_tables(schema: type[AlgoConfig] | type[DatasetConfig], **values: Any) -> DictConfig:
    """A schema whose tables take names of the user's own; Hydra would ask for `+` before a new key."""
    node = cast("DictConfig", OmegaConf.structured(schema(**values)))
    tables = [node[item.name] for item in fields(schema) if item.default_factory is dict]
    if "grading" in node:
        tables.append(node.grading.options)
    for table in tables:
        OmegaConf.set_struct(table, False)
    return node


def _with_open_front(schema: type[AlgoConfig]) -> DictConfig:
    node = deepcopy(declared(schema))
    OmegaConf.set_struct(node.front, False)
    return node


def load_config(overrides: Sequence[str], config_dir: Path | None = None) -> Config:
    """Compose ``conf/config.yaml`` with overrides.

    Args:
        overrides: As on the command line.
        config_dir: Another folder of configuration groups.

    Raises:
        ConfigError: Something the user wrote is wrong.
    """
    try:
        register_schemas(overrides)
        GlobalHydra.instance().clear()
        folder = str(config_dir or conf_dir())
        with initialize_config_dir(folder, version_base=VERSION_BASE):
            composed = compose("config", overrides=list(overrides))
    except Exception as error:
        raise explain(error) from error
    return typed(composed)


def typed(composed: DictConfig) -> Config:
    """Turn a composed configuration into dataclasses."""
    try:
        _refuse_missing(composed)
        return cast("Config", _to_object(composed, Config))
    except COMPOSITION_ERRORS as error:
        raise explain(error) from error


def to_plain(config: object) -> dict[str, Any]:
    """Any configuration dataclass as plain JSON data; enums become their names."""
    node = OmegaConf.structured(config)
    plain = OmegaConf.to_container(node, resolve=True, enum_to_str=True)
    return cast("dict[str, Any]", plain)


def config_from_plain(plain: Mapping[str, Any]) -> Config:
    """Rebuild what `to_plain` made of a `Config`."""
    return cast("Config", _to_object(OmegaConf.create(dict(plain)), Config))


def stage_config_from_plain(plain: Mapping[str, Any]) -> StageConfig:
    """Rebuild the sections that a stage declared; reading any other one raises.

    Args:
        plain: Section name -> plain data. The sections ``algo``, ``dataset`` and ``model`` carry the name of
            their schema under ``_schema_``.
    """
    config = StageConfig()
    for section in fields(StageConfig):
        if section.name in plain:
            setattr(config, section.name, _rebuild(plain[section.name], getattr(config, section.name)))
        else:
            delattr(config, section.name)
    return config


def _rebuild(plain: Mapping[str, Any], default: object) -> Any:
    data = dict(plain)
    schema = data.pop("_schema_", None)
    kind = import_object(schema) if schema else type(default)
    return filled(kind, {}, data)


def schema_path(config: object) -> str:
    """Dotted path of a configuration's dataclass, as ``module:Class``."""
    return f"{type(config).__module__}:{type(config).__qualname__}"


def algo_schema(name: str, class_path: str | None) -> type[AlgoConfig]:
    """The dataclass of an algorithm's settings.

    Raises:
        ConfigError: The name is unknown and no class is given, or the class has no settings dataclass.
    """
    if class_path is None:
        name, _ = point_of(name)
        if name not in ALGO_SCHEMAS:
            own = f" For one of your own set algos.{name}.class_path=my_module.MyAlgorithm."
            raise ConfigError(unknown_name("algorithm", name, ALGO_SCHEMAS) + own)
        return ALGO_SCHEMAS[name]
    return _own_schema(f"algos.{name}", class_path, AlgoConfig, "pipeline.learning.algos.base.Algorithm")


def _dataset_schema(name: str, node: Mapping[str, Any]) -> type[DatasetConfig]:
    """The dataclass of a dataset's settings.

    A class of the user's own that builds on a kind that ships may name that kind, and then has its settings.
    """
    class_path = node.get("class_path")
    if not class_path or node.get("kind") in DATASET_SCHEMAS:
        return cast("type[DatasetConfig]", _kind(DATASET_SCHEMAS, "dataset", name, node))
    return _own_schema(f"datasets.{name}", class_path, DatasetConfig, "pipeline.learning.datasets.base.Dataset")


def _own_schema(key: str, class_path: str, base: type[_Settings], parent: str) -> type[_Settings]:
    """The settings dataclass of a class of the user's own, which must build on `parent`."""
    owner = f"{key}.class_path={class_path}"
    schema = getattr(import_object(class_path), "config_class", None)
    if schema is None:
        raise ConfigError(
            f"{owner} is no {parent.rpartition('.')[2]}: it has no config_class. It must be a subclass of "
            f"{parent}."
        )
    check_settings_class(owner, schema, base)
    return cast("type[_Settings]", schema)


def _check_choices(overrides: Sequence[str]) -> None:
    """Refuse what is no name in the place of a file of ``conf/``; Hydra does not say which it was."""
    groups = {path.name for path in conf_dir().iterdir() if path.is_dir()}
    for override in overrides:
        group, _, value = override.partition("=")
        if group not in groups:
            continue
        try:
            chosen = OverridesParser.create().parse_override(override).value()
        except HydraException:
            continue  # it is told with all that Hydra cannot read
        names = chosen if isinstance(chosen, list) else [chosen]
        if not all(isinstance(name, (str, QuotedString, Sweep, Glob)) for name in names):
            example = {"algos": "'algos=[PITA,DPO]'", "profile": "profile=cpu"}.get(group, f"{group}=NAME")
            raise ConfigError(
                f"{group}={value}: must be a name, or a list of names, of files in conf/{group}/, for example "
                f"{example}"
            )


def _class_paths(table: str, overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and classes that a command line adds to a table."""
    for override in overrides:
        if match := re.fullmatch(rf"\+{{0,2}}{table}\.([\w-]+)\.class_path=(['\"]?)([^'\"]+)\2", override):
            yield match[1], match[3]


def _to_object(composed: DictConfig, schema: type[Config]) -> Any:
    plain = cast("dict[str, Any]", OmegaConf.to_container(composed, resolve=True, enum_to_str=True))
    schemas: dict[str, Callable[[str, Mapping[str, Any]], type[Any]]] = {
        "algos": lambda name, node: algo_schema(name, node.get("class_path")),
        "datasets": _dataset_schema,
        "models": lambda name, node: _kind(MODEL_SCHEMAS, "model", name, node),
    }
    if isinstance(plain.get("algos"), dict):
        plain["algos"] = with_points(plain["algos"])
    tables: dict[str, dict[str, type[Any]]] = {table: {} for table in schemas}
    for table, schema_of in schemas.items():
        for name, node in _nodes(table, plain.get(table)):
            if table == "algos":
                _refuse_wrong_points(name, node)
            if table == "datasets" and node.get("class_path") and node.get("kind", MISSING) == MISSING:
                node["kind"] = name
            tables[table][name] = schema_of(name, node)
    return filled(schema, tables, plain)


def _refuse_wrong_points(name: str, node: Mapping[str, Any]) -> None:
    """Refuse a value of a front by the key that was typed; a point's own key cannot be."""
    algo, point = point_of(name)
    for setting in settings_of(point):
        key = f"algos.{algo}.front.{setting}"
        try:
            section = filled(algo_schema(name, node.get("class_path")), {}, {setting: node[setting]})
        except OmegaConfBaseException as error:
            raise ConfigError(f"{key}={brief(node[setting])}: {_one_line(error.msg or str(error))}") from None
        for problem in value_problems(section):
            if problem.startswith(f"{setting}="):
                raise ConfigError(f"algos.{algo}.front.{problem}")


def _refuse_missing(composed: DictConfig) -> None:
    """Refuse '???', which else would silently be the default; what a later step fills in may be missing."""
    filled_in = re.compile(r"experiment\.name|(algos|datasets|models)\.[^.]+(\.kind)?")
    missing = sorted(key for key in OmegaConf.missing_keys(composed) if not filled_in.fullmatch(key))
    if missing:
        raise ConfigError(f"{missing[0]} is missing ('???'): give it a value, or leave it out for its default")


def _nodes(table: str, section: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """The sections of a table of algorithms, datasets or models, each with its settings."""
    if section is not None and not isinstance(section, dict):
        raise ConfigError(f"{table}={brief(section)}: must be a table of names, each with a table of settings")
    for name, node in (section or {}).items():
        if not isinstance(name, str) or not isinstance(node, dict):
            raise ConfigError(
                f"{table}.{name}={brief(node)}: must be a table of settings, for example {{{_SETTING[table]}}}"
            )
        for key in ("kind", "class_path"):
            if not isinstance(node.get(key), str | None):
                raise ConfigError(f"{table}.{name}.{key}={brief(node[key])}: must be a name")
        yield name, node


_SETTING = {"algos": "enabled: true", "datasets": "kind: addition", "models": "kind: tiny"}


def _kind(known: Mapping[str, type[Any]], what: str, name: str, node: Mapping[str, Any]) -> type[Any]:
    kind = node.get("kind", "???")
    if kind not in known:
        raise ConfigError(f"{what} '{name}': " + unknown_name("kind", str(kind), known))
    return known[kind]


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
    if isinstance(cause, yaml.YAMLError):
        return f"a configuration file is not valid YAML: {_one_line(str(cause))}"
    if isinstance(error, UnicodeDecodeError):
        return f"a configuration file is not UTF-8 text: {error}"
    if isinstance(cause, RecursionError):
        return "the configuration is nested too deeply, or refers to itself (${...})"
    text = str(error)
    key = (cause.full_key or "") if isinstance(cause, OmegaConfBaseException) else ""
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is missing: give it a value, for example {error.full_key}=first_run"
    if unknown := re.search(r"Could not override '([^']*)'", text):
        given = re.search(r"use \+[^\s=]+=(.*)", text)
        return _unknown_key(key if key.startswith(f"{unknown[1]}.") else unknown[1], given[1] if given else "")
    if isinstance(error, MissingConfigException):
        return _missing_file(error)
    if isinstance(error, OverrideParseException):
        return f"cannot read '{error.override}': {meant_by_word(error.override) or _unreadable(text)}"
    if several := re.search(r"Ambiguous value for argument '\+*([^=']+)=(.*)'", text):
        return _several_values(*several.groups())
    if merging := re.search(r"Error merging override \+*([^\s=]+)(=.*)?", text):
        return _wrong_value(merging[1], (merging[2] or "").removeprefix("="), str(cause))
    if in_file := re.match(r"In '([^']*)': (\w+) raised while composing config:\s*(.*)", text, re.DOTALL):
        return _wrong_file(*in_file.groups())
    if key.partition(".")[0] not in {"", *_EXAMPLES} and isinstance(cause, (ConfigKeyError, ConfigAttributeError)):
        return _unknown_key(key)
    said = _one_line(text if cause is error else ": ".join(filter(None, (text, str(cause)))))
    if not isinstance(error, COMPOSITION_ERRORS):
        said = f"this configuration cannot be composed ({type(error).__name__}: {said})"
    return f"{key}: {said}" if key else said


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
        return f"{file}.yaml: {_unknown_key(key)}"
    return f"{file}.yaml: " + (f"{key}: " if key else "") + _one_line(said)


_LONGEST = 1500
"""Characters of a message, so that a setting of thousands does not bury what is said of it."""
_FEW = 2
"""Keys that a message suggests at most."""
_WORDS = {"float": "a number", "int": "a whole number", "str": "a text", "bool": "true or false"}
_EXAMPLES = {"algos": ("algorithm", "MyAlgorithm"), "datasets": ("dataset", "MyDataset")}


def _unreadable(text: str) -> str:
    return f"{_one_line(text)} Write KEY=VALUE."


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
    return f"{key}={given}: {_one_line(said)}"


def _several_values(key: str, given: str) -> str:
    """Values with commas in a command that is no multirun."""
    given = given.replace(" ", "")
    text = "" if key in NAMED_GROUPS else f"\"{key}='{given}'\" for one text, "
    return (
        f"{key}={given}: several values. Write '{key}=[{given}]' for a list, {text}or add --multirun for a run "
        "for each"
    )


def _unknown_key(key: str, given: str = "") -> str:
    known = list(dict.fromkeys([*known_keys(), *own_keys()]))
    table, name = (*key.split("."), "")[:2]
    if key in known and table in GROUPS:
        group = GROUPS[table]
        return f"{key}: the run has no {group} '{name}'. Choose it with {group}={name}, or {group}=[{name},...]."
    of_table = {each.split(".")[1] for each in known if each.startswith(f"{table}.")}
    if table in _EXAMPLES and name and name not in of_table:
        what, example = _EXAMPLES[table]
        return unknown_name(what, name, of_table) + (
            f" For one of your own add {table}.{name}.class_path=my_module.{example}; if a file of yours says "
            f"that, write +{key}=... for what the file does not set."
        )
    sections = {each.partition(".")[0] for each in known}
    near = _in_other_sections(key, known) or _alike(key, known, sections)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    if not near and "." not in key and (setting := nearest_setting(key, [given.strip("[]")] if given else [])):
        hint = f" Did you mean {setting}?"
    section = key.rpartition(".")[0]
    here = [name.rpartition(".")[2] for name in known if section and name.rpartition(".")[0] == section]
    where = f" Known in {section}" if here else " Known"
    listed = here or sorted({name.split(".")[0] for name in known})
    return f"unknown key '{key}'.{hint}{where}: {', '.join(listed)}."


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
        return _one_line(str(error))
    in_group = (conf_dir() / file).parent
    if error.options is None and (owner or not in_group.is_dir()):
        return f"{owner}its `defaults` name '{file}', and there is no file {file}.yaml"
    group, _, name = (
        file.partition("/") if (conf_dir() / file.partition("/")[0]).is_dir() else file.rpartition("/")
    )
    found = error.options if error.options is not None else [each.stem for each in in_group.glob("*.yaml")]
    options = [option for option in found if not option.endswith("_schema")]
    said = unknown_name({"algos": "algorithm"}.get(group, group), name, options)
    if group == "model":
        said += f" For a folder or an id of the hub: model=hf models.hf.path={name}"
    return f"{owner}{said} (files in {group}/ of conf/ and of --config-dir)"


def _one_line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    noise = re.compile(r"(full_key|object_type|reference_type)[:=]|See https?:|Set HYDRA_FULL_ERROR")
    return " ".join(line for line in lines if line and not noise.match(line)).rstrip(".") + "."
