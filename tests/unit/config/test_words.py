"""What is typed for a key is what was meant: texts as they stand, None as null, line breaks for models."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.words import as_meant
from tests.doubles.composing import quick_config

_JSONL = ("experiment.name=x", "dataset=jsonl", "datasets.jsonl.path=rows.jsonl")
_NUMBERS = ["1.10", "1e3", "1_000", "0x10", "on", "true", "null", "None", "2024-01-01", "007", "1:30", "nan"]


@pytest.mark.parametrize("typed", _NUMBERS)
def test_a_name_is_what_was_typed(typed: str) -> None:
    config = quick_config([f"experiment.name={typed}", f"tracking.project={typed}x"])
    assert (config.experiment.name, config.tracking.project) == (typed, f"{typed}x")


@pytest.mark.parametrize("typed", ["1.10", "007", "true", "1e3"])
def test_texts_in_lists_and_tables_are_what_was_typed(typed: str) -> None:
    given = [f"datasets.jsonl.columns={{prompt: {typed}}}", f"datasets.jsonl.further_columns=[{typed},b]"]
    dataset: Any = quick_config([*_JSONL, *given]).datasets["jsonl"]
    assert (dataset.columns, dataset.further_columns) == ({"prompt": typed}, [typed, "b"])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("None", None),
        ("null", None),
        ("~", None),
        ('"null"', "null"),
        ("1.10", "1.10"),
        (r"Be kind.\nBe short.", "Be kind.\nBe short."),
        (r'"a, b\n\"c\" \\n \t{d}"', 'a, b\n"c" \\n \t{d}'),
        (r'"\nabla \times \theta \neq \boxed{}"', r"\nabla \times \theta \neq \boxed{}"),
        ('"a\nb"', "a\nb"),
        (r"Q: {x}\nA (it's short):", "Q: {x}\nA (it's short):"),
    ],
)
def test_a_text_for_models_is_read_as_people_write_it(typed: str, meant: str | None) -> None:
    dataset: Any = quick_config([*_JSONL, f"datasets.jsonl.system_prompt={typed}"]).datasets["jsonl"]
    assert dataset.system_prompt == meant


def test_none_is_null_wherever_null_may_stand() -> None:
    config: Any = quick_config([*_JSONL, "datasets.jsonl.limit=None", "datasets.jsonl.further_columns=None"])
    assert (config.datasets["jsonl"].limit, config.datasets["jsonl"].further_columns) == (None, None)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("experiment.name=1.1,1.10", "experiment.name='1.1','1.10'"),
        ("datasets.mine.system_prompt=None,short", "datasets.mine.system_prompt=null,short"),
        (r"datasets.jsonl.path=C:\new", r"datasets.jsonl.path=C:\new"),
        ("datasets.jsonl.columns.prompt=1.10", "datasets.jsonl.columns.prompt='1.10'"),
        ("+datasets.jsonl.columns.prompt=1e3", "+datasets.jsonl.columns.prompt='1e3'"),
        ("experiment.seeds=[0,1]", "experiment.seeds=[0,1]"),
        ("evaluation.etas=[0.50]", "evaluation.etas=[0.50]"),
        ("algos.GRPO.options={name: 1.10}", "algos.GRPO.options={name: 1.10}"),
        ("hydra.job.name=1.10", "hydra.job.name=1.10"),
        ("--config-dir=1.10", "--config-dir=1.10"),
        ("experiment.name=[1.10", "experiment.name=[1.10"),
    ],
)
def test_only_settings_that_hydra_would_misread_are_rewritten(word: str, meant: str) -> None:
    assert as_meant([word]) == [meant]


@pytest.mark.parametrize("home", ["/home/me", "/home/a (b), c=d"])
def test_a_setting_may_begin_with_the_home_folder(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which bash expands for keys without a dot alone."""
    monkeypatch.setenv("HOME", home)
    config = quick_config(["experiment.name=x", "execution.store=~/store", "output_dir=~", "execution.priority=~"])
    assert (config.execution.store, config.output_dir) == (f"{home}/store", home)
    assert config.execution.priority is None
    assert as_meant(["~algos", "--flag=~/x", "key='~/x'", "key=a~/b"]) == [
        "~algos",
        "--flag=~/x",
        "key='~/x'",
        "key=a~/b",
    ]
