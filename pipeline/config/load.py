"""From the command line, or the plain data of a run folder, to typed configuration.

Hydra composes, OmegaConf checks types against the schema, and `explain` says in words what they raise.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString, RangeSweep, Sweep
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.explain import COMPOSITION_ERRORS, all_faults, explain, type_or_line
from pipeline.config.fields import MISSING
from pipeline.config.fronts import point_of, settings_of, with_points
from pipeline.config.install import conf_dir
from pipeline.config.limits import bound_files, check_overrides
from pipeline.config.plain import declared, filled
from pipeline.config.schema import Config, EvaluationConfig
from pipeline.config.tables import TABLES, all_shipped, settings_class
from pipeline.config.values import brief, value_problems
from pipeline.config.words import as_meant, class_paths
from pipeline.errors import ConfigError, PipelineError

# -- modes -------------------------------------------------------------------------------------------------------
# Whether a request is one run or many, which Hydra composes a whole configuration to learn, only to find
# nothing. `hydra.mode` can be in a setting or in a file. Where no setting speaks of Hydra and all files are
# those that ship, it is not, and the answer is known without: that saves a tenth of what a command takes to
# start.


_WORDS = re.compile(r"\b(mode|searchpath)\b")
_OF_HYDRA = ("hydra", "schema")
"""Who provides what is searched besides the folder of this project: its own settings, and the classes of ours."""


def know_mode() -> None:
    """Have Hydra ask for the mode of a request only where something may have set it; changed in place."""
    hydras = Hydra.get_mode
    if hydras.__module__ == __name__:
        return

    def get_mode(hydra: Hydra, config_name: str | None, overrides: list[str]) -> Any:
        return hydras(hydra, config_name, overrides) if _may_be_set(hydra, config_name, overrides) else None

    setattr(Hydra, "get_mode", get_mode)  # noqa: B010 - the type checker knows no change in place


def _may_be_set(hydra: Hydra, config_name: str | None, overrides: Sequence[str]) -> bool:
    searched = hydra.config_loader.get_search_path().get_path()
    folders = {one.path.removeprefix("file://") for one in searched if one.provider not in _OF_HYDRA}
    return (
        config_name != "config"
        or folders != {str(conf_dir())}
        or any("hydra" in override for override in overrides)
        or _files_speak_of_it()
    )


@cache
def _files_speak_of_it() -> bool:
    """Whether a file of the project may: in a checkout some are the user's own, or have been edited."""
    return any(_WORDS.search(path.read_text("utf-8", errors="replace")) for path in conf_dir().rglob("*.yaml"))


# -- sweeps ------------------------------------------------------------------------------------------------------
# A bound on the runs of a sweep, counted by arithmetic before Hydra lists them: ranges may be of any length.
# Other sweepers than Hydra's own have bounds of their own, mostly a number of trials.


MOST_RUNS = 10_000
_SHOWN = 80
_LISTED = 10**12
"""Numbers of values from here on are not written out."""


