"""Change a run while it goes on: a request is a file in its folder, and its engine answers in the journal.

    pipeline stop NAME CHAIN  -->  requests/ID.json  -->  engine: other settings and plan  -->  RequestAnswered

What a request changes are settings of the run, but for devices and the order of chains. So one command says what a
run has become: its command with these settings. `plan.json` has it, and is written before the plan is followed.
Such a request is done if it is in there; `LoadedRun` reads it where the other files were not written any more.
"""

import logging
import os
import pwd
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from pipeline.commands import request as requests
from pipeline.commands.request import Request, Stored
from pipeline.config import load
from pipeline.config.plain import brief, default_values, refuse_all, to_plain, value_at
from pipeline.config.schema import AlgoConfig, Backend, Config, continued_from
from pipeline.config.tables import ALGORITHMS, choices_of, point_of
from pipeline.engine.devices import inventory, select
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.run_jobs import read_peaks
from pipeline.engine.scheduler import reactions
from pipeline.engine.scheduler.loop import Change
from pipeline.engine.scheduler.state import SETTLED, THERE, JobStatus, RunState
from pipeline.engine.store.store import Verified
from pipeline.errors import ConfigError, PipelineError, StoreError
from pipeline.files import json_text, open_plain, write_whole
from pipeline.foreign import SMALL, ForeignDataError, read_json
from pipeline.learning.algos.policy_config import taken_from
from pipeline.plan import recorded
from pipeline.plan.contents import PREPARING, REFERENCE
from pipeline.plan.graph import Job, Plan
from pipeline.runs import origin, race
from pipeline.runs.loaded import find_named
from pipeline.runs.run_view import RACE
from pipeline.sweeps.command import overrides_of

log = logging.getLogger("pipeline")

# -- requests ----------------------------------------------------------------------------------------------------


_FILE = re.compile(r"[0-9a-f-]{8,60}\.json")
LEVELS = {"high": 1, "normal": 0, "low": -1}
_LEVEL = 1e6
"""Priority of a level, more than a function of the user's own gives."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Content of a request.

    Attributes:
        verb: ``stop``, ``resume``, ``add``, ``clone``, ``priority`` or ``devices``.
        chain: A chain, or an algorithm for all chains that it has.
        words: Settings, for `add` and `clone`; the level, for `priority`; devices, for `devices`, as ``+1``.
        after_round: Whether to stop after the round that has begun.
        name: Name of the clone.
        from_round: Last round that the clone shares; 0 for none.
    """

    verb: str
    chain: str = ""
    words: list[str] = field(default_factory=list)
    after_round: bool = False
    name: str = ""
    from_round: int = 0

    def __str__(self) -> str:
        parts = [self.verb, self.chain, *self.words, "after its round" if self.after_round else ""]
        parts += [
            f"as {self.name}" if self.name else "",
            f"from round {self.from_round}" if self.from_round else "",
        ]
        return " ".join(part for part in parts if part)


def folder_of(run: RunFolder) -> Path:
    """Return the folder of the requests to a run."""
    return run.path / "requests"


def ask(run: RunFolder, asked: Asked) -> Path:
    """Leave a request for the engine of a run; return its file, which the engine removes."""
    folder = folder_of(run)
    folder.mkdir(exist_ok=True)
    path = folder / f"{time.time_ns():x}-{secrets.token_hex(4)}.json"
    write_whole(path, json_text(asdict(asked)))
    return path


def _read(path: Path) -> tuple[Asked, str]:
    """Return a request, and the user and machine that it is from.

    Raises:
        ForeignDataError: It is none.
        OSError: It cannot be read.
    """
    with open_plain(path) as file:
        about = os.fstat(file.fileno())
        data = file.read(SMALL + 1)
    try:
        user = pwd.getpwuid(about.st_uid).pw_name
    except KeyError:
        user = f"user {about.st_uid}"
    if about.st_uid not in (os.getuid(), 0):
        raise ForeignDataError(f"{user} may not change this run; its user and root may")
    if len(data) > SMALL:
        raise ForeignDataError(f"it is larger than {SMALL:,} bytes")
    return read_json(data, Asked), user


