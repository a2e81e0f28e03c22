"""Write a run as one file that others can check, and check such files: ``bundle`` and ``verify``.

bundle NAME --to x.tar     shows what could be private, asks, and writes
verify x.tar               computes every number of the tables from the outcomes
verify x.tar --rerun 0.1   runs a random share of the evaluations again, with all that they rest on
verify *.tar --page x.html also writes one leaderboard of all bundles
"""

import getpass
import math
import os
import platform
import random
import re
import secrets as system_random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, cast

import typer
from omegaconf import OmegaConf
from rich.console import Console

from pipeline.commands.report import refuse_records, written
from pipeline.commands.request import Request, prepare
from pipeline.commands.run import leased, logged_to
from pipeline.commands.start import complain
from pipeline.commands.typed import OUTPUTS, Experiment, OutputDir, Stamp, examples
from pipeline.config.load import COMPOSITION_ERRORS, config_from_plain, explain
from pipeline.config.schema import Backend, Config
from pipeline.config.tables import REWARD_NAMES, is_own_code, rows_of
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.run_jobs import run_jobs
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError, StoreError
from pipeline.files import plain_target, write_whole
from pipeline.learning.algos.base import DATASET
from pipeline.learning.datasets.base import load_dataset
from pipeline.outputs import formats
from pipeline.plan.graph import Job, Plan
from pipeline.plan.recorded import causes, recorded
from pipeline.runs import bundle as bundles
from pipeline.runs.bundle import LEFT_OUT, SAMPLES, SETTINGS, Bundle, BundleError, FileSum, Made
from pipeline.runs.loaded import choose_run, load_planned
from pipeline.runs.origin import maker_of
from pipeline.runs.record import place_of
from pipeline.runs.report.board import Entry, Unread, board_page
from pipeline.runs.report.format import beginning, count
from pipeline.runs.verified import (
    CONFIDENCE,
    TOLERANCE,
    Recomputed,
    Repeated,
    compare_outputs,
    has_settings,
    recompute,
    scored_otherwise,
)
from pipeline.terminal.console import make_console, say
from pipeline.terminal.streams import on_one_line

app = typer.Typer()
_MOST = 20
"""Lines of one kind that are printed."""
_LONGEST = 500
"""Characters of a line about a bundle, whose names may be of a stranger."""


# -- bundle ------------------------------------------------------------------------------------------------------


@app.command(
    epilog=examples(
        "pipeline bundle first_run",
        "pipeline bundle first_run --to first_run.tar",
        "pipeline bundle first_run --to first_run.tar --without samples --yes",
    )
)
def bundle(
    name: Experiment,
    to: Annotated[Path | None, typer.Option(help="The file to write; nothing is written if left out.")] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help=f"What to leave out, once for each: {', '.join(LEFT_OUT)}.", metavar="PART"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write without asking.")] = False,
    run: Stamp = None,
    output_dir: OutputDir = OUTPUTS,
) -> int:
    """Write what the tables of a run rest on into one file, without weights; 1 if you answered no."""
    left_out, console = sorted(set(without or ())), make_console()
    if unknown := [each for each in left_out if each not in LEFT_OUT]:
        raise ConfigError(f"--without {unknown[0]}: must be one of {', '.join(LEFT_OUT)}")
    loaded = load_planned(choose_run(output_dir, name, run))
    if not loaded.folder.results_json.exists() or loaded.engine_runs():
        raise ConfigError(f"run {loaded.stamp} of {name} has not ended: its results are not written yet")
    if to is not None:
        refuse_records("--to", to, [loaded])
    found = bundles.collect(loaded, left_out)
    _tell_private(found, left_out, console)
    if to is None:
        say(console, "Nothing was written: --to FILE writes it.")
        return 0
    if not (yes or typer.confirm("Write all this?")):
        say(console, "Nothing was written.")
        return 1
    digest: list[str] = []
    written(to, lambda: digest.append(bundles.write_bundle(plain_target(to), found.members, left_out)), console)
    say(console, f"sha256 {digest[0]}")
    say(console, "check it, here or elsewhere:", copy=f"python -m pipeline verify {to}")
    return 0


