"""Rewards and rows of files tried before a run starts; `prepare` does it for what comes from a hub.

Of datasets that make their rows and rewards that ship it is known that they fit. A module of the user's own is not
imported here, as it may import anything: a process of its own does it (`learning.rewards.early`).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.config.bases import DatasetConfig
from pipeline.config.plain import schema_path, to_plain
from pipeline.config.schema import Config
from pipeline.config.shipped import REWARD_MODEL, REWARDS
from pipeline.config.told import refuse_all
from pipeline.errors import ConfigError, describe_exit
from pipeline.learning.algos.qsharp import CDConfig, QSharpConfig
from pipeline.learning.datasets.files import HubDataset
from pipeline.learning.datasets.from_files import FilesDataset
from pipeline.learning.datasets.registry import load_dataset
from pipeline.learning.models.adapter_folder import tokenizer_place
from pipeline.learning.rewards.registry import shipped_traits
from pipeline.machine import children
from pipeline.machine.channel import Channel
from pipeline.plan.pairs import refuse_text, refuse_unanswered, refuse_unpaired
from pipeline.plan.tokenizers import check_chat_templates

_MARGIN_S = 60.0
_SOON_S = 20.0
"""Seconds after which a user is told what takes so long."""
_END_S = 10.0
_LARGEST_ANSWER = 64 << 20
"""Bytes."""


def try_rewards(
    config: Config, used: Collection[str] = (), tell: Callable[[str], None] = lambda _: None
) -> tuple[str, ...]:
    """Call every reward once, if it, or a dataset that makes its rows, is not what ships.

    Args:
        config: The request.
        used: Names of datasets that the run is still to use: of local files the first rows are made now. Of
            others that are read, it is only seen whether one of several rewards judges.
        tell: Told where it takes long.

    Returns:
        Warnings.

    Raises:
        ConfigError: A row lacks what it needs, a reward cannot work with its dataset, or an algorithm with what it
            gives; or rows are conversations, and a model has no chat template.
    """
    single = _single_probabilities(config)
    asked = {
        name: section
        for name, section in config.datasets.items()
        if _is_own(section) and (not load_dataset(section).prepared or _leaves_open(section) or single)
    }
    to_read = [name for name in used if in_local_files(config.datasets[name])]
    asked |= {name: config.datasets[name] for name in to_read}
    answer = (
        _ask(asked, to_read, _templates(config), tell)
        if asked
        else {
            "problems": [],
            "warnings": [],
            "graded": {},
            "conversations": [],
            "texts": [],
            "unpaired": {},
            "unanswered": {},
        }
    )
    if answer["problems"]:
        raise ConfigError("\n".join(answer["problems"]))
    refuse_unpaired(config, answer["unpaired"])
    refuse_unanswered(config, answer["unanswered"])
    refuse_text(config, answer["texts"])
    check_chat_templates(config, answer["conversations"])
    if single:
        told = answer["graded"]
        refuse_all(
            [
                problem
                for name, section in config.datasets.items()
                for problem in _graded_problems(name, told.get(name) or _graded(section), single)
            ]
        )
    return tuple(answer["warnings"])


def _single_probabilities(config: Config) -> list[str]:
    """Algorithms of the run whose tilt is E[exp(R / eta)] by a single probability: right for two values."""
    return [
        name
        for name, algo in config.algos.items()
        if algo.enabled and isinstance(algo, QSharpConfig) and not isinstance(algo, CDConfig) and algo.atoms == 1
    ]


def _graded(section: DatasetConfig) -> str:
    """What is known to have more than two values without a look at own code, in words; "" for nothing."""
    counted = [name for name, weight in (section.rewards or {section.reward: 1.0}).items() if weight]
    if len(counted) > 1:
        return f"the sum of its rewards {', '.join(counted)}"
    found = [name for name, traits in shipped_traits(section).items() if traits.graded]
    return f"its reward '{found[0]}'" if found else ""


def _graded_problems(dataset: str, graded: str, algos: Iterable[str]) -> Iterator[str]:
    for algo in algos if graded else ():
        yield (
            f"datasets.{dataset}: {graded} has more than two values, and algos.{algo}.atoms=1 is a single "
            "probability of the highest, which cannot express E[exp(R / eta)] of such rewards. "
            f"Set algos.{algo}.atoms=11, or more where eta is small, and algos.{algo}.value_min and value_max to "
            "what the reward can give"
        )


def _is_own(section: DatasetConfig) -> bool:
    named = {str((section.grading.options.get(name) or {}).get("use", name)) for name in _names(section)}
    return section.class_path is not None or bool(section.grading.options) or not named <= {*REWARDS, REWARD_MODEL}


def _leaves_open(section: DatasetConfig) -> bool:
    """Whether it takes a look at the rewards to know which of them says what is correct."""
    return len(_names(section)) > 1 and section.grading.correct_by is None


def _names(section: DatasetConfig) -> list[str]:
    return list(section.rewards or [section.reward])


def in_local_files(section: DatasetConfig) -> bool:
    """Whether the rows of a dataset are in files of this machine."""
    dataset = load_dataset(section)
    return isinstance(dataset, FilesDataset) and not any(
        isinstance(location, HubDataset) for location in dataset.locations().values()
    )


def as_plain(datasets: Mapping[str, DatasetConfig]) -> dict[str, Any]:
    """Settings of datasets as that process is told them."""
    return {name: {"_schema_": schema_path(section), **to_plain(section)} for name, section in datasets.items()}


def _templates(config: Config) -> dict[str, str]:
    """The folders of this machine that have the models' chat templates."""
    paths = {
        name: tokenizer_place(model.path, None).path
        for name, model in config.models.items()
        if model.path is not None
    }
    return {name: path for name, path in paths.items() if Path(path).is_dir()}


