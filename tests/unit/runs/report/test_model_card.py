"""The card of an exported model: what the hub reads of it, and that nothing in it can pass for something else."""

import re
from dataclasses import replace

import yaml

from pipeline.outputs.guidance import Drawing, GuidanceSettings, Prompting, Usage
from pipeline.runs.record import ResultRow
from pipeline.runs.report.model_card import Card, card_text


def row(metric: str, value: float | None, algo: str = "DPO") -> ResultRow:
    return ResultRow(algo, "mine", "hf", 0, 2, metric, value, 0.1, 0.9, 40)


POLICY = Card(
    algo="DPO",
    dataset="mine",
    model="hf",
    place="me/mine",
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
    assert "apply_chat_template" not in card_text(POLICY)


def test_a_value_model_tells_how_it_guides_and_what_is_missing() -> None:
    guidance = GuidanceSettings(algo="Own", eta=None, offset=None, top_k=3, min_p=0.1, others="dropped")
    text = card_text(replace(POLICY, usage=replace(POLICY.usage, kind="value"), guidance=guidance))
    assert "eta none, it is the reference; candidates are the 3 likeliest" in text
    assert "offset=lambda eta" in text
    assert "lm_eval" not in text
    assert "library_name: transformers" not in text


def test_foreign_text_stays_in_its_block() -> None:
    odd = "x\n```\n# Buy now\n<script>alert(1)</script>"
    text = card_text(
        replace(POLICY, command=odd, settings={"datasets": {"mine": {"system_prompt": odd}}}, prompt=odd)
    )
    outside = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "Buy now" in text
    assert "Buy now" not in outside
    assert "<script>" not in outside
