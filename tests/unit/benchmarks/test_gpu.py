"""The experiments for GPUs run from end to end on a CPU, and say where a prediction was missed."""

import json
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import EXPERIMENTS, main
from benchmarks.gpu_measures import Bench, Figure


def test_all_of_it_runs_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "gpu.json"
    main(["--device", "cpu", "--tiny", "--json", str(made)])
    found = json.loads(made.read_text())
    assert list(found["results"]) == list(EXPERIMENTS)
    assert {"torch", "transformers", "pipeline", "date"} <= found["about"].keys()
    assert found["tiny"]
    # Attention of a GPU is the one thing that a CPU may refuse.
    odd = {
        (name, figure["value"])
        for name, figures in found["results"].items()
        for figure in figures
        if isinstance(figure["value"], str) and name != "attention"
    }
    assert not odd
    told = {figure["name"]: figure["value"] for figures in found["results"].values() for figure in figures}
    assert told["tokens that are equal when it is run again"] == 1
    assert told["deterministic kernels alone: the same bytes"] is True
    printed = capsys.readouterr().out
    assert "decoding" in printed
    # What was predicted is of GPUs, and so is what is worth sending.
    assert not [word for word in ("predicted", "HIGHER", "lower", "please send") if word in printed]


def test_a_figure_is_told_beside_its_prediction() -> None:
    assert [Figure("a", value, "ms", 5, 8).verdict for value in (4.0, 6.0, 9.0)] == [
        "lower",
        "as predicted",
        "HIGHER",
    ]
    assert (Figure("a", True, "", 1, 1).text, Figure("a", False, "", 1, 1).verdict) == ("yes", "lower")
    assert (Figure("a", None, "ms", 5, 8).text, Figure("a", None, "ms", 5, 8).verdict) == ("not measured", "")
    assert Figure("a", 1.0).predicted == Figure("a", "no such kernel", "", 1, 2).verdict == ""


def test_what_fails_is_a_row_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(bench: Bench) -> list[Figure]:
        raise RuntimeError("no kernel image\nand more")

    monkeypatch.setitem(gpu.EXPERIMENTS, "held", fails)
    failed, took = gpu.measured("held", Bench("cpu", tiny=True))
    assert failed.text == "RuntimeError: no kernel image"
    assert Figure("a", "no such kernel", "ms").text == "no such kernel"
    assert took.name == "took"
