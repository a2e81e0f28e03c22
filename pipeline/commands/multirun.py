"""Several runs by one command (``--multirun``), which of them this is, and the flags of a run.

A launcher may carry out a run in another process or on another machine. So what a run has to tell travels in the
way that every launcher knows: the value that the run returns.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode

from pipeline.config.meaning import did_you_mean, known_keys
from pipeline.config.plain import brief, refuse_all
from pipeline.config.schema import DeviceChoice
from pipeline.errors import ConfigError, PipelineError
from pipeline.sweeps.reporting import TRIALS, own_trial

_ONLY_LISTS = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
"""The sweeper that runs what it is told; most others look for the best settings."""
_MOST_TRIED = 40
"""Further values that are checked before the first run: each takes a tenth of a second."""

failed_runs: list[RunFailed] = []
"""The failed runs that this process knows of, those of other processes among them."""


class RunFailed(PipelineError):  # noqa: N818 - it names what happened
    """A run of a multirun did not end well.

    It is what the run returns: raised, it would have Hydra print a line of its own, and keep the runs of further
    batches (``hydra.sweeper.max_batch_size``) from running. So it is noted where it is made, and when it arrives
    from another process.

    Attributes:
        exit_code: Exit code that the run alone would have.
        run: Label of the run.
        reason: Why it was refused, or "".
    """

    def __init__(self, exit_code: int, run: str, reason: str = "") -> None:
        super().__init__(exit_code, run, reason)
        self.exit_code = exit_code
        self.run = run
        self.reason = reason
        failed_runs.append(self)

    def __str__(self) -> str:
        return f"the run {self.run} ended with exit code {self.exit_code}" + (self.reason and f": {self.reason}")


def in_multirun() -> bool:
    """Return whether Hydra carries out this run as one of several."""
    return HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN


def group_of_run() -> str:
    """Return the group shared by the runs of a multirun or a sweep, and by no other run; "" for a single run."""
    if in_multirun():
        return str(HydraConfig.get().sweep.dir)
    trial = own_trial()
    return str(trial.parents[1]) if trial is not None and trial.parent.name == TRIALS else ""


def run_label(arguments: Sequence[str]) -> str:
    """Return the settings that distinguish this run in its multirun, or else its number.

    Args:
        arguments: The command line of the multirun.
    """
    parser = OverridesParser.create()
    settings = [word for word in arguments if word.startswith("~") or ("=" in word and not word.startswith("-"))]
    parsed = [parser.parse_override(word) for word in settings]
    fixed = {override.get_key_element() for override in parsed if not override.is_sweep_override()}
    hydra = HydraConfig.get()
    own = [word for word in hydra.overrides.task if parser.parse_override(word).get_key_element() not in fixed]
    return " ".join(own) or f"number {hydra.job.num}"


def requests(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the settings of the first run, then with each further value of one setting; intervals have none.

    Raises:
        ConfigError: One stands for no value at all.
    """
    values = {word: settings for word in words if (settings := _values(word))}
    first = {word: settings[0] for word, settings in values.items()}
    yield [*first.values()]
    others = ({**first, word: value} for word, settings in values.items() for value in settings[1:])
    yield from ([*request.values()] for request in islice(others, _MOST_TRIED))


def _values(word: str) -> list[str]:
    try:
        parsed = OverridesParser.create().parse_override(word)
    except HydraException:
        return [word]  # composing says what is wrong with it
    if not parsed.is_sweep_override():
        return [word]
    if not parsed.is_discrete_sweep():
        return []
    key, texts = parsed.get_key_element(), islice(parsed.sweep_string_iterator(), _MOST_TRIED)
    values = [f"{key}={value}" for value in texts]
    if not values:
        raise ConfigError(f"{word}: stands for no value at all, so there are no runs")
    return values


def check_sweeper() -> None:
    """Refuse a sweeper of Hydra's that would be given results to choose by.

    Raises:
        ConfigError: It is another one than that which runs what it is told.
    """
    if in_multirun() and (sweeper := HydraConfig.get().sweeper.get("_target_")) != _ONLY_LISTS:
        raise ConfigError(f"hydra/sweeper ({sweeper}) is given no results here: use `sweep run` (docs/sweeps.md)")


# -- flags -------------------------------------------------------------------------------------------------------
# The words of a command line that are no settings: Hydra's flags, read before it sees them, and those for devices.
# Settings are written KEY=VALUE. Who writes ``--seed 3`` has in mind a key, and who writes ``--num-gpu 2`` a flag.


