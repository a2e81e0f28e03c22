"""Workers on a Ray cluster: Ray places them, carries messages and tells what is lost; our scheduler decides."""

from __future__ import annotations

import importlib.util


def is_installed() -> bool:
    """Whether there is a Ray to import."""
    spec = importlib.util.find_spec("ray")
    return spec is not None and spec.origin is not None  # a mere folder of that name has none
