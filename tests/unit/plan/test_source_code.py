"""Keys cover the source of the user's own code, and nothing of what ships."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.schema import GradingConfig
from pipeline.config.user_code import source_hash
from pipeline.plan import contents
from pipeline.plan.build import build_plan
from pipeline.plan.contents import class_source, dataset_source
from pipeline.plan.graph import Plan, result_key
from pipeline.plan.models import read_sources
from pipeline.plan.recorded import RecordedPlan, causes, parse_plan, plan_text, recorded
from tests.doubles.composing import quick_config

ALGO = """
from pipeline.learning.algos.base import METRICS, REFERENCE_TRAIN, TEXT, Read, Stage, Algorithm

class Idea(Algorithm):
    name = "Idea"
    version = 1
    stages = (
        Stage("think", reads=(REFERENCE_TRAIN,), config=("system", "algo")),
        Stage("evaluate", shards="eval", reads=(Read("think"),), config=(*TEXT, "evaluation")),
    )
    def think(self, ctx): ...
    def evaluate(self, ctx): ...
"""
DATASET = """
from pipeline.learning.datasets.base import Dataset, Row

class Counting(Dataset):
    vocabulary, bos_token = (*"0123456789", "<"), "<"
    def __init__(self, config):
        super().__init__(config)
        self.split_ids("counting", 30_000)
    def row(self, row_id):
        return Row(row_id, str(row_id))
    def demonstration(self, row_id, draw):
        return f"{row_id:05d}", "1"
"""
REWARD = """
raise RuntimeError("the engine must not run this")

def praise(completions, **_):
    return [1.0 for _ in completions]
