"""What becomes of a run whose surroundings change or fill up while it goes on."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.commands import carry_out
from pipeline.commands.carry_out import log, logged_to
from tests.doubles.small_runs import run_here, with_reference


def alter(metrics: Path) -> None:
    """Another number in the same place."""
    text = (metrics / "metrics.json").read_text()
    (metrics / "metrics.json").write_text(text.replace('"value": ', '"value": 7', 1))


@pytest.mark.parametrize(("spoil", "said"), [(alter, "metrics.json"), (shutil.rmtree, "not stored")])
def test_results_that_change_before_they_are_printed_are_no_results(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], None],
    said: str,
) -> None:
    request = with_reference(tmp_path_factory, tmp_path / "outputs")
    folder = tmp_path / "outputs" / "t" / "latest"

    def spoiled(*_: object) -> None:
        for name in ("reference", "Counted/r2"):
            (place,) = (folder / "jobs").glob(f"*/*/*/{name}/metrics/output")
            spoil(place.resolve())

    with monkeypatch.context() as patched:
        patched.setattr(carry_out, "update_peaks", spoiled)
        output = " ".join(run_here(tmp_path / "outputs", *request, code=1).split())
    for chain, last in (("reference", 0), ("Counted", 2)):
        assert f"s0/{chain}: round {last}: its stored output cannot be used: " in output
    assert said in output
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert {(row["algo"], row["round"]) for row in rows} == {("Counted", 1)}
    run_here(tmp_path / "outputs", *request)
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert {(row["algo"], row["round"]) for row in rows} == {("Counted", 1), ("Counted", 2), ("reference", 0)}


def test_a_log_that_cannot_be_written_ends_without_a_word_of_its_own() -> None:
    before = log.level, log.propagate
    with logged_to(Path("/dev/full")):
        log.warning("what nobody will read")
        assert not log.propagate
    assert (log.level, log.propagate) == before
    assert not [handler for handler in log.handlers if isinstance(handler, logging.FileHandler)]
