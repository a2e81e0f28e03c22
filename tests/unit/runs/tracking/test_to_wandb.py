"""What wandb is asked for, by something in its place: online it needs a server. Offline: `test_trackers.py`."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pipeline.runs.tracking.batches import ROUND, STEP, Batch, Row, TrackedChain
from pipeline.runs.tracking.trackers import TrackerPlace, TrackerRun

CHAIN = TrackedChain(id="chain-id", name="X/d/m/s0", experiment="x", settings={"algo.eta": 1.0}, jobs=())


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
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
    yield fake
    sys.modules.pop("pipeline.runs.tracking.to_wandb", None)


def begun(folder: Path, *, is_online: bool) -> TrackerRun:
    module = importlib.import_module("pipeline.runs.tracking.to_wandb")
    place = TrackerPlace(folder=folder / "wandb", project="p", entity="me", is_online=is_online)
    run: TrackerRun = module.Wandb(place).begin(CHAIN, "X/d/m/s0")
    return run


def batch(rows: int) -> Batch:
    return Batch(
        id="b", round=1, time=0.0, rows=[Row(axis=STEP, at=1, round=1, values={"train/a/loss": 1.0})] * rows
    )


def test_online_a_run_goes_on_where_the_server_is(wandb: Any, tmp_path: Path) -> None:
    wandb.step = 4
    run = begun(tmp_path, is_online=True)
    run.add(batch(3), 0)
    run.add(batch(3), 3)
    assert wandb.logged == [4, 5]
    asked = {name: wandb.asked[name] for name in ("id", "mode", "resume", "project", "entity", "group")}
    assert asked == {
        "id": "chain-id",
        "mode": "online",
        "resume": "allow",
        "project": "p",
        "entity": "me",
        "group": "x",
    }


def test_offline_nothing_is_resumed_and_all_is_told(wandb: Any, tmp_path: Path) -> None:
    run = begun(tmp_path, is_online=False)
    run.add(batch(3), 0)
    assert not run.keep(), "only what is finished is safe"
    assert wandb.logged == [0, 1, 2]
    assert (wandb.asked["mode"], wandb.asked["resume"]) == ("offline", None)
    assert wandb.asked["settings"]["console"] == "off"
    assert wandb.asked["settings"]["x_disable_stats"]


def test_rounds_are_an_axis_of_their_own(wandb: Any, tmp_path: Path) -> None:
    row = Row(axis=ROUND, at=2, round=2, values={"eval/pass@1": 0.5})
    begun(tmp_path, is_online=False).add(Batch(id="b", round=2, time=0.0, rows=[row]), 7)
    assert wandb.logged == [7]
