"""From the command line, or the plain data of a run folder, to typed configuration.

Hydra composes plain values, which it does not look at. They are then checked here against the classes of settings,
in one pass that collects all that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from pipeline.config import explain, tables
from pipeline.config.checks import config_problems
from pipeline.config.explain import as_meant
from pipeline.config.meaning import in_words, meanings_of
from pipeline.config.plain import brief, default_values, filled, is_no_value, kinds_of, one_line, refuse_all
from pipeline.config.schema import MISSING, Config, EvaluationConfig
from pipeline.config.tables import TABLES, conf_dir
from pipeline.errors import ConfigError, PipelineError, unknown_name

VERSION_BASE = "1.3"

# Here, since a launcher of Hydra's may carry out a run in a process that registers nothing else.
OmegaConf.register_new_resolver("shipped", lambda name: str(conf_dir() / name), replace=True)


def load_config(overrides: Sequence[str]) -> Config:
    """Compose ``conf/config.yaml`` with overrides.

    Args:
        overrides: As on the command line.

    Raises:
        ConfigError: Something the user wrote is wrong; says all of it.
    """
    words, faults = read_settings(as_meant(overrides))
    try:
        composed = _composed(words)
    except Exception as error:  # Hydra may raise anything
        return _refused([*faults, str(explain.explain(error))])
    return typed(composed, faults)


def read_settings(
    words: Sequence[str], *, several: bool = False, own_files: bool = False
) -> tuple[list[str], list[str]]:
    """The settings that Hydra can read and put somewhere, and what is wrong with the others.

    Args:
        words: Settings, as `as_meant` gives them.
        several: Whether they may have several values, for a run for each.
        own_files: Whether there are files of the user's own, of which only Hydra knows.
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
    shown = brief(word).strip("'")
    if "=" not in word:
        meant = explain.did_you_mean(word, explain.keys_of(Config), "=...")
        return f"cannot read '{shown}': settings are written KEY=VALUE.{meant}"
    return (
        f"cannot read '{shown}': {one_line(str(error))[:300]} A text with signs stands in quotes of its own, and "
        "all of it in those of the shell: 'KEY=\"a, b\"'"
    )


def _fault_of(override: Override, *, several: bool, own_files: bool) -> str:
    """What is wrong with a setting as far as its words tell; "" where nothing is."""
    key, given = override.key_or_group, (override.input_line or "").partition("=")[2]
    top = re.split(r"[./]", key)[0]
    if override.is_sweep_override() and not several and top != "hydra":
        return (
            f"{key}={given}: several values. Write '{key}=[{given}]' for one list, \"{key}='{given}'\" for one "
            "text, or add --multirun for a run for each"
        )
    value = None if override.is_sweep_override() else override.value()
    if key == "hydra.searchpath":
        folders = [str(each).removeprefix("file://") for each in (value if isinstance(value, list) else [value])]
        missing = [each for each in folders if not each.startswith("pkg://") and not Path(each).is_dir()]
        return f"hydra.searchpath={given}: there is no folder {missing[0]}" if missing else ""
    if own_files or override.is_delete() or top == "hydra":
        return ""
    options = [file.stem for file in (conf_dir() / key).glob("*.yaml")] if "." not in key else []
    if options and not override.is_sweep_override():
        names = [str(name) for name in (value if isinstance(value, list) else [value]) if name is not None]
        wrong = [name for name in names if name not in options]
        more = f" Unknown as well: {', '.join(wrong[1:])}." if wrong[1:] else ""
        return explain.unknown_choice(key, wrong[0], options) + more if wrong else ""
    groups = [path.name for path in conf_dir().iterdir() if path.is_dir()]
    return "" if options or top in Config.__dataclass_fields__ else explain.unknown_key(key, groups)


def _composed(words: Sequence[str]) -> DictConfig:
    """What Hydra composes of settings, in a program that may use Hydra itself."""
    outer = GlobalHydra.instance().hydra
    try:
        register_schemas()
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
            return compose("config", overrides=list(words))
    finally:
        GlobalHydra.instance().hydra = outer


