"""What the keys of results cover of a judge, and what a plan has more for one that compares with the reference."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.plain import short
from pipeline.config.schema import Config
from pipeline.errors import ConfigError
from pipeline.plan.build import build_plan
from pipeline.plan.graph import Job
from pipeline.plan.models import check_models, read_sources
from tests.doubles.composing import quick_config

BASE = {"endpoint": "http://localhost/v1", "model": "m"}


def request(options: Mapping[str, Any]) -> Config:
    given = ", ".join(f"{name}: {_typed(value)}" for name, value in options.items())
    return quick_config(
        [
            "experiment.name=t",
            "algos=[DPO]",
            "evaluation.num_prompts=40",
            "execution.shard_size=20",
            "datasets.addition.reward=judge",
            f"datasets.addition.grading.options={{judge: {{{given}}}}}",
        ]
    )


def jobs(options: Mapping[str, Any]) -> dict[str, Job]:
    config = request(options)
    plan = build_plan(config, sources=read_sources(config))
    return {job.id: job for job in plan.jobs.values()}


def _typed(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_typed, value))}]"
    return f"'{value}'" if isinstance(value, str) else short(value)


def stages(found: Mapping[str, Job], other: Mapping[str, Job]) -> set[str]:
    """Those of the first round with other keys."""
    return {job.stage for name, job in found.items() if other[name].key != job.key and job.round < 2}


@pytest.mark.parametrize(
    "more",
    [
        {"endpoint": "http://localhost/v2"},
        {"model": "n"},
        {"mode": "pair"},
        {"template": "{completion}?"},
        {"scale": [1, 5]},
        {"temperature": 0.5},
        {"top_p": 0.5},
        {"max_tokens": 9},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_a_judge_says_depends_on_is_in_the_keys_of_what_it_scores(more: Mapping[str, Any]) -> None:
    changed = stages(jobs(BASE), jobs({**BASE, **more}))
    assert {"score", "evaluate", "train"} <= changed
    assert "generate" not in changed


def test_how_it_is_asked_is_in_none() -> None:
    more = {"key_env": "X", "at_once": 2, "per_minute": 5, "attempts": 2, "timeout_s": 3, "price": [1, 2]}
    assert not stages(jobs(BASE), jobs({**BASE, **more}))


def test_a_local_judge_is_known_by_what_it_is(tmp_path: Path) -> None:
    for name, weights in (("one", b"a"), ("same", b"a"), ("other", b"b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(weights)
    one, same, other = (jobs({"path": str(tmp_path / name)}) for name in ("one", "same", "other"))
    assert not stages(one, same)
    assert "score" in stages(one, other)


def test_what_scores_against_the_reference_reads_it() -> None:
    plain = jobs({**BASE, "mode": "pair"})
    against = jobs({**BASE, "mode": "pair", "against": "reference"})
    score = next(job for job in against.values() if job.stage == "score")
    assert "reference.train" in score.inputs
    assert not [job for job in plain.values() if job.stage == "score" and "reference.train" in job.inputs]
    # Its greedy completions of held-out prompts are taken from its own evaluation, from the same prompts.
    evaluated = {job.key: (job.algo, job.shard) for job in against.values() if job.stage == "evaluate"}
    read = {
        job.shard: job.inputs["reference.evaluate@shard"]
        for job in against.values()
        if evaluated.get(job.key, ("reference",))[0] == "DPO"
    }
    assert len(read) > 1
    assert all([evaluated[key] for key in keys] == [("reference", shard)] for shard, keys in read.items())


def test_a_local_judge_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        check_models(request({"path": str(tmp_path / "none")}))
