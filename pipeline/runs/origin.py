"""Record where a run came from, what its outputs were made with, and notes of its jobs for readers.

The origin is written when the run begins, so that a killed run has it too. Results do not depend on it.
"""

import os
import platform
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from pipeline import __version__
from pipeline.arithmetic import processor
from pipeline.config.schema import Config, EvaluationConfig
from pipeline.config.tables import point_of
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, recall
from pipeline.learning.rewards.judge import judges_of
from pipeline.outputs import formats
from pipeline.outputs.manifest import NotAnOutputError, read_manifest
from pipeline.plan.graph import Job
from pipeline.runs.record import MANY_CUT, grouped
from pipeline.runs.report.format import count, logs_command
from pipeline.runs.run_view import Answer

FILE = "origin.json"
PACKAGES = ("torch", "transformers", "numpy", "hydra-core", "omegaconf")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Content of ``origin.json``.

    Attributes:
        command: Words of the command that repeats the run, in the same folder; empty if it was not started from a
            command line.
        settings: The settings among them, ``KEY=VALUE``.
        folder: The folder in which it was started.
        group: Name shared by the runs of its multirun, or "".
        bounded: Algorithms whose KL divergence is an upper bound.
        devices: Devices of the run.
        machine: Its machine: ``host``, ``system``, ``processor``, ``cpus``, ``memory_gib``.
        versions: Package -> version, including Python.
        slurm: Its Slurm job, see `slurm_job`; empty outside of one.
        added: What was added to the runs that it goes on from, and to begin it, when results could be seen.
    """

    command: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    folder: str = ""
    group: str = ""
    bounded: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    slurm: Mapping[str, str] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)

    @property
    def only_evaluates(self) -> bool:
        """Whether `evaluate` has started it."""
        return self.command[:4] == ["python", "-m", "pipeline", "evaluate"]

    @property
    def command_line(self) -> str:
        """The command for a shell, or ""."""
        return shlex.join(self.command)


def of_this_process() -> Origin:
    """Return what the origin of a run that begins in this process says of the process."""
    folder = ""
    with suppress(OSError):  # the folder may have been removed
        folder = str(Path.cwd())
    machine = {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": processor(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "memory_gib": f"{psutil.virtual_memory().total / (1 << 30):.1f}",
    }
    versions = {"pipeline": __version__, "python": platform.python_version()}
    for name in PACKAGES:  # packages that results depend on, without importing them
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return Origin(folder=folder, machine=machine, versions=versions, slurm=slurm_job(os.environ))


_OF_SLURM = {
    "job": "SLURM_JOB_ID",
    "array": "SLURM_ARRAY_JOB_ID",
    "task": "SLURM_ARRAY_TASK_ID",
    "name": "SLURM_JOB_NAME",
    "partition": "SLURM_JOB_PARTITION",
    "nodes": "SLURM_JOB_NODELIST",
    "restarts": "SLURM_RESTART_COUNT",
    "cluster": "SLURM_CLUSTER_NAME",
}


def slurm_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the Slurm job of a process: ``job`` its id, ``restarts`` how often it was requeued, and so on.

    Args:
        environ: Environment of the process.
    """
    if not environ.get("SLURM_JOB_ID"):
        return {}
    return {name: environ[variable] for name, variable in _OF_SLURM.items() if environ.get(variable)}


def slurm_in_words(job: Mapping[str, str]) -> str:
    """Return text such as ``Slurm job 41 (4_1 of an array) on n1, partition main, put back 2 times``.

    "" outside of one.
    """
    if "job" not in job:
        return ""
    parts = [f"Slurm job {job['job']}"]
    if "array" in job and "task" in job:
        parts[0] += f" ({job['array']}_{job['task']} of an array)"
    if "nodes" in job:
        parts[0] += f" on {job['nodes']}"
    if "partition" in job:
        parts.append(f"partition {job['partition']}")
    if job.get("restarts", "0") != "0":
        parts.append(f"put back {job['restarts']} time{'s' if job['restarts'] != '1' else ''}")
    return ", ".join(parts)


def write_origin(folder: Path, origin: Origin) -> None:
    """Write ``origin.json`` to the folder of a run."""
    write_whole(folder / FILE, json_text(asdict(origin), indent=1) + "\n")


def read_origin(folder: Path) -> Origin:
    """Read the origin; empty if a run has no valid one."""
    return recall(folder / FILE, Origin, follow=True) or Origin()


# -- makers ------------------------------------------------------------------------------------------------------
# Versions and arithmetic of stored outputs, from their manifests. Keys contain neither, so results may rest on
# outputs of several versions. Tables and ``compute.json`` say so; ``results.json`` contains only results.


