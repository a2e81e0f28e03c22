"""Several rewards together: settings, weights, isolation, failures, and what is preferred by them."""

import asyncio
import inspect
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.schema import DatasetConfig, GradingConfig
from pipeline.errors import ConfigError, JobError
from pipeline.learning.datasets.base import Row
from pipeline.learning.rewards.preference import (
    Preference,
    PreferenceRule,
    PreferenceSource,
    Ties,
    decide,
    existing_pairs,
)
from pipeline.learning.rewards.registry import load_rewards
from pipeline.learning.rewards.scoring import Scored, Scorer
from pipeline.learning.rewards.traits import (
    RewardFailures,
    RewardTraits,
    WrongScores,
    read_scores,
    reward,
)
from pipeline.outputs.formats import read_faults
from pipeline.plan.build import build_plan
from tests.doubles import own_rewards
from tests.doubles import rewards as doubles
from tests.doubles.composing import quick_config

OBEDIENT = f"{doubles.__name__}.obedient"
COUNTED = f"{doubles.__name__}.counted"
HALVES = f"{doubles.__name__}.halves"


@reward(RewardTraits(isolated=False))
def lengths(completions: Sequence[str], scale: float = 1.0, **_: Any) -> list[float | None]:
    """Not where there is nothing."""
    return [scale * len(text) if text else None for text in completions]


@reward(RewardTraits(isolated=False))
async def awaited(completions: Sequence[str], **_: Any) -> list[float]:
    return [2.0 * len(text) for text in completions]


@reward(RewardTraits(isolated=False))
def broken(**_: Any) -> list[float]:
    raise KeyError("solution")


@reward(RewardTraits(isolated=False))
def infinite(completions: Sequence[str], **_: Any) -> list[float]:
    return [math.inf] + [1.0] * (len(completions) - 1)


def dataset(rewards: dict[str, float], **grading: Any) -> DatasetConfig:
    given = {"processes": 1, "timeout_s": 1.0, **grading}
    return DatasetConfig(kind="x", rewards=rewards, grading=GradingConfig(**given))


def score(config: DatasetConfig, completions: Sequence[str], hints: Path | None = None, **columns: Any) -> Scored:
    rows = [
        Row(i, f"p{i}", {name: values[i] for name, values in columns.items()}) for i in range(len(completions))
    ]
    with Scorer(config, hints=hints) as scorer:
        return scorer.score(rows, completions, [[i] for i in range(len(completions))])


def mine(name: str) -> str:
    return f"{__name__}.{name}"


def test_a_weighted_sum_with_its_parts() -> None:
    config = dataset({"exact_match": 1.0, mine("lengths"): 0.1})  # the first is known to verify
    found = score(config, ["aa", "b", ""], solution=["aa", "aa", "aa"])
    assert found.values == pytest.approx([1.2, 0.1, 0.0])
    assert found.parts["exact_match"].tolist() == [1, 0, 0]
    assert found.parts[mine("lengths")].tolist()[:2] == [2, 1]
    assert np.isnan(found.parts[mine("lengths")][2])
    assert list(found.correct) == [True, False, False]


def test_which_reward_says_what_is_correct() -> None:
    both = {"length": 1.0, "exact_match": 2.0}
    assert list(score(dataset(both), ["a"], solution=["a"]).correct) == [True]  # length cannot say so
    assert list(score(dataset({"length": 1.0}), ["a"]).correct) == [None]
    chosen = dataset({"exact_match": 1.0, mine("lengths"): 0.1}, correct_by=mine("lengths"))
    assert list(score(chosen, ["b"], solution=["a"]).correct) == [True]
    with pytest.raises(ConfigError, match=r"grading\.correct_by: unknown reward 'exact'"):
        score(dataset({"exact_match": 1.0}, correct_by="exact"), ["a"], solution=["a"])


