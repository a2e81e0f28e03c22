"""What results are judged by: correctness where all have it, else the mean reward."""

from pipeline.runs.record import primary_metric


def test_correctness_comes_first() -> None:
    assert primary_metric([["reward", "pass@1", "length"], ["pass@1", "reward"]]) == "pass@1"


def test_the_mean_reward_where_one_result_has_no_correctness() -> None:
    assert primary_metric([["pass@1", "reward"], ["reward"]]) == "reward"


def test_nothing_where_results_share_no_such_metric() -> None:
    assert primary_metric([["pass@1"], ["reward"]]) is None
    assert primary_metric([]) is None