"""
CHOSEN = [
    *("experiment.name=t", "algos=[PITA]", "dataset=[]", "datasets.counting.reward=own_praise.praise"),
    *("algos.Idea.class_path=own_idea.Idea", "datasets.counting.class_path=own_counting.Counting"),
]
OWN = {"own_idea": ALGO, "own_counting": DATASET, "own_praise": REWARD}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, content in OWN.items():
        (tmp_path / f"{name}.py").write_text(content)
    yield tmp_path
    forget()


def forget() -> None:
    """What the start of another process would forget."""
    for name in OWN:
        sys.modules.pop(name, None)
    source_hash.cache_clear()


def plan(*overrides: str) -> Plan:
    forget()
    return build_plan(quick_config([*CHOSEN, *overrides]))


def changed_stages(before: Plan, after: Plan) -> set[str]:
    """Algorithm and stage of the jobs that have another key."""
    assert list(before.jobs) == list(after.jobs)
    return {f"{job.algo}.{job.stage}" for name, job in after.jobs.items() if job.key != before.jobs[name].key}


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    os.utime(file, (0, 0))  # what Python compiled is known by the second and the size of its source


def test_an_edited_algorithm_runs_again_and_nothing_else_does(folder: Path) -> None:
    before = plan()
    assert changed_stages(before, plan()) == set()
    edit(folder / "own_idea.py", "def think(self, ctx): ...", "def think(self, ctx): pass")
    after = plan()
    assert changed_stages(before, after) == {"Idea.think", "Idea.evaluate"}
    (job,) = [job.id for job in after.jobs.values() if job.stage == "think" and job.round == 1]
    (changes,) = causes(recorded(before.to_json(())), recorded(after.to_json(())), job).values()
    assert [change.what for change in changes] == ["the source of own_idea:Idea"]


@pytest.mark.parametrize("name", ["own_counting", "own_praise"])
def test_an_edited_dataset_or_reward_runs_again_what_sees_it(folder: Path, name: str) -> None:
    one_round = "rounds_of_training=1"
    before = plan(one_round)
    with (folder / f"{name}.py").open("a") as file:
        file.write("# said, and nothing done\n")
    assert changed_stages(before, plan(one_round)) == set()
    edit(folder / f"{name}.py", *{"own_counting": ('"1"', '"2"'), "own_praise": ("[1.0 for", "[2.0 for")}[name])
    changed = changed_stages(before, plan(one_round))
    assert {"reference.evaluate", "PITA.score", "PITA.train", "PITA.evaluate", "Idea.evaluate"} <= changed
    asks_none = {"reference.train", "Idea.think", "PITA.generate"}
    assert asks_none & changed == (asks_none if name == "own_counting" else set())


def test_a_process_that_plans_again_sees_edits_of_what_it_has_not_imported(folder: Path) -> None:
    """As a notebook does: workers import it anew, and refuse what the plan was not made with."""
    before = plan("rounds_of_training=1")
    edit(folder / "own_idea.py", "def think(self, ctx): ...", "def think(self, ctx): pass")
    edit(folder / "own_praise.py", "[1.0 for", "[2.0 for")
    changed = changed_stages(before, build_plan(quick_config([*CHOSEN, "rounds_of_training=1"])))
    assert "PITA.score" in changed
    assert "Idea.think" not in changed


def test_what_ships_has_no_part_in_it(folder: Path) -> None:
    shipped = build_plan(
        quick_config(["experiment.name=t", "algos.Mild.class_path=pipeline.learning.algos.value_guided.PITA"])
    )
    assert not any("code" in job.determined_by for job in shipped.jobs.values())
    assert class_source(None) == {}


def test_a_reward_under_another_name_is_followed(folder: Path) -> None:
    config = quick_config(
        [
            "experiment.name=t",
            "datasets.addition.rewards={kind: 1, exact_match: 1}",
            "datasets.addition.grading.options={kind: {use: own_praise.praise}}",
        ]
    )
    assert list(dataset_source(config.datasets["addition"])) == ["own_praise.praise"]


def test_the_content_of_what_reward_options_name_counts_and_its_place_does_not(tmp_path: Path) -> None:
    own = "examples.near_miss.near_miss"

    def keys(place: str, content: str) -> set[str]:
        folder = tmp_path / place
        (folder / "rm").mkdir(parents=True, exist_ok=True)
        (folder / "rm" / "config.json").write_text("{}")
        (folder / "rm" / "model.safetensors").write_text(content)
        (folder / "words.txt").write_text(content)
        config = quick_config(["experiment.name=t"])
        grading = GradingConfig(
            options={
                "model": {"path": str(folder / "rm")},
                own: {"words": str(folder / "words.txt"), "other": "a"},
            }
        )
        settings = replace(config.datasets["addition"], rewards={"model": 1.0, own: 1.0}, grading=grading)
        config = replace(config, datasets={"addition": settings})
        return {job.key for job in build_plan(config, sources=read_sources(config)).jobs.values()}

    first = keys("here", "one")
    assert keys("there", "one") == first
    assert keys("here", "two") != first


@pytest.mark.parametrize("named", ["{words: facts/words.txt}", "{words: facts}", "{a: [{b: facts/words.txt}]}"])
@pytest.mark.parametrize(
    ("settings", "reached", "left"),
    [
        ("algos.Idea.options", "Idea.think", "PITA.train"),
        ("datasets.counting.options", "PITA.generate", ""),
        ("datasets.counting.grading.options", "PITA.score", "reference.train"),
    ],
)
def test_files_and_folders_that_options_name_count_for_what_reads_them(
    folder: Path, settings: str, reached: str, left: str, named: str
) -> None:
    def with_words(text: str, beside: str) -> Plan:
        (folder / "facts").mkdir(exist_ok=True)
        (folder / "facts" / "words.txt").write_text(text)
        (folder / "log.txt").write_text(beside)
        value = f"{{own_praise.praise: {named}}}" if "grading" in settings else named
        more = [f"{settings}={value}", "algos.PITA.options={log_file: log.txt, folder: .}"]
        forget()
        config = quick_config([*CHOSEN, *more])
        return build_plan(config, sources=read_sources(config))

    before = with_words("one", "a")
    assert not changed_stages(before, with_words("one", "b"))
    changed = changed_stages(before, with_words("two", "b"))
    assert reached in changed
    assert left not in changed


SMALL = ["experiment.name=t", "evaluation.num_prompts=40", "data_collection.prompts_per_round=40"]


def planned(*overrides: str) -> RecordedPlan:
    return parse_plan(plan_text(build_plan(quick_config([*SMALL, "execution.shard_size=20", *overrides]))))


def told(old: RecordedPlan, new: RecordedPlan, job_id: str) -> list[tuple[str, list[str]]]:
    return [(at, [str(change) for change in changes]) for at, changes in causes(old, new, job_id).items()]


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
                        f"what it reads as 'evaluate': {S0}/PITA/r1/evaluate/000 and 1 more -> "
                        f"{S0}/PITA/r1/evaluate/000 and 2 more",
                        f"what it reads as 'reference.evaluate': {S0}/reference/evaluate/000 and 1 more -> "
                        f"{S0}/reference/evaluate/000 and 2 more",
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
