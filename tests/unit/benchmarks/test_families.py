"""The table of families tells right from wrong."""

from pathlib import Path

import pytest

from benchmarks import family_runs
from benchmarks.families import summary
from benchmarks.family_runs import METHODS, whole_run
from tests.doubles.families import FAMILIES

LINE = "| `mamba` | state space or recurrent | transformers' cache | yes | {} |"


def test_a_family_of_states_and_attention_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a value model, and with a policy that is trained."""
    few = {name: METHODS[name] for name in ("PITA", "DPO")}
    monkeypatch.setattr(family_runs, "METHODS", few)
    less = ("data_collection.prompts_per_round=8", "evaluation.num_prompts=3", "generation.max_new_tokens=4")
    assert whole_run(tmp_path, "falcon_h1", *less) == "yes"


def test_a_table_is_summed_up() -> None:
    assert "1 of 1 families are right. 9 tests" in summary([LINE.format("0.5")])


def test_every_family_is_on_the_page_and_every_method_in_a_run() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    assert [name for name in FAMILIES if f"`{name}`" not in page] == []
    assert {"PITA", "PITA-Q", "QSharp", "QSharp-Q", "DPO", "GRPO"} == METHODS.keys()