# -- what a request means ----------------------------------------------------------------------------------------
# A request as other settings of the same run. Pure but for composing the configuration.


def chains_of(jobs: Iterable[Job]) -> dict[str, str]:
    """Return chain -> algorithm of the chains that have rounds; evaluations on other test sets are theirs."""
    return {
        _chain_of(job): job.algo
        for job in jobs
        if job.round and job.seed is not None and job.algo not in (REFERENCE, PREPARING)
    }


def _chain_of(job: Job) -> str:
    place, _, rest = job.chain.partition("/")
    return f"{point_of(place)[0]}/{rest}"


def rounds_of(
    jobs: Mapping[str, Job],
    there: Collection[str],
    running: Collection[str],
    racing: Mapping[str, int] | None = None,
) -> dict[str, list[int]]:
    """Return chain -> its last finished round, and the last round that has begun.

    Args:
        jobs: The plan's jobs.
        there: Ids of the jobs that are done or stored.
        running: Ids of the jobs that run.
        racing: Chain in a race -> its first round that is not decided, of which the plan has a part: that is the
            one that has begun, whatever is trained already.
    """
    open_from, begun = dict[str, int](), dict[str, int]()
    rounds = dict[str, int]()
    for job in jobs.values():
        chain = _chain_of(job)
        rounds[chain] = max(rounds.get(chain, 0), job.round)
        if job.id not in there:
            open_from[chain] = min(open_from.get(chain, job.round), job.round)
        if job.id in there or job.id in running:
            begun[chain] = max(begun.get(chain, 0), job.round)
    found = {
        chain: [max(0, open_from.get(chain, last + 1) - 1), begun.get(chain, 0)] for chain, last in rounds.items()
    }
    return found | {chain: [number - 1, number] for chain, number in (racing or {}).items()}


def settings_after(
    asked: Asked, settings: Sequence[str], config: Config, jobs: Mapping[str, Job], rounds: Mapping[str, list[int]]
) -> list[str]:
    """Return the settings of a run after a request.

    Args:
        asked: The request.
        settings: Those before.
        config: What they make.
        jobs: The jobs that they make.
        rounds: See `rounds_of`.

    Raises:
        ConfigError: The request does not fit the run.
    """
    match asked.verb:
        case "stop" | "resume":
            stops = _stops(asked, config, chains_of(jobs.values()), rounds)
            return _with(settings, {"experiment.last_rounds": stops})
        case "add":
            return _added(settings, config, asked.words)
        case "clone":
            return _cloned(asked, settings, config, chains_of(jobs.values()))
    raise ConfigError(f"{asked.verb[:80]!r} is nothing that a run can be asked")


def with_entries(
    settings: Sequence[str], before: Config, after: Config, standing: race.Standing | None
) -> list[str]:
    """Return the settings after a request which also say what it means for claims of the race, if the run is one.

    Args:
        settings: The settings.
        before: Configuration before the request.
        after: What the settings make.
        standing: Standing before; None if it cannot be read, which is as if all prompts had been seen.
    """
    of = before.experiment.race
    if of is None:
        return [*settings]
    if standing is None or before.evaluation.also:  # checkpoints are evaluated on all prompts
        wanted = [before.evaluation.num_prompts]
    else:
        wanted = [looks for all_looks in standing.looks.values() for looks in all_looks]
    seen = max(of.seen, 1, *wanted)
    there = {name for name, algo in before.algos.items() if algo.enabled}
    beside = after.evaluation.also  # checkpoints, which do not race
    new = [name for name, algo in after.algos.items() if algo.enabled and name not in {*there, *beside}]
    values: dict[str, Any] = {}
    if new:
        values["experiment.race.added"] = of.added | dict.fromkeys(new, seen)
    if of.rounds is None and after.rounds_of_training > before.rounds_of_training:
        values["experiment.race.rounds"] = before.rounds_of_training
    if before.experiment.last_rounds != after.experiment.last_rounds:
        values["experiment.race.seen"] = seen
    return _with(settings, values)


