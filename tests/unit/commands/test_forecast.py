"""What a dry run tells of the time: from records of the same devices, with a range, or that nothing is known."""

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.commands.forecast import (
    LEAST_RUNS,
    Forecast,
    begun_within,
    compared,
    extended,
    forecast,
    small_version,
    tell_time,
)
from pipeline.commands.request import Request, look_up, prepare
from pipeline.commands.run import run_experiment
from pipeline.config.schema import DryRun
from pipeline.engine.run_jobs import add_forecast, read_durations, read_forecasts, update_durations
from pipeline.engine.scheduler.outcome import Makespan, Outcome
from pipeline.engine.scheduler.state import JobStatus
from pipeline.errors import DeviceError
from pipeline.plan.graph import Durations, Timed, duration_name
from pipeline.terminal.console import Terminal
from tests.doubles.composing import quick_config
from tests.doubles.small_runs import run_here

ASKED = ("experiment.name=x", "algos=[PITA]")
CPU = ("device=cpu", "execution.workers=2")
A100, FULL_NAME = ("distributed.num_gpus=2", "profile=a100_80gb", "dry_run=true"), "NVIDIA A100-SXM4-80GB"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def asked(tmp_path: Path, *settings: str) -> Request:
    return prepare(quick_config([*ASKED, f"output_dir={tmp_path}", *settings]))


def record(request: Request, took_s: float, gpu: str = "", leave_out: Sequence[str] = ()) -> None:
    """Have every kind of job take so long, whatever its size."""
    kinds = {duration_name(job): Timed(job.size_s, took_s, 1e9 * job.size_s) for job in request.plan.jobs.values()}
    known = {kind: timed for kind, timed in kinds.items() if not kind.endswith(tuple(leave_out) or "?")}
    update_durations(request.store.root, Durations(known, {"load: worker": 0.0}), gpu)


def told(request: Request) -> Forecast:
    return forecast(request, look_up(request, lambda _: "not there").missing)


def kinds_of(request: Request) -> set[str]:
    return {duration_name(job) for job in request.plan.jobs.values()}


def test_nothing_is_told_before_such_jobs_were_timed(tmp_path: Path) -> None:
    found = told(asked(tmp_path, *CPU))
    assert (found.timed, found.range()) == ((), None)
    assert not any(figure.isdigit() for figure in str(found))


def test_recorded_times_give_the_time_and_a_part_of_them_a_lower_bound(tmp_path: Path) -> None:
    record(asked(tmp_path, *CPU), 3600.0, leave_out=["/train"])
    found = told(asked(tmp_path, *CPU))
    assert {kind.rpartition("/")[2] for kind in found.unknown} == {"train"}
    assert not found.is_whole
    record(asked(tmp_path, *CPU), 3600.0)
    whole = told(asked(tmp_path, *CPU))
    assert whole.is_whole
    assert whole.seconds > found.seconds > 0


def test_the_range_is_that_of_earlier_predictions_once_there_are_enough(tmp_path: Path) -> None:
    request = asked(tmp_path, *CPU)
    record(request, 100.0)
    for number in range(LEAST_RUNS):
        assert told(request).range() is None
        add_forecast(request.store.root, 100.0, 100.0 + 50.0 * number)
    found = told(asked(tmp_path, *CPU))
    low, high = (found.seconds * ratio for ratio in found.range() or (0.0, 0.0))
    assert (low / found.seconds, high / found.seconds) == (pytest.approx(1.1), pytest.approx(1.9))


def test_a_run_that_did_all_of_its_jobs_is_compared_with_its_prediction(tmp_path: Path) -> None:
    request = asked(tmp_path, *CPU)
    record(request, 100.0)
    zero = dict.fromkeys(("lower_bound_s", "critical_path_s", "work_s", "load_s", "dependency_s", "retry_s"), 0.0)
    makespan = Makespan(actual_s=250.0, devices=2, tail_s=0.0, **zero)
    whole = told(asked(tmp_path, *CPU))
    done = Outcome(jobs=dict.fromkeys(request.plan.jobs, JobStatus.done), makespan=makespan)
    for outcome in (Outcome(jobs={"a": JobStatus.ready}, makespan=makespan), Outcome(jobs=done.jobs)):
        assert compared(request, whole, outcome) == outcome
    assert compared(request, replace(whole, unknown=("a",)), done) == done
    assert read_forecasts(request.store.root) == []
    beside = compared(request, whole, done).makespan
    assert beside is not None
    assert beside.predicted_s == whole.seconds
    assert read_forecasts(request.store.root) == [pytest.approx(250.0 / whole.seconds)]


