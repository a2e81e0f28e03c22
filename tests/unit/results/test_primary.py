"""What results are judged by: correctness where all have it, else the mean reward."""

from pipeline.results.primary import primary_metric
from pipeline.results.record import ResultRow


def row(algo: str, metric: str, value: float | None) -> ResultRow:
    return ResultRow(algo, "addition", "tiny", 0, 1, metric, value, None, None, 10)


def test_correctness_comes_first() -> None:
    rows = [row(algo, metric, 0.5) for algo in "AB" for metric in ("reward", "pass@1", "length")]
    assert primary_metric(rows) == "pass@1"


def test_the_mean_reward_where_one_result_has_no_correctness() -> None:
    rows = [row("A", "pass@1", 0.5), row("A", "reward", 0.5), row("B", "reward", 0.2), row("B", "pass@1", None)]
    assert primary_metric(rows) == "reward"


def test_nothing_where_results_share_no_such_metric() -> None:
    assert primary_metric([row("A", "pass@1", 0.5), row("B", "reward", 0.5)]) is None
    assert primary_metric([]) is None