def settings_of_run(
    asked: Asked,
    settings: Sequence[str],
    command: Sequence[str],
    configs: tuple[Config, Config],
    standing: race.Standing | None,
    jobs: Mapping[str, Job],
    rounds: Mapping[str, list[int]],
) -> list[str]:
    """Return the settings of a run after a request, with what it means for claims of a race.

    Args:
        asked: The request.
        settings: Those before.
        command: The command that they are of.
        configs: What they make; and the same without what a race has decided, which stays its own.
        standing: As for `with_entries`.
        jobs: The jobs that they make.
        rounds: See `rounds_of`.

    Raises:
        ConfigError: The request does not fit the run.
    """
    before, asked_for = configs
    after = settings_after(asked, settings, asked_for if asked.verb in ("add", "clone") else before, jobs, rounds)
    if before.experiment.race is None:
        return after
    return with_entries(after, asked_for, composed(command, after), standing)


def matching(typed: str, chains: Mapping[str, str]) -> list[str]:
    """Return the chains that a user means: all of an algorithm, or one.

    Raises:
        ConfigError: There is none.
    """
    algos = {*chains.values(), *(point_of(algo)[0] for algo in chains.values())}
    if typed in algos:
        return [chain for chain, algo in chains.items() if typed in (algo, point_of(algo)[0])]
    return [find_named(list(chains), typed, "chain")]


def _stops(
    asked: Asked, config: Config, chains: Mapping[str, str], rounds: Mapping[str, list[int]]
) -> dict[str, int]:
    last_rounds, total = dict(config.experiment.last_rounds), config.rounds_of_training
    stopped = [name for name in last_rounds if f"/{name}".endswith(f"/{asked.chain.strip('/')}")]
    if asked.verb == "resume":
        if not last_rounds:
            raise ConfigError(f"resume {asked.chain}: no chain of this run was stopped")
        places = dict.fromkeys(chain.rpartition("/")[0] for chain in chains)
        known = [*last_rounds, *(f"{place}/{name}" for name in last_rounds if "/" not in name for place in places)]
        names = stopped or [find_named(list(dict.fromkeys(known)), asked.chain, "stopped chain")]
        left = {name: last for name, last in last_rounds.items() if name not in names}
        return left | {name: total for name in names if _is_apart(name, left)}
    changed = False
    for chain in [] if stopped and asked.chain not in chains.values() else matching(asked.chain, chains):
        done, begun = rounds.get(chain, [0, 0])
        before = last_rounds.get(chain, last_rounds.get(chains[chain], total))
        last = begun if asked.after_round else done
        if last < before:
            _refuse_needed(chain, chains, last, config)
            last_rounds[chain], changed = last, True
    if not changed:
        raise ConfigError(f"stop {asked.chain}: nothing of it is left to do, or it was stopped already")
    return last_rounds


def _is_apart(name: str, last_rounds: Mapping[str, int]) -> bool:
    """Return whether a chain is excepted from a last round of its algorithm, as the clone of one chain is."""
    _, is_chain, algo = name.rpartition("/")
    return bool(is_chain) and any(of in last_rounds for of in (algo, point_of(algo)[0]))


def _refuse_needed(chain: str, chains: Mapping[str, str], last: int, config: Config) -> None:
    """Refuse to stop a chain whose rounds others of its place need.

    Raises:
        ConfigError: There are such.
    """
    place, own = chain.rpartition("/")[0], chains[chain]
    for other, algo in chains.items():
        source, shared = continued_from(config.algos[algo])
        is_taken = own in taken_from(config.algos[algo]).values() and last == 0
        if other.rpartition("/")[0] == place and ((source == own and last < shared) or is_taken):
            raise ConfigError(f"stop {chain} after round {last}: {other} starts from a later one; stop that first")