UNKNOWN = "unknown"
_LONGEST = 100


@dataclass(frozen=True, order=True)
class Maker:
    """Versions and arithmetic of some outputs.

    Attributes:
        arithmetic: ``portable``, or the processor or GPU.
        pipeline: Version of this package.
        torch: Version.
        transformers: Version.
        outputs: Number of outputs.
    """

    arithmetic: str
    pipeline: str
    torch: str
    transformers: str
    outputs: int = 0


_NAMES = ("arithmetic", "pipeline", "torch", "transformers")


def collect_makers(store: Store, jobs: Iterable[Job]) -> list[Maker]:
    """Return the versions and arithmetic of the stored outputs of jobs, in order."""
    outputs: Counter[Maker] = Counter()
    for key in {job.key for job in jobs}:
        try:
            description = read_manifest(key, store.path(key))["about"]
        except (NotAnOutputError, KeyError):
            continue  # not made yet, or reported elsewhere
        outputs[maker_of(description)] += 1
    return sorted(replace(maker, outputs=count) for maker, count in outputs.items())


def maker_of(description: object) -> Maker:
    """Return the versions and arithmetic that a manifest tells under ``about``."""
    named: dict[str, Any] = {name: _maker_field(description, name) for name in _NAMES}
    return Maker(**named)


def several_makers(makers: Sequence[Maker]) -> list[str]:
    """Return notes for a table that rests on several versions; empty if there is only one."""
    differing = [name for name in _NAMES if len({getattr(maker, name) for maker in makers}) > 1]
    if not differing:
        return []
    texts = [", ".join(f"{name} {getattr(maker, name)}" for name in differing) for maker in makers]
    parts = [f"{text} ({maker.outputs} outputs)" for text, maker in zip(texts, makers, strict=True)]
    return [f"these results rest on outputs that may differ in rounding, made with {'; '.join(parts)}"]


def _maker_field(description: object, name: str) -> str:
    value: Any = description.get(name) if isinstance(description, Mapping) else None
    return value[:_LONGEST] if isinstance(value, str) and value.isprintable() and value else UNKNOWN


# -- links -------------------------------------------------------------------------------------------------------


def link_stored(run: RunFolder, store: Store, jobs: Iterable[Job]) -> None:
    """Link the folders of a run's stored jobs to their outputs; for a job that runs, its worker does so.

    Links are for people only, so errors are ignored. They are relative, so that experiments can be moved together
    with their store.

    Args:
        run: The run.
        store: Store of the outputs.
        jobs: Jobs whose outputs are stored.
    """
    # With paths as text: for 20,000 jobs `Path` objects would take longer than the links.
    root = os.path.relpath(os.path.realpath(store.root), os.path.realpath(run.jobs))
    for job in jobs:
        with suppress(OSError):
            os.makedirs(f"{run.jobs}/{job.id}", exist_ok=True)  # noqa: PTH103
            up = "../" * (job.id.count("/") + 1)
            os.symlink(f"{up}{root}/{job.key[:2]}/{job.key}", f"{run.jobs}/{job.id}/output")  # noqa: PTH211


_ADDING = ("add ", "clone ")


# -- notes -------------------------------------------------------------------------------------------------------
# Notes for readers of the results: the ``note`` of a job, or a dataset with too few rows. Notes come from stored
# outputs, so equal runs have equal notes, whenever their jobs ran.


_NOTES_LONGEST = 500


def collect_notes(store: Store, jobs: Iterable[Job], config: Config) -> list[str]:
    """Return one line per chain and note, with its rounds; and one per dataset whose texts lack something.

    Args:
        store: The store.
        jobs: Jobs of a plan.
        config: Settings of the run.
    """
    ordered = sorted(jobs, key=lambda job: (job.chain, job.round, job.stage))
    rounds = grouped(((job.chain, note), job.round) for job in ordered for note in _notes_of(store, job))
    notes = [f"{chain}, {_rounds(numbers)}: {note}" for (chain, note), numbers in rounds.items()]
    return [*notes, *_of_texts(store, ordered, config), *_of_pairs(config), *_of_judges(store, ordered)]


def stopped_chains(last_rounds: Mapping[str, int], rounds: int) -> list[str]:
    """Return a note on the chains that ended before the last of the rounds, and what may be said of them."""
    ended = {
        name: last
        for name, last in last_rounds.items()
        if last < rounds and (last or not any(other.endswith(f"/{name}") for other in last_rounds))
    }
    if not ended:
        return []
    named = ", ".join(f"{name} after round {last}" for name, last in ended.items())
    return [
        f"stopped: {named} of {rounds}. They are not shown to be worse at the end, and later rounds of a method "
        "rest on the seeds that went on"
    ]


