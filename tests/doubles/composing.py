"""What `load_config` makes of a request, with the files that it chooses composed once.

Composing takes Hydra a tenth of a second, and nearly all of it goes into files that are always the same. Here
settings are put on top of a copy of them; `tests/unit/config/test_load.py` holds that both answer alike.
"""

import pickle
from collections.abc import Sequence
from functools import cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from pipeline.config import load
from pipeline.config.load import as_meant, explain
from pipeline.config.schema import Config
from pipeline.config.tables import TABLES, conf_dir


def quick_config(settings: Sequence[str]) -> Config:
    """`load_config`: what chooses files is composed once, the rest put on top of a copy of that."""
    words, faults = load.read_settings(as_meant(settings))
    choices = tuple(word for word in words if _chooses(word))
    try:
        composed: DictConfig = pickle.loads(_composed(choices))
        for word in OverridesParser.create().parse_overrides([word for word in words if word not in choices]):
            OmegaConf.update(composed, word.key_or_group, word.value(), merge=True, force_add=word.is_add())
    except Exception as error:
        raise explain(error) from error
    return load.typed(composed, faults)


def _chooses(word: str) -> bool:
    """Whether Hydra may choose files by it."""
    key = word.partition("=")[0].lstrip("+")
    return key.startswith(("hydra", "~")) or "@" in key or (conf_dir() / key).is_dir()


@cache
def _composed(choices: tuple[str, ...]) -> bytes:
    """What Hydra composes: all but files of tables, each of which is a section that no other file has."""
    chosen = {key: given for key, _, given in (word.partition("=") for word in choices)}
    names = {key: _names(key, chosen.pop(key, shown)) for key, shown in _usual().items()}
    if chosen.keys() - {"execution", "profile"} or None in names.values():
        return pickle.dumps(load._composed(choices))
    composed: DictConfig = pickle.loads(_without_tables(tuple(f"{key}={given}" for key, given in chosen.items())))
    for table, about in TABLES.items():
        for name in names[about.group] or ():
            section = OmegaConf.load(conf_dir() / about.group / f"{name}.yaml")
            OmegaConf.update(composed, f"{table}.{name}", section, merge=True, force_add=True)
    return pickle.dumps(composed)


@cache
def _without_tables(choices: tuple[str, ...]) -> bytes:
    return pickle.dumps(load._composed([*choices, *(f"{key}=[]" for key in _usual())]))


@cache
def _usual() -> dict[str, str]:
    """The files of each table that a request has which chooses none."""
    given: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / "config.yaml"), resolve=False)
    shown = {key: value for entry in given["defaults"] if isinstance(entry, dict) for key, value in entry.items()}
    return {about.group: f"[{','.join(shown[about.group])}]" for about in TABLES.values()}


def _names(group: str, given: str) -> list[str] | None:
    """Names of files in a plain list, or a plain name; None for what Hydra should read."""
    found = [name for name in given.removeprefix("[").removesuffix("]").replace(" ", "").split(",") if name]
    return found if all((conf_dir() / group / f"{name}.yaml").is_file() for name in found) else None
