"""What gave a job another key."""

from collections.abc import Callable

import pytest

from pipeline.plan import contents
from pipeline.plan.build import build_plan
from pipeline.plan.graph import result_key
from pipeline.plan.recorded import RecordedPlan, causes, parse_plan, plan_text, recorded
from tests.doubles.composing import quick_config
from tests.doubles.runs import CHAIN, chain_plan

SMALL = ["experiment.name=t", "evaluation.num_prompts=40", "data_collection.prompts_per_round=40"]


def planned(*overrides: str) -> RecordedPlan:
    return parse_plan(plan_text(build_plan(quick_config([*SMALL, "execution.shard_size=20", *overrides]))))


def told(old: RecordedPlan, new: RecordedPlan, job_id: str) -> list[tuple[str, list[str]]]:
    return [(cause.path[0], [str(change) for change in cause.changes]) for cause in causes(old, new, job_id)]


def test_every_recorded_key_is_the_hash_of_what_is_recorded_with_it() -> None:
    plan = planned("algos.PITA.eta=inf")
    for job in plan.jobs.values():
        assert result_key({**job.determined_by, "config": plan.config(job.id), "inputs": job.inputs}) == job.key


S0 = "addition/tiny/s0"


def test_a_raised_version_of_shipped_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    old = planned()
    now = contents.STATISTICS
    monkeypatch.setattr(contents, "STATISTICS", now + 1)
    assert told(old, planned(), f"{S0}/PITA/r1/metrics") == [
        (f"{S0}/PITA/r1/metrics", [f"the version of the shipped statistics: {now} -> {now + 1}"])
    ]


@pytest.mark.parametrize(
    ("override", "job", "expected"),
    [
        ("algos.PITA.eta=0.5", "PITA/r1/train", [("PITA/r1/train", ["algos.PITA.eta: 1.0 -> 0.5"])]),
        ("algos.PITA.eta=0.5", "PITA/r2/metrics", [("PITA/r1/generate/000", ["algos.PITA.eta: 1.0 -> 0.5"])]),
        ("algos.PITA.eta=0.5", "QSharp/r2/metrics", []),
        ("algos.PITA.num_workers=3", "PITA/r2/metrics", []),
        (
            "evaluation.num_prompts=60",
            "PITA/r1/metrics",
            [
                (
                    "PITA/r1/metrics",
                    [
                        "evaluation.num_prompts: 40 -> 60",
                        "what it reads as 'evaluate': 2 jobs -> 3 jobs",
                        "what it reads as 'reference.evaluate': 2 jobs -> 3 jobs",
                    ],
                )
            ],
        ),
    ],
    ids=["own", "of an input", "of another chain", "no result", "number of shards"],
)
def test_the_setting_that_changed_is_found(override: str, job: str, expected: list[tuple[str, list[str]]]) -> None:
    wanted = [(f"{S0}/{name}", changes) for name, changes in expected]
    assert told(planned(), planned(override), f"{S0}/{job}") == wanted


def test_rows_that_follow_from_the_shard_size_are_told_once_for_a_stage() -> None:
    found = told(planned(), planned("execution.shard_size=10"), f"{S0}/PITA/r1/train")
    assert (f"{S0}/PITA/r1/generate/000", ["its rows: 0 to 19 -> 0 to 9"]) in found
    assert sum("its rows" in change for _, changes in found for change in changes) == 2, "also of what scores"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda: recorded(chain_plan(version=2).to_json()), ["the version of X's code: 1 -> 2"]),
        (lambda: recorded({**chain_plan(version=1).to_json(), "key_format": 7}), []),
        (
            lambda: recorded({**chain_plan(version=2).to_json(), "key_format": 7}),
            ["the format of stored files: 1 -> 7", "the version of X's code: 1 -> 2"],
        ),
    ],
    ids=["version", "same key", "format"],
)
def test_code_that_changed_is_told(change: Callable[[], RecordedPlan], expected: list[str]) -> None:
    found = told(recorded(chain_plan().to_json()), change(), f"{CHAIN}/r1/train")
    assert [text for _, changes in found for text in changes] == expected
