"""Peaks of device memory outlive the run that measured them."""

from pathlib import Path

import pytest

from pipeline.engine.store.measured import read_peaks, update_peaks


def test_a_newer_measurement_replaces_an_older_one(tmp_path: Path) -> None:
    update_peaks(tmp_path, {"a": 100, "b": 5})
    update_peaks(tmp_path, {"a": 80})
    update_peaks(tmp_path, {})
    assert read_peaks(tmp_path) == {"a": 80, "b": 5}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": "much"}', '{"a": null}', "\udcff"])
def test_a_file_that_cannot_be_read_costs_a_measurement_alone(tmp_path: Path, text: str) -> None:
    assert read_peaks(tmp_path) == {}
    (tmp_path / ".hints").mkdir()
    (tmp_path / ".hints" / "memory.json").write_text(text, errors="surrogateescape")
    assert read_peaks(tmp_path) == {}
