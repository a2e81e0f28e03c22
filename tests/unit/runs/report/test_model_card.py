"""The card of an exported model: what the hub reads of it, and that nothing in it can pass for something else."""

import json
import re
import shlex
from dataclasses import replace

import pytest
import yaml

from pipeline.outputs.formats import Drawing, GuidanceSettings, Prompting, Usage
from pipeline.runs.record import ResultRow
from pipeline.runs.report.model_card import (
    ON_CPU,
    ON_GPU,
    SERVED,
    Card,
    card_text,
    command_for_all,
    settings_for_all,
)
from tests.doubles.small_runs import ROOT


def row(metric: str, value: float | None, algo: str = "DPO") -> ResultRow:
    return ResultRow(algo, "mine", "hf", 0, 2, metric, value, 0.1, 0.9, 40)


POLICY = Card(
    algo="DPO",
    dataset="mine",
    usage=Usage(
        kind="policy",
        drawing=Drawing(max_new_tokens=7, temperature=0.5),
        prompting=Prompting(),
        chain="mine/hf/s0/DPO",
        round=2,
    ),
    base="some/model",
    origin="Data: some.",
    settings={"evaluation": {"split": "validation"}, "datasets": {"mine": {"reward": "my.reward"}}},
    rows=[row("pass@1", 0.5), row("reward", None), row("pass@1/vs_reference", 0.25), row("maj@2", 0.4)],
    reference=[row("pass@1", 0.25, "reference")],
    command="python run_parallel.py experiment.name=x",
    versions={"torch": "2.11"},
)


def head(card: Card) -> dict[str, object]:
    found = yaml.safe_load(card_text(card).split("---\n")[1])
    assert isinstance(found, dict)
    return found


def test_the_hub_is_told_what_it_is() -> None:
    found = head(POLICY)
    assert found["base_model"] == "some/model"
    assert (found["library_name"], found["pipeline_tag"]) == ("transformers", "text-generation")
    assert found["tags"] == ["posttrain-pipeline", "policy", "DPO"]
    [index] = found["model-index"]  # type: ignore[misc]
    assert index["results"][0]["metrics"] == [{"type": "pass@1", "name": "pass@1", "value": 0.5}]
    assert "base_model" not in head(replace(POLICY, base=None))
    assert "model-index" not in head(replace(POLICY, rows=[]))


def test_what_was_measured_stands_beside_the_reference() -> None:
    text = card_text(POLICY)
    assert "| pass@1 | 0.5 | [0.1, 0.9] | 0.25 | 0.25 | [0.1, 0.9] |" in text
    assert "| reward |" not in text
    assert "40 prompts of the validation split of `mine`" in text
    assert "python run_parallel.py experiment.name=x" in text
    bare = card_text(replace(POLICY, rows=[], command=""))
    assert "did not come to evaluate it" in bare
    assert "The command was not recorded" in bare


def test_a_policy_of_conversations_is_asked_by_its_chat_template() -> None:
    prompting = Prompting(chat=True, system_prompt="be 'kind'")
    text = card_text(replace(POLICY, usage=replace(POLICY.usage, prompting=prompting)))
    assert "apply_chat_template" in text
    assert "{'role': 'system', 'content': \"be 'kind'\"}" in text
    assert "--tasks gsm8k --apply_chat_template" in text
    assert "--system_instruction 'be '\"'\"'kind'\"'\"'' --gen_kwargs '{\"max_gen_toks\": 7}'" in text
    assert "without `--apply_chat_template` the harness" in text
    assert "\nvllm serve . --dtype float32 --host 127.0.0.1\nvllm chat --system-prompt 'be '" in text
    assert "apply_chat_template" not in card_text(POLICY)
    assert "\nvllm complete\n" in card_text(POLICY)


def test_a_guided_model_is_served_as_the_page_shows() -> None:
    guidance = GuidanceSettings(algo="PITA", eta=0.25, offset="eta", top_k=5, min_p=0.0, others="kept")
    card = replace(POLICY, algo="PITA", usage=replace(POLICY.usage, kind="value"), guidance=guidance)
    text, page = card_text(card), (ROOT / "docs" / "using-models.md").read_text()
    for begins in (ON_GPU, ON_CPU):
        assert (
            f"\n{begins} reference --served-model-name {SERVED} --logits-processors pipeline.vllm:Guided " in text
        )
        assert f"\n    {begins} my_model/reference" in page
    (request,) = re.findall("^curl .*", text, re.MULTILINE)
    asked = json.loads(shlex.split(request)[-1])
    assert (asked["model"], asked["max_tokens"], asked["vllm_xargs"]) == (SERVED, 7, {"eta": 0.25})
    assert f'"model": "{SERVED}"' in page
    assert f"--served-model-name {SERVED} " in page


def test_foreign_text_stays_in_its_block() -> None:
    odd = "x\n```\n# Buy now\n<script>alert(1)</script>"
    text = card_text(
        replace(POLICY, command=odd, settings={"datasets": {"mine": {"system_prompt": odd}}}, prompt=odd)
    )
    outside = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "Buy now" in text
    assert "Buy now" not in outside
    assert "<script>" not in outside


# -- what is published of a run says how it was made, and neither where nor in whose folders ---


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("execution.shared_store=s3://secret-bucket/team", None),
        ("+execution.ray.runtime_env={env_vars:{HOST:head.lab.example}}", None),
        ("execution={shared_store:/mnt/team}", None),
        ("execution.shard_size=7", "execution.shard_size=7"),
        ("tracking.entity=somebody", None),
        ("models.hf.path=/home/somebody/models/Qwen3-0.6B", "models.hf.path=Qwen3-0.6B"),
        ("models.hf.path=Qwen/Qwen3-0.6B", "models.hf.path=Qwen/Qwen3-0.6B"),
        ("datasets.csv.path=file:///mnt/team/rows.csv", "datasets.csv.path=rows.csv"),
        ("datasets.csv.path='/mnt/a b/rows.csv'", "datasets.csv.path='rows.csv'"),
        ("datasets.csv.path=https://example.org/a/rows.csv", "datasets.csv.path=https://example.org/a/rows.csv"),
        ("algos.X.options={a:/mnt/one,b:[/mnt/x/two]}", "algos.X.options={a:one,b:[two]}"),
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
