"""Rewards tried before a run starts, where that needs no preparation of data; `prepare` does it for the others.

Of what ships it is known that it fits. A module of the user's own is not imported here, as it may import anything:
a process of its own does it (`rewards.early`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.load import schema_path, to_plain
from pipeline.config.schema import OWN_REWARD_NAMES, Config, DatasetConfig
from pipeline.datasets.registry import load_dataset
from pipeline.errors import ConfigError, describe_exit

_PACKAGE_PARENT = Path(__file__).parents[2]
_MARGIN_S = 60.0


def try_rewards(config: Config) -> tuple[str, ...]:
    """Call every reward of a dataset that makes its rows once, if reward or dataset is not what ships.

    Of a dataset that has to be prepared first, it is only seen whether one of several rewards judges.

    Returns:
        Warnings.

    Raises:
        ConfigError: A reward cannot work with its dataset.
    """
    asked = {
        name: section
        for name, section in config.datasets.items()
        if _is_own(section) and (not load_dataset(section).prepared or _leaves_open(section))
    }
    if not asked:
        return ()
    answer = _ask(asked)
    if answer["problems"]:
        raise ConfigError("\n".join(answer["problems"]))
    return tuple(answer["warnings"])


def _is_own(section: DatasetConfig) -> bool:
    named = {str((section.grading.options.get(name) or {}).get("use", name)) for name in _names(section)}
    return section.class_path is not None or bool(section.grading.options) or not named <= {*OWN_REWARD_NAMES}


def _leaves_open(section: DatasetConfig) -> bool:
    """Whether it takes a look at the rewards to know which of them says what is correct."""
    return len(_names(section)) > 1 and section.grading.correct_by is None


def _names(section: DatasetConfig) -> list[str]:
    return list(section.rewards or [section.reward])


def _ask(datasets: Mapping[str, DatasetConfig]) -> dict[str, Any]:
    given = {
        "parent_pid": os.getpid(),
        "sys_path": [entry or str(Path.cwd()) for entry in sys.path],
        "datasets": {
            name: {"_schema_": schema_path(section), **to_plain(section)} for name, section in datasets.items()
        },
    }
    limit_s = _MARGIN_S + sum(
        section.grading.start_timeout_s + section.grading.timeout_s * len(_names(section))
        for section in datasets.values()
    )
    try:
        # -P: a file in the current folder must not take the place of a module of the standard library.
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pipeline.rewards.early"],
            input=json.dumps(given).encode(),
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(_PACKAGE_PARENT), "CUDA_VISIBLE_DEVICES": ""},
            timeout=limit_s,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"the rewards of {', '.join(datasets)} gave no answer within {limit_s:g} s for a single row. Does "
            "importing one hang?"
        ) from error
    except ValueError as error:
        said = (done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
        named = ", ".join(dict.fromkeys(name for section in datasets.values() for name in _names(section)))
        raise ConfigError(
            f"the process that tries the rewards of {', '.join(datasets)} ended with "
            f"{describe_exit(done.returncode)} and said: {said}. Importing {named}, or what it imports, ends the "
            "process"
        ) from error
    return answer