def test_devices_that_are_not_here_are_planned_for_and_never_run_on(tmp_path: Path) -> None:
    for settings in (A100[:2], A100[::2], (*A100, "distributed.gpu_ids=[0,1]"), (*A100, "execution.workers=3")):
        with pytest.raises(DeviceError):
            asked(tmp_path, *settings)
    request = asked(tmp_path, *A100)
    assert request.is_elsewhere
    assert [(device.kind, device.memory_total_bytes >> 30) for device in request.devices] == [("cuda", 80)] * 2
    assert told(request).timed == ()
    printed = io.StringIO()
    tell_time(request, told(request), Terminal(file=printed, width=80))
    assert "not known" in printed.getvalue()
    assert "models.tiny" in printed.getvalue()
    assert run_experiment(request.config, Terminal(file=printed, width=80)) == 0
    assert not (tmp_path / "x").exists()


def test_a_profile_of_a_gpu_is_planned_for_that_gpu(tmp_path: Path) -> None:
    request = asked(tmp_path, *A100[1:])
    assert request.is_elsewhere
    assert [device.kind for device in request.devices] == ["cuda"]
    for here in (("device=cpu",), ("dry_run=measure",), ("dry_run=false",)):
        assert [device.kind for device in asked(tmp_path, *A100[1:], *here).devices][:1] == ["cpu"]


def test_a_budget_is_told_by_the_rows_that_it_is_enough_for(tmp_path: Path) -> None:
    settings = (*CPU, "experiment.seeds=[0,1]")
    record(asked(tmp_path, *settings), 3600.0)
    request = asked(tmp_path, *settings)
    whole = told(request)
    spent = {job_id: request.plan.jobs[job_id].seconds for job_id in whole.timed}
    total_s = sum(spent.values())
    assert begun_within(request, spent, 1e-9) == begun_within(request, spent, total_s)[:1]
    assert sorted(begun_within(request, spent, total_s)) == sorted(whole.timed)
    half = begun_within(request, spent, total_s / 2)
    assert {request.plan.jobs[job_id].round for job_id in half} == {0, 1}  # row by row, so the first rounds
    for number in range(LEAST_RUNS):
        add_forecast(request.store.root, 100.0, 100.0 + 50.0 * number)

    def shown(**budget: float) -> list[tuple[str, ...]]:
        printed = io.StringIO()
        limits = ",".join(f"{name}:{limit}" for name, limit in budget.items())
        request = asked(tmp_path, *settings, f"experiment.budget={{{limits}}}")
        tell_time(request, told(request), Terminal(file=printed, width=1000))
        return re.findall(r"(\d+) of (\d+) rows|\((\d+) to (\d+)", printed.getvalue())

    rows = [job for job in request.plan.jobs.values() if job.stage == "metrics"]
    (some, of_all, *_), (_, _, fewest, most) = shown(device_hours=total_s / 7200)
    assert int(fewest) < int(some) <= int(most) < int(of_all) == len(rows)
    assert shown(device_hours=total_s) == [(of_all, of_all, "", "")]
    flops = sum(whole.flops.values())
    [(within, *_)] = shown(flops=flops / 2)  # no range: FLOPs do not depend on how fast a machine is
    assert 0 < int(within) < len(rows)
    assert shown(flops=2 * flops) == [(of_all, of_all, "", "")]
    assert shown(flops=flops / 2, device_hours=total_s) == [(within, of_all, "", "")]


