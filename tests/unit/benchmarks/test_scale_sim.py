"""The simulation of many devices: whole runs of the real engine, without a process beside it."""

import json
from pathlib import Path

from benchmarks.scale_sim import MIXES, main


def test_a_quick_run_says_what_it_measured(tmp_path: Path) -> None:
    main(
        [
            "--quick",
            "--jobs",
            "20",
            "--trainings",
            "1",
            "--first-seed",
            "5",
            "--json",
            str(tmp_path / "found.json"),
        ]
    )
    found = json.loads((tmp_path / "found.json").read_text())
    assert {(one["mix"], one["devices"], one["seed"]) for one in found} == {
        (mix, devices, 5) for mix in MIXES for devices in (1, 16)
    }
    for one in found:
        assert one["makespan_s"] >= one["bound_s"] > 0
        assert 0 < one["work"] <= one["use"] <= 1
        assert one["journal"] > 100 * one["jobs"]
