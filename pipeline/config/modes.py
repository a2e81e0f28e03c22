"""Whether a request is one run or many, which Hydra composes a whole configuration to learn, only to find nothing.

`hydra.mode` can be in a setting or in a file. Where no setting speaks of Hydra and all files are those that ship,
it is not, and the answer is known without: that saves a tenth of what a command takes to start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from hydra._internal.hydra import Hydra

from pipeline.config.install import conf_dir

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
