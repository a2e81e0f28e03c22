"""How many devices trials need, and which runs of several have which."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.sweeps.file import sweep_of
from pipeline.sweeps.multi import plan_runs, split_total
from pipeline.sweeps.plan import most_devices


@pytest.mark.parametrize(
    ("given", "needed"),
    [({"values": [1, 4, 2]}, (1, 4)), ({"min": 1, "max": 8}, (1, 8)), ({"value": 2}, (2, 2)), (None, (3, 3))],
)
def test_a_parameter_says_how_many_devices_trials_need(
    given: dict[str, object] | None, needed: tuple[int, int]
) -> None:
    parameters = {"a": {"value": 1}, **({"num_gpus": given} if given else {})}
    asked = {"program": "p", "method": "random", "parameters": parameters, "pipeline": {"num_gpus": 3}}
    assert most_devices(sweep_of(asked, Path("s.yaml"))) == needed


# -- test multi --------------------------------------------------------------------------------------------------
# Several runs on sets of GPUs: which has which, and what is refused.


@pytest.mark.properties
@given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 40))
def test_no_device_belongs_to_two_runs(each: int, runs: int, total: int) -> None:
    try:
        planned = plan_runs("x", each, runs, total, [])
    except ConfigError:
        assert each * runs > total
        return
    assert [place for run in planned for place in run.places] == list(range(each * runs))
    assert each * runs <= total
    assert {len(run.places) for run in planned} == {each}


def test_runs_are_named_in_order_and_have_seeds_of_their_own_unless_they_are_given() -> None:
    runs = plan_runs("my_sweep", 2, 4, 8, [])
    assert [(run.name, run.places) for run in runs] == [
        (f"my_sweep.run{at + 1}", (2 * at, 2 * at + 1)) for at in range(4)
    ]
    assert [run.settings for run in runs] == [(f"experiment.seeds=[{at}]",) for at in range(4)]
    given = ("stage=prepare", "experiment.seeds=[7]")
    assert [run.settings for run in plan_runs("x", 1, 2, 2, given)] == [given, given]


@pytest.mark.parametrize(
    ("each", "runs", "total", "settings", "said"),
    [
        (2, 4, 6, [], "4 runs with 2 GPUs each need 8, and there are 6: "),
        (1, 1, 0, [], "device=cpu"),
        (0, 1, 8, [], "GPUS_PER_RUN 0"),
        (1, 2, 8, ["experiment.name=x"], "each run has its own"),
        (1, 2, 8, ["++distributed.gpu_list=[0]"], "each run has its own"),
    ],
)
def test_what_cannot_be_is_refused(each: int, runs: int, total: int, settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_runs("x", each, runs, total, settings)
    assert said in str(refused.value)


def test_the_number_of_devices_stands_before_the_settings() -> None:
    assert split_total(["8", "a=1"]) == (8, ["a=1"])
    assert split_total(["a=1", "~b"]) == (None, ["a=1", "~b"])
    for words in (["a=1", "8"], ["eight"], ["8", "8"], ["\u00b2"]):
        with pytest.raises(ConfigError, match="TOTAL_GPUS is a number"):
            split_total(words)
