"""What a run is told of a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.config.fields import hint, number

LOCAL = "local"
"""A cluster of this machine alone, started for the run and ended with it."""

AUTO = "auto"
"""The cluster that this machine is a node of."""

CLIENT = "ray://"
"""What the address of a proxy of Ray Client begins with."""


@dataclass(kw_only=True)
class RayConfig:
    """Where and with what workers run for `execution.backend=ray`."""

    address: str = hint(LOCAL)
    """`local` starts a cluster on this machine for the time of the run; `auto` joins the one that this machine is
    a node of, `host:port` and `ray://host:port` another. Its token is taken from where Ray looks for it."""
    resources: dict[str, float] = number({}, at_least=0, at_most=1e15, affects_result=False)
    """What each worker takes of the cluster, by Ray's names; {} for one GPU, or as many CPUs as it has threads."""
    runtime_env: dict[str, Any] = hint({})
    """Ray's runtime environment of the workers, as `{pip: [...], env_vars: {...}}`."""