def _ask(
    datasets: Mapping[str, DatasetConfig],
    to_read: Sequence[str],
    templates: Mapping[str, str],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """What a process says that tries rewards and rows; it ends then, with whatever their modules have started."""
    limit_s = _MARGIN_S + sum(
        section.grading.start_timeout_s + section.grading.timeout_s * len(_names(section))
        for section in datasets.values()
    )
    tried = f"trying the rewards of {', '.join(datasets)} on a single row"
    hint = "Does importing one, or making the row, hang?"
    with tempfile.TemporaryFile() as output:
        child = children.Child(
            "pipeline.learning.rewards.early",
            {**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            {"datasets": as_plain(datasets), "to read": list(to_read), "templates": dict(templates)},
            max_bytes=_LARGEST_ANSWER,
            send_timeout_s=_MARGIN_S,
            output=output,
            own_group=True,
        )
        try:
            try:
                line = _first_line(child.channel, _SOON_S)
            except TimeoutError:
                tell(f"{tried} has taken {_SOON_S:g} s so far, and ends after {limit_s:g}. {hint}")
                line = _first_line(child.channel, limit_s - _SOON_S)
            if line is None:
                with suppress(subprocess.TimeoutExpired):  # a moment after it has hung up it has an exit code
                    child.process.wait(_END_S)
        except TimeoutError as error:
            raise ConfigError(f"{tried} took more than {limit_s:g} s. {hint}") from error
        finally:
            children.end([child])
            code = child.wait()
        if line is not None:
            answer: dict[str, Any] = json.loads(line)
            return answer
        output.seek(0)
        said = (output.read().decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
    named = ", ".join(dict.fromkeys(name for section in datasets.values() for name in _names(section)))
    raise ConfigError(
        f"the process that tries the rewards of {', '.join(datasets)} ended with {describe_exit(code)} and said: "
        f"{said}. Importing {named}, or what it imports, or making a row, ends the process"
    )


def _first_line(channel: Channel, limit_s: float) -> bytes | None:
    """The first line that arrives; None where the other side hangs up before.

    Raises:
        TimeoutError: Neither happens in time.
    """
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    give_up = time.monotonic() + limit_s
    while not channel.closed:
        if not poll.poll(max(0.0, give_up - time.monotonic()) * 1000):
            raise TimeoutError
        for line in channel.receive():
            return line
    return None