def test_failures_are_counted_and_never_taken_for_zero(caplog: pytest.LogCaptureFixture) -> None:
    config = dataset({mine("lengths"): 0.1, OBEDIENT: 1.0}, correct_by="nothing")
    with caplog.at_level(logging.WARNING, "pipeline"):
        found = score(config, ["a", "raise x", "exit", "loop", "b"], level=[3, 3, 3, 3, 4])
    assert np.isnan(found.values).tolist() == [False, True, True, True, False]
    assert list(found.faults) == [None, "error", "crash", "timeout", None]
    assert found.values[[0, 4]] == pytest.approx([3.1, 4.1])
    assert found.parts[mine("lengths")].tolist() == [1, 7, 4, 4, 1]
    assert "1 error, 1 timeout, 1 crash among 5 completions" in caplog.text


def test_settings_reach_the_reward() -> None:
    name = mine("lengths")
    found = score(dataset({name: 1.0}, options={name: {"scale": 3}}), ["ab"])
    assert found.values.tolist() == [6]
    letter = f"{doubles.__name__}.first_letter"
    found = score(dataset({letter: 1.0}, options={letter: {"letter": "b"}}), ["bc", "ab"])
    assert found.values.tolist() == [1, 0]


NEAR = "examples.near_miss.near_miss"  # takes further columns by a name that it does not read


