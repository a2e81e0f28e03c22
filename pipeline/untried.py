"""What was written for GPUs and has run on none yet: one switch for all of it, `execution.untried_on_gpu`.

docs/gpus.md lists it. The switch reaches workers, and the ranks that they start, by their environment, since some
of it decides how a process begins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLE = "PIPELINE_UNTRIED_ON_GPU"


def is_used(environ: Mapping[str, str] | None = None) -> bool:
    """Whether it is used here; on a CPU nothing asks.

    Args:
        environ: Of the process; `os.environ` if None.
    """
    return (os.environ if environ is None else environ).get(VARIABLE, "1") != "0"


def said(used: bool) -> dict[str, str]:
    """The variable that tells a process."""
    return {VARIABLE: "1" if used else "0"}