def additions(made: Origin, answers: Iterable[Answer]) -> list[str]:
    """Return what was added to a run while it went on, and to those that it goes on from."""
    done = (answer.text for answer in answers if not answer.reason)
    return [*made.added, *(text for text in done if text.startswith(_ADDING))]


def added_later(made: Origin, answers: Iterable[Answer]) -> list[str]:
    """Return a note on what was added while a run went on or after its end, when its results could be seen."""
    added = additions(made, answers)
    if not added:
        return []
    said = f"{'; '.join(added[:3])}{f' and {len(added) - 3} more' if len(added) > 3 else ''}"
    return [f"asked when results could be seen: {said}. Tests of what it added assume that nobody looked before"]


def prepared_rows(store: Store, jobs: Iterable[Job]) -> dict[str, formats.PreparedRows]:
    """Return what became of the rows of each dataset that is read rather than made."""
    by_dataset: dict[str, formats.PreparedRows] = {}
    for job in jobs:
        if job.round:
            continue
        with suppress(OSError, ForeignDataError):  # another kind of job, or not stored
            by_dataset[job.dataset] = formats.read_prepared_rows(store.path(job.key) / formats.DATASET)
    return dict(sorted(by_dataset.items()))


def warnings_of_rows(store: Store, jobs: Iterable[Job]) -> list[str]:
    """Return the warnings from the preparation of stored datasets, as a run that prepares them gives."""
    prepared = prepared_rows(store, jobs).items()
    return [f"datasets.{name}: {warning}" for name, rows in prepared for warning in rows.warnings]


def short_of_rows(
    store: Store, jobs: Iterable[Job], evaluation: EvaluationConfig, shown: Collection[str] = ()
) -> list[str]:
    """Return one line for every dataset that has fewer rows than requested, or has left some out.

    Args:
        store: The store.
        jobs: Jobs of a plan.
        evaluation: Evaluation settings, with the requested number of prompts.
        shown: Warnings at the beginning of the run; warnings about the same datasets are not repeated.
    """
    lines = []
    for dataset, prepared in prepared_rows(store, jobs).items():
        if warnings := [*prepared.warnings, *_fewer_prompts(prepared, evaluation)]:
            own_shown = [warning for warning in shown if warning.startswith(f"datasets.{dataset}: ")]
            new = [text for text in warnings if not any(text in warning for warning in own_shown)]
            rest = f": {'; '.join(new)}" if new else ""
            lines.append(f"{dataset}: {prepared} (datasets.{dataset}.test_size, validation_size){rest}")
    return lines


def _fewer_prompts(prepared: formats.PreparedRows, evaluation: EvaluationConfig) -> list[str]:
    """Say that policies are evaluated on fewer prompts than requested, which the stored data do not show."""
    there = prepared.rows.get(evaluation.split)
    if there is None or there >= evaluation.num_prompts:
        return []
    has = f"{evaluation.split} has {count(there, 'prompt')}"
    return [f"evaluation.num_prompts={evaluation.num_prompts}: {has}, and evaluation uses all of them"]


def _notes_of(store: Store, job: Job) -> Iterable[str]:
    for name, read in (
        (formats.TOKENIZED, formats.read_tokenized),
        (formats.REWARD, formats.read_reward_fit),
        (formats.TRAINING, formats.read_training),
    ):
        with suppress(OSError, ForeignDataError):  # not stored
            if note := read(store.path(job.key) / name).note:
                yield " ".join(note.split())[:_NOTES_LONGEST]


def _of_texts(store: Store, jobs: Iterable[Job], config: Config) -> Iterator[str]:
    """Yield one line per dataset and model if many completions are cut off, or texts lack tokens.

    Also one per chain whose last round has tried a reward model on pairs that it was not fitted to.
    """
    most: dict[str, tuple[float, str]] = {}
    limits: dict[str, str] = {}
    tried: dict[str, str] = {}
    lost: Counter[str] = Counter()
    for job in jobs:
        pair = f"{job.dataset}/{job.model}"
        with suppress(OSError, ForeignDataError):
            for row in formats.read_metrics(store.path(job.key)).rows:
                if row.metric == "truncated" and (row.value or 0) >= MANY_CUT:
                    limits[pair] = _limit_of(job.dataset, config)
                    cut = (row.value or 0, f"{job.algo}, round {job.round}")
                    most[pair] = max(most.get(pair, (0.0, "")), cut, key=lambda entry: entry[0])
                if row.metric == "skipped_tokens":
                    lost[pair] += int(row.value or 0)
                if row.metric == formats.HELD_OUT and row.value is not None:
                    ends = "" if row.ci_low is None else f" [{row.ci_low:.3f}, {row.ci_high:.3f}]"
                    order = f"its reward model scores the chosen completion higher in {row.value:.3f}{ends}"
                    pairs = f"of the pairs of {count(row.n, 'prompt')} that it was not fitted to"
                    tried[job.chain] = f"round {job.round}: {order} {pairs}"
    yield from (f"{chain}, {note}" for chain, note in tried.items())
    for pair, (share, where) in most.items():
        problem = f"up to {share:.0%} of completions ({where}) are cut off at {limits[pair]}"
        remedy = "allow more; if a policy writes no end, name one (generation.stop)"
        yield f"{pair}: {problem}: {remedy}, or allow as many as an answer has"
    for pair, number in lost.items():
        if number:
            problem = f"rewards see texts without {count(number, 'special token')}, none an end"
            yield f"{pair}: {problem}: generation.skip_special_tokens=false keeps them"


