"""What a request to a run means: its settings afterwards."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.commands import request as requests
from pipeline.commands.request import prepare
from pipeline.commands.steering import (
    Asked,
    Steered,
    ask,
    chains_of,
    check_kept,
    check_unchanged,
    matching,
    rounds_of,
    settings_after,
    with_entries,
)
from pipeline.config.load import load_config
from pipeline.engine.devices.inventory import cpu_slots
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.scheduler.loop import Change
from pipeline.engine.scheduler.state import RunState
from pipeline.engine.store.store import Verified
from pipeline.engine.workers import on_ray
from pipeline.errors import ConfigError
from pipeline.plan.graph import Job
from pipeline.runs.origin import stopped_chains
from pipeline.runs.race import Standing
from tests.doubles.engine import job, plan_of

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


@pytest.fixture
def steered(tmp_path: Path) -> Callable[..., Change]:
    """What a run of two CPU slots answers that has jobs to do, as its engine would."""

    def answer(
        *words: str, settings: Sequence[str] = (), jobs: Sequence[Job] = WIDE, then: Sequence[str] = ()
    ) -> Change:
        request = prepare(load_config([*SETTINGS, "execution.workers=2", f"output_dir={tmp_path}", *settings]))
        run, store = RunFolder(tmp_path), Verified(request.store, tmp_path)
        count = request.layout.workers
        state = RunState(plan_of(*jobs), set(), request.layout)
        for index in range(count):
            state.worker_ready(index, "cpu")
        if "wide" in words:  # runs
            state.start("wide", 0, [1])
        ask(run, Asked(verb="devices", words=[word for word in words if word != "wide"]))
        engine = Steered(request, run, store, lambda *_: None)
        change = engine.next_change(state)
        if then and change is not None:
            engine.gave_back(change.back[0])
            ask(run, Asked(verb="devices", words=[*then]))
            change = engine.next_change(state)
        assert change is not None
        return change

    return answer


WIDE = [job("wide", devices=2), job("other", needs=["wide"])]


def test_devices_that_a_later_job_needs_at_once_stay(steered: Callable[..., Change]) -> None:
    refused = steered("-1")
    assert "wide needs 2 devices at once, and there are 1" in refused.reason
    assert (len(refused.back), len(refused.come)) == (0, 0)
    change = steered("-1", "+2")
    assert (change.reason, list(change.come), list(change.back)) == ("", [2], [1])
    assert steered("-1", "wide").reason == ""  # it has them already, and nothing else needs as many
    assert "last device" in steered("-0", "-1", jobs=[job("one")]).reason


def test_devices_stay_where_jobs_run_in_the_engine_itself(steered: Callable[..., Change]) -> None:
    assert "(inline)" in steered("+2", settings=["system.use_parallel_execution=false"]).reason


def test_a_run_on_ray_has_at_most_what_the_cluster_has_and_keeps_one_that_takes_jobs(
    steered: Callable[..., Change], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        {"Alive": alive, "Resources": {"CPU": cores}} for alive, cores in ((True, 2.0), (True, 1), (False, 9))
    ]
    monkeypatch.setattr(requests, "_devices", lambda _: (cpu_slots(2), False))
    monkeypatch.setattr(requests, "_check_ray", lambda _: None)  # which may not be installed
    monkeypatch.setattr(on_ray, "join", lambda _: SimpleNamespace(nodes=lambda: nodes))
    one, on = [job("one")], ["execution.backend=ray", "device=cpu"]
    assert list(steered("+2", settings=on, jobs=one).come) == [2]
    assert "room for 3 in all" in steered("+2", "+3", settings=on, jobs=one).reason
    assert list(steered("+2", "+3", "-1", settings=on, jobs=one).come) == [2, 3]
    assert "cpu slot 2 must have room" in steered("+2", "-0", "-1", settings=on, jobs=one).reason
    assert "names no device" in steered("-2", settings=on, jobs=one).reason


def test_what_ray_keeps_together_for_wide_jobs_comes_and_leaves_together(
    steered: Callable[..., Change], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}] * 3
    slots = [replace(slot, node=slot.index // 2) for slot in cpu_slots(4)]
    wide = ["execution.backend=ray", "training.gpus_per_job=2", "training.strategy=ddp"]
    monkeypatch.setattr(requests, "_devices", lambda _: (slots, False))
    monkeypatch.setattr(requests, "_check_ray", lambda _: None)
    monkeypatch.setattr(on_ray, "join", lambda _: SimpleNamespace(nodes=lambda: nodes))
    assert "all or none" in steered("-3", settings=wide).reason
    assert list(steered("-3", "-2", settings=wide).back) == [3, 2]
    assert "has room for more than 2" in steered("+4", "+5", "+6", "-2", "-3", settings=wide).reason
    come = steered("+4", "+5", settings=wide).come
    assert {index: device.node for index, (device, _) in come.items()} == {4: 2, 5: 2}
    # One has left already, and the other holds the place of both on the cluster.
    again = steered("-2", "-3", settings=wide, then=["+2", "+3"]).come
    assert {index: device.node for index, (device, _) in again.items()} == {2: 1, 3: 1}
    alone = steered("-2", "-3", settings=wide, then=["+2"])
    assert {index: device.node for index, (device, _) in alone.come.items()} == {2: 2}


def test_the_clone_of_one_chain_stays_alone_whatever_is_added() -> None:
    def chains(settings: list[str]) -> dict[str, int]:
        jobs = prepare(load_config(settings)).plan.jobs.values()
        return {job.chain: job.round for job in jobs if job.algo == "X"}

    clone = after(Asked(verb="clone", chain="s1/DPO", name="X"))
    more = after(Asked(verb="add", words=["experiment.seeds=[2]", "rounds_of_training=4"]), clone)
    assert chains(more) == {"addition/tiny/s1/X": 4}
    assert stopped_chains(load_config(more).experiment.last_rounds, 4) == []
    stopped = after(Asked(verb="stop", chain="X"), more, {"addition/tiny/s1/X": [1, 2]})
    assert chains(stopped) == {"addition/tiny/s1/X": 1}
    assert chains(after(Asked(verb="resume", chain="s1/X"), stopped)) == {"addition/tiny/s1/X": 4}
    assert len(chains(after(Asked(verb="resume", chain="s2/X"), more))) == 2
    assert len(chains(after(Asked(verb="resume", chain="X"), more))) == 3


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
    with pytest.raises(ConfigError, match="leave out addition/tiny/s0/DPO, 2 chains"):
        check_kept(jobs, prepare(load_config([*SETTINGS, "algos.DPO.enabled=false"])).plan)
    check_kept(jobs, prepare(load_config([*SETTINGS, "experiment.seeds=[0,1,2]"])).plan)


def test_a_chain_that_others_go_on_from_is_not_stopped_before_them() -> None:
    of_clone = after(Asked(verb="clone", chain="DPO", name="X", from_round=1))
    for settings in (
        of_clone,
        [*SETTINGS, "algos.PITA.enabled=false", "algos=[DPO,GRPO]", "algos.GRPO.start=DPO"],
    ):
        with pytest.raises(ConfigError, match="stop that first"):
            after(Asked(verb="stop", chain="s0/DPO"), settings)
        assert after(Asked(verb="stop", chain="s0/DPO"), settings, {"addition/tiny/s0/DPO": [1, 1]})


def test_rounds_are_told_by_their_jobs() -> None:
    def job_of(name: str, number: int, dataset: str = "d") -> Job:
        of = {"algo": "A", "dataset": dataset, "model": "m", "seed": 0, "round": number}
        return Job(id=name, key=name, entry="", payload={}, **of)  # type: ignore[arg-type]

    jobs = {name: job_of(name, int(name[1])) for name in ("r1", "r2", "r3")} | {"x1": job_of("x1", 1, "d@other")}
    assert rounds_of(jobs, {"r1", "x1"}, {"r2"}) == {"d/m/s0/A": [1, 2]}
    assert rounds_of(jobs, {"r1"}, set()) == {"d/m/s0/A": [0, 1]}  # its other test set is not done
    assert rounds_of(jobs, set(jobs), set()) == {"d/m/s0/A": [3, 3]}
    # In a race the plan has a part of the round that is not decided, while later ones may be trained already.
    assert rounds_of(jobs, set(jobs), set(), {"d/m/s0/A": 2}) == {"d/m/s0/A": [1, 2]}
    assert matching("A", chains_of(jobs.values())) == matching("s0/A", chains_of(jobs.values())) == ["d/m/s0/A"]


def test_a_stop_that_would_undo_what_a_race_has_decided_says_how_to_stop_later() -> None:
    before, after_it = plan_of(job("a")), plan_of(replace(job("a"), key="f" * 40))
    check_unchanged(before.jobs, before, Asked(verb="stop", chain="DPO"))
    with pytest.raises(ConfigError, match="--after-round"):
        check_unchanged(before.jobs, after_it, Asked(verb="stop", chain="DPO"))
    for asked in (None, Asked(verb="add", words=["rounds_of_training=3"])):
        with pytest.raises(ConfigError) as refused:
            check_unchanged(before.jobs, after_it, asked)
        assert "--after-round" not in str(refused.value)


def test_a_checkpoint_beside_a_race_does_not_race() -> None:
    before = [*SETTINGS, "experiment.race={until: best}"]
    for words, added in ((["evaluation.also={Other: /models/other}"], {}), (["algos=[KTO]"], {"KTO": 500})):
        settings = after(Asked(verb="add", words=words), before)
        said = with_entries(settings, load_config(before), load_config(settings), None)
        race = load_config(said).experiment.race
        assert race is not None
        assert race.added == added


def test_a_checkpoint_is_evaluated_on_all_prompts_so_what_comes_after_it_has_none_that_count() -> None:
    standing = Standing(settings="", num_prompts=500, looks={"d/m/s0/DPO": [50]})
    for beside, seen in (([], 50), (["evaluation.also={Other: org/other}"], 500)):
        before = [*SETTINGS, "experiment.race={until: best}", *beside]
        settings = after(Asked(verb="add", words=["algos=[KTO]"]), before)
        said = with_entries(settings, load_config(before), load_config(settings), standing)
        race = load_config(said).experiment.race
        assert race is not None
        assert race.added == {"KTO": seen}


@pytest.mark.parametrize("word", ["output_dir=x", "experiment.name=x", "dry_run=true", "execution.workers=1"])
def test_what_is_not_of_the_experiment_cannot_be_added(word: str) -> None:
    with pytest.raises(ConfigError, match="no other settings"):
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
