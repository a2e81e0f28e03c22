"""What is published of a run says how it was made, and neither where nor in whose folders."""

from __future__ import annotations

import shlex

import pytest

from pipeline.runs.report.model_card import command_for_all, settings_for_all


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("execution.shared_store=s3://secret-bucket/team", None),
        ("execution.ray.address=head.lab.example:6379", None),
        ("+execution.ray.runtime_env={env_vars:{HOST:head.lab.example}}", None),
        ("execution={shared_store:/mnt/team}", None),
        ("execution.shard_size=7", "execution.shard_size=7"),
        ("output_dir=/home/somebody/outputs", None),
        ("tracking.entity=somebody", None),
        ("hydra.run.dir=/home/somebody", None),
        ("models.hf.path=/home/somebody/models/Qwen3-0.6B", "models.hf.path=Qwen3-0.6B"),
        ("models.hf.path=~/models/Qwen3-0.6B/", "models.hf.path=Qwen3-0.6B/"),
        ("models.hf.path=Qwen/Qwen3-0.6B", "models.hf.path=Qwen/Qwen3-0.6B"),
        ("datasets.csv.path=file:///mnt/team/rows.csv", "datasets.csv.path=rows.csv"),
        ("datasets.csv.path='/mnt/a b/rows.csv'", "datasets.csv.path='rows.csv'"),
        ("datasets.csv.path=https://example.org/a/rows.csv", "datasets.csv.path=https://example.org/a/rows.csv"),
        ("algos.X.options={a:/mnt/one,b:[/mnt/x/two]}", "algos.X.options={a:one,b:[two]}"),
        ("algos.PITA.eta=1/2", "algos.PITA.eta=1/2"),
    ],
)
def test_a_command_has_names_in_the_place_of_paths_and_nothing_of_machines(given: str, said: str | None) -> None:
    told = command_for_all(["python", "run_parallel.py", "experiment.name=x", given])
    assert "somebody" not in told
    assert told.startswith("python run_parallel.py experiment.name=x")
    assert (said is None) == told.endswith("=x")
    assert said is None or shlex.split(told)[-1] == said


def test_settings_have_names_in_the_place_of_paths_and_texts_stay_as_they_are() -> None:
    settings = {
        "path": "/home/somebody/data/rows.csv",
        "test_path": "openai/gsm8k",
        "rewards": {"reward": {"path": "/mnt/team/reward model"}},
        "prompt_template": "/think Answer yes /no: {prompt}",
        "limit": 5,
        "columns": ["/a/b"],
    }
    assert settings_for_all(settings) == {
        **settings,
        "path": "rows.csv",
        "rewards": {"reward": {"path": "reward model"}},
        "columns": ["b"],
    }
