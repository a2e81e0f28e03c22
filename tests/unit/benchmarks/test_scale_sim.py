"""The simulation of many devices: whole runs of the real engine, without a process beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.imagined import Caches
from benchmarks.scale_sim import MIXES, case_of, main, measure


def test_a_quick_run_says_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            "--quick",
            "--jobs",
            "40",
            "--trainings",
            "2",
            "--first-seed",
            "5",
            "--json",
            str(tmp_path / "found.json"),
        ]
    )
    told = capsys.readouterr().out
    assert told.startswith("python benchmarks/scale_sim.py --quick --jobs 40 --trainings 2 --first-seed 5 --json")
    assert "first_seed=5" in told
    assert "cores, load" in told
    found = json.loads((tmp_path / "found.json").read_text())
    assert {(one["mix"], one["devices"], one["seed"]) for one in found} == {
        (mix, devices, 5) for mix in MIXES for devices in (1, 16)
    }
    for one in found:
        assert one["makespan_s"] >= one["bound_s"] > 0
        assert 0 < one["work"] <= one["use"] <= 1
        assert one["journal"] > 100 * one["jobs"]
        assert one["moved"] <= one["read"]
    # One machine has all that it has made, and the other mix has no sizes.
    assert [one["moved"] > 0 for one in found] == [one["mix"] == "8b" and one["nodes"] > 1 for one in found]


@pytest.mark.parametrize("mix", MIXES)
def test_a_seed_is_always_the_same_run(mix: str) -> None:
    first, second = (measure(case_of(mix, 8, 1, 100), 8, 1) for _ in range(2))
    assert (first.makespan_s, first.moved, first.turns) == (second.makespan_s, second.moved, second.turns)
    assert case_of(mix, 8, 1, 400).seconds != case_of(mix, 8, 2, 400).seconds


def test_a_machine_keeps_what_was_used_last_and_fetches_the_rest() -> None:
    caches = Caches({"a": 4.0, "b": 4.0, "c": 4.0}, limit=8.0)
    assert caches.reads(0, ["a", "b"]) == (8.0, 8.0)
    assert caches.reads(0, ["a"]) == (4.0, 0.0)
    assert caches.reads(0, ["c"]) == (4.0, 4.0)
    assert caches.reads(0, ["a", "b"]) == (8.0, 4.0)  # "b" had to go
    assert caches.reads(1, ["a"]) == (4.0, 4.0)
    assert (caches.read, caches.moved) == (28.0, 20.0)