FLAGS = ("--num-gpus", "--gpu-ids", "--device")
_ASKED = {"--help": "-h", "--hydra-help": "", "--version": "", "--resolve": "", "--run": "-r", "--multirun": "-m"}
_ASKED |= {"--shell-completion": "-sc"}
_VALUED = {"--cfg": "-c", "--package": "-p", "--config-path": "-cp", "--config-name": "-cn", "--config-dir": "-cd"}
_VALUED |= {"--experimental-rerun": ""}
_BARE_IDS = re.compile(r"(\+{0,2}distributed\.gpu_(?:ids|list))=(\d+(?:,\d+)*)")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. Settings are written KEY=VALUE")


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the flags of a command line, and its settings as `overrides`; without those of flags as `typed`.

    Those for devices become settings, the last ones, so that they win. Together they replace what a configuration
    says: ``--num-gpus 2`` means two GPUs also where a file says ``gpu_ids: [0, 1, 2, 3]`` or ``device: cpu``.
    ``distributed.gpu_list=0,1,2,3`` means these four, though Hydra would take the commas for several runs.

    Raises:
        ConfigError: A flag is unknown, or its value wrong; names what was probably meant.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--num-gpus", type=int)
    parser.add_argument("--gpu-ids", nargs="+", default=[])
    parser.add_argument("--device", choices=[*DeviceChoice.__members__])
    for flag, short in _ASKED.items():
        parser.add_argument(flag, *filter(None, [short]), action="store_true")
    for flag, short in _VALUED.items():
        choices = ("job", "hydra", "all") if flag == "--cfg" else None
        parser.add_argument(flag, *filter(None, [short]), choices=choices)
    parser.add_argument("--info", "-i", nargs="?", const="all")
    flags, unknown = parser.parse_known_intermixed_args(list(arguments))
    if wrong := [word.partition("=")[0] for word in unknown if word.startswith("-")]:
        names = [*FLAGS, *_ASKED, *_VALUED]
        near = get_close_matches(wrong[0], names, 1, 0.8)
        meant = f" Did you mean {near[0]}?" if near else ""
        meant = meant or did_you_mean(wrong[0].strip("-").replace("-", "_"), known_keys(), "=...")
        listed = meant or f" Flags are {', '.join(names)}"
        raise ConfigError(f"unknown flag {wrong[0]}. Settings are written KEY=VALUE.{listed}")
    words = [word for word in flags.gpu_ids if "=" not in word]  # for an id argparse takes what follows as well
    settings = [*flags.overrides, *(word for word in flags.gpu_ids if "=" in word)]
    flags.overrides = [_BARE_IDS.sub(r"\1=[\2]", word) if _BARE_IDS.fullmatch(word) else word for word in settings]
    flags.typed = list(flags.overrides)
    ids = [id_ for word in words for id_ in word.split(",") if id_]
    if (flags.gpu_ids and not ids) or not all(id_.isdecimal() for id_ in ids):
        raise ConfigError(f"--gpu-ids {' '.join(words)}: ids of GPUs, as in --gpu-ids 0 2 3")
    if ids or flags.num_gpus is not None or flags.device is not None:
        flags.overrides += [
            f"device={flags.device or DeviceChoice.auto.name}",
            f"distributed.num_gpus={'null' if flags.num_gpus is None else flags.num_gpus}",
            "distributed.gpu_ids=" + (f"[{','.join(ids)}]" if ids else "null"),
            "distributed.gpu_list=null",
        ]
    return flags


def refuse_repeats(words: Sequence[str]) -> None:
    """Refuse settings that a command line has twice with different values: Hydra would take the last one.

    Raises:
        ConfigError: There are such; names all of them.
    """
    values: dict[str, dict[str, None]] = {}
    for word in words:
        key, is_setting, value = word.lstrip("+").partition("=")
        if is_setting:
            values.setdefault(key, {})[value] = None
    shown = {key: " and ".join(map(brief, given)) for key, given in values.items() if len(given) > 1}
    refuse_all([f"{key} is given several times, as {given}: give it once" for key, given in shown.items()])


def for_hydra(flags: argparse.Namespace, settings: Sequence[str]) -> list[str]:
    """Order a command line as Hydra takes it: all settings together, as it takes none on both sides of a flag.

    ``--cfg job`` prints the values that a run would have, and no expressions.
    """
    values = {flag: getattr(flags, flag[2:].replace("-", "_")) for flag in (*_ASKED, *_VALUED, "--info")}
    words = [
        word for flag, value in values.items() if value for word in ([flag] if value is True else [flag, value])
    ]
    return [*settings, *words, *(["--resolve"] if flags.cfg == "job" and not flags.resolve else [])]
