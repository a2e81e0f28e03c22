"""Several runs by one command (``--multirun``), which of them this is, and the flags of a run.

A launcher may carry out a run in another process or on another machine. So what a run has to tell travels in the
way that every launcher knows: the value that the run returns.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from statistics import fmean

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode

from pipeline.commands.request import Request
from pipeline.config.schema import Config, DeviceChoice
from pipeline.errors import ConfigError, JobError, PipelineError
from pipeline.plan.graph import Job, chain_name
from pipeline.runs.record import METRICS_STAGE, PRIMARY_METRICS, ResultRow, collect_rows, place_of, primary_metric
from pipeline.runs.run_view import RunView
from pipeline.runs.trackers import leave_values, sweep_trial
from pipeline.sweeps.reporting import TRIALS, log, own_trial

_ONLY_LISTS = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
"""The sweeper that runs what it is told; most others look for the best settings."""
_MOST_TRIED = 40
"""Further values that are checked before the first run: each takes a tenth of a second."""

failed_runs: list[RunFailed] = []
"""The failed runs that this process knows of, those that other processes carried out among them."""


class RunFailed(PipelineError):  # noqa: N818 - it names what happened
    """A run of a multirun did not end well.

    It is what the run returns: raised, it would have Hydra print a line of its own, and keep the runs of further
    batches (``hydra.sweeper.max_batch_size``) from running. So it is noted where it is made, and when it arrives
    from another process.

    Attributes:
        exit_code: What the run alone would have ended with.
        run: Its label.
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
    """Whether Hydra carries out this run as one of several."""
    return HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN


def group_of_run() -> str:
    """What the runs of a multirun or a sweep have in common, and no other run has; "" for a run of its own."""
    if in_multirun():
        return str(HydraConfig.get().sweep.dir)
    trial = own_trial()
    return str(trial.parents[1]) if trial is not None and trial.parent.name == TRIALS else ""


def run_label(arguments: Sequence[str]) -> str:
    """The settings in which this run differs from the others of its multirun, else its number.

    Args:
        arguments: The command line of the multirun.
    """
    parser = OverridesParser.create()
    given = [word for word in arguments if word.startswith("~") or ("=" in word and not word.startswith("-"))]
    parsed = [parser.parse_override(word) for word in given]
    fixed = {each.get_key_element() for each in parsed if not each.is_sweep_override()}
    hydra = HydraConfig.get()
    own = [each for each in hydra.overrides.task if parser.parse_override(each).get_key_element() not in fixed]
    return " ".join(own) or f"number {hydra.job.num}"


def requests(words: Sequence[str]) -> Iterator[list[str]]:
    """The settings of the first run, then with each further value of one of them; of intervals none is known.

    Raises:
        ConfigError: One stands for no value at all.
    """
    values = {word: found for word in words if (found := _values(word))}
    first = {word: found[0] for word, found in values.items()}
    yield [*first.values()]
    others = ({**first, word: value} for word, found in values.items() for value in found[1:])
    yield from ([*each.values()] for each in islice(others, _MOST_TRIED))


def _values(word: str) -> list[str]:
    try:
        parsed = OverridesParser.create().parse_override(word)
    except HydraException:
        return [word]  # composing says what is wrong with it
    if not parsed.is_sweep_override():
        return [word]
    if not parsed.is_discrete_sweep():
        return []
    values = [
        f"{parsed.get_key_element()}={value}" for value in islice(parsed.sweep_string_iterator(), _MOST_TRIED)
    ]
    if not values:
        raise ConfigError(f"{word}: stands for no value at all, so there are no runs")
    return values


def check_sweeper() -> None:
    """Refuse a sweeper of Hydra's that would be given results to choose by.

    Raises:
        ConfigError: It is another one than that which runs what it is told.
    """
    if in_multirun() and (sweeper := HydraConfig.get().sweeper.get("_target_")) != _ONLY_LISTS:
        raise ConfigError(
            f"hydra/sweeper ({sweeper}): a sweeper of Hydra's is given no results here. `python -m pipeline sweep "
            "run FILE` searches settings: docs/sweeps.md"
        )


def is_judged(config: Config, row: ResultRow) -> bool:
    """Whether settings are chosen by the chain that a row is of."""
    several, pattern = len(config.models[row.model].references) > 1, config.evaluation.objective or ""
    reference = row.reference if several else None
    chain = chain_name(row.dataset, row.model, reference, row.seed, row.algo)
    return fnmatchcase(chain, pattern) or fnmatchcase(row.algo, pattern)


def primary_result(rows: Sequence[ResultRow]) -> float:
    """The mean over chains of the first primary metric that all of them have.

    Raises:
        JobError: There is none.
    """
    values: dict[tuple[object, ...], dict[str, float]] = {}
    for row in rows:
        chain = values.setdefault((row.dataset, row.model, row.reference, row.seed, row.algo), {})
        if row.value is not None:
            chain[row.metric] = row.value
    metric = primary_metric(values.values())
    if metric is None:
        raise JobError(
            f"no result to choose by: no chain has one of {', '.join(PRIMARY_METRICS)} after the last round"
        )
    return fmean(chain[metric] for chain in values.values())


