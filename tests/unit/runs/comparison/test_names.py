"""What runs are called where several stand together."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.runs.comparison.runs import run_names
from pipeline.runs.record import Results


def run(stamp: str, name: str = "x", **settings: Any) -> Any:
    algos = {"PITA": {"enabled": True, "eta": settings.pop("eta", 1)}}
    config = {"experiment": {"name": name}, "algos": algos, "execution": {"workers": len(stamp)}, **settings}
    return SimpleNamespace(name=name, stamp=stamp, state="done", config=config, results=Results(rows=[]))


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        ([run("a")], ["x"]),
        ([run("a"), run("b", "y")], ["x", "y"]),
        ([run("a", eta=0.3), run("b", eta=1)], ["eta=0.3", "eta=1"]),
        ([run("a"), run("bb")], ["a", "bb"]),
        ([run("a"), run("b"), run("c", eta=2)], ["eta=1, a", "eta=1, b", "eta=2"]),
        ([run("a", seeds=[0]), run("b", seeds=[0], eta=2), run("c", seeds=[1])], None),
        ([run("a", "y"), run("b"), run("c", eta=2)], ["y", "x eta=1", "x eta=2"]),
        ([run("a", text="l" * 99 + "1"), run("b", text="l" * 99 + "2")], None),
    ],
    ids=["one", "experiments", "a setting", "alike", "some alike", "two settings", "one of several", "long"],
)
def test_runs_are_called_by_what_tells_them_apart(runs: list[Any], names: list[str] | None) -> None:
    found = run_names(runs)
    assert len(set(found)) == len(runs)
    assert names is None or found == names
    assert max(map(len, found)) < 60