def _tell_private(found: bundles.Collected, left_out: Sequence[str], console: Console) -> None:
    """Say what of a bundle could be private.

    Raises:
        ConfigError: It holds what looks like a secret.
    """
    size = sum(map(len, found.members.values()))
    say(console, f"{count(len(found.members), 'file')}, {size / 1e6:,.1f} MB, no weights. What could be private:")
    if found.completions:
        texts = (
            f"texts of {count(found.prompts, 'prompt')} and {count(found.completions, 'completion')}, with answers"
        )
        first = on_one_line(beginning(found.example, 60))
        say(console, f"  {texts}, first '{first}'; --without samples leaves them out")
    if SETTINGS not in left_out:
        held = "settings, with templates and names of files, the command and names of your own classes"
        say(console, f"  {held}; --without settings leaves them out, and nobody can run it again")
    say(console, "  names of methods, datasets and models, of the processor, and versions")
    say(console, "  folders are left out: of a path its last name stays")
    names = {platform.node(), Path.home().name, os.environ.get("USER", "")}
    with suppress(OSError, KeyError):
        names.add(getpass.getuser())
    hidden, named = bundles.find_private(found.members, os.environ, names - {"", "root", "localhost"})
    for member, seen in list(named.items())[:_MOST]:
        say(console, f"  {', '.join(seen)} (your name or the machine's) in {member}", "bold")
    for job in found.lacking[:_MOST]:
        say(console, f"  warning: outcomes of {job} are stored no more: numbers that rest on it cannot be checked")
    if hidden:
        where = "; ".join(f"{member}: {', '.join(seen[:3])}" for member, seen in list(hidden.items())[:3])
        parts = {SAMPLES if member.startswith(bundles.OUTCOMES) else SETTINGS for member in hidden}
        options = " ".join(f"--without {part}" for part in sorted(parts))
        raise ConfigError(
            f"this looks like a secret, and nothing was written: {where}. Remove it, or add {options}"
        )


# -- verify ------------------------------------------------------------------------------------------------------


_SETTING = re.compile(r"[A-Za-z_][\w.@-]*=.*", re.DOTALL)


@app.command(
    epilog=examples(
        "pipeline verify first_run.tar",
        "pipeline verify first_run.tar --rerun 0.1",
        "pipeline verify mine.tar --rerun 0.1 datasets.jsonl.path=data/rows.jsonl device=cuda",
        "pipeline verify a.tar b.tar --page board.html",
    )
)
def verify(
    words: Annotated[
        list[str], typer.Argument(help="Bundles; with --rerun also any KEY=VALUE, such as where files are here.")
    ],
    rerun: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Run this share of the evaluations again, with all that they rest on."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Which ones; another choice each time if left out.")] = None,
    tolerance: Annotated[
        float,
        typer.Option(min=0, max=1, help="Difference of a mean outcome that other arithmetic may make."),
    ] = TOLERANCE,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Import classes of your own that the settings name, from here.")
    ] = False,
    within: Annotated[
        Path | None, typer.Option("--in", help="Empty folder for what runs again, which stays; else none does.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Also write a leaderboard of all bundles.")] = None,
) -> int:
    """Check bundles; 1 if a number does not follow from the outcomes, or a repetition contradicts it.

    2 if one cannot be read; the others are checked all the same.
    """
    settings = [word for word in words if _SETTING.fullmatch(word) and not Path(word).exists()]
    paths = list(dict.fromkeys(Path(word) for word in words if word not in settings))
    if not paths:
        raise ConfigError("name a bundle: pipeline verify FILE")
    if rerun is None and (settings or trust_code or within or seed is not None):
        raise ConfigError("settings, --seed, --in and --trust-code are for what runs again: add --rerun 0.1")
    if rerun is not None and len(paths) > 1:
        raise ConfigError("--rerun is for one bundle: give one FILE with it")
    if page is not None:
        refuse_records("--page", page, [])
        if page.resolve() in [path.resolve() for path in paths]:
            raise ConfigError(f"--page {page}: that is a bundle; name another file")
    if within is not None and within.exists() and (not within.is_dir() or any(within.iterdir())):
        raise ConfigError(f"--in {within}: what is there could be taken for a result; name a new or empty folder")
    console, entries, unread = make_console(), list[Entry](), list[Unread]()
    for path, name in _names(paths).items():
        try:
            with Bundle(path) as opened, TemporaryDirectory(prefix="pipeline-verify-") as folder:
                say(console, f"{on_one_line(str(path))}: sha256 {opened.digest}")
                found = recompute(opened, Path(folder) / "recomputed")
                _tell_recomputed(found, console)
                repeated = None
                if rerun is not None:
                    how = _How(share=rerun, seed=seed, settings=settings, trusts_code=trust_code)
                    repeated = _repeat(opened, how, (within or Path(folder) / "again").absolute(), console)
                    _tell_repeated(repeated, tolerance, console)
                sound = found.is_sound and (repeated is None or repeated.is_sound(tolerance))
                entries.append(_entry(name, opened, found, repeated, sound=sound))
        except BundleError as error:
            if len(paths) == 1:
                raise
            complain(on_one_line(str(error)))
            unread.append(Unread(name, str(error).replace(str(path), name, 1)))
    if page is not None and entries:
        text = board_page(entries, unread)
        written(page, lambda: write_whole(plain_target(page), text), console)
    if unread:
        left = (
            "" if page is None else ", so no page is written" if not entries else " and are not ranked on the page"
        )
        raise BundleError(f"{len(unread)} of {count(len(paths), 'bundle')} could not be read{left}")
    return 0 if all(entry.is_sound for entry in entries) else 1


