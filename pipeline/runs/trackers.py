"""Tell trackers (TensorBoard, trackio, wandb) of a run, from its files and never in its way.

    engine --> journal, plan, outputs --> `feeder`, a process for each tracker --> the tracker
       |                                     ^      |
       '---- start, the end is near, kill ---'      '--> a note of what it was told, in the order in which it was

Our files are the record: a tracker can be told anew what it has lost, and is told nothing twice. Nothing that
happens in these processes reaches the run but a warning; packages of trackers are imported there alone.
"""

import hashlib
import json
import os
import re
import select
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.config.schema import TrackingConfig, TrackingMode
from pipeline.engine.devices.inventory import is_of_other_run
from pipeline.engine.journal import whole_lines
from pipeline.engine.run_folder import RunFolder
from pipeline.errors import WorkerError, install_command
from pipeline.files import json_text, open_plain, remove_tree
from pipeline.foreign import ForeignDataError, read_json
from pipeline.machine.children import Child, end
from pipeline.plan.graph import Job
from pipeline.runs.report.format import command, shown_path
from pipeline.terminal.streams import printable

ROUND, STEP = "round", "train/step"
"""Axes of curves: rounds for numbers of a round, steps for those of trainings."""
COLUMNS = ("round", "prompt", "completion", "reward", "correct")
Shown = Mapping[str, str | float | None]
"""A completion with the fields `COLUMNS`."""


