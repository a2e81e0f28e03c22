"""What a reader is told where some policies drop tokens and others do not; and the former name of the setting."""

import pytest

from pipeline.config.plain import to_plain
from pipeline.errors import ConfigError
from pipeline.learning.algos.value_guided import ValueAlgoConfig, candidates_note
from pipeline.learning.choices import Others
from pipeline.plan.build import build_plan
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


@pytest.mark.parametrize(("truncate", "others"), [("true", "dropped"), ("false", "kept")])
def test_the_former_name_means_the_same_down_to_the_keys(truncate: str, others: str) -> None:
    given = [f"algos.PITA.truncate={truncate}", f"algos.PITA.others={others}"]
    small = [
        "experiment.name=t",
        "algos=[PITA]",
        "evaluation.num_prompts=5",
        "data_collection.prompts_per_round=5",
    ]
    former, present = (quick_config([*small, one]) for one in given)
    assert former.algos["PITA"] == present.algos["PITA"]
    keys = [{job.key for job in build_plan(config).jobs.values()} for config in (former, present)]
    assert keys[0] == keys[1]
    assert to_plain(former.algos["PITA"])["truncate"] is None


def test_the_former_name_goes_before_a_profile_and_contradicts_what_it_cannot_say() -> None:
    config = quick_config(["experiment.name=t", "algos=[PITA]", "profile=h200", "algos.PITA.truncate=true"])
    algo = config.algos["PITA"]
    assert isinstance(algo, ValueAlgoConfig)
    assert algo.others is Others.dropped
    with pytest.raises(ConfigError, match="others=offset_zero and truncate=false: `truncate` is the former name"):
        quick_config(["experiment.name=t", "algos.PITA.others=offset_zero", "algos.PITA.truncate=false"])
