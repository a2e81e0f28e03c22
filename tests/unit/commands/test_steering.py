"""What a request to a run means: its settings afterwards."""

import pytest

from pipeline.commands.request import prepare
from pipeline.commands.steering import Asked, chains_of, check_kept, matching, rounds_of, settings_after
from pipeline.config.load import load_config
from pipeline.errors import ConfigError
from pipeline.plan.graph import Job

SETTINGS = ["experiment.name=t", "device=cpu", "algos=[PITA,DPO]", "experiment.seeds=[0,1]", "algos.DPO.beta=0.2"]


def after(asked: Asked, settings: list[str] = SETTINGS, rounds: dict[str, list[int]] | None = None) -> list[str]:
    config = load_config(settings)
    return settings_after(asked, settings, config, prepare(config).plan.jobs, rounds or {})


def test_lists_append_and_numbers_are_totals() -> None:
    words = ["algos=[SimPO]", "experiment.seeds=[4]", "rounds_of_training=3", "algos.SimPO.beta=3.0"]
    settings = after(Asked(verb="add", words=words))
    config = load_config(settings)
    assert [name for name, algo in config.algos.items() if algo.enabled] == ["DPO", "PITA", "SimPO"]
    assert config.experiment.seeds == [0, 1, 4]
    assert config.rounds_of_training == 3
    assert len(settings) == len({word.partition("=")[0] for word in settings})
    twice = after(Asked(verb="add", words=["algos=[SimPO]", "algos=[KTO]"]))
    assert {"SimPO", "KTO"} <= {name for name, algo in load_config(twice).algos.items() if algo.enabled}
    again = after(Asked(verb="add", words=["rounds_of_training=4"]), settings)
    assert load_config(again).rounds_of_training == 4


def test_a_clone_is_what_it_is_a_clone_of_but_for_its_own_settings() -> None:
    settings = after(Asked(verb="clone", chain="DPO", name="X", words=["algos.X.epochs=2"], from_round=1))
    config = load_config(settings)
    clone, other = config.algos["X"], config.algos["DPO"]
    assert (clone.continues, clone.epochs, clone.beta) == ("DPO@1", 2, 0.2)  # type: ignore[attr-defined]
    assert type(clone) is type(other)
    jobs = prepare(config).plan.jobs
    assert {job.round for job in jobs.values() if job.algo == "X"} == {2}
    of_one = after(Asked(verb="clone", chain="s1/DPO", name="X"))
    chains = chains_of(prepare(load_config(of_one)).plan.jobs.values())
    assert [chain for chain, algo in chains.items() if algo == "X"] == ["addition/tiny/s1/X"]


def test_a_chain_ends_after_the_round_that_is_done_or_has_begun() -> None:
    rounds = {f"addition/tiny/s{seed}/DPO": [1, 2] for seed in (0, 1)}
    total = [*SETTINGS, "rounds_of_training=3"]
    now = load_config(after(Asked(verb="stop", chain="DPO"), total, rounds)).experiment.last_rounds
    assert now == {"addition/tiny/s0/DPO": 1, "addition/tiny/s1/DPO": 1}
    later = after(Asked(verb="stop", chain="s0/DPO", after_round=True), total, rounds)
    assert load_config(later).experiment.last_rounds == {"addition/tiny/s0/DPO": 2}
    assert sorted(after(Asked(verb="resume", chain="s0/DPO"), later)) == sorted(total)
    with pytest.raises(ConfigError, match="stopped already"):
        after(Asked(verb="stop", chain="s0/DPO", after_round=True), later, rounds)


def test_points_of_a_front_are_stopped_and_cloned_as_chains() -> None:
    settings = [*SETTINGS[:4], "algos.DPO.front={beta: [0.1, 0.3]}", "rounds_of_training=3"]
    point = "addition/tiny/s0/DPO@beta=0.1"
    one = after(Asked(verb="stop", chain=point), settings, {point: [1, 1]})
    assert load_config(one).experiment.last_rounds == {point: 1}
    assert {job.round for job in prepare(load_config(one)).plan.jobs.values() if job.chain == point} == {1}
    both = load_config(after(Asked(verb="stop", chain="DPO"), settings)).experiment.last_rounds
    assert len(both) == 4
    named = prepare(load_config([*settings, "experiment.last_rounds={DPO: 1}"])).plan.jobs.values()
    assert {job.round for job in named if job.algo.startswith("DPO")} == {1}
    clone = Asked(verb="clone", chain="DPO@beta=0.1", name="X", words=["algos.X.epochs=2"], from_round=1)
    assert {
        job.round for job in prepare(load_config(after(clone, settings))).plan.jobs.values() if job.algo == "X"
    } == {2, 3}