def _limit_of(dataset: str, config: Config) -> str:
    """Return the setting that bounds completions where policies are evaluated, with its value."""
    trained_on, test_set = point_of(dataset)
    name = test_set or trained_on
    key, own = f"datasets.{name}.sampling.max_new_tokens", config.datasets[name].sampling.max_new_tokens
    if own is not None:
        return f"{key}={own}"
    alone = f" ({key} is for this set alone)" if test_set else ""
    return f"generation.max_new_tokens={config.generation.max_new_tokens}{alone}"


def _of_pairs(config: Config) -> Iterator[str]:
    """Yield a line for each judge that compares completions with others, since its mean reward is a win rate."""
    for dataset, section in config.datasets.items():
        for name, judge in judges_of(section).items():
            if judge.mode == "pair":
                own = "the greedy completion of `reference`, which is compared with its own"
                other = {"answer": "the answer of the row", "reference": own}[judge.against]
                yield f"datasets.{dataset}: the reward '{name}' is the win rate against {other}; a tie counts 0.5"


def _of_judges(store: Store, jobs: Iterable[Job]) -> Iterator[str]:
    """Yield a line for each dataset and judge behind an endpoint: the models that replied, tokens and cost."""
    by_judge: dict[tuple[str, str], formats.Asked] = {}
    for job in jobs:
        with suppress(OSError, ForeignDataError):
            for name, usage in formats.read_asked(store.path(job.key) / formats.ASKED).items():
                judge = job.dataset, name
                by_judge[judge] = by_judge[judge] + usage if judge in by_judge else usage
    for (dataset, name), usage in by_judge.items():
        who = ", ".join(f"{model} ({count(number, 'time')})" for model, number in usage.models.items())
        cost = "" if usage.cost is None else f", {usage.cost:,.4g} by the price that is set"
        yield (
            f"datasets.{dataset}: the reward '{name}' rests on replies of {who} to requests for {usage.model}: "
            f"{usage.read:,} tokens read, {usage.written:,} written{cost}. A repetition may get other replies"
        )


def failed_rewards(store: Store, jobs: Iterable[Job], run: RunFolder) -> list[str]:
    """Return one line per chain and round in which a reward failed: how often, why, and how to read more.

    Args:
        store: The store.
        jobs: Jobs of a plan.
        run: The run of the jobs.
    """
    by_round: dict[tuple[str, int], list[tuple[Job, formats.Faults]]] = {}
    for job in sorted(jobs, key=lambda job: (job.chain, job.round, job.stage, job.id)):
        with suppress(OSError, ForeignDataError):
            faults = formats.read_faults(store.path(job.key) / formats.FAULTS)
            by_round.setdefault((job.chain, job.round), []).append((job, faults))
    return [f"{chain}, {_rounds([number])}: {_failed(own, run)}" for (chain, number), own in by_round.items()]


def _failed(own: list[tuple[Job, formats.Faults]], run: RunFolder) -> str:
    counts: dict[str, Counter[str]] = {}
    for job, faults in own:
        counts.setdefault(job.stage, Counter()).update(failed=faults.failed, of=faults.completions, jobs=1)
    parts = [
        f"{number['failed']:,} of {number['of']:,} completions of {count(number['jobs'], 'job')} ({stage})"
        for stage, number in counts.items()
    ]
    first, faults = own[0]
    problem = " ".join(faults.first.split())[:_NOTES_LONGEST]
    log = logs_command(run.path.parent.parent, run.experiment, first.id)
    return f"a reward failed at {', '.join(parts)}, which have no score; first {problem} ({log})"


def _rounds(numbers: list[int]) -> str:
    return f"round{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