# -- trial -------------------------------------------------------------------------------------------------------
# A run that is a trial of a sweep, or of one at W&B: it tells the sweep what every round has reached.


OBJECTIVE = "objective"
"""What trials are judged by where the sweep file does not name a metric of the results: their primary metric."""
COMPARED = "/vs_"
"""In the name of a difference to another policy; what it is between is not the same in every trial."""
_THERE = ("done", "stored")


class TrialRounds:
    """Tells the sweep of the rounds of this run, each once and in order; does nothing for any other run."""

    def __init__(self, request: Request, run: Path) -> None:
        self._request, self._run = request, run
        self._rounds: dict[int, list[Job]] = defaultdict(list)
        self._at_wandb = sweep_trial() is not None
        if self._at_wandb or own_trial() is not None:
            for job in request.plan.jobs.values():
                if job.stage == METRICS_STAGE and job.round > 0:
                    self._rounds[job.round].append(job)

    def update(self, view: RunView) -> None:
        """Tell of the rounds that have been judged by now."""
        while self._rounds and all(view.jobs[job.id].status in _THERE for job in self._rounds[min(self._rounds)]):
            self._tell(min(self._rounds))

    def conclude(self) -> None:
        """Tell of all that is stored: the run is over."""
        for number in sorted(self._rounds):
            self._tell(number)

    def _tell(self, number: int) -> None:
        config = self._request.config
        rows = collect_rows(self._request.store, self._rounds.pop(number))
        if config.evaluation.objective is not None:
            rows = [row for row in rows if is_judged(config, row)]
        if values := values_of(rows):
            log(values, step=number)
            if self._at_wandb:
                leave_values(self._run, number, values)


def values_of(rows: Sequence[ResultRow]) -> dict[str, float]:
    """The means over chains of what all chains of a round have, and the objective among them."""
    found: dict[str, list[float]] = defaultdict(list)
    chains = {place_of(row) for row in rows}
    for row in rows:
        if row.value is not None and COMPARED not in row.metric:
            found[row.metric].append(row.value)
    means = {metric: fmean(values) for metric, values in found.items() if len(values) == len(chains)}
    with suppress(JobError):  # nothing by which settings are chosen
        means[OBJECTIVE] = primary_result(rows)
    return means


# -- device flags ------------------------------------------------------------------------------------------------
# ``--num-gpus``, ``--gpu-ids`` and ``--device`` on the command line of a run, as overrides of its configuration:
# together they replace what that says, so that ``--num-gpus 2`` means two GPUs also where a file says
# ``gpu_ids: [0, 1, 2, 3]`` or ``device: cpu``. ``distributed.gpu_list=0,1,2,3`` means these four, though Hydra
# would take values with commas for several runs.


FLAGS = ("--num-gpus", "--gpu-ids", "--device")
_BARE_IDS = re.compile(r"(\+{0,2}distributed\.gpu_(?:ids|list))=(\d+(?:,\d+)*)")


def as_overrides(arguments: Sequence[str]) -> list[str]:
    """Turn the flags into overrides, placed after all others, so that they win; everything else stays as it is.

    Args:
        arguments: A command line. Ids may be separated by spaces or commas: ``--gpu-ids 0 2 3``. Those of a
            setting may stand without brackets.

    Raises:
        ConfigError: A flag has no value or a wrong one, or is given twice.
    """
    given: dict[str, str] = {}
    others: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag not in FLAGS:
            others.append(_BARE_IDS.sub(r"\1=[\2]", word) if _BARE_IDS.fullmatch(word) else word)
            continue
        if flag in given:
            raise ConfigError(f"{flag} is given twice")
        values = [value] if equals else []
        most = len(rest) if flag == "--gpu-ids" else 1
        while not equals and len(values) < most and rest and not rest[0].startswith("--") and "=" not in rest[0]:
            values.append(rest.pop(0))
        given[flag] = ",".join(values)
    if not given:
        return others
    device, count = given.get("--device", DeviceChoice.auto.name), given.get("--num-gpus", "null")
    ids = [each for each in given.get("--gpu-ids", "").split(",") if each]
    if device not in DeviceChoice.__members__:
        raise ConfigError(f"--device {device}: one of {', '.join(DeviceChoice.__members__)}")
    if count != "null" and not count.isdigit():
        raise ConfigError(f"--num-gpus {count}: how many GPUs, as in --num-gpus 2")
    if "--gpu-ids" in given and not (ids and all(each.isdigit() for each in ids)):
        raise ConfigError(f"--gpu-ids {given['--gpu-ids']}: ids of GPUs, as in --gpu-ids 0 2 3")
    overrides = [
        f"device={device}",
        f"distributed.num_gpus={count}",
        "distributed.gpu_ids=" + (f"[{','.join(ids)}]" if ids else "null"),
        "distributed.gpu_list=null",
    ]
    # Not at the very end: a flag of Hydra's that stands there may take the next word for its value.
    places = [place for place, word in enumerate(others, 1) if "=" in word and not word.startswith("--")]
    end = max(places, default=0)
    return [*others[:end], *overrides, *others[end:]]