@dataclass(frozen=True, kw_only=True)
class TrackedChain:
    """A chain as trackers know it.

    Attributes:
        id: Id of the chain with these settings: the same in every run of the experiment, however many rounds it
            asks for; another where a setting that can change a result is another.
        name: ``ALGO/dataset/model/s0``, for people.
        experiment: Experiment of the chain.
        settings: Settings that its results depend on, as ``algo.eta``; plain values.
        jobs: Jobs of the chain, in the order of the plan.
    """

    id: str
    name: str
    experiment: str
    settings: Mapping[str, str | float | bool]
    jobs: tuple[Job, ...]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Data of one output for trackers.

    Attributes:
        id: Id of the output, whose content never changes.
        round: Round of the chain.
        time: When the output was made, in seconds since 1970.
        axis: `ROUND` or `STEP`.
        rows: Places on the axis, with name -> number, in order; steps count from the chain's first.
        samples: Texts that can be printed and are not long.
    """

    id: str
    round: int
    time: float
    axis: str
    rows: Sequence[tuple[int, Mapping[str, float]]]
    samples: Sequence[Shown] = ()


@dataclass(frozen=True, kw_only=True)
class TrackerPlace:
    """Place of a tracker's data.

    Attributes:
        folder: Folder of the tracker, for an experiment or for all of a folder of outputs.
        project: Name of the project.
        entity: Owner of the project; None for the account that is logged in.
        is_online: Whether it may use the network.
    """

    folder: Path
    project: str
    entity: str | None = None
    is_online: bool = False

    @property
    def notes_dir(self) -> Path:
        """Return the folder for notes on what was sent, one for each project."""
        identity = json.dumps([self.project, self.entity, self.is_online])
        return self.folder / ".told" / hashlib.sha256(identity.encode()).hexdigest()[:8]


# -- trackers ----------------------------------------------------------------------------------------------------
# Each has a chain: its batches are all added again, from the first one on, whenever it is begun. `add` takes a
# batch that has rows or samples, and how many rows of the chain were before it when they were first told; after
# `close` all that was added is kept. `package` is what it imports, `folder` its folder below that of all
# experiments (``{}`` is the experiment), `look` what a user types to see it, `environment` that of its process.


class TensorBoard:
    """Events of a chain, in a new file each time: after a kill nobody knows how much of the last one counts."""

    package = "tensorboardX"
    folder = "{}/tracking/tensorboard"
    look = "tensorboard --logdir {folder}"
    environment: Mapping[str, str] = {}
    _odd = re.compile(r"[^\w.@=+-]")

    def __init__(self, place: TrackerPlace, chain: TrackedChain, name: str) -> None:
        # tensorboardX imports torch where there is one, which takes seconds; nothing here needs it.
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
        from tensorboardX import SummaryWriter

        # No part is empty or a folder above; what is no letter would be one to some system.
        parts = [self._odd.sub("_", part).lstrip(".") or "_" for part in name.split("/")]
        folder = place.folder.joinpath(*parts)
        for path in folder.glob("*tfevents*"):
            path.unlink()
        # From step 0 on: a TensorBoard that is open forgets what it had read.
        self._writer: Any = SummaryWriter(str(folder), purge_step=0)
        self._settings = json.dumps(chain.settings, indent=1)

    def add(self, batch: Batch, _first_row: int, /) -> None:
        """Tell a batch."""
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import text

        write = self._writer.file_writer.add_summary  # `add_scalar` would rewrite names as `pass@1`
        if self._settings:
            write(text("settings", _literal(self._settings)), 0, batch.time)
            self._settings = ""
        for at, values in batch.rows:
            numbers = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            write(Summary(value=numbers), at, batch.time)
        if batch.samples:
            write(text("samples", "\n\n".join(map(_in_words, batch.samples))), batch.round, batch.time)
        self._writer.flush()

    def close(self) -> None:
        """Flush the writer."""
        self._writer.close()


def _in_words(sample: Shown) -> str:
    """Return a sample as Markdown that shows its texts literally."""
    scores = ", ".join(
        f"{name} {sample[name]:g}" for name in ("reward", "correct") if sample.get(name) is not None
    )
    prompt, completion = (_literal(str(sample[name])) for name in ("prompt", "completion"))
    return "\n\n".join([f"**{scores or 'sample'}**", prompt, "*answered*", completion])


def _literal(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))


class Trackio:
    """Rows of trackio's database, each with an id by which trackio takes it once.

    Through what its server writes with: `trackio.init` would start that.
    """

    package = "trackio"
    folder = ".trackio"
    look = "TRACKIO_DIR={folder} trackio show --project {project}"
    environment: Mapping[str, str] = {
        "TRACKIO_DIR": "{folder}",
        "TRACKIO_SQLITE_SYNCHRONOUS": "FULL",  # a transaction is on disk before the next one
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }

    def __init__(self, place: TrackerPlace, chain: TrackedChain, name: str) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        SQLiteStorage.validate_project_name(place.project)
        self._storage, self._project, self._chain, self._name = SQLiteStorage, place.project, chain, name

    def add(self, batch: Batch, _first_row: int, /) -> None:
        """Tell a batch."""
        rows: list[dict[str, Any]] = [dict(values) for _, values in batch.rows]
        places, ids = [at for at, _ in batch.rows], [str(number) for number in range(len(rows))]
        if batch.samples:
            from trackio.table import Table

            rows.append({"samples": {"_type": Table.TYPE, "_value": [dict(sample) for sample in batch.samples]}})
            places.append(batch.round)
            ids.append("samples")
        when = datetime.fromtimestamp(batch.time, UTC).isoformat()
        self._storage.bulk_log(
            project=self._project,
            run=self._name,
            run_id=self._chain.id,
            metrics_list=rows,
            steps=places,
            timestamps=[when] * len(rows),
            log_ids=[f"{self._chain.id}-{batch.id}-{own}" for own in ids],
            # What begins with an underscore is trackio's own, which its `init` would write.
            config={**self._chain.settings, "_Username": None, "_Created": when, "_Group": self._chain.experiment},
        )

    def close(self) -> None:
        """Do nothing: each batch was a transaction, forced to disk."""


class Wandb:
    """A run of wandb: offline a new file each time; online it says how many rows it has, and is told the others.

    The steps of wandb number the rows as they were first sent, since it takes no row with a smaller one. What
    numbers are drawn over are the rounds, and the steps of trainings.
    """

    package = "wandb"
    folder = "{}/tracking/wandb"
    look = "wandb sync {folder}/offline-run-*"
    environment: Mapping[str, str] = {
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        # Copies of tables, which a later `wandb sync` needs.
        "WANDB_DATA_DIR": "{folder}/.data",
        "WANDB_CACHE_DIR": "{folder}/.data",
    }

    def __init__(self, place: TrackerPlace, chain: TrackedChain, name: str) -> None:
        if not place.is_online:
            for earlier in place.folder.glob(f"offline-run-*-{chain.id}"):
                remove_tree(earlier)
        resume = {"resume": "allow"} if place.is_online else {}
        settings = dict(chain.settings)
        self._run = _wandb_run(place, id=chain.id, name=name, group=chain.experiment, config=settings, **resume)
        self._has = int(self._run.step) if self._run.resumed else 0
        for axis, parts in {STEP: ("train",), ROUND: ("eval", "interval", "time")}.items():
            self._run.define_metric(axis, hidden=True)  # it is no chart of its own
            for part in parts:
                self._run.define_metric(f"{part}/*", step_metric=axis)

    def add(self, batch: Batch, first_row: int, /) -> None:
        """Tell a batch."""
        common, axis = {ROUND: batch.round, "_timestamp": batch.time}, batch.axis
        rows: list[dict[str, Any]] = [{**values, **common, axis: at} for at, values in batch.rows]
        if batch.samples and rows:
            from wandb import Table

            cells = [[sample[name] for name in COLUMNS] for sample in batch.samples]
            rows[-1]["samples"] = Table(columns=list(COLUMNS), data=cells)
        for step, values in enumerate(rows, first_row):
            if step >= self._has:
                self._run.log(values, step=step)

    def close(self) -> None:
        """Finish the run of wandb for now."""
        self._run.finish()


def _wandb_run(place: TrackerPlace, *, sweep_id: str | None = None, **options: Any) -> Any:
    """Return a run of wandb with rows and settings only, without console output or system metrics."""
    import wandb

    off = ("silent", "disable_code", "disable_git", "x_disable_machine_info", "x_disable_meta", "x_disable_stats")
    settings: dict[str, Any] = {**dict.fromkeys(off, True), "console": "off", "x_save_requirements": False}
    if sweep_id is not None:
        settings["sweep_id"] = sweep_id
    return wandb.init(
        dir=str(place.folder.parent),  # to which wandb adds `wandb`
        mode="online" if place.is_online else "offline",
        reinit="create_new",
        settings=wandb.Settings(**settings),
        **{"project": place.project, "entity": place.entity, **options},
    )


TRACKERS: Mapping[str, type[TensorBoard] | type[Trackio] | type[Wandb]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": Wandb,
}


# -- a trial of W&B's agent ------------------------------------------------------------------------------------
# WANDB_SWEEP_ID, WANDB_RUN_ID    of the agent: the run that the sweep waits for
# the run's own file of values    a line for each round: what a trial is judged by, written by the run
# the process of the tracker      tells that run these lines; chains are runs of their own, in the same group


@dataclass(frozen=True, kw_only=True)
class SweepTrial:
    """Facts on a trial from W&B's agent.

    Attributes:
        id: Id of its run.
        sweep: Id of the sweep.
        project: Project of the sweep; None if unknown.
        entity: Owner of that project.
    """

    id: str
    sweep: str
    project: str | None = None
    entity: str | None = None

    def begin(self, place: TrackerPlace, experiment: str) -> Any:
        """Return the run that reports this trial to the sweep; it has `log` and `finish`."""
        of = {"project": self.project or place.project, "entity": self.entity or place.entity}
        return _wandb_run(place, sweep_id=self.sweep, id=self.id, group=experiment, **of)


def sweep_trial(environment: Mapping[str, str] | None = None) -> SweepTrial | None:
    """Return the trial of a process, from its environment; None if no agent of W&B has started it."""
    variables = os.environ if environment is None else environment
    run, sweep = variables.get("WANDB_RUN_ID"), variables.get("WANDB_SWEEP_ID")
    if not run or not sweep:
        return None
    return SweepTrial(
        id=run, sweep=sweep, project=variables.get("WANDB_PROJECT"), entity=variables.get("WANDB_ENTITY")
    )


def own_runs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which every ``wandb.init`` is a run of its own, with the sweep's parameters."""
    keeps = {"WANDB_SWEEP_PARAM_PATH"} if sweep_trial(environment) is not None else set()
    return {name: value for name, value in environment.items() if name in keeps or not is_of_other_run(name)}