def register_schemas() -> None:
    """Tell Hydra the defaults, as plain values, and that further ones may stand beside them."""
    store = ConfigStore.instance()
    if "schema" not in store.repo:
        store.store(group="schema", name="defaults", node=_defaults(), package="_global_")


def _defaults() -> DictConfig:
    plain = dict(default_values(Config))
    plain["evaluation"] = {**plain["evaluation"], "num_prompts": UNSET}
    # Algorithms that ship are all there, disabled, so that a profile may set values of one that is not chosen.
    plain["algos"] = {
        name: {key: value for key, value in default_values(schema).items() if key != "enabled"}
        for name, schema in tables.all_shipped("algos").items()
    }
    node = OmegaConf.create(plain)
    for section in node.values():
        if OmegaConf.is_config(section):
            OmegaConf.set_struct(section, False)
    return node


# -- held out ----------------------------------------------------------------------------------------------------
# On how many held-out prompts policies are evaluated where nobody has said it: on those that there are.


USUAL = EvaluationConfig().num_prompts
UNSET = "${usual_prompts:}"
"""In the place of the default while Hydra composes: a number that a file gives may be the same as the default."""

OmegaConf.register_new_resolver("usual_prompts", lambda: USUAL, replace=True)


def _fewest(config: Config) -> int:
    """How many prompts the smallest dataset holds out; what is no number yet is refused later."""
    sizes = [getattr(each, f"{config.evaluation.split}_size", None) for each in config.datasets.values()]
    return min([USUAL, *(size for size in sizes if isinstance(size, int) and size > 0)])


# -- plain values as settings ------------------------------------------------------------------------------------


def typed(composed: DictConfig, faults: Sequence[str] = ()) -> Config:
    """Turn a composed configuration into dataclasses.

    Args:
        composed: Plain values.
        faults: What is wrong with the request as far as it is known.

    Raises:
        ConfigError: Says all that is wrong; where anything is, also what `check_config` would say of the rest.
    """
    try:
        given = OmegaConf.to_container(composed, resolve=False)
        plain = cast("dict[str, Any]", OmegaConf.to_container(composed, resolve=True))
    except (*explain.COMPOSITION_ERRORS, AttributeError) as error:
        return _refused([*faults, str(explain.explain(error))])
    evaluation = given.get("evaluation") if isinstance(given, dict) else None
    unset = isinstance(evaluation, dict) and evaluation.get("num_prompts", UNSET) == UNSET
    found: list[str] = []
    config = _config(plain, found)
    if unset:
        config.evaluation.num_prompts = _fewest(config)
    if faults or found:
        return _refused([*faults, *found, *_others(config)])
    return config


def config_from_plain(plain: Mapping[str, Any]) -> Config:
    """Rebuild what `to_plain` made of a `Config`.

    Raises:
        ConfigError: It is of no `Config`.
    """
    faults: list[str] = []
    try:
        config = _config(cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.create(dict(plain)))), faults)
    except explain.COMPOSITION_ERRORS as error:
        raise explain.explain(error) from error
    refuse_all(faults)
    return config


def _refused(faults: Sequence[str]) -> NoReturn:
    refuse_all(list(dict.fromkeys(faults)))
    raise AssertionError  # there are faults


def _others(config: Config) -> list[str]:
    """What else is wrong with a request of which something was left out."""
    try:
        return [said for said in config_problems(config) if not said.startswith(_FOLLOWS)]
    except PipelineError as error:
        return [str(error)]


_FOLLOWS = ("experiment.name=", "no algorithm is enabled", *(f"{table} is empty" for table in TABLES))
"""What is wrong where something else was left out."""