def test_no_chain_is_lost_by_what_is_added() -> None:
    jobs = prepare(load_config(SETTINGS)).plan.jobs.values()
    with pytest.raises(ConfigError, match="leave out addition/tiny/s0/DPO, and 2 chains"):
        check_kept(jobs, prepare(load_config([*SETTINGS, "algos.DPO.enabled=false"])).plan)
    check_kept(jobs, prepare(load_config([*SETTINGS, "experiment.seeds=[0,1,2]"])).plan)


def test_a_chain_that_others_go_on_from_is_not_stopped_before_them() -> None:
    of_clone = after(Asked(verb="clone", chain="DPO", name="X", from_round=1))
    for settings in (
        of_clone,
        [*SETTINGS, "algos.PITA.enabled=false", "algos=[DPO,GRPO]", "algos.GRPO.start=DPO"],
    ):
        with pytest.raises(ConfigError, match="a later round of it; stop that first"):
            after(Asked(verb="stop", chain="s0/DPO"), settings)
        assert after(Asked(verb="stop", chain="s0/DPO"), settings, {"addition/tiny/s0/DPO": [1, 1]})


def test_rounds_are_told_by_their_jobs() -> None:
    def job(name: str, number: int, dataset: str = "d") -> Job:
        of = {"algo": "A", "dataset": dataset, "model": "m", "seed": 0, "round": number}
        return Job(id=name, key=name, entry="", payload={}, **of)  # type: ignore[arg-type]

    jobs = {name: job(name, int(name[1])) for name in ("r1", "r2", "r3")} | {"x1": job("x1", 1, "d@other")}
    assert rounds_of(jobs, {"r1", "x1"}, {"r2"}) == {"d/m/s0/A": [1, 2]}
    assert rounds_of(jobs, {"r1"}, set()) == {"d/m/s0/A": [0, 1]}  # its other test set is not done
    assert rounds_of(jobs, set(jobs), set()) == {"d/m/s0/A": [3, 3]}
    assert matching("A", chains_of(jobs.values())) == matching("s0/A", chains_of(jobs.values())) == ["d/m/s0/A"]


@pytest.mark.parametrize("word", ["output_dir=x", "experiment.name=x", "dry_run=true", "execution.workers=1"])
def test_what_is_not_of_the_experiment_cannot_be_added(word: str) -> None:
    with pytest.raises(ConfigError, match="stay those of the run"):
        after(Asked(verb="add", words=[word]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["algos.X.continues=DPO@1"], "both must be the same"),
        (["algos.DPO.continues=DPO@1"], "out of itself"),
        (["algos.DPO.continues=PITA"], "ALGORITHM@ROUND"),
        (["algos.DPO.continues=KTO@1"], "KTO"),
        (["experiment.last_rounds={KTO: 1}"], "KTO"),
        (["experiment.last_rounds={addition/tiny/s9/DPO: 1}"], "s9/DPO"),
        (["experiment.last_rounds={s0/DPO: 1}"], "s0/DPO"),
        (["experiment.last_rounds={1: 1}"], "last_rounds"),
        (["experiment.looks={s0/DPO: [5]}"], "looks"),
        ([f"algos.DPO.continues=PITA@{'9' * 5000}"], "ALGORITHM@ROUND"),
        (["experiment.last_rounds={DPO: -1}"], "last_rounds"),
    ],
)
def test_what_cannot_be_shared_or_stopped_is_refused(settings: list[str], said: str) -> None:
    own = ["algos.X.class_path=pipeline.learning.algos.value_guided.PITA"] if "X" in settings[0] else []
    with pytest.raises(ConfigError, match=said):
        prepare(load_config([*SETTINGS, *own, *settings]))
