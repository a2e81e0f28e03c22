"""What trackers are told: of each chain what they lack, always in the same order, and texts that do no harm."""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan.graph import Job
from pipeline.runs.feeder import BatchReader, Feed, tracked_chains
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.trackers import STEP, Batch, TrackedChain, TrackerPlace, Wandb, own_runs
from tests.doubles.tracked import STEPS, TrackedRun, job_id


class Remembering:
    """A tracker in memory. What it does: ``begin``, ``add STAGE from FIRST_ROW``, ``close``."""

    def __init__(self, run: TrackedRun, *, fails_at: str = "", fails_after: int = 99) -> None:
        self.did: list[str] = []
        self._stage = {job.key: f"{job.stage} {job.round}" for job in run.plan.jobs.values()}
        self._fails_at, self._left = fails_at, fails_after

    def begin(self, chain: TrackedChain, name: str) -> Any:
        self.did.append(f"begin {name}")
        return self

    def add(self, batch: Batch, first_row: int, /) -> None:
        self._left -= 1
        if self._stage[batch.id] == self._fails_at or self._left < 0:
            raise RuntimeError("no")
        self.did.append(f"add {self._stage[batch.id]} from {first_row}")

    def close(self) -> None:
        self.did.append("close")


def feed(run: TrackedRun, tracker: Remembering, told: Path) -> Feed:
    return Feed(LoadedRun(run.folder), tracker.begin, told, 8)


ALL = [
    "begin X/d/m/s0",
    "add train 1 from 0",
    f"add metrics 1 from {STEPS}",
    f"add train 2 from {STEPS + 1}",
    f"add metrics 2 from {2 * STEPS + 1}",
]


@pytest.mark.properties
@given(lives=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=4))
def test_however_often_it_dies_every_row_keeps_its_number(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, int]]
) -> None:
    """In each life some jobs get done, and the tracker dies after so many batches."""
    folder = tmp_path_factory.mktemp("run")
    run, numbers = TrackedRun(folder), dict[str, set[str]]()
    left = [(1, "train"), (2, "train"), (1, "metrics"), (2, "metrics")]
    for jobs, batches in [*lives, (4, 99)]:
        for number, stage in left[:jobs]:
            run.make(number, stage)
        left = left[jobs:]
        tracker = Remembering(run, fails_after=batches)
        with suppress(RuntimeError):
            feed(run, tracker, folder / "told").look()
        for told in tracker.did:
            if told.startswith("add "):
                name, _, row = told.partition(" from ")
                numbers.setdefault(name, set()).add(row)
    assert len(numbers) == 4
    assert all(len(rows) == 1 for rows in numbers.values())
    last = Remembering(run)
    feed(run, last, folder / "told").look()
    assert last.did == [], "everything was told"


@pytest.mark.parametrize("content", ["", "{", '{"a": {"name": 3}}', "[]"])
def test_a_damaged_note_counts_as_none(tmp_path: Path, content: str) -> None:
    run, note = TrackedRun(tmp_path), tmp_path / "told"
    run.make_round(1)
    note.write_text(content)
    tracker = Remembering(run)
    feed(run, tracker, note).look()
    assert tracker.did == ALL[:3]


def test_two_chains_with_one_name_are_called_differently(tmp_path: Path) -> None:
    first, other = TrackedRun(tmp_path / "a"), TrackedRun(tmp_path / "b", eta=2.0)
    for run in (first, other):
        run.make_round(1)
    trackers = [Remembering(first), Remembering(other), Remembering(first)]
    for run, tracker in zip((first, other, first), trackers, strict=True):
        feed(run, tracker, tmp_path / "told").look()
    names = [tracker.did[0].removeprefix("begin ") for tracker in trackers]
    assert names[0] == names[2] == "X/d/m/s0"
    assert names[1].startswith("X/d/m/s0@")


# -- chains and batches ----------------------------------------------------------------------------------------


def chain(path: Path, experiment: str = "x", **of_plan: float) -> TrackedChain:
    [found] = tracked_chains(LoadedRun(TrackedRun(path, **of_plan).folder).plan, experiment)
    return found


def test_more_rounds_go_on_in_the_same_run_and_other_settings_or_experiments_do_not(tmp_path: Path) -> None:
    known = chain(tmp_path / "a", rounds=1)
    assert chain(tmp_path / "b", rounds=3).id == known.id
    assert chain(tmp_path / "c", rounds=1, eta=2.0).id != known.id
    assert chain(tmp_path / "d", experiment="y", rounds=1).id != known.id


def test_a_chain_is_named_by_its_algorithm_first_and_has_its_settings(tmp_path: Path) -> None:
    found = chain(tmp_path)
    assert found.name == "X/d/m/s0"
    assert found.settings == {
        "algo.eta": 1.0,
        "algo.etas": "[1, 2]",
        "chain.algo": "X",
        "chain.dataset": "d",
        "chain.model": "m",
        "chain.seed": 0,
        "training.grad_clip": "inf",
    }


