"""What `load_config` makes of a request, with all that settings or one file cannot change done beforehand.

Composing takes Hydra a tenth of a second, and nearly all of it goes into files that are always the same. Here what
is asked for is read, merged and explained by the same functions, onto a copy of the rest, which is composed once
for each choice of files. `tests/unit/config/test_requests.py` holds that both answer alike.
"""

import pickle
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.explain import explain
from pipeline.config.install import conf_dir
from pipeline.config.load import VERSION_BASE, load_config, register_schemas, typed
from pipeline.config.schema import Config

SHIPPED = "profile/cpu"
"""The profile of a request that names none; a file of the user's own takes its place."""


def quick_config(settings: Sequence[str]) -> Config:
    """`load_config`: what chooses files and classes is composed once, the rest put on top of a copy of that."""
    choices = tuple(one for one in settings if _chooses(one))
    try:
        kept = _composed(choices)
        read = OverridesParser.create().parse_overrides([one for one in settings if one not in choices])
        kept.loader.validate_sweep_overrides_legal(read, RunMode.RUN, from_shell=False)
        request = kept.read(kept.request)
        kept.loader._apply_overrides_to_config(read, request)
    except Exception as error:
        raise explain(error) from error
    return typed(request)


def _chooses(setting: str) -> bool:
    """Whether Hydra may choose files by it, or the schema a class."""
    key = setting.partition("=")[0].lstrip("+")
    return key in _groups() or key.startswith(("hydra", "~")) or "@" in key or ".class_path" in key


@cache
def _groups() -> Set[str]:
    return {path.name for path in conf_dir().iterdir() if path.is_dir()}


def with_file(others: tuple[str, ...], folder: Path, name: str) -> Config:
    """`load_config` of some settings that never change, and of a file that takes the place of a profile."""
    kept, around = _composed(others), _around_profile(others)
    try:
        request = kept.read(around.before)
        found = kept.loader._load_single_config(replace(around.place, config_path=name), _files_of(folder)).config
        if not isinstance(found, DictConfig) or {"defaults", "hydra"} & set(found):
            group, _, choice = name.partition("/")
            return load_config([*others, f"hydra.searchpath=[file://{folder}]", f"{group}={choice}"])
        _merge(request, found, name)
        for later in around.after:
            request.merge_with(later)
        OmegaConf.set_struct(request, True)
        kept.loader._apply_overrides_to_config(OverridesParser.create().parse_overrides(list(others)), request)
    except Exception as error:
        raise explain(error) from error
    return typed(request)


@dataclass(frozen=True)
class _Composed:
    """A request, as Hydra composed it, pickled."""

    loader: ConfigLoaderImpl
    schema: Any
    request: bytes

    def read(self, request: bytes) -> DictConfig:
        """A request to be changed; messages name the keys of the schema that was registered last."""
        ConfigStore.instance().repo["schema.yaml"] = self.schema
        read: DictConfig = pickle.loads(request)
        return read


@cache
def _composed(others: tuple[str, ...]) -> _Composed:
    register_schemas(others)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
        loader = GlobalHydra.instance().config_loader()
        request = compose("config", overrides=list(others))
    assert isinstance(loader, ConfigLoaderImpl)
    return _Composed(loader, ConfigStore.instance().repo["schema.yaml"], pickle.dumps(request))


@dataclass(frozen=True)
class _AroundProfile:
    """The parts of a request before its profile, pickled, and after it."""

    before: bytes
    place: ResultDefault
    after: list[Any]


@cache
def _around_profile(others: tuple[str, ...]) -> _AroundProfile:
    loader = _composed(others).loader
    listed = loader.compute_defaults_list("config", list(others), RunMode.RUN).defaults
    ours = [each for each in listed if not (each.config_path or "").startswith("hydra/")]
    place = [each.config_path for each in ours].index(SHIPPED)
    repo = CachingConfigRepository(loader.repository)
    after = [loader._load_single_config(each, repo).config for each in ours[place + 1 :]]
    for each in after:
        each.pop("hydra", None)
    before = pickle.dumps(loader._compose_config_from_defaults_list(ours[:place], repo))
    return _AroundProfile(before, ours[place], after)


def _files_of(folder: Path) -> ConfigRepository:
    search = ConfigSearchPathImpl()
    search.append("hydra.searchpath in command-line", f"file://{folder}")
    search.append("schema", "structured://")
    return ConfigRepository(search)


def _merge(request: DictConfig, found: DictConfig, name: str) -> None:
    try:
        request.merge_with(found)
    except OmegaConfBaseException as error:  # as Hydra words it
        said = f"In '{name}': {type(error).__name__} raised while composing config:\n{error}"
        raise ConfigCompositionException(said) from None