def bound_sweeps() -> None:
    """Have Hydra's sweeper look at what it is given before it makes a list of the runs.

    Changed in place, for the reasons of `pipeline.config.limits.bound_files`.
    """
    Plugins.instance()  # which imports the modules of all plugins anew: their classes are others before
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    hydras = BasicSweeper.split_arguments
    if hydras.__module__ == __name__:
        return

    def split_arguments(overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:
        check_sweep(overrides)
        return hydras(overrides, max_batch_size)

    setattr(BasicSweeper, "split_arguments", staticmethod(split_arguments))  # noqa: B010


def check_sweep(overrides: Sequence[Override]) -> None:
    """Refuse a sweep without runs, and one of more runs than anybody could wait for.

    Args:
        overrides: Settings as Hydra has parsed them, those of `hydra.sweeper.params` included.

    Raises:
        ConfigError: Names the key that makes it so.
    """
    swept = {each.get_key_element(): each for each in overrides if each.is_discrete_sweep()}
    lengths = {key: _length(each) for key, each in swept.items()}
    empty = next((key for key, length in lengths.items() if length == 0), None)
    if empty is not None:
        raise ConfigError(f"the sweep has no runs: {_given(swept[empty])} stands for no value at all")
    if math.prod(lengths.values()) > MOST_RUNS:
        largest = max(lengths, key=lambda key: lengths[key])
        counts = ", ".join(f"{key} {_count(length)}" for key, length in lengths.items())
        raise ConfigError(
            f"the sweep has more than {MOST_RUNS:,} runs, the most of one command. It is {largest} above all: "
            f"{_given(swept[largest])} (values of each: {counts})"
        )


def _length(override: Override) -> int | float:
    """How many values a sweep goes through; a range is not listed for it."""
    value = override.value()
    if not isinstance(value, RangeSweep):
        return sum(1 for _ in override.sweep_iterator())
    start, stop, step = value.start or 0, value.stop or 0, value.step
    if not all(map(math.isfinite, (start, stop, step))):
        return math.inf
    if step == 0:
        return 1  # which Hydra refuses with a good message
    return max(0, math.ceil((Fraction(stop) - Fraction(start)) / Fraction(step)))


def _given(override: Override) -> str:
    text = override.input_line or override.get_key_element()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _count(length: float) -> str:
    return f"{length:,}" if length < _LISTED else "without end"


# -- held out ----------------------------------------------------------------------------------------------------
# On how many held-out prompts policies are evaluated where nobody has said it: on those that there are.


USUAL = EvaluationConfig().num_prompts
UNSET = "${usual_prompts:}"
"""In the place of the default while Hydra composes: a number that a file gives may be the same as the default."""
_SET = re.compile(r"\+{0,2}evaluation(\.num_prompts)?=")

OmegaConf.register_new_resolver("usual_prompts", lambda: USUAL, replace=True)


def is_unset(composed: DictConfig) -> bool:
    """Whether neither a file nor the command line gives `evaluation.num_prompts`."""
    section = composed._get_node("evaluation")
    if not isinstance(section, DictConfig) or section._is_none() or section._is_missing():
        return False  # which is refused later
    node = section._get_node("num_prompts")
    return isinstance(node, Node) and bool(node._value() == UNSET)


def give_way(config: Config) -> None:
    """Let the default of `evaluation.num_prompts` be what the smallest dataset holds out, where that is less."""
    if held_out := _fewest(config):
        config.evaluation.num_prompts = min(USUAL, held_out[0])


def fewer_than_usual(config: Config, given: Sequence[str]) -> str | None:
    """A line on a default that gave way; None where none did."""
    held_out, used = _fewest(config), config.evaluation.num_prompts
    if held_out is None or any(map(_SET.match, given)) or used >= USUAL or used != held_out[0]:
        return None
    size = f"{held_out[1]}.{config.evaluation.split}_size"
    return (
        f"every policy is evaluated on {used:,} prompts at most, since {size} "
        f"asks for no more (evaluation.num_prompts is {USUAL} where that is not set)"
    )


def _fewest(config: Config) -> tuple[int, str] | None:
    """How many prompts the smallest dataset holds out, and its key; what is no number yet is refused later."""
    name = f"{config.evaluation.split}_size"
    sizes = [
        (size, f"datasets.{key}")
        for key, dataset in config.datasets.items()
        if isinstance(size := getattr(dataset, name, None), int) and size > 0
    ]
    return min(sizes, default=None)


VERSION_BASE = "1.3"
_Shipped = tuple[tuple[str, type[Any]], ...]
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
    know_mode()
    store = ConfigStore.instance()
    # Hydra copies the store with all its schemas whenever it composes, only to read them.
    setattr(ConfigStore, "__deepcopy__", lambda store, _: store)  # noqa: B010
    own = {table: dict(class_paths(table, overrides)) for table in ("algos", "datasets")}
    for table in ("datasets", "models"):
        _register_files(store, table, own.get(table, {}))
    algos = {
        name: _with_open_tables(settings_class("algos", name, {"class_path": path}), enabled=True)
        for name, path in own["algos"].items()
    }
    # What has a file is composed of it, on the settings that are registered for it.
    datasets = {
        name: _with_open_tables(settings_class("datasets", name, {"class_path": path}), kind=name)
        for name, path in own["datasets"].items()
        if name not in kinds_of_files("dataset")
    }
    shipped = tuple(all_shipped("algos").items())
    node = _schema_with(shipped, algos, datasets) if algos or datasets else _schema_of(shipped)
    store.repo["schema.yaml"] = ConfigNode(name="schema.yaml", node=node, group=None, package=None, provider=None)


def _schema_with(shipped: _Shipped, own: dict[str, DictConfig], datasets: dict[str, DictConfig]) -> DictConfig:
    # Algorithms that ship are all there, disabled, so that a profile may set values of one that is not chosen.
    algos = {name: declared(schema) for name, schema in shipped} | own
    node = cast("DictConfig", OmegaConf.structured(_Composed(algos=algos, datasets=datasets)))  # copies them
    for name in algos.keys() - own.keys():
        OmegaConf.set_struct(node.algos[name].front, False)
    node.evaluation.num_prompts = UNSET
    _open_tables(node.execution)
    return node


@cache
def _schema_of(shipped: _Shipped) -> DictConfig:
    """Made once, as OmegaConf takes long; Hydra copies what it loads of the store."""
    return _schema_with(shipped, {}, {})


def _register_files(store: ConfigStore, table: str, class_paths: Mapping[str, str]) -> None:
    """The settings that a file of ``conf/`` begins with, under its name and ``_schema``."""
    group = TABLES[table].group
    known = store.repo.setdefault(group, {})
    opened: dict[type[Any], DictConfig] = {}
    for name, kind in kinds_of_files(group).items():
        schema = settings_class(table, name, {"kind": kind, "class_path": class_paths.get(name)})
        there = known.get(f"{name}_schema.yaml")
        if there is None or OmegaConf.get_type(there.node) is not schema:
            # Files of a kind share what they begin with, since Hydra copies what it loads of the store; and
            # `ConfigStore.store` would make the same of it, but of another copy.
            if schema not in opened:
                opened[schema] = _with_open_tables(schema)
            known[f"{name}_schema.yaml"] = ConfigNode(
                name=f"{name}_schema.yaml",
                node=opened[schema],
                group=group,
                package=f"{table}.{name}",
                provider=None,
            )


@cache
def kinds_of_files(group: str) -> dict[str, str]:
    """The kind that each file of a group is of, by the file's name."""
    files = sorted((conf_dir() / group).glob("*.yaml"))
    found = {path.stem: re.search(r"^kind: (\w+)", path.read_text(), re.MULTILINE) for path in files}
    return {name: kind[1] for name, kind in found.items() if kind}


@dataclass(kw_only=True)
class _Composed(Config):
    """The schema while Hydra composes: a file may hold settings of a class that is known only afterwards."""

    algos: dict[str, Any] = field(default_factory=dict)
    datasets: dict[str, Any] = field(default_factory=dict)


def _with_open_tables(schema: type[Any], **values: Any) -> DictConfig:
    """A schema whose tables take names of the user's own; Hydra would ask for `+` before a new key."""
    node = deepcopy(declared(schema))
    node.update(values)
    _open_tables(node)
    return node


def _open_tables(node: DictConfig) -> None:
    """Those of settings, and of settings inside them."""
    inside = [node._get_node(name) for name in node]
    for entry in inside:
        if isinstance(entry, DictConfig) and not entry._is_none():
            if OmegaConf.get_type(entry) is dict:
                OmegaConf.set_struct(entry, False)
            else:
                _open_tables(entry)


def load_config(overrides: Sequence[str], config_dir: Path | None = None) -> Config:
    """Compose ``conf/config.yaml`` with overrides.

    Args:
        overrides: As on the command line.
        config_dir: Another folder of configuration groups.

    Raises:
        ConfigError: Something the user wrote is wrong.
    """
    words = as_meant(overrides)
    try:
        return compose_typed(words, config_dir)
    except Exception as error:
        if not isinstance(error, (*COMPOSITION_ERRORS, PipelineError)):
            raise explain(error) from error
        raise all_faults(error, words, lambda some: compose_typed(some, config_dir)) from error


def compose_typed(words: Sequence[str], config_dir: Path | None = None, name: str = "config") -> Config:
    """Compose a configuration of settings as Hydra reads them.

    Args:
        words: The settings.
        config_dir: Another folder than ``conf/``.
        name: Of the file there that they are set in.

    Raises:
        ConfigError: What composing raises is told in words where it is no mistake of a setting.
        Exception: What Hydra raises of a setting.
    """
    outer = GlobalHydra.instance().hydra
    try:
        register_schemas(words)
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(config_dir or conf_dir()), version_base=VERSION_BASE):
            composed = compose(name, overrides=list(words))
    finally:
        GlobalHydra.instance().hydra = outer  # of a program that uses Hydra itself
    return typed(composed)


