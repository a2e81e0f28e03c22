"""What a reader is told where some policies drop tokens and others do not."""

import pytest

from pipeline.learning.algos.value_guided import candidates_note
from tests.doubles.composing import quick_config


def note(*overrides: str) -> str:
    return candidates_note(quick_config(["experiment.name=t", *overrides]))


def test_methods_that_drop_tokens_are_named_with_what_they_drop() -> None:
    dropped = [f"algos.{name}.others=dropped" for name in ("PITA", "QSharp", "CD")]
    said = note("algos=[PITA,QSharp,DPO]", *dropped)
    assert "PITA, QSharp: tokens beyond the 6 likeliest of the reference or below 0.02 are never drawn." in said
    assert "DPO" not in said
    several = note("algos=[PITA,CD]", *dropped, "algos.CD.top_k=3", "algos.CD.min_p=0")
    assert "CD: tokens beyond the 3 likeliest of the reference are never drawn; PITA: tokens" in several


@pytest.mark.parametrize(
    "overrides",
    [
        ["algos=[DPO,BestOfN]"],
        ["algos=[PITA,QSharp,CD,QSharp-HF]"],
        ["algos=[QSharp]", "algos.QSharp.others=offset_zero"],
        ["algos=[QSharp]", "algos.QSharp.others=dropped", "algos.QSharp.eta=inf"],
        ["algos=[PITA]", "profile=h200"],
    ],
    ids=lambda overrides: overrides[-1],
)
def test_nothing_is_said_where_all_policies_may_draw_every_token(overrides: list[str]) -> None:
    assert note(*overrides) == ""
