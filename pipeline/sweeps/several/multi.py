"""Several runs on disjoint sets of GPUs by one command: which run has which GPUs and settings. Pure.

multi NAME 2 4   ->   NAME.run1 on GPUs 0, 1;  NAME.run2 on 2, 3;  NAME.run3 on 4, 5;  NAME.run4 on 6, 7
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from pipeline.config.explain import explain
from pipeline.errors import ConfigError
from pipeline.runs.report.format import count

MOST_RUNS = 1000
_OURS = {
    "experiment.name": "it is the name of the command, with .run1 and so on",
    "output_dir": "give --output-dir",
    "distributed.gpu_ids": "each run has its own",
    "distributed.gpu_list": "each run has its own",
    "distributed.num_gpus": "each run has GPUS_PER_RUN",
    "execution.workers": "each run has GPUS_PER_RUN",
    "execution.wait_for_devices": "give --queue",
}
"""Settings that are not given by hand -> what to do instead."""
_SEEDS = "experiment.seeds"


@dataclass(frozen=True, kw_only=True)
class MemberRun:
    """One of the runs.

    Attributes:
        name: Of its experiment: ``NAME.run1``.
        slot: Which set of devices it has.
        settings: All that it has besides those that say which devices.
        own: Those of them in which it differs from the others.
    """

    name: str
    slot: int
    settings: tuple[str, ...]
    own: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MultiPlan:
    """What is run.

    Attributes:
        each: Devices of each run.
        slots: Sets of devices, as positions among those that are visible; contiguous, and disjoint.
        runs: The runs, in order.
        alike: Whether all of them ask for the same.
    """

    each: int
    slots: tuple[tuple[int, ...], ...]
    runs: tuple[MemberRun, ...]
    alike: bool


def plan_runs(
    name: str, each: int, runs: int, total: int, settings: Sequence[str], *, queue: bool = False, kind: str = "GPU"
) -> MultiPlan:
    """Share devices out.

    A setting with as many values as there are runs, as ``training.grad_clip=0.5,1,2,4``, gives each run its own.
    Where nothing says which seeds the runs have, run i has seed i - 1, as otherwise all would be the same.

    Args:
        name: What the names of the runs begin with.
        each: Devices of each run.
        runs: How many runs.
        total: How many devices there are.
        settings: Of all runs.
        queue: Let runs that do not fit wait for the others.
        kind: What a device is called.

    Raises:
        ConfigError: They do not fit, or a setting is wrong.
    """
    for what, number in (("GPUS_PER_RUN", each), ("NUM_RUNS", runs)):
        if not 1 <= number <= MOST_RUNS:
            raise ConfigError(f"{what} {number}: a whole number from 1 to {MOST_RUNS:,}")
    slots = min(runs, total // each)
    if slots < runs and not (queue and slots):
        raise ConfigError(_too_many(each, runs, total, kind))
    shares = _shares(settings, runs)
    if _SEEDS not in [key.lstrip("+") for key, _ in shares]:
        shares.append((_SEEDS, [f"{_SEEDS}=[{number}]" for number in range(runs)]))
    return MultiPlan(
        each=each,
        slots=tuple(tuple(range(slot * each, (slot + 1) * each)) for slot in range(slots)),
        runs=tuple(
            MemberRun(
                name=f"{name}.run{number + 1}",
                slot=number % slots,
                settings=tuple(values[number % len(values)] for _, values in shares),
                own=tuple(values[number] for _, values in shares if len(values) > 1),
            )
            for number in range(runs)
        ),
        alike=runs > 1 and all(len(values) == 1 for _, values in shares),
    )


def split_total(words: Sequence[str]) -> tuple[int | None, list[str]]:
    """Tell the number of devices in all, where it is given, from the settings behind it.

    Raises:
        ConfigError: A word is neither.
    """
    total, rest = None, list(words)
    if rest and rest[0].isascii() and rest[0].isdigit() and len(rest[0]) < 6:
        total = int(rest.pop(0))
    if wrong := next((word for word in rest if "=" not in word and not word.startswith("~")), None):
        raise ConfigError(f"'{wrong}': TOTAL_GPUS is a number, and settings behind it are written KEY=VALUE")
    return total, rest


def _too_many(each: int, runs: int, total: int, kind: str) -> str:
    fit = total // each
    remedy = (
        f"ask for {count(fit, 'run')}, for fewer {kind}s each, or let the others wait with --queue"
        if fit
        else f"ask for {total} at most"
        if total
        else "add device=cpu to run on CPU slots"
    )
    asked = f"{count(runs, 'run')} with {count(each, kind)} each"
    return f"{asked} need {runs * each}, and there {'is' if total == 1 else 'are'} {total}: {remedy}"


def _shares(settings: Sequence[str], runs: int) -> list[tuple[str, list[str]]]:
    """Key -> what each run is given of a setting: one word for all of them, or one for each."""
    parsed = [_parsed(word) for word in settings]
    return [(each.get_key_element(), _values(each, runs)) for each in parsed]


def _parsed(word: str) -> Override:
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException as error:
        raise ConfigError(f"{word}: {explain(error)}") from error


def _values(setting: Override, runs: int) -> list[str]:
    key, written = setting.get_key_element(), str(setting.input_line)
    plain = key.lstrip("+~")
    if plain in _OURS:
        raise ConfigError(f"{written}: not here; {_OURS[plain]}")
    if not setting.is_sweep_override():
        return [written]
    values = [f"{key}={value}" for value in setting.sweep_string_iterator()]
    if len(values) != runs:
        raise ConfigError(
            f"{written}: {count(len(values), 'value')} for {count(runs, 'run')}; give one for all, or one for each"
        )
    return values