def typed(composed: DictConfig) -> Config:
    """Turn a composed configuration into dataclasses."""
    try:
        config = cast("Config", _to_object(_resolved(composed), Config))
    except COMPOSITION_ERRORS as error:
        raise explain(error) from error
    if is_unset(composed):
        give_way(config)
    return config


def config_from_plain(plain: Mapping[str, Any]) -> Config:
    """Rebuild what `to_plain` made of a `Config`."""
    return cast("Config", _to_object(_container(OmegaConf.create(dict(plain))), Config))


def _check_choices(overrides: Sequence[str]) -> None:
    """Refuse what is no name in the place of a file of ``conf/``, and one that is there twice.

    Hydra does not say which the first was, and takes the second once.
    """
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
        if twice := [name for name, times in Counter(map(str, names)).items() if times > 1]:
            raise ConfigError(f"{group}={value} names {twice[0]} twice")


def _resolved(composed: DictConfig) -> dict[str, Any]:
    """The plain values, none of which is missing."""
    plain = _container(composed)
    if _may_miss(plain):
        _refuse_missing(composed)
    return plain


def _container(composed: DictConfig) -> dict[str, Any]:
    return cast("dict[str, Any]", OmegaConf.to_container(composed, resolve=True, enum_to_str=True))


def _may_miss(plain: object) -> bool:
    """Whether '???' is among plain values; asking OmegaConf for it takes as long as all the rest."""
    if isinstance(plain, dict):
        return any(map(_may_miss, plain.values()))
    return any(map(_may_miss, plain)) if isinstance(plain, list) else plain == MISSING


