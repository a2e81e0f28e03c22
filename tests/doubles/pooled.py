"""Rows of methods, and comparisons of them, as tests of tables need them."""

from typing import Any

from pipeline.runs.record import Comparison, PooledRow


def pooled_row(algo: str, number: int = 1, value: float | None = 0.5, **fields: Any) -> PooledRow:
    """A row of pass@1 whose interval is 0.02 to either side."""
    bounds = (
        {"ci_low": None, "ci_high": None} if value is None else {"ci_low": value - 0.02, "ci_high": value + 0.02}
    )
    nothing = dict.fromkeys(("difference", "difference_low", "difference_high"))
    given = {"dataset": "addition", "model": "tiny", "metric": "pass@1", "over": "seeds", "n": 500}
    sizes = {"references": 1, "seeds": 3}
    return PooledRow(
        **{"algo": algo, "round": number, "value": value, **bounds, **nothing, **given, **sizes, **fields}
    )


def comparison(first: str, second: str = "reference", number: int = 2, **fields: Any) -> Comparison:
    """A comparison of pass@1 after a round."""
    given = {"dataset": "addition", "model": "tiny", "metric": "pass@1", "over": "seeds", "n": 500}
    found = {"difference": 0.1, "ci_low": 0.05, "ci_high": 0.15, "p": 0.04, "test": "crossed", "detectable": 0.047}
    both = {"first": first, "second": second, "round": number, "references": 1, "seeds": 3}
    return Comparison(**{**both, **given, **found, **fields})