@pytest.mark.parametrize(
    ("rewards", "options", "said"),
    [
        ({"exact_mach": 1.0}, {}, "Did you mean 'exact_match'"),
        ({"vader": 1.0}, {"vader": {"unti": True}}, "unknown setting 'unti'. Did you mean 'unit'"),
        ({NEAR: 1.0}, {NEAR: {"powr": 2}}, "unknown setting 'powr'. Did you mean 'power'"),
        ({"vader": 1.0}, {"vadr": {}}, "unknown reward in grading.options 'vadr'"),
        ({"model": 1.0}, {}, "grading.options.model.path is missing"),
        ({"model": 1.0}, {"model": {"path": "x", "lable": 1}}, "Did you mean 'label'"),
        ({"model": 1.0}, {"model": {"path": "x", "output": "odds"}}, "output=.odds.: must be .logit. or"),
        ({"model": 1.0}, {"model": {"path": "x", "batch_size": 0}}, "must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(rewards: dict[str, float], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_rewards(dataset(rewards, options=options), "cpu")


def test_a_column_that_rewards_are_given_anyway_is_refused() -> None:
    with Scorer(dataset({OBEDIENT: 1.0})) as scorer, pytest.raises(JobError, match="'prompts' already"):
        scorer.score([Row(0, "p", {"prompts": "x"})], ["a"], [[1]])


def test_what_a_reward_draws_is_the_same_at_every_run() -> None:
    config = dataset({f"{doubles.__name__}.drawn": 1.0}, timeout_s=30.0)
    first, again, other = (score(config, texts).values.tolist() for texts in (["a", "b"], ["a", "b"], ["a", "c"]))
    assert first == again
    assert len({*first, *other}) == 4


@pytest.mark.parametrize("isolated", [True, False])
def test_what_belongs_to_an_event_loop_outlives_a_call(isolated: bool) -> None:
    reward = f"{own_rewards.__name__}.one_after_the_other"
    with Scorer(dataset({reward: 1.0}, isolated=isolated, timeout_s=30.0)) as scorer:
        for texts in (["a", "bb"], ["ccc", "a", "b"]):
            found = scorer.score([Row(0, "p", {})] * len(texts), texts, [[1]] * len(texts))
            assert found.values.tolist() == [len(text) for text in texts]


@pytest.mark.parametrize("isolated", [True, False])
def test_what_a_reward_changes_is_its_own(isolated: bool) -> None:
    row = Row(0, "p", {"numbers": [1, 2]})
    config = dataset({f"{own_rewards.__name__}.uses_up": 1.0}, isolated=isolated, timeout_s=30.0)
    with Scorer(config) as scorer:
        assert scorer.score([row] * 3, ["a", "b", "c"], [[1]] * 3).values.tolist() == [2, 2, 2]
    assert row.columns == {"numbers": [1, 2]}


def test_equal_completions_of_a_prompt_are_graded_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    rows = [Row(i, "p", {"log": str(log)}) for i in (0, 0, 1)]
    with Scorer(dataset({COUNTED: 1.0})) as scorer:
        found = scorer.score(rows, ["abc", "abc", "d"], [[1], [1], [2]])
        assert found.values.tolist() == [3, 3, 1]
    assert len(log.read_text().splitlines()) == 2


@pytest.mark.parametrize("name", ["hint_or_default", "hint_needed", "any_columns"])
def test_scores_of_rows_with_different_columns_do_not_depend_on_the_batch(name: str) -> None:
    further: list[dict[str, Any]] = [{}, {"hint": "a"}, {"level": 1}, {}, {"hint": "a", "level": 2}, {"hint": "b"}]
    rows = [Row(i, "p", {"solution": "1", **columns}) for i, columns in enumerate(further)]
    expected = {
        "hint_or_default": [0, 1, 0, 0, 1, 1],
        "hint_needed": [0.5, 1, 0.5, 0.5, 1, 1],
        "any_columns": [0, 1, 2, 0, 3, 1],
    }[name]
    for isolated in (True, False):
        with Scorer(dataset({f"{own_rewards.__name__}.{name}": 1.0}, isolated=isolated)) as scorer:
            for order in (range(6), range(5, -1, -1)):
                for batch_size in (1, 2, 4, 6):
                    picked = [rows[at] for at in order]
                    scored = scorer.score(picked, ["1"] * 6, [[1]] * 6, batch_size)
                    assert scored.values.tolist() == [expected[at] for at in order]
                    assert not any(scored.faults)


def test_a_job_leaves_what_its_rewards_failed_at_and_nothing_where_none_did(tmp_path: Path) -> None:
    counted, config = RewardFailures(), dataset({HALVES: 1.0})
    for texts, leaves in ((["aa", "bbbb"], False), (["a", "bb", "ccc"], True)):
        scored = score(config, texts)
        counted.add(scored.faults, scored.first_fault, tmp_path)
        assert any(tmp_path.iterdir()) == leaves
    found = read_faults(tmp_path / "faults.json")
    assert (found.completions, found.failed) == (5, 2)
    assert found.first.startswith(f"reward '{HALVES}': ValueError: no half of <object object at 0x...> (")


def of_sizes(name: str, sizes: Sequence[int], texts: Sequence[str], size: int, **grading: Any) -> Scored:
    """Score texts by a reward of `own_rewards`, where each prompt has so many of them."""
    rows = [Row(row, f"p{row}", {"hint": row / 8}) for row, count in enumerate(sizes) for _ in range(count)]
    with Scorer(dataset({f"{own_rewards.__name__}.{name}": 1.0}, **grading)) as scorer:
        return scorer.score(rows, texts, [[1]] * len(texts), size)


@pytest.mark.parametrize(
    ("size", "calls"),
    [(1, [2, 2, 3, 3, 3, 1, 2, 2]), (4, [2, 2, 4, 4, 4, 4, 2, 2]), (5, [5] * 5 + [3] * 3), (256, [8] * 8)],
)
def test_a_call_has_all_completions_of_as_many_prompts_as_fit(size: int, calls: list[int]) -> None:
    found = of_sizes("of_the_call", [2, 3, 1, 2], list("abcdefgh"), size, isolated=False)
    assert found.values.tolist() == calls


@pytest.mark.parametrize("name", ["normalised", "above_mean", "awaited_ranks"])
def test_a_reward_that_compares_completions_says_what_it_says_to_trl(name: str) -> None:
    sizes, texts = [3, 1, 4], ["a", "bbb", "", "cc", "d", "eeee", "ff", "ggg"]
    prompts = [f"p{row}" for row, count in enumerate(sizes) for _ in range(count)]
    hints = [row / 8 for row, count in enumerate(sizes) for _ in range(count)]
    asked = getattr(own_rewards, name)(
        prompts=prompts, completions=texts, completion_ids=[[1]] * 8, hint=hints, trainer_state=None
    )
    given = asyncio.run(asked) if inspect.isawaitable(asked) else asked
    wanted = [math.nan if one is None else one for one in given]
    for isolated in (True, False):
        found = of_sizes(name, sizes, texts, 256, isolated=isolated)
        assert found.values.tolist() == pytest.approx(wanted, nan_ok=True, abs=0)
        assert not any(found.faults)


@pytest.mark.parametrize(
    ("order", "fault", "said"),
    [
        ("hang", "timeout", "no answer within 0.6 s for 3 completions"),
        ("exit", "crash", "twice"),
        ("raise", "error", "bad"),
    ],
)
def test_a_call_that_fails_costs_its_own_scores_alone(order: str, fault: str, said: str) -> None:
    found = of_sizes("stops", [2, 3, 1], ["a", "b", "c", order, "d", "e"], 3, timeout_s=0.2)
    assert list(found.faults) == [None, None, fault, fault, fault, None]
    assert found.values.tolist()[:2] + found.values.tolist()[5:] == [2, 2, 1]
    assert np.isnan(found.values[2:5]).all()
    assert said in found.first_fault


def test_a_reward_that_fails_at_its_only_call_is_told_how_it_is_called() -> None:
    with pytest.raises(JobError, match=r"failed at all of 2 completions.*too bad.*pointwise=True"):
        of_sizes("stops", [2], ["raise", "a"], 256)


@pytest.mark.parametrize(
    ("order", "count", "said"),
    [
        ("exit", 40, "exit code 3"),
        ("raise", 3, "failed at all of 3 .*bad"),
    ],
)
def test_a_reward_that_fails_at_every_completion_fails_the_job_and_does_so_soon(
    order: str, count: int, said: str
) -> None:
    """Of those that cost a deadline or a process each, a few tell."""
    own = dataset({f"{own_rewards.__name__}.stops": 1.0}, timeout_s=0.2, processes=2)
    rows = [Row(at, f"p{at}") for at in range(count)]
    with Scorer(own) as scorer, pytest.raises(JobError, match=said):
        scorer.score(rows, [order] * count, [[1]] * count, batch_size=1)


def test_a_reward_that_hangs_is_found_out_by_single_prompts() -> None:
    """The deadline of a call with many is that of all of them."""
    with pytest.raises(JobError, match=r"first 8 prompts: no answer within 0\.4 s for 2 completions"):
        of_sizes("stops", [2] * 100, ["hang"] * 200, 256, timeout_s=0.2)
    found = of_sizes("stops", [2] * 4, ["hang", *"abcdefg"], 6, timeout_s=0.2)
    assert list(found.faults) == ["timeout"] * 6 + [None] * 2


@pytest.mark.parametrize("given", [len, None, "verifies"])
def test_a_reward_without_its_traits_says_what_to_write(given: object) -> None:
    with pytest.raises(TypeError, match=r"write @reward\(RewardTraits\(verifies=True\)\)"):
        reward(given)  # type: ignore[arg-type]


@reward(RewardTraits(verifies=True, isolated=False, answer=lambda text: text.split()[1]))  # type: ignore[union-attr]
def second_word(completions: list[str], **_: object) -> list[float]:
    return [1.0] * len(completions)


def test_an_answer_that_fails_is_told_with_the_reward_and_its_line() -> None:
    with pytest.raises(JobError, match=r"second_word' failed: IndexError"):
        score(dataset({mine("second_word"): 1.0}, isolated=False), ["four"])


@pytest.mark.parametrize("given", [{1.0}, {"a": 1.0}, "1", b"1", ["1.0"], [1.0, 2.0], None, 1.0], ids=repr)
def test_what_is_no_list_of_numbers_is_no_scores(given: object) -> None:
    with pytest.raises(WrongScores):
        read_scores(given, 1)


def test_how_fast_rewards_are_called_is_part_of_no_key() -> None:
    def keys(*overrides: str) -> list[str]:
        plan = build_plan(quick_config(["experiment.name=t", *overrides]))
        return [job.key for job in plan.jobs.values()]

    fast = ["processes=7", "start_timeout_s=1"]
    assert keys(*(f"datasets.addition.grading.{setting}" for setting in fast)) == keys()
    for setting in ("timeout_s=1", "isolated=false"):
        assert keys(f"datasets.addition.grading.{setting}") != keys()


def scored(
    values: list[float], correct: list[bool | None] | None = None, faults: list[Any] | None = None
) -> Scored:
    count = len(values)
    return Scored(np.array(values), {}, correct or [None] * count, [None] * count, faults or [None] * count)


def decisions(first: Scored, second: Scored, draw: float = 0.4, **how: Any) -> list[int]:
    rule = PreferenceRule(**{"preference": Preference.bradley_terry, **how})
    return [int(one) for one in decide(first, second, np.full(len(first.values), draw), rule)]


@pytest.mark.parametrize("source", [PreferenceSource.correctness, PreferenceSource.correctness_then_reward])
@pytest.mark.parametrize("beta", [0.5, 3.0])
def test_correctness_is_a_difference_of_one_to_a_bradley_terry_draw(source: PreferenceSource, beta: float) -> None:
    """Who asks for noisy labels gets them of verified answers too."""
    draws = (np.arange(10_000) + 0.5) / 10_000
    right, wrong = scored([1.0] * 10_000, [True] * 10_000), scored([0.0] * 10_000, [False] * 10_000)
    rule = PreferenceRule(source=source, preference=Preference.bradley_terry, beta=beta)
    ahead = decide(right, wrong, draws, rule).mean()
    behind = decide(wrong, right, draws, rule).mean()
    assert ahead == pytest.approx(1 / (1 + math.exp(-beta)), abs=1e-3)
    assert behind == pytest.approx(1 - ahead, abs=1e-3)


def test_correctness_alone_leaves_the_rest_undecided() -> None:
    first, second = scored([3.0, 3.0, 3.0], [True, True, None]), scored([1.0, 1.0, 1.0], [False, True, False])
    for ties in Ties:
        assert decisions(first, second, source=PreferenceSource.correctness, ties=ties) == [1, -1, -1]


@pytest.mark.parametrize("preference", list(Preference))
def test_ties(preference: Preference) -> None:
    one, other = scored([0.5]), scored([0.5])
    assert decisions(one, other, preference=preference) == [-1]
    for draw, expected in ((0.4, 1), (0.6, 0)):
        assert decisions(one, other, draw, preference=preference, ties=Ties.coin) == [expected]


def test_where_there_is_no_score_nothing_can_be_said() -> None:
    first, second = scored([math.nan, 1.0, math.nan]), scored([1.0, math.nan, math.nan])
    for ties in Ties:
        assert decisions(first, second, ties=ties) == [-1, -1, -1]

    failed = scored([math.nan], [False], ["timeout"])
    assert decisions(failed, scored([1.0], [True])) == [-1]
    assert decisions(scored([1.0], [True]), failed) == [-1]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"chosen": "a"}, "row 7 has no column 'rejected'"),
        ({"chosen": 1, "rejected": "b"}, "column 'chosen' must hold text"),
        (
            {"chosen": "a", "rejected": [{"role": "assistant", "content": "b"}]},
            "one is text and the other a conversation",
        ),
    ],
    ids=["missing", "number", "mixed"],
)
def test_rows_without_a_pair_are_refused(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        existing_pairs([Row(7, "p", columns)])
