"""A race decides by outcomes alone: looks grow, pairs settle, and chains that are shown worse end."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pipeline.config.checks import check_config
from pipeline.config.schema import Until
from pipeline.errors import ConfigError
from pipeline.learning.evaluation.statistics import Floats
from pipeline.runs.race import Look, Pair, Standing
from pipeline.runs.racing import Rules, decide, entries_of, expected, round_share
from tests.doubles.composing import quick_config

PLACE = "addition/tiny/s0"
RULES = Rules(look=100, num_prompts=1000, until=Until.best, alpha=0.05, num_rounds=2)


def answers(*shares: float, seed: int = 0) -> dict[str, Floats]:
    """Right or wrong answers of policies with these shares, to the same prompts."""
    luck = np.random.default_rng(seed).random(1000)
    noise = np.random.default_rng(seed + 1).random((len(shares), 1000))
    return {
        f"{PLACE}/{'ABCDEFGH'[place]}": (0.7 * luck + 0.3 * noise[place] < share).astype(np.float64)
        for place, share in enumerate(shares)
    }


def begun(rules: Rules) -> Standing:
    return Standing(settings="", num_prompts=rules.num_prompts)


def judged(
    *rounds: Mapping[str, Floats], there: int = 1000, rules: Rules = RULES, chains: int | None = None
) -> Standing:
    """Judge rounds of which `there` prompts are answered."""
    names = list(rounds[0])[:chains]
    nothing = np.zeros(0)

    def outcomes(name: str, number: int) -> Floats:
        return rounds[number - 1].get(name, nothing)[:there] if number <= len(rounds) else nothing

    return decide(begun(rules), PLACE, dict.fromkeys(names, (1, 2)), rules, outcomes)


def carried_out(*rounds: Mapping[str, Floats], rules: Rules = RULES) -> list[Standing]:
    """Play a race: after each standing what it wants is answered, and nothing else."""
    standings: list[Standing] = []
    nothing = np.zeros(0)
    has: dict[tuple[str, int], int] = {}

    def outcomes(name: str, number: int) -> Floats:
        return rounds[number - 1].get(name, nothing)[: has.get((name, number), 0)]

    while not standings or standings[-1].racing:
        standing = decide(
            begun(rules),
            PLACE,
            dict.fromkeys(rounds[0], (1, 2)),
            rules,
            outcomes,
        )
        assert standing not in standings
        standings.append(standing)
        has = {
            (name, number): prompts
            for name, looks in standing.looks.items()
            for number, prompts in enumerate(looks, 1)
        }
    return standings


CLEAR = answers(0.8, 0.4, 0.78)


def test_it_begins_with_the_first_look_of_all_chains_at_the_first_round() -> None:
    standing = judged(CLEAR, CLEAR, there=0)
    assert standing.looks == {name: [100] for name in CLEAR}
    assert standing.racing == dict.fromkeys(CLEAR, 1)
    assert not standing.pairs
    assert not standing.stopped


def test_a_chain_that_is_shown_worse_leaves_and_ends_after_its_round() -> None:
    standings = carried_out(CLEAR, CLEAR)
    last, (a, b, c) = standings[-1], CLEAR
    assert last.stopped == {b: 1}
    assert len(last.looks[b]) == 1 < len(last.looks[a]) == len(last.looks[c])
    assert last.looks[b][0] < 1000 == last.looks[a][0]  # A and C are not told apart
    better = {(pair.round, pair.first, pair.second): pair.better for pair in last.pairs}
    assert better == {(1, "A", "B"): "A", (1, "A", "C"): "", (1, "B", "C"): "C", (2, "A", "C"): ""}
    for pair in last.pairs:
        assert all(look.low <= look.difference <= look.high for look in pair.looks)
        assert bool(pair.better) == (not pair.looks[-1].low <= 0 <= pair.looks[-1].high)
        assert [look.prompts for look in pair.looks] == list(range(100, pair.looks[-1].prompts + 1, 100))


def test_the_interval_of_a_settled_pair_reads_from_the_better_to_the_worse() -> None:
    look = Look(prompts=100, difference=-0.2, low=-0.3, high=-0.1)
    told = str(Pair(place="p", round=1, first="A", second="B", better="B", looks=[look]))
    assert "B - A = 0.200 [0.100, 0.300]" in told


def test_what_is_decided_stays_however_much_more_is_stored() -> None:
    """A run that was killed, a repeated one, and one beside a whole evaluation decide alike."""
    standings = carried_out(CLEAR, CLEAR)
    assert judged(CLEAR, CLEAR) == standings[-1]
    for before, after in pairwise(standings):
        for name, looks in before.looks.items():
            decided = [n for number, n in enumerate(looks, 1) if number < before.racing.get(name, 9)]
            assert after.looks[name][: len(decided)] == decided
        assert before.stopped.items() <= after.stopped.items()


def test_a_chain_that_the_user_takes_out_changes_nothing_that_is_decided() -> None:
    """So a stop is taken at any time: no metrics are planned of a round that the stop may change."""
    rules = replace(RULES, until=Until.separated)
    for before in carried_out(CLEAR, CLEAR, rules=rules):
        for gone, number in before.racing.items():
            rounds = {
                name: range(1, number if name == gone else 3) for name in CLEAR if number > 1 or name != gone
            }

            def outcomes(name: str, number: int, before: Standing = before) -> Floats:
                return CLEAR[name][: dict(enumerate(before.looks[name], 1)).get(number, 0)]

            after = decide(
                begun(rules),
                PLACE,
                rounds,
                replace(rules, entries=dict.fromkeys("ABC", 0)),
                outcomes,
            )
            for name in rounds:
                decided = before.looks[name][: before.racing.get(name, 9) - 1]
                assert after.looks.get(name, [])[: len(decided)] == decided


def test_no_look_is_judged_before_all_chains_that_are_left_have_it() -> None:
    late = {**CLEAR, f"{PLACE}/C": CLEAR[f"{PLACE}/C"][:100]}
    waiting = judged(late, CLEAR)
    assert waiting.looks[f"{PLACE}/C"] == [200]
    assert waiting.racing[f"{PLACE}/C"] == 1


@pytest.mark.parametrize("until", Until)
def test_when_a_round_is_over(until: Until) -> None:
    policies = answers(0.9, 0.5, 0.48)
    last = carried_out(policies, policies, rules=Rules(**{**vars(RULES), "until": until}))[-1]
    prompts = {name[-1]: looks[0] for name, looks in last.looks.items()}
    if until is Until.best:
        assert prompts["A"] == prompts["B"] == prompts["C"] < 1000
    elif until is Until.separated:
        assert prompts["A"] < prompts["B"] == prompts["C"] == 1000
    else:
        assert set(prompts.values()) == {1000}
    assert {name[-1] for name in last.stopped} == ({"B", "C"} if until is Until.best else set())
    assert {len(looks) for looks in last.looks.values()} == ({1, 2} if until is Until.best else {2})
    if until is Until.best:
        assert last.looks[f"{PLACE}/A"][1] == 1000  # alone: nothing is compared, and nothing saved


def test_a_policy_that_others_start_from_is_never_stopped() -> None:
    kept = Rules(**{**vars(RULES), "kept": [f"{PLACE}/B"]})
    last = carried_out(CLEAR, CLEAR, rules=kept)[-1]
    assert not last.stopped
    assert len(last.looks[f"{PLACE}/B"]) == 2


def test_prompts_that_nothing_judges_say_nothing() -> None:
    empty = {name: np.full(1000, np.nan) for name in CLEAR}
    assert not any(pair.better for pair in judged(empty, empty).pairs)


def test_equal_policies_are_seldom_told_apart() -> None:
    false, rules = 0, Rules(**{**vars(RULES), "look": 500})
    for seed in range(20):
        equal = answers(0.6, 0.6, seed=seed)
        false += bool(judged(equal, equal, rules=rules).stopped)
    assert false <= 3


# -- what is added later -----------------------------------------------------------------------------------------


NEW = f"{PLACE}/D"


def with_new(*shares: float, after: int = 300, rules: Rules = RULES) -> tuple[dict[str, Floats], Rules]:
    """Policies of which the last was added, and the rules."""
    policies = answers(*shares)
    names = [name[-1] for name in policies]
    return policies, replace(rules, entries={name: after if name == names[-1] else 0 for name in names})


@pytest.mark.parametrize("until", Until)
@pytest.mark.parametrize("there", [0, 100, 300, 500, 1000])
def test_an_addition_changes_nothing_that_is_decided_between_older_chains(until: Until, there: int) -> None:
    rules = replace(RULES, until=until)
    alone = judged(CLEAR, CLEAR, there=there, rules=rules)
    for share in (0.1, 0.99):
        policies, wider = with_new(0.8, 0.4, 0.78, share, rules=rules)
        for answered in (policies, {**policies, NEW: np.zeros(0)}):
            both = judged({**answered, **CLEAR}, {**answered, **CLEAR}, there=there, rules=wider)
            assert [pair for pair in both.pairs if "D" not in (pair.first, pair.second)] == alone.pairs
            assert {name: of for name, of in both.stopped.items() if name != NEW} == alone.stopped
            assert {name: of for name, of in both.racing.items() if name != NEW} == alone.racing
            for name, looks in alone.looks.items():
                assert len(both.looks[name]) == len(looks)
                assert all(one >= other for one, other in zip(both.looks[name], looks, strict=True))


def test_claims_on_what_was_added_count_only_prompts_that_were_not_seen() -> None:
    policies, rules = with_new(0.8, 0.4, 0.8)
    new = f"{PLACE}/C"
    lucky = {**policies, new: np.concatenate([np.ones(300), policies[f"{PLACE}/A"][300:]])}
    last = carried_out(lucky, lucky, rules=rules)[-1]
    [pair] = [pair for pair in last.pairs if (pair.round, pair.first, pair.second) == (1, "A", "C")]
    assert pair.since == 300
    assert [look.prompts for look in pair.looks][:2] == [400, 500]
    assert {look.difference for look in pair.looks} == {0.0}
    assert not pair.better


def test_an_added_chain_that_is_shown_worse_ends_and_one_that_is_better_ends_none() -> None:
    policies, rules = with_new(0.8, 0.78, 0.3)
    last = carried_out(policies, policies, rules=rules)[-1]
    assert last.stopped == {f"{PLACE}/C": 1}
    policies, rules = with_new(0.5, 0.49, 0.95)
    standings = carried_out(policies, policies, rules=rules)
    assert not standings[-1].stopped
    assert {pair.better for pair in standings[-1].pairs if pair.second == "C"} == {"C"}
    assert not standings[-1].open_from
    # A killed run and one that is repeated decide alike.
    assert judged(policies, policies, rules=rules) == standings[-1]


def test_where_all_prompts_were_seen_an_added_chain_is_evaluated_whole_and_nothing_is_claimed() -> None:
    policies, rules = with_new(0.8, 0.4, 0.78, 0.1, after=1000)
    last = judged(policies, policies, rules=rules)
    assert last.looks[NEW] == [1000, 1000]
    assert NEW not in {*last.racing, *last.stopped}
    assert not [pair for pair in last.pairs if "D" in (pair.first, pair.second)]


def test_all_levels_of_pairs_and_rounds_together_are_alpha_at_most_whatever_is_added() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        entries = {f"A{place}": int(draw.choice([0, 0, 100, 200, 700])) for place in range(8)} | {"B": 0, "C": 0}
        first, total = 2, int(draw.integers(2, 9))
        each = [round_share(number, first) for number in range(1, total + 1)]
        spent, before = 0.0, 0
        for entry in entries_of(entries, 0.05):
            pairs = math.comb(before + len(entry.algos), 2) - math.comb(before, 2)
            before += len(entry.algos)
            spent += pairs * entry.level * sum(each)
        assert spent <= 0.05
        # What the chains of the start have in its rounds depends on nothing that comes later.
        alone = entries_of({name: 0 for name, at in entries.items() if not at}, 0.05)
        assert alone[0].level == entries_of(entries, 0.05)[0].level


def test_one_that_adds_the_likeness_of_a_lucky_leader_claims_no_more() -> None:
    """At a level of 0.5, so that a rule that is too lenient shows; see `benchmarks/racing.py`."""
    from benchmarks.racing import false_additions

    wrong, of = false_additions(500, alpha=0.5)
    assert wrong / of < 0.5


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["experiment.race={metric: reward}"], r"race\.metric"),
        (["experiment.race={metric: pass@3}"], r"race\.metric"),
        (["experiment.race={look: 1500}"], r"race\.look"),
        (["experiment.race={}", "execution.keep=last"], r"execution\.keep"),
        (["experiment.race={}", "evaluation.grown_from=[[10,1]]"], r"evaluation\.grown_from"),
        (["experiment.race={}", "experiment.looks={DPO: [1000]}"], r"experiment\.looks"),
        (["experiment.race={}", "algos=[DPO]"], "two algorithms"),
        (["experiment.race={alpha: 1}"], r"race\.alpha"),
        (["experiment.race={added: {KTO: 100}}"], r"race\.added: .*KTO"),
        (["experiment.race={added: {DPO: 100}}"], "two algorithms"),
        (["experiment.race={rounds: 9}", "rounds_of_training=2"], r"race\.rounds=9"),
    ],
    ids=["bounds", "k", "shards", "weights", "grown", "looks", "alone", "level", "unknown", "all added", "rounds"],
)
def test_what_no_race_can_be_with_is_refused(settings: list[str], key: str) -> None:
    base = ["experiment.name=t", "algos=[PITA,DPO]", "evaluation.num_samples=2"]
    check_config(quick_config([*base, "experiment.race={metric: pass@2, look: 2000}"]))
    with pytest.raises(ConfigError, match=key):
        check_config(quick_config([*base, *settings]))


def test_what_a_race_can_settle_is_said_with_a_warning_where_that_is_little() -> None:
    config = quick_config(["experiment.name=t", "algos=[PITA,DPO]", "experiment.race={}"])
    assert config.experiment.race is not None
    assert [text.startswith("warning") for text in expected(config.experiment.race, config)] == [False, True, True]
    config.evaluation.num_prompts = 9000
    assert not any(text.startswith("warning") for text in expected(config.experiment.race, config))
