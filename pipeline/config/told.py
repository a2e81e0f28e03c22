"""The form of what is told of a request, apart from the libraries that read one: Hydra takes long to import."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.errors import ConfigError

_TOLD = 20
"""Problems of one request that are told at most."""


def refuse_all(problems: Sequence[str]) -> None:
    """Tell all problems in one message, if there are any.

    Raises:
        ConfigError: There are.
    """
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        more = [f"  ... and {len(problems) - _TOLD} more"] if len(problems) > _TOLD else []
        told = [f"  - {problem}" for problem in problems[:_TOLD]]
        raise ConfigError("\n".join([f"{len(problems)} settings are wrong:", *told, *more]))


def one_line(text: str) -> str:
    """A message of several lines in one, without what helps only those who know Hydra."""
    lines = (line.strip() for line in text.splitlines())
    noise = re.compile(r"(full_key|object_type|reference_type)[:=]|See https?:|Set HYDRA_FULL_ERROR")
    return " ".join(line for line in lines if line and not noise.match(line)).rstrip(".") + "."
