"""A run removes weights as its jobs are done with them, and no run takes from another what that one needs."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.commands.request import tell_removed
from pipeline.config.schema import Keep
from pipeline.engine.keeper import Keeper, keys_of_weights, tell_needs
from pipeline.engine.store.store import REMOVED, Scratch, Store
from pipeline.plan.graph import Job, Plan
from pipeline.plan.recorded import plan_text
from pipeline.terminal.console import Terminal
from tests.doubles.engine import job, key, plan_of

SCORES = {"r1/metrics": 0.5, "r2/metrics": 0.9, "r3/metrics": 0.7}


def part(name: str, stage: str, number: int, *needs: str) -> Job:
    weights = ("model.safetensors",) if stage == "train" else ()
    return job(
        name, needs=needs, dataset="d", model="m", algo="A", seed=0, round=number, stage=stage, weights=weights
    )


def rounds(last: int = 3) -> Plan:
    jobs = []
    for number in range(1, last + 1):
        name = f"r{number}"
        before = [f"r{number - 1}/train"] if number > 1 else []
        jobs += [
            part(f"{name}/train", "train", number, *before),
            part(f"{name}/evaluate", "evaluate", number, f"{name}/train"),
            part(f"{name}/metrics", "metrics", number, f"{name}/evaluate"),
        ]
    return plan_of(*jobs)


def store_output(store: Store, job: Job) -> None:
    folder = store.begin(store.scratch("maker"), job.key, 1)
    (folder / "model.safetensors").write_text(f"weights of {job.id}")
    (folder / "told.json").write_text(job.id)
    store.commit(job.key, folder, {"job": job.id})


class Runs:
    """Experiments in one folder of outputs, with one store."""

    def __init__(self, root: Path) -> None:
        self.outputs = root / "outputs"
        self.store = Store(self.outputs / ".store")

    def record(self, name: str, plan: Plan, keep: Keep) -> Path:
        """A run that has written its plan."""
        folder = self.outputs / name / f"2026-01-01_00-00-{len(list(self.outputs.glob(f'{name}/*'))):02d}"
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(plan_text(plan, keep=keep))
        return folder

    @contextmanager
    def lives(self, name: str, plan: Plan, keep: Keep, there: tuple[str, ...] = ()) -> Iterator[Keeper]:
        """A run that goes on."""
        scratch = Scratch(self.store.scratch(f"{name}-1"))
        scratch.path.parent.mkdir(parents=True, exist_ok=True)
        scratch.open()
        tell_needs(self.store, scratch.path, keys_of_weights(plan.jobs.values()))
        self.record(name, plan, keep)
        yield Keeper(
            plan=plan, keep=keep, there=set(there), store=self.store, scratch=scratch.path,
            experiment=self.outputs / name, output_dir=self.outputs, score_of=lambda job: SCORES[job.id],
        )  # fmt: skip
        scratch.close()

    def finish(self, keeper: Keeper, *names: str) -> None:
        """Jobs of a run are done, one after the other."""
        for name in names:
            done = keeper.plan.jobs[name]
            if not self.store.has(done.key):
                store_output(self.store, done)
            keeper.take({"event": "JobFinished", "job": name})

    def whole(self) -> list[str]:
        """Trained models that are stored with their weights."""
        names = [f"r{number}/train" for number in (1, 2, 3)]
        return [name for name in names if self.store.problem(key(name)) is None]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


ALL = tuple(f"r{number}/{stage}" for number in (1, 2, 3) for stage in ("train", "evaluate", "metrics"))
AFTER: Mapping[Keep, list[list[str]]] = {
    Keep.all: [["r1/train"]] * 3 + [["r1/train", "r2/train"]] * 3 + [["r1/train", "r2/train", "r3/train"]] * 3,
    Keep.last: [["r1/train"]] * 3 + [["r2/train"]] * 3 + [["r3/train"]] * 3,
    Keep.results: [["r1/train"]] * 3 + [["r2/train"]] * 3 + [["r3/train"], [], []],
    # r1 loses against r2 once that is measured, and r3 does not win.
    Keep.best: [
        *[["r1/train"]] * 3, *[["r1/train", "r2/train"]] * 2, ["r2/train"],
        *[["r2/train", "r3/train"]] * 2, ["r2/train"],
    ],
}  # fmt: skip


@pytest.mark.parametrize("keep", Keep)
def test_weights_go_as_soon_as_nothing_reads_them(runs: Runs, keep: Keep) -> None:
    with runs.lives("x", rounds(), keep) as keeper:
        for name, there in zip(ALL, AFTER[keep], strict=True):
            runs.finish(keeper, name)
            assert runs.whole() == there, name
        keeper.remove_unneeded()
        assert runs.whole() == AFTER[keep][-1]
        assert keeper.number == 3 - len(AFTER[keep][-1])
    assert all(runs.store.problem(key(name)) in (None, REMOVED) for name in ALL)


def test_a_later_run_of_the_experiment_removes_what_an_earlier_one_kept(runs: Runs) -> None:
    with runs.lives("x", rounds(), Keep.all) as keeper:
        runs.finish(keeper, *ALL)
    with runs.lives("x", rounds(), Keep.best, ALL) as keeper:
        keeper.remove_unneeded()
    assert runs.whole() == ["r2/train"]
    with runs.lives("x", rounds(), Keep.results, ALL) as keeper:
        keeper.remove_unneeded()
    assert runs.whole() == []


@pytest.mark.parametrize(("before", "keep", "left"), [(Keep.last, Keep.best, "r3"), (Keep.best, Keep.last, "r2")])
def test_another_value_never_removes_the_last_weights_that_are_left(
    runs: Runs, before: Keep, keep: Keep, left: str
) -> None:
    with runs.lives("x", rounds(), before) as keeper:
        for name in ALL:
            runs.finish(keeper, name)
    assert runs.whole() == [f"{left}/train"]
    with runs.lives("x", rounds(), keep, ALL) as keeper:
        assert keeper.removable() == 0
        keeper.remove_unneeded()
        out = io.StringIO()
        tell_removed(keeper, Terminal(file=out, width=200))
    assert runs.whole() == [f"{left}/train"]
    assert "were removed by earlier runs; `python -m pipeline export` makes them again" in out.getvalue()
    with runs.lives("other", rounds(), Keep.results, ALL) as keeper:
        keeper.remove_unneeded()
    assert runs.whole() == [f"{left}/train"], "the run of x holds them"
    with runs.lives("x", rounds(), keep, tuple(name for name in ALL if not name.endswith("train"))) as keeper:
        for name in ("r1/train", "r2/train", "r3/train"):  # something reads them that is to run
            if runs.store.is_removed(key(name)):
                store_output(runs.store, keeper.plan.jobs[name])
            runs.finish(keeper, name)
        keeper.remove_unneeded()
    assert runs.whole() == [f"{'r2' if keep is Keep.best else 'r3'}/train"]


@pytest.mark.parametrize("first", [True, False], ids=["the one that keeps is first", "and last"])
def test_two_runs_that_live_each_leave_what_the_other_reads(runs: Runs, first: bool) -> None:
    with runs.lives("x", rounds(), Keep.results) as one, runs.lives("y", rounds(), Keep.last) as other:
        ahead, behind = (one, other) if first else (other, one)
        runs.finish(ahead, *ALL)
        ahead.remove_unneeded()
        assert runs.whole() == ["r1/train", "r2/train", "r3/train"]
        for name in ALL:
            behind.take({"event": "JobFoundStored", "job": name})
        behind.remove_unneeded()
        assert runs.whole() == ["r3/train"]  # which `last` keeps, also where the other is last


@pytest.mark.parametrize(
    ("keep", "done", "stays"),
    [
        (Keep.all, ALL, ["r1/train", "r2/train", "r3/train"]),
        (Keep.last, ALL, ["r3/train"]),
        (Keep.best, ALL, ["r2/train"]),
        (Keep.results, ALL, []),
        (Keep.results, ALL[:4], ["r2/train", "r3/train"]),  # it was cut off, and would go on from there
    ],
)
def test_what_an_experiment_holds_whose_run_is_over_stays(
    runs: Runs, keep: Keep, done: tuple[str, ...], stays: list[str]
) -> None:
    for name in done:
        store_output(runs.store, rounds().jobs[name])
    runs.record("y", rounds(), keep)
    with runs.lives("x", rounds(), Keep.results, done) as keeper:
        keeper.remove_unneeded()
        assert runs.whole() == [name for name in stays if name in done]
        runs.finish(keeper, *(name for name in ALL if name not in done))
        keeper.remove_unneeded()
        # What is evaluated by now is what the other waits for no more.
        assert runs.whole() == (stays if len(done) == len(ALL) else [])


def test_of_an_experiment_the_newest_run_that_has_an_output_speaks_for_it(runs: Runs) -> None:
    for name in ALL:
        store_output(runs.store, rounds().jobs[name])
    runs.record("y", rounds(), Keep.all)
    runs.record("y", rounds(2), Keep.last)
    runs.record("y", plan_of(job("of another seed")), Keep.results)
    with runs.lives("x", rounds(), Keep.results, ALL) as keeper:
        keeper.remove_unneeded()
        assert runs.whole() == ["r2/train", "r3/train"]


def test_a_run_that_began_meanwhile_is_seen(runs: Runs) -> None:
    with runs.lives("x", rounds(), Keep.last) as keeper:
        runs.finish(keeper, *ALL[:5])
        assert runs.whole() == ["r2/train"]
        with runs.lives("y", rounds(), Keep.all):
            pass
        runs.finish(keeper, *ALL[5:])
        assert runs.whole() == ["r2/train", "r3/train"]


def test_nothing_more_is_removed_where_a_plan_cannot_be_read(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    plan = runs.record("y", rounds(), Keep.all) / "plan.json"
    plan.write_text("{")
    with runs.lives("x", rounds(), Keep.results) as keeper:
        runs.finish(keeper, *ALL)
        assert runs.whole() == ["r1/train", "r2/train", "r3/train"]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "what its run needs is unknown" in caplog.text
        assert keeper.stuck in caplog.text
        tell_removed(keeper, Terminal(file=(said := io.StringIO()), width=1000))
        assert said.getvalue() == f"warning: execution.keep=results: weights stay: {keeper.stuck}\n"
        plan.unlink()
        keeper.remove_unneeded()
        assert (runs.whole(), keeper.stuck) == ([], "")


def test_what_is_made_again_is_needed_again(runs: Runs) -> None:
    with runs.lives("x", rounds(), Keep.last) as keeper:
        runs.finish(keeper, *ALL)
        for name in ("r2/evaluate", "r2/train", "r1/train"):  # the output of the first was found damaged
            keeper.take({"event": "JobReopened", "job": name})
        runs.finish(keeper, "r1/train")
        assert runs.whole() == ["r1/train", "r3/train"]
        runs.finish(keeper, "r2/train", "r2/evaluate")
        assert runs.whole() == ["r3/train"]