def _tell_recomputed(found: Recomputed, console: Console) -> None:
    for what, lines in (
        ("problem", found.problems),
        ("altered", found.altered),
        ("differs", found.differing),
        ("not checked", found.unknown),
    ):
        for line in lines[:_MOST]:
            say(console, f"{what}: {_brief(line)}", "red")
        if len(lines) > _MOST:
            say(console, f"{what}: and {len(lines) - _MOST:,} more", "red")
    for what in found.absent[:_MOST]:
        say(console, f"no numbers of {_brief(what)}, which was planned", "bold")
    if found.is_sound:
        say(console, f"recomputed: all {count(found.alike, 'row')} of the tables follow from the outcomes")
    else:
        bad, unknown = len(found.differing), len(found.unknown)
        told = [
            f"of {count(found.alike + bad + unknown, 'row')} {bad:,} differ, and {unknown:,} cannot be checked",
            f"{count(len(found.altered), 'file')} of outcomes altered" if found.altered else "",
            count(len(found.problems), "problem") if found.problems else "",
        ]
        say(console, f"NOT VERIFIED: {'; '.join(filter(None, told))}", "red")


def _brief(line: str) -> str:
    return on_one_line(beginning(line, _LONGEST))


def _tell_repeated(found: Repeated, tolerance: float, console: Console) -> None:
    for line in found.makers[:_MOST]:
        say(console, f"other arithmetic: {_brief(line)}")
    for line in found.unlike[:_MOST]:
        say(console, f"other bytes than recorded, by arithmetic of the same name: {_brief(line)}", "red")
    for line in found.problems[:_MOST]:
        say(console, f"problem: {_brief(line)}", "red")
    for one in found.apart:
        text = f"{one.difference:+.3f} [{one.low:+.3f}, {one.high:+.3f}] over {count(one.prompts, 'prompt')}"
        style = "red" if one.exceeds(tolerance) else None
        say(console, f"{_brief(one.policy)}: {one.metric} here less recorded: {text}", style)
    said = f"{found.alike} of {count(found.jobs, 'job')} that ran again have the recorded bytes"
    if found.apart:
        said += (
            f"; {count(len(found.apart), 'mean')} of outcomes compared, at {CONFIDENCE:.0%} for all together: "
            f"{sum(one.exceeds(tolerance) for one in found.apart)} differ by more than {tolerance:g}"
        )
    if found.is_sound(tolerance):
        say(console, f"run again: {said}")
    else:
        say(console, f"NOT VERIFIED by running again: {said}", "red")


# -- run again ---------------------------------------------------------------------------------------------------
# Of a bundle only settings that determine results count: whoever verifies says where and how work is done.


@dataclass(frozen=True, kw_only=True)
class _How:
    """How to run again.

    Attributes:
        share: Share of the evaluations.
        seed: Seed of the choice; None for a new one.
        settings: Settings of the command line.
        trusts_code: Whether classes that do not ship may be imported.
    """

    share: float
    seed: int | None
    settings: Sequence[str]
    trusts_code: bool


_USED = (
    *("experiment", "rounds_of_training", "system", "training", "generation", "data_collection", "evaluation"),
    *("distributed", "algos", "datasets", "models"),
)


