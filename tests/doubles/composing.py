"""What `load_config` makes of a request, with the files that it chooses composed once.

Composing takes Hydra a tenth of a second, and nearly all of it goes into files that are always the same. Here
settings are put on top of a copy of them; `tests/unit/config/test_requests.py` holds that both answer alike.
"""

import pickle
from collections.abc import Sequence
from functools import cache

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from pipeline.config import load
from pipeline.config.load import as_meant, explain
from pipeline.config.schema import Config
from pipeline.config.tables import conf_dir


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
    return pickle.dumps(load._composed(choices))
