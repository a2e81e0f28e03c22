"""Runs side by side: which settings differ, in which rows they are told, and which rows are one."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.runs.compare import (
    RunComparison,
    compare_runs,
    comparison_csv,
    run_names,
    same_settings,
)
from pipeline.runs.cost import Compute
from pipeline.runs.record import PooledRow, Results
from tests.doubles.pooled import pooled_row


def run(stamp: str, eta: float, *rows: PooledRow, **config: Any) -> Any:
    algos = {"PITA": {"enabled": True, "eta": eta}, "RAFT": {"enabled": True, "epochs": 2}}
    whole = {"experiment": {"name": stamp}, "output_dir": stamp, "algos": algos, **config}
    results = Results(rows=[], pooled=[pooled_row("reference", 0, 0.25), pooled_row("RAFT", 2, 0.5), *rows])
    found = SimpleNamespace(name="x", stamp=stamp, state="done", config=whole, results=results, compute=Compute())
    found.read_config = lambda: found.config
    return found


def told(comparison: RunComparison) -> list[tuple[object, ...]]:
    return [(row.algo, *row.settings.values(), row.result.value, *row.runs) for row in comparison.rows]


def test_a_setting_is_told_where_it_matters_and_what_it_does_not_change_is_one_row() -> None:
    found = compare_runs([run("b", 10, pooled_row("PITA", 2, 0.75)), run("a", 2, pooled_row("PITA", 2, 0.5))])
    assert found.settings == {"algos.*.eta": "eta"}
    assert told(found) == [
        ("reference", 0.25, "b", "a"),
        ("PITA", "2", 0.5, "a"),
        ("PITA", "10", 0.75, "b"),
        ("RAFT", 0.5, "b", "a"),
    ]


def test_what_each_method_reached_is_that_of_its_last_round_with_its_divergence() -> None:
    rows = (
        pooled_row("PITA", 1, 0.9),
        pooled_row("PITA", 2, 0.8),
        pooled_row("PITA", 2, 3.5, metric="kl_per_sequence"),
    )
    (row,) = [row for row in compare_runs([run("a", 1, *rows)]).rows if row.algo == "PITA"]
    assert (row.result.round, row.result.value, row.kl, row.j) == (2, 0.8, 3.5, None)


def test_only_settings_that_change_results_count_and_only_among_runs_that_have_them() -> None:
    first, second = (
        run(
            name,
            1,
            execution={"workers": number, "shard_size": 10},
            training={"schedule": schedule},
            device=device,
        )
        for name, number, schedule, device in (("a", 1, "cosine", "auto"), ("b", 2, "linear", "cpu"))
    )
    second.config["algos"]["DPO"] = {"enabled": False, "beta": 3}  # type: ignore[index]
    assert compare_runs([first, second]).settings == {"training.schedule": "schedule"}
    judged = [
        run(name, 1, datasets={"addition": {"seed": 0, "rewards": rewards}})
        for name, rewards in (("a", {}), ("b", {"x.y": 1}))
    ]
    assert list(compare_runs(judged).settings) == ["datasets.*.rewards.x.y"]
    assert same_settings(first.config) != same_settings(second.config)
    assert same_settings(first.config) == same_settings({**first.config, "output_dir": "elsewhere"})


def test_test_sets_are_told_of_their_mean_alone_and_checkpoints_of_no_row() -> None:
    pooled = [pooled_row("RAFT", 2, 0.5), pooled_row("RAFT", 2, 0.4)]
    runs = [
        run(
            name,
            1,
            *(replace(row, dataset=place) for row, place in zip(pooled, ("sums@two", "sums@mean"), strict=True)),
            evaluation={"on": sets, "also": also},
            datasets={"sums": {"digits": digits}, "two": {"digits": 2}},
        )
        for name, sets, also, digits in (("a", ["two"], {}, 3), ("b", ["two", "three"], {"own": "/m"}, 4))
    ]
    found = compare_runs(runs)
    assert list(found.settings) == ["datasets.*.digits", "evaluation.on"]
    settings = {(row.result.dataset, row.runs): dict(row.settings) for row in found.rows if row.algo == "RAFT"}
    assert settings["addition", ("a", "b")] == {}
    assert settings["sums@two", ("b",)] == {"datasets.*.digits": "4"}
    assert settings["sums@mean", ("b",)] == {"datasets.*.digits": "4", "evaluation.on": "two, three"}


def test_a_row_tells_the_settings_of_its_test_set_beside_those_of_training() -> None:
    def tested(stamp: str, sets: dict[str, str]) -> Any:
        rows = (replace(pooled_row("RAFT", 2, 0.5), dataset=f"addition@{name}") for name in sets)
        return run(stamp, 1, *rows, datasets={name: {"limit": limit} for name, limit in {**own, **sets}.items()})

    own = {"addition": "null"}
    found = compare_runs([tested("a", {"sums": "null", "words": "8"}), tested("b", {"sums": "4"})])
    settings = {(row.result.dataset, row.runs): row.settings for row in found.rows if row.algo == "RAFT"}
    assert found.settings == {"datasets.sums.limit": "limit"}
    assert settings["addition@sums", ("b",)] == {"datasets.sums.limit": "4"}
    assert settings["addition@words", ("a",)] == {}
    assert settings["addition", ("a", "b")] == {}
    own["addition"] = "2"
    found = compare_runs([tested("a", {"sums": "4"}), replaced := tested("b", {"sums": "4"})])
    assert found.settings == {}
    replaced.config["datasets"]["addition"]["limit"] = "3"
    found = compare_runs([tested("a", {"sums": "5"}), replaced])
    assert list(found.settings) == ["datasets.*.limit", "datasets.sums.limit"]


def test_results_of_a_reference_that_are_equal_by_chance_keep_their_settings() -> None:
    runs = [run(name, 1, evaluation={"num_samples": number}) for name, number in (("a", 2), ("b", 4))]
    assert [row.settings for row in compare_runs(runs).rows if row.algo == "reference"] == [
        {"evaluation.num_samples": "2"},
        {"evaluation.num_samples": "4"},
    ]


def test_a_csv_has_a_column_for_each_setting_and_runs_no_formula() -> None:
    lines = comparison_csv(
        compare_runs([run("=1", 2, pooled_row("PITA", 2, 0.5)), run("b", 10, pooled_row("PITA", 2, 0.75))])
    )
    head, *rows = lines.splitlines()
    assert head.split(",")[:7] == ["runs", "state", "dataset", "model", "algo", "algos.*.eta", "round"]
    assert rows[1].split(",")[:8] == ["'=1", "done", "addition", "tiny", "PITA", "2", "2", "pass@1"]
    assert rows[0].startswith("'=1 b,done,addition,tiny,reference,,0,")


# -- what runs are called where several stand together -----------------------------------------------------------


def named(stamp: str, name: str = "x", **settings: Any) -> Any:
    algos = {"PITA": {"enabled": True, "eta": settings.pop("eta", 1)}}
    config = {"experiment": {"name": name}, "algos": algos, "execution": {"workers": len(stamp)}, **settings}
    return SimpleNamespace(name=name, stamp=stamp, state="done", config=config, results=Results(rows=[]))


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        ([named("a")], ["x"]),
        ([named("a", eta=0.3), named("b", eta=1)], ["eta=0.3", "eta=1"]),
        ([named("a"), named("bb")], ["a", "bb"]),
        ([named("a"), named("b"), named("c", eta=2)], ["eta=1, a", "eta=1, b", "eta=2"]),
        ([named("a", seeds=[0]), named("b", seeds=[0], eta=2), named("c", seeds=[1])], None),
        ([named("a", "y"), named("b"), named("c", eta=2)], ["y", "x eta=1", "x eta=2"]),
    ],
    ids=["one", "a setting", "alike", "some alike", "two settings", "one of several"],
)
def test_runs_are_called_by_what_tells_them_apart(runs: list[Any], names: list[str] | None) -> None:
    found = run_names(runs)
    assert len(set(found)) == len(runs)
    assert names is None or found == names
