"""What stands at the top of a page."""

from pipeline.runs.record import Results
from pipeline.runs.report.page.run import _best
from tests.doubles.pooled import pooled_row


def test_methods_that_reach_the_same_share_the_top() -> None:
    rows = [
        pooled_row("reference", 0, 0.4),
        pooled_row("PITA", 1, 0.9921),
        pooled_row("DPO", 1, 0.99214),
        pooled_row("RAFT", 1, 0.5),
    ]
    assert list(_best(Results(rows=[], pooled=rows))) == [
        ("highest pass@1, addition · tiny", "DPO, PITA 0.992 (reference 0.400)")
    ]
    assert next(iter(_best(Results(rows=[], pooled=rows[:2]))))[1] == "PITA 0.992 (reference 0.400)"
