"""How this package came onto the machine: a checkout and a wheel differ.

So does where the groups of the configuration are, and what a user types to add to it.
"""

from __future__ import annotations

import shlex
from pathlib import Path

DISTRIBUTION = "posttrain-pipeline"
"""The name on the package index; the import name and the command are `pipeline`."""


def checkout() -> Path | None:
    """The folder of the project that the package lies in, or None where it was installed from a wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "conf").is_dir() else None


def install_command(extra: str = "") -> str:
    """What to type for the package with all that it needs.

    Args:
        extra: Name of an optional group of dependencies, such as ``math``.
    """
    named = f"[{extra}]" if extra else ""
    root = checkout()
    if root is None:
        return f"pip install {shlex.quote(DISTRIBUTION + named)}"
    place = "." if root == Path.cwd() else str(root)
    return f"pip install -e {shlex.quote(place + named)}"


def conf_dir() -> Path:
    """The folder of configuration groups: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