_SETTING = re.compile(r"(\+{0,2}[A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)
_ADDS = (
    *("algos", "dataset", "model", "experiment.seeds", "rounds_of_training"),
    *("evaluation.on", "evaluation.also", "evaluation.num_"),
)
_GROWS = ("evaluation.num_prompts", "evaluation.num_samples")


def _key(word: str) -> str:
    match = _SETTING.fullmatch(word)
    return match[1].lstrip("+") if match else ""


def _with(settings: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Return settings with other values; an empty table is left out."""
    kept = [word for word in settings if _key(word) not in values]
    return [*kept, *overrides_of({key: value for key, value in values.items() if value != {}})]


def without_race(settings: Sequence[str], decided: Mapping[str, Any]) -> list[str]:
    """Return the settings of a race as plain ones, which say what it has decided."""
    kept = [word for word in settings if not _key(word).startswith("experiment.race")]
    return [*_with(kept, decided), "experiment.race=null"]


def _added(settings: Sequence[str], config: Config, words: Sequence[str]) -> list[str]:
    good, faults = load.read_settings(load.as_meant(words))
    refuse_all(faults)
    values: dict[str, Any] = {}
    others: list[str] = []
    for word in good:
        key, value = _key(word), _SETTING.fullmatch(word)
        if not key or value is None:
            raise ConfigError(f"add {brief(word)}: settings are written KEY=VALUE")
        if not key.startswith(_ADDS):
            raise ConfigError(f"add {brief(word)}: add takes {', '.join(_ADDS)}..., and no other settings")
        if key in _GROWS:
            raise ConfigError(f"add {key}: `pipeline evaluate NAME --prompts N --samples N` does that")
        new = yaml.safe_load(value[2]) if key in ("algos", "dataset", "model") or value[2][:1] == "[" else None
        before = values.get(key, _value(config, key))
        if isinstance(before, list) and new is not None:
            more = [one for one in (new if isinstance(new, list) else [new]) if one not in before]
            if not more:
                raise ConfigError(f"add {word}: the run has that already")
            values[key] = [*before, *more]
            continue
        if key == "rounds_of_training":
            total = yaml.safe_load(value[2])
            if not isinstance(total, int) or total <= before:
                raise ConfigError(f"add {word}: a new total, and the run has {before} already")
            ends = config.experiment.last_rounds
            longer = {name: total for name, last in ends.items() if last == before and _is_apart(name, ends)}
            values |= {"experiment.last_rounds": {**ends, **longer}} if longer else {}
        others.append(word)
    kept = [word for word in settings if _key(word) not in {_key(other) for other in others}]
    return [*_with(kept, values), *others]


def _value(config: Config, key: str) -> Any:
    """Return the plain value of a setting; for a group the chosen files."""
    if key == "algos":
        own = {name: algo for name, algo in config.algos.items() if algo.enabled and algo.class_path is None}
        return list(dict.fromkeys(point_of(name)[0] for name in own))
    if key in ("dataset", "model"):
        sections: Mapping[str, Any] = config.datasets if key == "dataset" else config.models
        files = choices_of(key)
        return [name for name, own in sections.items() if name in files and getattr(own, "trained_on", True)]
    return value_at(to_plain(config), key)


def _cloned(asked: Asked, settings: Sequence[str], config: Config, chains: Mapping[str, str]) -> list[str]:
    chosen = matching(asked.chain, chains)
    source, name = chains[chosen[0]], asked.name
    taken = [*config.algos, *ALGORITHMS]
    if name in taken or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,99}", name):
        raise ConfigError(f"clone --as {brief(name)}: give it a plain name that no algorithm has")
    algo = config.algos[source]
    own = {
        f"algos.{name}.{key}": value
        for key, value in _leaves(_differing(algo)).items()
        if key not in ("enabled", "class_path", "continues")
    }
    path = algo.class_path or ALGORITHMS[point_of(source)[0]]
    own = {f"algos.{name}.class_path": path.replace(":", "."), **own}
    if asked.from_round:
        own[f"algos.{name}.continues"] = f"{source}@{asked.from_round}"
    stops = dict(config.experiment.last_rounds)
    if any(of == source and chain not in chosen for chain, of in chains.items()):
        # Nor is it to run on seeds that come later.
        own_chains = [f"{chain.rpartition('/')[0]}/{name}" for chain in chosen if chains[chain] == source]
        stops |= {name: 0, **dict.fromkeys(own_chains, config.rounds_of_training)}
    wrong = [word for word in asked.words if not _key(word).startswith(f"algos.{name}.")]
    if wrong:
        raise ConfigError(f"clone {brief(wrong[0])}: settings of a clone are algos.{name}.KEY=VALUE")
    typed = {_key(word) for word in asked.words}
    own = {key: value for key, value in own.items() if key not in typed}
    return [*_with(settings, {**own, "experiment.last_rounds": stops}), *asked.words]


def _differing(algo: AlgoConfig) -> dict[str, Any]:
    default = default_values(type(algo))
    return {key: value for key, value in to_plain(algo).items() if value != default.get(key)}


def _leaves(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a table by dotted key."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and value and all(re.fullmatch(r"[A-Za-z_]\w*", str(one)) for one in value):
            found |= _leaves(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def composed(command: Sequence[str], settings: Sequence[str]) -> Config:
    """Compose the configuration of a command's run with other settings.

    Raises:
        ConfigError: The settings are wrong.
    """
    own = [*settings]
    if "--config-dir" in command[:-1]:
        folder = Path(command[command.index("--config-dir") + 1]).absolute()
        own += overrides_of({"hydra.searchpath": [f"file://{folder}"]})
    return load.load_config(own)


def command_after(command: Sequence[str], before: Sequence[str], settings: Sequence[str]) -> list[str]:
    """Return the words of the one command that computes what a run has become."""
    return [*(word for word in command if word not in before), *settings]


def check_unchanged(before: Mapping[str, Job], plan: Plan, in_race: Asked | None = None) -> None:
    """Refuse a plan that would compute something else under the name of a job.

    Args:
        before: The jobs so far.
        plan: The plan.
        in_race: The request to a race that makes this plan.

    Raises:
        ConfigError: It would.
    """
    changed = [job for job in plan.jobs.values() if job.id in before and before[job.id].key != job.key]
    if changed and in_race is not None and in_race.verb == "stop":
        raise ConfigError(
            f"{in_race}: what it has shown in a round that it has not finished counts for others already, and "
            f"{changed[0].id} would change. --after-round lets it finish that round"
        )
    if changed:
        raise ConfigError(
            f"this would change {changed[0].id}, and {len(changed):,} jobs in all, as settings, data or code are "
            "others now. Start an experiment of another name for that"
        )


def check_kept(before: Iterable[Job], plan: Plan) -> None:
    """Refuse a plan without some chain.

    Raises:
        ConfigError: A chain that the run has is missing.
    """
    chains = chains_of(plan.jobs.values())
    if gone := [chain for chain in chains_of(before) if chain not in chains]:
        raise ConfigError(f"this would leave out {gone[0]}, {len(gone):,} chains in all: `pipeline stop` ends one")


def check_follows(asked: Asked, before: Config, jobs: Mapping[str, Job], request: Request) -> None:
    """Refuse a request after which a run would not go on as it was, but for what was asked.

    Args:
        asked: The request.
        before: Configuration of the run before it.
        jobs: The jobs before it.
        request: What the run would be.

    Raises:
        ConfigError: It would not; or it resumes a chain that a race stops again.
    """
    check_unchanged(jobs, request.plan, None if before.experiment.race is None else asked)
    if asked.verb != "stop":
        check_kept(jobs.values(), request.plan)
    if asked.verb == "resume" and before.experiment.last_rounds == request.config.experiment.last_rounds:
        again = "the race would stop it again; `pipeline command` prints a command without the race"
        raise ConfigError(f"resume {asked.chain}: {again}")


# -- the engine's side -------------------------------------------------------------------------------------------


class Steered:
    """Answers the requests to a run in the process of its engine.

    Attributes:
        request: The request that the run carries out by now.
    """

    def __init__(
        self, request: Request, run: RunFolder, verified: Verified, on_change: Callable[[Request, Stored], None]
    ) -> None:
        """Begin with what the run was started for.

        Args:
            request: That request.
            run: Folder of the run.
            verified: Notes on which outputs are intact.
            on_change: Called once another plan is written, and before it is followed.
        """
        self.request = self._begun = request
        self._run, self._verified, self._on_change = run, verified, on_change
        self._levels: dict[str, int] = {}
        self._devices = list(request.used_devices)
        self._back: set[int] = set()  # those to give back, of which others may have some
        self._released: set[int] = set()  # those that others may have
        self._next: tuple[Request, Stored, dict[str, int]] | None = None
        self._done: set[str] = set()
        self._raced: Request | None = None
        self._number = 0
        self._looks: list[list[str]] = []

    def next_change(self, state: RunState) -> Change | None:
        """Return the answer to the oldest request, or what a race decides."""
        return self._requested(state) or self._decided(state)

    def _decided(self, state: RunState) -> Change | None:
        """Return what a race decides once all outputs of a look are there."""
        before, standing = self.request, self.request.standing
        if standing is None or not standing.racing:
            return None
        if self._raced is not before:
            self._raced, self._looks = before, standing.waits_for(before.plan)
        ready = [jobs for jobs in self._looks if all(state.jobs[job_id].status in THERE for job_id in jobs)]
        if not ready:
            return None
        self._looks = [jobs for jobs in self._looks if jobs not in ready]  # each is judged once
        change = Change(request=f"race-{self._number}", text="look", by=RACE)
        self._number += 1
        try:
            request = _prepared(before)
            assert request.standing is not None
            if (request.standing.looks, request.standing.racing) == (standing.looks, standing.racing):
                return None  # an output that cannot be read; the next run makes it again
            change = replace(change, text=request.standing.since(standing))
            return self._with(change, request, state)
        except PipelineError as error:
            return replace(change, reason=str(error))

    def _requested(self, state: RunState) -> Change | None:
        try:
            names = sorted(entry.name for entry in os.scandir(folder_of(self._run)))
        except OSError:
            return None
        name = next((name for name in names if _FILE.fullmatch(name) and name not in self._done), None)
        if name is None:
            return None
        self._done.add(name)  # even if it cannot be removed
        path = folder_of(self._run) / name
        by = text = ""
        try:
            asked, by = _read(path)
            text = str(asked)
            change = self._answer(Change(request=path.stem, text=text, by=by), asked, state)
        except (PipelineError, ForeignDataError, OSError) as error:
            change = Change(request=path.stem, text=text or "a request", by=by or "unknown", reason=str(error))
        except Exception as error:  # a request must not end the run
            log.exception("this is a fault of the program, not of the request; please report it")
            change = Change(request=path.stem, text=text, by=by, reason=f"{type(error).__name__}: {error}")
        with suppress(OSError):
            path.unlink()
        return change

    def _answer(self, change: Change, asked: Asked, state: RunState) -> Change:
        before, jobs, levels = self.request, state.plan.jobs, dict(self._levels)
        if asked.verb == "devices":
            return self._other_devices(change, asked.words, state)
        if asked.verb == "priority":
            if asked.words[:1] and asked.words[0] in LEVELS:
                levels |= dict.fromkeys(matching(asked.chain, chains_of(jobs.values())), LEVELS[asked.words[0]])
            else:
                raise ConfigError(f"priority {asked.chain}: must be one of {', '.join(LEVELS)}")
            request = before
        else:
            there = {job_id for job_id, one in state.jobs.items() if one.status in THERE}
            running = {job_id for job_id, one in state.jobs.items() if one.status is JobStatus.running}
            standing, configs = before.standing, (before.config, before.asked or before.config)
            rounds = rounds_of(jobs, there, running, standing.racing if standing else None)
            settings = settings_of_run(asked, before.given, before.command, configs, standing, jobs, rounds)
            request = _prepared(before, settings)
            check_follows(asked, before.config, jobs, request)
        return self._with(change, request, state, levels)

    def _with(
        self, change: Change, request: Request, state: RunState, levels: Mapping[str, int] | None = None
    ) -> Change:
        """Return a change to the plan of a request; `levels` are priorities of chains, if they change, too."""
        levels = dict(self._levels if levels is None else levels)
        check_unchanged(state.plan.jobs, request.plan)
        stored = requests.look_up(request, self._verified.problem)  # what a shared store has is made here
        there_now = request.plan.jobs.keys() - set(stored.missing)
        peaks = read_peaks(request.store.root)
        reactions.check_runnable(request.plan, state.layout, there_now, peaks, state.usable_devices())
        self._next = request, stored, levels
        return replace(change, plan=_leveled(request.plan, levels), missing=stored.missing)

    def _other_devices(self, change: Change, words: Sequence[str], state: RunState) -> Change:
        """Return a change of devices; those that come are leased by then.

        Raises:
            PipelineError: It is not possible.
        """
        request, execution = self.request, self.request.execution
        if execution.backend is Backend.inline:
            raise ConfigError("the devices of this run stay: jobs run in the engine's process (inline)")
        known, come, back = list(self._devices), list[int](), list[int]()
        for word in words:
            if not re.fullmatch(r"[+-][\w-]+", word):
                raise ConfigError(f"{brief(word)}: +1 takes a device, and -3 gives one back")
            own = [device for at, device in enumerate(known) if at not in self._back]
            if word[0] == "-":
                back.append(known.index(select.named(word[1:], own)))
                continue
            device = select.more_of(word[1:], known, os.environ)
            if device in own:
                raise ConfigError(f"the run has {device.label} already")
            known += [] if device in known else [device]
            come.append(known.index(device))
        if len({*come, *back}) < len(words):
            raise ConfigError("a device is named twice")
        new = [at for at in come if at not in self._back - self._released]
        gone = self._back.difference(come).union(back)
        waiting = set(state.waiting_devices())
        if execution.backend is Backend.ray:
            waiting.update(new)
            self._place_on_ray(known, new, gone)
        left = [at for at in state.usable_devices() if at not in back] + come
        if not waiting.issuperset(back):  # none that takes jobs goes for the sake of one that may never do
            left = [at for at in left if at not in waiting]
        if not left:
            waits = ", ".join(known[at].label for at in sorted(waiting - gone))
            remedy = "`pipeline stop` ends chains, Ctrl-C the run. Or take another one first, as +1"
            why = f"{waits} must have room on the Ray cluster first" if waits else remedy
            raise ConfigError(f"the last device that takes jobs cannot be given back: {why}")
        places = dict(enumerate(state.layout.places))
        places |= {at: select.make_layout([known[at]], execution).places[0] for at in new}
        if back:  # running jobs keep what they have
            over = [job for job, one in state.jobs.items() if one.status in (*SETTLED, JobStatus.running)]
            layout = replace(state.layout, places=tuple(places.values()))
            reactions.check_runnable(state.plan, layout, over, read_peaks(request.store.root), left)
        if new and request.lease is not None:
            name, gpus = request.config.experiment.name, [known[at] for at in new]
            request.lease.add(select.LeaseSet.acquire(gpus, experiment=name, how_to_wait=""))
        self._devices, self._back = known, gone
        self._released.difference_update(come)
        return replace(change, come={at: (known[at], places[at]) for at in come}, back=back)

    def _place_on_ray(self, known: list[inventory.Device], new: Collection[int], gone: set[int]) -> None:
        """Put devices that come on a node of their own number, if the cluster has room for them.

        Args:
            known: All devices that the run has or had, and is to have.
            new: Those of them that come.
            gone: Those that are given back.

        Raises:
            PipelineError: The cluster has no such devices, or keeps some together.
        """
        from pipeline.engine.workers.on_ray import check_room  # most runs have no use for it

        node = 1 + max(device.node for device in known)
        held = self._back - self._released
        for at in new:
            beside = {other for other in held if known[other].node == known[at].node}
            if not beside or beside & gone:  # else its group is still there, with all that come back to it
                known[at] = replace(known[at], node=node)
        # A placement group holds all its devices until the last one is given back.
        together = any(job.devices > 1 for job in self._begun.plan.jobs.values())
        for group in {device.node for device in known} if together else ():
            own = [at for at, device in enumerate(known) if device.node == group]
            if 0 < len({*own} & {*gone}) < len(own):
                labels = ", ".join(known[at].label for at in own)
                raise ConfigError(f"{labels}: Ray keeps these together; give back all or none of them")
        if new:
            kept = [device for at, device in enumerate(known) if at not in gone]
            begun, threads = self._begun.used_devices, self._begun.config.system.cpu_threads
            check_room(self._begun.execution, threads, kept, begun, together=together)

    def gave_back(self, device: int) -> None:
        """Let other runs have a device."""
        self._released.add(device)
        if self.request.lease is not None:
            self.request.lease.give_back(self._devices[device])

    def begin(self) -> None:
        """Write down what the run carries out from now on."""
        assert self._next is not None
        request, stored, levels = self._next
        if request is not self.request:
            try:
                write_request(self._run, request, stored)
            except OSError as error:
                raise StoreError(f"{error.strerror}: {error.filename or self._run.path}") from error
        self.request, self._levels, self._next = request, levels, None
        self._on_change(request, stored)


def _prepared(before: Request, settings: Sequence[str] | None = None) -> Request:
    """Return a request again, with other settings if these are given, on the devices of the one before.

    Raises:
        PipelineError: The settings are wrong, or the run cannot be changed.
    """
    given, command = before.given, before.command
    config = before.asked or before.config
    if settings is not None:
        if not command or not given:
            raise ConfigError("no command with settings has started this run, which is what a request changes")
        config = composed(command, settings)
        given, command = tuple(settings), tuple(command_after(command, given, settings))
    request = requests.prepare(config, given, devices=before.devices)
    return replace(
        request,
        warnings=tuple(dict.fromkeys([*before.warnings, *request.warnings])),
        label=before.label,
        command=command,
        on_begin=before.on_begin,
        lease=before.lease,
        shared=before.shared,
    )


def _leveled(plan: Plan, levels: Mapping[str, int]) -> Plan:
    """Return a plan in which chains have priorities."""
    if not levels:
        return plan
    jobs = [
        replace(job, priority=job.priority + _LEVEL * levels.get(_chain_of(job), 0)) for job in plan.jobs.values()
    ]
    return Plan(jobs, plan.edges())


def write_request(run: RunFolder, request: Request, stored: Stored) -> None:
    """Write the plan of a run that goes on with another request, which says all, and then its other files.

    Raises:
        OSError: The plan cannot be written.
    """
    there = request.plan.jobs.keys() - set(stored.not_here)
    config = yaml.safe_dump(to_plain(request.config), sort_keys=False)
    become = recorded.Become(command=list(request.command), settings=list(request.given), config=config)
    write_whole(
        run.plan, recorded.plan_text(request.plan, stored=there, keep=request.config.execution.keep, become=become)
    )
    try:
        write_whole(run.config, config)
        write_standing(run, request)
        made = origin.read_origin(run.path)
        origin.write_origin(run.path, replace(made, command=list(request.command), settings=list(request.given)))
        origin.link_stored(run, request.store, [request.plan.jobs[job_id] for job_id in there])
    except OSError as error:
        log.warning("%s: %s; plan.json alone says what the run has become", error.filename, error.strerror)


def write_standing(run: RunFolder, request: Request) -> None:
    """Write what a race has decided, if a request is one.

    Raises:
        OSError: It cannot be written.
    """
    if request.standing is not None:
        race.write_standing(run, request.standing)