def _repeat(opened: Bundle, how: _How, folder: Path, console: Console) -> Repeated:
    """Run a random share of the evaluations again, and compare.

    Raises:
        PipelineError: The request cannot be made here, is another one here, or a job failed.
    """
    config = _config_of(opened, how, folder)
    request, targets = prepare(config), _targets(opened, how, console)
    plan = request.plan.up_to(_same(opened, request, targets, console))
    say(console, f"running {count(len(plan.jobs), 'job')} again, {len(targets)} of them evaluations, in {folder}")
    _run(request, plan, folder, console)

    def made(job: Job) -> Made:
        manifest = request.store.manifest(job.key)
        files = {name: FileSum(entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
        return Made(files, maker_of(manifest["about"]))

    def read(job: Job) -> list[formats.Sample]:
        return list(formats.read_lines(request.store.path(job.key) / formats.SAMPLES, formats.Sample))

    found = compare_outputs(opened, plan, made, read)
    return replace(found, problems=[*found.problems, *_scored_again(opened, request, targets, console)])


def _scored_again(opened: Bundle, request: Request, targets: Sequence[str], console: Console) -> list[str]:
    """Score the recorded completions of the chosen evaluations again; return what differs, in words."""
    if SAMPLES in opened.contents.left_out:
        say(console, "not scored again: the bundle has no texts")
        return []
    names = {key: name for name, key, file in opened.outcomes if file == formats.SAMPLES}
    differing, number = [], 0
    for job in (request.plan.jobs[job_id] for job_id in targets):
        settings, rows = request.config.datasets[rows_of(job.dataset)], job.inputs.get(DATASET, ())
        dataset = load_dataset(settings, request.store.path(rows[0]) if rows else None)
        samples = opened.samples(names[job.key])
        other = scored_otherwise(samples, dataset, settings, request.config.evaluation.reward_batch_size)
        number += 0 if other is None else len(samples)
        if other:
            said = f"of {count(len(other), 'recorded completion')} the prompt or the score is another one here"
            differing.append(f"{job.id}: {said}, first of row {other[0].row}")
    said = (
        f"scored again: {count(number, 'recorded completion')}"
        if number
        else "not scored again: by models or judges"
    )
    say(console, said)
    return differing


def _config_of(opened: Bundle, how: _How, folder: Path) -> Config:
    if not has_settings(opened):
        raise ConfigError(f"{opened.path} was written --without settings, so nothing of it can run again")
    plain = opened.settings()
    kept = {name: plain[name] for name in _USED if name in plain}
    size = (plain.get("execution") or {}).get("shard_size")
    kept |= {"execution": {"shard_size": size}, "output_dir": str(folder)}
    if any(made.maker.arithmetic == "portable" for made in opened.outputs().values()):
        kept["device"] = "cpu"  # where the same bytes can be had, also beside a GPU
    typed = [word.partition("=")[0] for word in how.settings]
    if not how.trusts_code:
        for problem in _risks(kept, typed):
            raise ConfigError(f"{opened.path} is not run again: its settings have {problem}")
    try:
        merged: Any = OmegaConf.merge(OmegaConf.create(kept), OmegaConf.from_dotlist(list(how.settings)))
        config = config_from_plain(cast("dict[str, Any]", OmegaConf.to_container(merged)))
    except COMPOSITION_ERRORS as error:
        raise explain(error) from error
    config.experiment.name, config.output_dir, config.execution.store = "verify", str(folder), None
    config.execution.backend, config.execution.shared_store = Backend.local, None
    return config


_PLACES = ("path", "endpoint", "teacher", "subset", "revision")
"""Ends of the names of settings that may be a place; `subset` and `revision` are looked up below another one."""


def _risks(settings: Mapping[str, Any], typed: Collection[str]) -> Iterator[str]:
    """Yield settings of a stranger by which code would run, or places would be read that they choose."""
    for key, value in _leaves(settings):
        name = key.rpartition(".")[2]
        runs_code = (name == "class_path" and value is not None and is_own_code(str(value))) or (
            name == "use" and value not in (None, *REWARD_NAMES)
        )
        if runs_code or (name == "trust_remote_code" and value):
            yield f"{key}={value}, which is code: read it; --trust-code imports it from here"
        is_place = name.endswith(_PLACES) or key.startswith("evaluation.also.")
        if is_place and isinstance(value, str) and key not in typed and _leads_out(value):
            yield f"{key}={value}, a place of its own choice: say which you mean by {key}=PLACE"
    for key, reward in _rewards(settings.get("datasets")):
        if reward not in (None, "", *REWARD_NAMES):
            yield f"{key}: the reward {reward}, which is code: read it; --trust-code imports it from here"


def _rewards(datasets: Any) -> Iterator[tuple[str, object]]:
    """Yield the rewards of all datasets, as they are called where their options name another (`use`)."""
    for name, section in datasets.items() if isinstance(datasets, Mapping) else ():
        known = section if isinstance(section, Mapping) else {}
        several, grading = known.get("rewards"), known.get("grading")
        options = grading.get("options") if isinstance(grading, Mapping) else None
        for reward in several if isinstance(several, Mapping) and several else [known.get("reward")]:
            own = options.get(reward) if isinstance(options, Mapping) else None
            if not (isinstance(own, Mapping) and own.get("use")):  # which is looked at as a setting
                yield f"datasets.{name}", reward


def _leads_out(place: str) -> bool:
    return "://" in place or place.startswith(("/", "~")) or ".." in Path(place).parts


def _leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yield every value of nested settings by its dotted key."""
    if isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, each in items:
            yield from _leaves(each, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _targets(opened: Bundle, how: _How, console: Console) -> list[str]:
    """Return the ids of the evaluations to run again."""
    plan, there = opened.plan(), {key for _, key, file in opened.outcomes if file == formats.SAMPLES}
    ids = sorted(job.id for job in plan.jobs.values() if job.key in there)
    if not ids:
        raise ConfigError(f"{opened.path} has no evaluation that could run again")
    seed = system_random.randbelow(1 << 32) if how.seed is None else how.seed
    chosen = random.Random(seed).sample(ids, max(1, math.ceil(how.share * len(ids))))  # noqa: S311 - not for secrecy
    say(console, f"chosen: {len(chosen)} of {count(len(ids), 'evaluation')}; --seed {seed} chooses the same")
    return chosen


def _same(opened: Bundle, request: Request, targets: Sequence[str], console: Console) -> Sequence[str]:
    """Return the targets, if this machine plans them as recorded: a key covers all that a job rests on.

    Raises:
        ConfigError: It does not: settings, code, data or models are others here; says which.
    """
    before, now = opened.plan(), recorded(request.plan.to_json())
    for job_id in sorted(before.jobs.keys() & now.jobs.keys()):  # no key covers names
        if place_of(before.jobs[job_id])[:3] != place_of(now.jobs[job_id])[:3]:
            raise ConfigError(
                f"{job_id} is recorded under another dataset, model or reference than its settings give here"
            )
    for job_id in targets:
        if job_id not in now.jobs or now.jobs[job_id].key != before.jobs[job_id].key:
            changes = causes(before, now, job_id) if job_id in now.jobs else {}
            why = [f"{at}: {change}" for at, own in changes.items() for change in own]
            told = f": {'; '.join(why[:5])}" if why else ""
            raise ConfigError(
                f"{job_id} would be another job here{told}. Give the same data, models and code, as "
                "datasets.NAME.path=FILE or models.NAME.path=FOLDER"
            )
    if left := now.jobs.keys() - before.jobs.keys():
        say(
            console,
            f"not in the bundle: {count(len(left), 'job')} that the same settings plan, as {min(left)}",
            "bold",
        )
    return targets


def _run(request: Request, plan: Plan, folder: Path, console: Console) -> None:
    config, store = request.config, Store(request.store.root)
    run = RunFolder(folder / "verify")
    run.path.mkdir(parents=True)
    with ExitStack() as stack:
        stack.enter_context(store.in_use(folder))
        lease = stack.enter_context(leased(config, console))
        stack.enter_context(logged_to(run.log))
        signals = stack.enter_context(StopSignals())
        outcome = run_jobs(
            plan,
            store,
            lease.devices,
            run.path,
            execution=config.execution,
            threads=config.system.cpu_threads,
            portable=config.system.portable,
            signals=signals,
        )
    problem = outcome.halted or (f"interrupted by {outcome.interrupted}" if outcome.interrupted else "")
    if problem := problem or next((f"{job_id}: {reason}" for job_id, reason in outcome.failures()), ""):
        raise StoreError(f"not everything ran again: {problem}. --in FOLDER keeps the log")


# -- page --------------------------------------------------------------------------------------------------------


def _names(paths: Iterable[Path]) -> dict[Path, str]:
    """Return what files are called: their names, of those of one name with the folders in which they differ."""
    whole = {path: Path(os.path.abspath(path)) for path in paths}  # noqa: PTH100 - without `..`, links as they are
    alike: dict[str, set[Path]] = {}
    for at in whole.values():
        alike.setdefault(at.name, set()).add(at)
    shared = {at: os.path.commonpath([each.parent for each in own]) for own in alike.values() for at in own}
    return {path: str(at.relative_to(shared[at])) for path, at in whole.items()}


def _entry(name: str, opened: Bundle, found: Recomputed, repeated: Repeated | None, *, sound: bool) -> Entry:
    said = "recomputed" if found.is_sound else "does not follow from its outcomes"
    if found.absent:
        said += f"; planned, and without numbers: {count(len(found.absent), 'policy evaluation')}"
    if repeated is not None:
        said += f"; {count(repeated.jobs, 'job')} run again, {repeated.alike} with the same bytes"
        said += f", {len(repeated.apart)} means compared" if repeated.apart else ""
    return Entry(
        name=name,
        digest=opened.digest,
        source=opened.source(),
        results=found.results,
        plan=opened.plan(),
        verified=said if sound else f"NOT VERIFIED: {said}",
        is_sound=sound,
    )
