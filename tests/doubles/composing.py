"""What `load_config` makes of a request, with all that one setting or one file cannot change done beforehand.

Composing takes Hydra a tenth of a second, and nearly all of it goes into files that are always the same. Here what
is asked for is read, merged and explained by the same functions, onto a copy of the rest; what chooses other files
goes through `load_config`. `tests/unit/config/test_requests.py` holds that both answer alike.
"""

import pickle
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


def with_setting(others: tuple[str, ...], setting: str) -> Config:
    """`load_config` of some settings that never change, and of one that does."""
    kept = _composed(others)
    try:
        [read] = OverridesParser.create().parse_overrides([setting])
        key = read.key_or_group
        if key.startswith("hydra") or ".class_path" in key or kept.loader.repository.group_exists(key):
            return load_config([*others, setting])
        kept.loader.validate_sweep_overrides_legal([read], RunMode.RUN, from_shell=False)
        request = kept.read(kept.request)
        kept.loader._apply_overrides_to_config([read], request)
    except Exception as error:
        raise explain(error) from error
    return typed(request)


def with_file(others: tuple[str, ...], folder: Path, name: str) -> Config:
    """`load_config` of some settings that never change, and of a file that takes the place of a profile."""
    kept = _composed(others)
    try:
        request = kept.read(kept.before)
        found = kept.loader._load_single_config(replace(kept.place, config_path=name), _files_of(folder)).config
        if not isinstance(found, DictConfig) or {"defaults", "hydra"} & set(found):
            group, _, choice = name.partition("/")
            return load_config([*others, f"hydra.searchpath=[file://{folder}]", f"{group}={choice}"])
        _merge(request, found, name)
        for later in kept.after:
            request.merge_with(later)
        OmegaConf.set_struct(request, True)
        kept.loader._apply_overrides_to_config(OverridesParser.create().parse_overrides(list(others)), request)
    except Exception as error:
        raise explain(error) from error
    return typed(request)


@dataclass(frozen=True)
class _Composed:
    """A request, as Hydra composed it: whole, and in the parts before and after its profile, pickled."""

    loader: ConfigLoaderImpl
    schema: Any
    request: bytes
    before: bytes
    place: ResultDefault
    after: list[Any]

    def read(self, part: bytes) -> DictConfig:
        """A part to be changed; messages name the keys of the schema that was registered last."""
        ConfigStore.instance().repo["schema.yaml"] = self.schema
        read: DictConfig = pickle.loads(part)
        return read


@cache
def _composed(others: tuple[str, ...]) -> _Composed:
    register_schemas(others)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
        loader = GlobalHydra.instance().config_loader()
        request = compose("config", overrides=list(others))
    assert isinstance(loader, ConfigLoaderImpl)
    listed = loader.compute_defaults_list("config", list(others), RunMode.RUN).defaults
    ours = [each for each in listed if not (each.config_path or "").startswith("hydra/")]
    place = [each.config_path for each in ours].index(SHIPPED)
    repo = CachingConfigRepository(loader.repository)
    after = [loader._load_single_config(each, repo).config for each in ours[place + 1 :]]
    for each in after:
        each.pop("hydra", None)
    return _Composed(
        loader=loader,
        schema=ConfigStore.instance().repo["schema.yaml"],
        request=pickle.dumps(request),
        before=pickle.dumps(loader._compose_config_from_defaults_list(ours[:place], repo)),
        place=ours[place],
        after=after,
    )


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