def test_a_race_is_told_with_all_that_it_does_if_no_pair_settles(tmp_path: Path) -> None:
    small = ("algos=[PITA,DPO]", "evaluation.num_prompts=120", "execution.shard_size=20", "dry_run=true")
    race = ("experiment.race={until: best}", *small)
    record(asked(tmp_path, *CPU, *race[1:]), 3600.0)
    calm = asked(tmp_path, *CPU, *race[1:])
    printed = io.StringIO()
    config = quick_config([*ASKED, f"output_dir={tmp_path}", *CPU, *race])
    assert run_experiment(config, Terminal(file=printed, width=1000)) == 0
    assert str(told(calm)) in printed.getvalue()


def test_times_of_one_device_say_nothing_of_another(tmp_path: Path) -> None:
    record(asked(tmp_path, *CPU), 100.0)
    assert told(asked(tmp_path, *A100)).timed == ()
    record(asked(tmp_path, *A100), 7.0, FULL_NAME)
    assert read_durations(tmp_path / ".store", FULL_NAME) == read_durations(tmp_path / ".store", "A100 80GB")
    assert told(asked(tmp_path, *A100)).is_whole
    assert told(asked(tmp_path, *A100[::2], "profile=a100_40gb")).timed == ()
    on_cpu = told(asked(tmp_path, *CPU))
    assert on_cpu.seconds > told(asked(tmp_path, *A100)).seconds


# -- measured ----------------------------------------------------------------------------------------------------


def test_two_sizes_tell_the_seconds_of_a_third() -> None:
    smaller = Durations({"a": Timed(1.0, 3.0), "b": Timed(1.0, 2.0), "fixed": Timed(1.0, 4.0)})
    larger = Durations({"a": Timed(2.0, 5.0), "b": Timed(2.0, 1.9), "fixed": Timed(1.0, 4.0)})
    found = extended({"a": 11.0, "b": 11.0, "fixed": 1.0}, smaller, larger)
    assert found == {"a": Timed(11.0, 23.0), "b": Timed(11.0, 10.45), "fixed": Timed(1.0, 4.0)}


def test_a_small_version_has_the_same_kinds_of_jobs(tmp_path: Path) -> None:
    request = asked(tmp_path, *CPU, "experiment.seeds=[3,4]", "rounds_of_training=4")
    small = prepare(small_version(request.config, 0.0))
    kinds, few = kinds_of(request), kinds_of(small)
    assert few == kinds
    assert sum(job.size_s for job in small.plan.jobs.values()) < sum(
        job.size_s for job in request.plan.jobs.values()
    )
    assert small_version(request.config, 1.0).data_collection == request.config.data_collection


@pytest.mark.parametrize(
    "settings",
    [
        ["experiment.race={until: best}", "execution.shard_size=20", "evaluation.num_prompts=100"],
        ["experiment.last_rounds={addition/tiny/s4/PITA: 1}", "experiment.looks={DPO: [20]}"],
        [
            "algos.Late.class_path=pipeline.learning.algos.dpo:DPO",
            "algos.Late.continues=DPO@3",
            "rounds_of_training=4",
        ],
    ],
    ids=["race", "ended", "continued"],
)
def test_a_small_version_is_one_whatever_chains_end_or_begin_when(settings: list[str], tmp_path: Path) -> None:
    request = asked(tmp_path, *CPU, "algos=[PITA,DPO]", "experiment.seeds=[3,4]", *settings)
    assert kinds_of(prepare(small_version(request.config, 0.0))) >= kinds_of(request)


@pytest.mark.parametrize("race", ["null", "{until: best}"])
def test_measuring_leaves_nothing_but_times(race: str, tmp_path: Path) -> None:
    settings = ["algos=[PITA,RAFT]", "rounds_of_training=1", f"experiment.race={race}", "execution.shard_size=10"]
    assert "not known" not in run_here(tmp_path / "o", "dry_run=measure", *settings)
    assert [path.name for path in (tmp_path / "o").rglob("*")] == [".store", "durations.json"]
    assert "not known" not in run_here(tmp_path / "o", "dry_run=true", *settings)


def test_a_dry_run_is_a_choice_or_a_truth_value() -> None:
    for word, choice in {"true": True, "false": False, "measure": True}.items():
        config = quick_config([*ASKED, f"dry_run={word}"])
        assert config.dry_run is DryRun[word]
        assert bool(config.dry_run) is choice