def _config(plain: Mapping[str, Any], faults: list[str]) -> Config:
    """The settings that plain values are; what is wrong is left out, and added to the faults."""
    kept = {table: _sections(table, plain.get(table), faults) for table in TABLES}
    classes = {(table, name): kind for table in kept for name, (_, kind) in kept[table].items()}
    known = [key for at, kind in classes.items() for key in explain.keys_of(kind, ".".join(at))]

    def refuse(path: tuple[str, ...], value: Any, schema: type[Any], hint: Any) -> None:
        if path != ("experiment", "name") or value != MISSING:  # told below
            faults.append(_fault(path, value, schema, hint, known))

    try:
        sections = {
            table: {name: filled(kind, node, (table, name), refuse) for name, (node, kind) in kept[table].items()}
            for table in TABLES
        }
        rest = {name: value for name, value in plain.items() if name not in TABLES}
        config = cast("Config", filled(Config, rest, (), refuse, sections))
    except ConfigError as error:
        return _refused([*faults, str(error)])
    if config.experiment.name == MISSING:
        config.experiment.name = "unnamed"
        if not any("experiment.name" in said for said in faults):
            faults.append("experiment.name is missing: give it a value, for example experiment.name=first_run")
    return config


def _sections(table: str, given: object, faults: list[str]) -> dict[str, tuple[dict[str, Any], type[Any]]]:
    """The sections of a table, each with its class; those of points in the place of a front."""
    about, found = TABLES[table], dict[str, tuple[dict[str, Any], type[Any]]]()
    if not isinstance(given, dict | NoneType):
        faults.append(f"{table}={brief(given)}: holds the settings of each; choose one with {about.group}={given}")
        given = None
    for name, node in (given or {}).items():
        try:
            if not isinstance(name, str) or not isinstance(node, dict):
                raise ConfigError(
                    f"{table}.{name}={brief(node)}: must be a table of settings, for example {{{about.example}}}"
                )
            for key in ("kind", "class_path"):
                if not isinstance(node.get(key), str | None):
                    raise ConfigError(f"{table}.{name}.{key}={brief(node[key])}: must be a name")
            for each, section in _points(table, name, node).items():
                found[each] = section, tables.settings_class(table, each, section)
        except ConfigError as error:
            faults.append(str(error))
    return found


def _points(table: str, name: str, node: dict[str, Any]) -> dict[str, Any]:
    """A section with what follows from its name and class, or the points of its front."""
    is_own = node.get("class_path") is not None
    if table == "algos":
        node = {"enabled": is_own, **node}
        if not (node["enabled"] and node.get("front")):
            return {name: node}
        return tables.points_of(name, {**default_values(tables.settings_class(table, name, node)), **node})
    if node.get("kind", MISSING) != MISSING:
        return {name: node}
    if is_own:
        return {name: {**node, "kind": name}}
    group = TABLES[table].group
    files = [file.stem for file in (conf_dir() / group).glob("*.yaml")]
    if name in files:
        raise ConfigError(f"{table}.{name}: the run has no {group} '{name}'. Choose it with {group}={name}.")
    raise ConfigError(
        f"{table}.{name}: {unknown_name(group, name, files)} For one of your own add "
        f"{table}.{name}.class_path=my_module.MyClass."
    )


def _fault(path: tuple[str, ...], value: Any, schema: type[Any], hint: Any, known: Sequence[str]) -> str:
    """What to say of a value that a class of settings does not take."""
    if path[0] == "algos" and len(path) > 2:  # a value of a front was typed under that
        algo, point = tables.point_of(path[1])
        path = ("algos", algo, *(["front"] if path[2] in tables.settings_of(point) else []), *path[2:])
    key = ".".join(path)
    if hint is None:
        while isinstance(value, dict) and len(value) == 1:
            ((last, value),) = value.items()
            key = f"{key}.{last}"
        return explain.unknown_key(key, known)
    if is_no_value(value, None):
        return f"{key} is missing ('{MISSING}'): give it a value"
    shown = f"{key}={brief(value).strip(chr(39))}: "
    if any(map(is_dataclass, kinds_of(hint))):
        return f"{shown}must be a table of settings; `python -m pipeline help {key}` lists them"
    if value == "None":
        return f"{shown}for nothing write null"
    of_key = (each for each in meanings_of(schema, "") if each.key == path[-1])  # type: ignore[arg-type]  # classes are hashable
    meaning = next(of_key, None)
    must = meaning.must(value) if meaning else in_words(hint)
    quoted = value is not None and not isinstance(value, str) and ("text" in must or "path" in must)
    advice = ". A text that reads as a number or truth value stands in quotes" if quoted else ""
    return f"{shown}must be {must}{advice}"
