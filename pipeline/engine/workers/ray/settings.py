"""What of `execution.ray` no Ray can follow, said before anything starts; Ray says it after, in Python's words."""

from __future__ import annotations

import importlib
import os
from typing import Any

from pipeline.config.ray import AUTO, LOCAL, RayConfig
from pipeline.engine.workers.ray.reach import endpoint_of
from pipeline.engine.workers.ray.site import library
from pipeline.errors import ConfigError, known_names

_KEY = "execution.ray.runtime_env"
_PLUGINS = "RAY_RUNTIME_ENV_PLUGINS"
_BY_ANOTHER_NAME = {"_nsight": "nsight", "_rocprof_sys": "rocprof_sys"}


def check_settings(settings: RayConfig) -> None:
    """Refuse what is wrong wherever the run is going to be.

    Raises:
        ConfigError: Something is.
    """
    if settings.address not in (LOCAL, AUTO) and endpoint_of(settings.address) is None:
        raise ConfigError(
            f"execution.ray.address={settings.address}: must be local, auto, host:port or ray://host:port"
        )
    variables = settings.runtime_env.get("env_vars", {})
    if not isinstance(variables, dict):
        raise ConfigError(f"{_KEY}.env_vars={variables}: must be a table of texts, as {{NAME: 'text'}}")
    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"{_KEY}.env_vars.{name}={value}: must be a text; write {{'{name}': '{value}'}}")


def check_by_ray(settings: RayConfig) -> None:
    """Have the Ray that is installed look at the environment of workers, without any cluster.

    Raises:
        ConfigError: It refuses that, or does not know a key of it.
        WorkerError: It cannot be imported.
    """
    if not (asked := settings.runtime_env):
        return
    library(settings)
    made: Any = importlib.import_module("ray.runtime_env").RuntimeEnv
    fields = {_BY_ANOTHER_NAME.get(name, name) for name in made.known_fields}
    known = {name for name in fields if not name.startswith("_")}
    # A plugin has a key of its own, and only the nodes know which.
    for name in [] if os.environ.get(_PLUGINS) else asked:
        if name not in known | made.known_fields:
            raise ConfigError(f"{_KEY}.{name}: Ray has no such setting.{known_names(str(name), known)}")
    try:
        made(**asked)
    except Exception as error:  # whatever its checks raise
        raise ConfigError(f"{_KEY}={asked}: Ray says: {str(error).strip().splitlines()[0]}") from error