def values_file(run: Path) -> Path:
    """Return the file in a run's folder with the values by which it is judged."""
    return run / "tracking" / "sweep.jsonl"


def leave_values(run: Path, number: int, values: Mapping[str, float]) -> None:
    """Leave what a round has reached; a full disk costs the sweep that, and the run nothing."""
    with suppress(OSError):
        path = values_file(run)
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(json_text({**values, ROUND: number}) + "\n")


def left_values(run: Path) -> list[dict[str, float | None]]:
    """Return the values that the rounds have reached so far, each with its ``round``."""
    values: list[dict[str, float | None]] = []
    with suppress(OSError, ForeignDataError, json.JSONDecodeError), open_plain(values_file(run)) as file:
        values.extend(read_json(line, dict[str, float | None]) for line in whole_lines(file))
    return values


# -- their processes ---------------------------------------------------------------------------------------------


_MODULE = "pipeline.runs.feeder"
_LONGEST = 1 << 16
"""Bytes of what a process says at most."""
_SEND_S = 1.0
_WAIT_S = 3600.0
"""Seconds of one wait at most, as the system takes no longer ones."""
Warn = Callable[[str], None]


class Feeders:
    """The processes of all trackers of a run.

    Attributes:
        look_commands: Tracker that was told everything -> command to look at it.
    """

    def __init__(self, run: RunFolder, tracking: TrackingConfig, warn: Warn) -> None:
        """Start them; what is not installed is warned of.

        Args:
            run: The run; it has its plan.
            tracking: Settings of tracking.
            warn: Takes warnings in words.
        """
        self.look_commands: dict[str, str] = {}
        self._run, self._warn = run, warn
        self._live: dict[str, Child] = {}
        self._places: dict[str, TrackerPlace] = {}
        for name in dict.fromkeys(tracker.value for tracker in tracking.report_to):
            try:
                if find_spec(TRACKERS[name].package) is None:
                    self._tell(name, f"it is not installed: {install_command(name)}")
                else:
                    self._start(name, tracking)
            except OSError as error:
                self._tell(name, f"it could not be started ({error.strerror or error})")

    def look(self) -> None:
        """Hear what they say, without waiting."""
        for name, child in list(self._live.items()):
            try:  # the one thing that it says, at its end: why that is early, or null if all is told
                problems = [read_json(line, dict[str, str | None])["problem"] for line in child.channel.receive()]
            except (ForeignDataError, WorkerError, OSError, KeyError):
                problems = ["its process says what cannot be understood"]
            if problems:
                self._over(name, problems[0])
            elif child.channel.closed:
                self._over(name, "its process has ended")

    def finish(self, timeout_s: float, interrupted: int = -1) -> None:
        """Have them tell the rest, and end them.

        Args:
            timeout_s: Seconds that this may take.
            interrupted: A descriptor that is readable when nobody is to wait any more; -1 for none.
        """
        for child in self._live.values():
            with suppress(OSError):  # it is gone, which is heard below
                child.channel.send(b"end")
        give_up, is_interrupted = time.monotonic() + timeout_s, False
        while self._live and not is_interrupted and (remaining_s := give_up - time.monotonic()) > 0:
            is_interrupted = self._wait(remaining_s, interrupted)
            self.look()
        for name in self._live if not is_interrupted else ():
            self._tell(name, f"it takes longer than tracking.finish_timeout_s={timeout_s:g} to take the rest")
        self.end()

    def end(self) -> None:
        """End them at once, with all that they have started."""
        live, self._live = list(self._live.values()), {}
        end(live)
        for child in live:
            child.wait()

    def _start(self, name: str, tracking: TrackingConfig) -> None:
        place = self._places[name] = _place(name, self._run, tracking)
        logs, trial = self._run.path / "tracking", sweep_trial() if name == "wandb" else None
        settings = {
            "run": str(self._run.path),
            "tracker": name,
            "place": {**asdict(place), "folder": str(place.folder)},
            "samples": tracking.samples,
            "trial": asdict(trial) if trial else None,
        }
        bounds: dict[str, Any] = {"max_bytes": _LONGEST, "send_timeout_s": _SEND_S}
        logs.mkdir(exist_ok=True)
        with (logs / f"{name}.log").open("wb", buffering=0) as output:
            output.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} the process of {name} is started\n".encode())
            environment = _environment(name, place)
            self._live[name] = Child(_MODULE, environment, settings, **bounds, output=output, own_group=True)

    def _over(self, name: str, problem: str | None) -> None:
        child = self._live.pop(name)
        end([child])
        child.wait()
        if problem is None:
            place = self._places[name]
            folder, project = shlex.quote(shown_path(place.folder)), shlex.quote(place.project)
            self.look_commands[name] = TRACKERS[name].look.format(folder=folder, project=project)
        else:
            self._tell(name, printable(problem).rstrip(" ."))

    def _wait(self, seconds: float, interrupted: int) -> bool:
        waiting = [child.channel.fileno() for child in self._live.values()] + [interrupted] * (interrupted >= 0)
        return interrupted in select.select(waiting, [], [], min(seconds, _WAIT_S))[0]

    def _tell(self, name: str, problem: str) -> None:
        """Say what is wrong, and what tells a tracker of this run whichever runs there are by then."""
        words = f"track {shlex.quote(self._run.experiment)} --run {self._run.stamp} --report-to {name}"
        repeat = command(words, self._run.path.parent.parent)
        log = self._run.path / "tracking" / f"{name}.log"
        more = f" Its log: {log}." if log.exists() else ""
        self._warn(
            f"tracking: {name}: {problem}. The run does not need it; `{repeat}` tells it what is missing.{more}"
        )


def _place(name: str, run: RunFolder, tracking: TrackingConfig) -> TrackerPlace:
    return TrackerPlace(
        folder=run.path.parent.parent / TRACKERS[name].folder.format(run.experiment),
        project=tracking.project or run.experiment,
        entity=tracking.entity,
        is_online=tracking.mode is TrackingMode.online,
    )


def _environment(name: str, place: TrackerPlace) -> Mapping[str, str]:
    variables = {key: value.format(folder=place.folder) for key, value in TRACKERS[name].environment.items()}
    offline = {} if place.is_online else {"WANDB_MODE": "offline"}
    return {**own_runs(os.environ), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **variables, **offline}
