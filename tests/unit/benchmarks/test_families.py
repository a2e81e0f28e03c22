"""The table of families tells right from wrong."""

from functools import cache
from pathlib import Path

import pytest
import torch

from benchmarks import families, family_runs
from benchmarks.families import RARE, chances, summary, value_model
from benchmarks.family_runs import METHODS, whole_run
from pipeline.learning.choices import HeadType
from tests.doubles.families import FAMILIES, tiny_model

LINE = "| `mamba` | state space or recurrent | transformers' cache | yes | {} |"


def test_a_family_of_states_and_attention_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one method of each kind: a V head and a Q head, pairs and groups."""
    few = {name: METHODS[name] for name in ("PITA", "QSharp-Q", "DPO", "GRPO")}
    monkeypatch.setattr(family_runs, "METHODS", few)
    less = ("data_collection.prompts_per_round=8", "evaluation.num_prompts=3", "generation.max_new_tokens=4")
    assert whole_run(tmp_path, "falcon_h1", "algos.GRPO.lora.rank=2", *less) == "yes"


@torch.inference_mode()
def test_draws_of_another_strength_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "SAMPLES", 64)
    monkeypatch.setattr(families, "drawn_seconds", cache(families.drawn_seconds))  # the same, whatever is expected
    model, value = tiny_model("gpt2"), value_model("gpt2", HeadType.q)
    assert min(chances(model, value).values()) > RARE
    monkeypatch.setattr(families, "ETA", 50.0)  # of what is expected
    assert max(chances(model, value).values()) < RARE


def test_a_table_is_summed_up() -> None:
    assert "1 of 1 families are right. 9 tests" in summary([LINE.format("0.5")])


def test_every_family_is_on_the_page_and_every_method_in_a_run() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    assert [name for name in FAMILIES if f"`{name}`" not in page] == []
    assert {"PITA", "PITA-Q", "QSharp", "QSharp-Q", "DPO", "GRPO"} == METHODS.keys()
