"""Chains have names and ids under which trackers find them again."""

from pathlib import Path

from pipeline.runs.loaded import LoadedRun
from pipeline.runs.tracking.batches import TrackedChain, tracked_chains
from tests.doubles.tracked import TrackedRun


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
