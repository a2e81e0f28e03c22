"""What wandb is asked for, by something in its place: online it needs a server. Offline: `test_trackers.py`."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pipeline.runs.trackers import (
    ROUND,
    STEP,
    Batch,
    Row,
    TrackedChain,
    TrackerPlace,
    Wandb,
    own_runs,
)

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
    row = Row(axis=STEP, at=1, round=1, values={"train/a/loss": 1.0})
    return Batch(id="b", round=1, time=0.0, rows=[row] * rows)


def test_online_a_run_goes_on_where_the_server_is(wandb: Any, tmp_path: Path) -> None:
    wandb.step = 4
    run = begun(tmp_path, is_online=True)
    run.add(batch(3), 0)
    run.add(batch(3), 3)
    assert wandb.logged == [4, 5]
    asked = {name: wandb.asked[name] for name in ("id", "mode", "resume", "project", "entity", "group")}
    assert list(asked.values()) == ["chain-id", "online", "allow", "p", "me", "x"]


def test_offline_nothing_is_resumed_and_all_is_told(wandb: Any, tmp_path: Path) -> None:
    run = begun(tmp_path, is_online=False)
    run.add(batch(3), 0)
    run.add(Batch(id="c", round=2, time=0.0, rows=[Row(axis=ROUND, at=2, round=2, values={"eval/x": 0.5})]), 7)
    assert wandb.logged == [0, 1, 2, 7]
    assert (wandb.asked["mode"], "resume" in wandb.asked) == ("offline", False)
    assert wandb.asked["settings"]["console"] == "off"
    assert wandb.asked["settings"]["x_disable_stats"]


def test_runs_of_chains_have_nothing_of_one_run() -> None:
    kept = {"WANDB_API_KEY": "k", "WANDB_ENTITY": "me", "WANDB_TAGS": "a", "HOME": "/h"}
    of_one = dict.fromkeys(
        ["WANDB_RUN_ID", "WANDB_RESUME", "WANDB_RESUME_FROM", "WANDB_NAME", "WANDB_SERVICE"], "x"
    )
    assert own_runs({**kept, **of_one, "WANDB_SWEEP_PARAM_PATH": "/p.yaml"}) == kept
    parameters = {name: AGENT[name] for name in ("WANDB_SWEEP_PARAM_PATH", "WANDB_PROJECT")}
    assert own_runs({**kept, **of_one, **AGENT}) == {**kept, **parameters}