def reader(run: TrackedRun, samples: int = 8) -> BatchReader:
    recorded = LoadedRun(run.folder)
    [chain] = tracked_chains(recorded.plan, "x")
    return BatchReader(chain, recorded.store, samples)


def rounds(*numbers: int) -> Callable[[Job], bool]:
    return lambda job: job.round in numbers


def told(batches: list[Batch]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for batch in batches:
        for at, values in batch.rows:
            for name, value in values.items():
                found.setdefault(name, []).append((at, value))
    return found


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    made = TrackedRun(tmp_path)
    made.make_round(1)
    made.make_round(2)
    return made


def test_what_is_not_known_is_left_out_and_the_methods_own_numbers_are_not(run: TrackedRun) -> None:
    names = told(list(reader(run).new(rounds(1)))).keys()
    assert {"train/policy/kl", "train/policy/tokens", "interval/pass@1/low", "interval/odd/high"} <= names
    assert not {"train/policy/grad_norm", "eval/odd"} & names


def test_samples_are_bounded_and_cannot_move_a_cursor(run: TrackedRun) -> None:
    [_, few] = reader(run, samples=3).new(rounds(1))
    assert len(few.samples) == 3
    prompt = str(few.samples[0]["prompt"])
    assert "\\x1b[2J\\u202e" in prompt
    assert "\x1b" not in prompt
    assert "<script>" in prompt, "a text stays what it is; whoever shows it shows it as text"
    [_, none] = reader(run, samples=0).new(rounds(1))
    assert not none.samples


@pytest.mark.parametrize("content", ["", "{", '{"rows": 3}', "[" * 100_000], ids=["empty", "cut", "other", "deep"])
def test_a_file_that_is_wrong_costs_what_is_in_it(run: TrackedRun, content: str) -> None:
    output = run.store.path(run.plan.jobs[job_id(1, "metrics")].key)
    (output / "metrics.json").write_text(content)
    train, measured = reader(run).new(rounds(1))
    assert train.rows
    assert measured.samples
    assert not measured.rows


# -- test trackers -----------------------------------------------------------------------------------------------
# What wandb is asked for, by something in its place: online it needs a server. Offline: integration.


CHAIN = TrackedChain(id="chain-id", name="X/d/m/s0", experiment="x", settings={"algo.eta": 1.0}, jobs=())
AGENT = {"WANDB_SWEEP_ID": "s", "WANDB_RUN_ID": "r", "WANDB_SWEEP_PARAM_PATH": "/p.yaml", "WANDB_PROJECT": "sums"}


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server that has `step` rows of a run; `asked` is what `init` was given, `logged` the steps that came."""
    fake: Any = ModuleType("wandb")
    fake.step, fake.asked, fake.logged = 0, {}, []

    def init(**asked: Any) -> SimpleNamespace:
        fake.asked = asked
        return SimpleNamespace(
            step=fake.step,
            resumed=bool(fake.step),
            log=lambda _, step: fake.logged.append(step),
            define_metric=lambda *_, **__: None,
        )

    fake.init, fake.Settings = init, lambda **given: given
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def begun(folder: Path, *, is_online: bool) -> Wandb:
    place = TrackerPlace(folder=folder / "wandb", project="p", entity="me", is_online=is_online)
    return Wandb(place, CHAIN, "X/d/m/s0")


def batch(rows: int) -> Batch:
    return Batch(id="b", round=1, time=0.0, axis=STEP, rows=[(1, {"train/a/loss": 1.0})] * rows)


def test_online_a_run_goes_on_where_the_server_is(wandb: Any, tmp_path: Path) -> None:
    wandb.step = 4
    run = begun(tmp_path, is_online=True)
    run.add(batch(3), 0)
    run.add(batch(3), 3)
    assert wandb.logged == [4, 5]
    asked = {name: wandb.asked[name] for name in ("id", "mode", "resume", "project", "entity", "group")}
    assert list(asked.values()) == ["chain-id", "online", "allow", "p", "me", "x"]


def test_runs_of_chains_have_nothing_of_one_run() -> None:
    kept = {"WANDB_API_KEY": "k", "WANDB_ENTITY": "me", "WANDB_TAGS": "a", "HOME": "/h"}
    of_one = dict.fromkeys(
        ["WANDB_RUN_ID", "WANDB_RESUME", "WANDB_RESUME_FROM", "WANDB_NAME", "WANDB_SERVICE"], "x"
    )
    assert own_runs({**kept, **of_one, "WANDB_SWEEP_PARAM_PATH": "/p.yaml"}) == kept
    parameters = {name: AGENT[name] for name in ("WANDB_SWEEP_PARAM_PATH", "WANDB_PROJECT")}
    assert own_runs({**kept, **of_one, **AGENT}) == {**kept, **parameters}
