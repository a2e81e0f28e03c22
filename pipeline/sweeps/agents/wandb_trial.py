"""What a program that uses W&B finds in a trial: its parameters in ``wandb.config``, and no need of an account.

WANDB_SWEEP_PARAM_PATH says where parameters are, as under W&B's agent: ``wandb.init`` has them take the place of
what the program gives as ``config``, and lets none of them be changed. WANDB_SWEEP_ID and WANDB_RUN_ID are not
set: they are of a sweep at W&B, which this one is not.
"""

from __future__ import annotations

import configparser
import netrc
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from pipeline.files import write_whole
from pipeline.sweeps.folder import TrialFolder

WANDB_DIR, WANDB_MODE = "WANDB_DIR", "WANDB_MODE"
SWEEP_PARAM_PATH = "WANDB_SWEEP_PARAM_PATH"
_FLUSH = "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL"
_FLUSH_S = "1"
"""Seconds between two writes of wandb's file, 15 by default: trials are compared by it while they run."""
_SERVER = "https://api.wandb.ai"


def write_parameters_for_wandb(place: TrialFolder, parameters: Mapping[str, Any]) -> None:
    """Write them down as W&B's agent does.

    Args:
        place: Folder of the trial.
        parameters: In tables as the file has them.

    Raises:
        OSError: They cannot be written.
    """
    blocks = {str(name): {"value": value} for name, value in parameters.items()}
    write_whole(place.for_wandb, yaml.safe_dump({"wandb_version": 1, **blocks}, sort_keys=False))


def wandb_variables(place: TrialFolder, group: str, given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a trial, as far as it is about W&B.

    Args:
        place: Folder of the trial, with its parameters in it.
        group: Name of the sweep, in which W&B shows its trials together.
        given: The environment that it has otherwise: what a user says there stands.
    """
    wanted = {"WANDB_RUN_GROUP": group, _FLUSH: _FLUSH_S}
    if not has_key(given):
        wanted[WANDB_MODE] = "offline"
    left = {name: value for name, value in wanted.items() if name not in given}
    return {SWEEP_PARAM_PATH: str(place.for_wandb.absolute()), **left}


def has_key(environment: Mapping[str, str]) -> bool:
    """Whether ``wandb.init`` finds who is logged in, or its mode, without asking: where it looks for them.

    Args:
        environment: Of the program.
    """
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = _settings(environment)
    if "api_key" in settings or "mode" in settings:
        return True
    server = environment.get("WANDB_BASE_URL") or settings.get("base_url") or _SERVER
    for path in _netrc_files(environment):
        with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
            return netrc.netrc(path).authenticators(urlsplit(server).netloc) is not None
    return False


def _settings(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Of the user, as ``wandb login`` and ``wandb offline`` write them; a trial sees none of a folder."""
    folder = environment.get("WANDB_CONFIG_DIR") or "~/.config/wandb"
    parser = configparser.ConfigParser(interpolation=None)
    with suppress(configparser.Error, OSError, UnicodeDecodeError):
        parser.read(Path(folder).expanduser() / "settings")
        return parser["default"] if parser.has_section("default") else {}
    return {}


def _netrc_files(environment: Mapping[str, str]) -> list[Path]:
    if named := environment.get("NETRC"):
        return [Path(named).expanduser()]
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - the same where there is no home
    return [path for path in (home / ".netrc", home / "_netrc") if path.exists()]
