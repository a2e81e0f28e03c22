"""From the command line to typed configuration, and from typed configuration to plain data and back.

Hydra composes, OmegaConf checks types against the schema, and `explain` says in words what they raise. Workers
receive the plain form and rebuild the typed one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, QuotedString, Sweep
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.declared import declared, filled
from pipeline.config.explain import COMPOSITION_ERRORS, explain, one_line
from pipeline.config.fronts import point_of, settings_of, with_points
from pipeline.config.install import conf_dir
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
_Settings = TypeVar("_Settings")
_Shipped = tuple[tuple[str, type[AlgoConfig]], ...]
"""Algorithms by name."""


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
    # Hydra copies the store with all its schemas whenever it composes, only to read them.
    setattr(ConfigStore, "__deepcopy__", lambda store, _: store)  # noqa: B010
    _register_shipped(store)
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
    shipped = tuple(ALGO_SCHEMAS.items())
    node = _schema_with(shipped, own, datasets) if own or datasets else _schema_of(shipped)
    store.repo["schema.yaml"] = ConfigNode(name="schema.yaml", node=node, group=None, package=None, provider=None)


def _schema_with(shipped: _Shipped, own: dict[str, DictConfig], datasets: dict[str, DictConfig]) -> DictConfig:
    # Algorithms that ship are all there, disabled, so that a profile may set values of one that is not chosen.
    algos = {name: _with_open_front(schema) for name, schema in shipped} | own
    return cast("DictConfig", OmegaConf.structured(_Composed(algos=algos, datasets=datasets)))


@cache
def _schema_of(shipped: _Shipped) -> DictConfig:
    """Made once, as OmegaConf takes long; Hydra copies what it loads of the store."""
    return _schema_with(shipped, {}, {})


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
    kind: Any = import_object(schema) if schema else type(default)
    return deepcopy(_filled(kind, json.dumps(data)))  # a stage may do with its settings as it likes


@lru_cache(maxsize=256)
def _filled(kind: type[Any], data: str) -> Any:
    """Kept, since the stages of a run have the same few sections and OmegaConf takes long."""
    return filled(kind, {}, json.loads(data))


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
            raise ConfigError(f"{key}={brief(node[setting])}: {one_line(error.msg or str(error))}") from None
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