def _to_object(plain: dict[str, Any], schema: type[Config]) -> Any:
    if isinstance(plain.get("algos"), dict):
        plain["algos"] = with_points(plain["algos"])
    tables: dict[str, dict[str, type[Any]]] = {table: {} for table in TABLES}
    for table, found in tables.items():
        for name, node in _nodes(table, plain.get(table)):
            if table == "datasets" and node.get("class_path") and node.get("kind", MISSING) == MISSING:
                node["kind"] = name
            found[name] = settings_class(table, name, node)
            if table == "algos":
                _refuse_wrong_points(name, node, found[name])
    return filled(schema, tables, plain)


def _refuse_wrong_points(name: str, node: Mapping[str, Any], schema: type[Any]) -> None:
    """Refuse a value of a front by the key that was typed; a point's own key cannot be."""
    algo, point = point_of(name)
    for setting in settings_of(point):
        key, own = f"algos.{algo}.front.{setting}", f"algos.{algo}.{setting}"
        try:
            section = filled(schema, {}, {setting: node[setting]})
        except OmegaConfBaseException as error:
            raise ConfigError(
                f"{key}={brief(node[setting])}: {type_or_line(own, error.msg or str(error))}"
            ) from None
        except ConfigError as error:
            raise ConfigError(f"{key}={brief(node[setting])}: {error}") from None
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
            example = f"{{{TABLES[table].example}}}"
            raise ConfigError(f"{table}.{name}={brief(node)}: must be a table of settings, for example {example}")
        for key in ("kind", "class_path"):
            if not isinstance(node.get(key), str | None):
                raise ConfigError(f"{table}.{name}.{key}={brief(node[key])}: must be a name")
        yield name, node
