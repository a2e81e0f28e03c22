"""Requests that are well-typed but cannot work are refused with a reason."""

import pytest

from pipeline.config.checks import check_config
from pipeline.errors import ConfigError
from tests.doubles.composing import quick_config


def refuse(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_config(quick_config(["experiment.name=t", *overrides]))
    return str(caught.value)


def test_the_default_request_is_accepted() -> None:
    check_config(quick_config(["experiment.name=first_run"]))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("execution.workers=0", "execution.workers=0: must be at least 1 and at most 4096, or null"),
        ("algos.PITA.eta=0", "algos.PITA.eta=0.0: must be at least 1e-06"),
        ("algos.QSharp.eta=-1", "or inf. Smaller is stronger"),
        ("algos.QSharp.head_learning_rate=0", "head_learning_rate=0.0: must be above 0 and at most 100, or null"),
        ("experiment.seeds=[]", "experiment.seeds is empty"),
        ("experiment.seeds=[1,1]", "twice"),
        ("evaluation.split=train", "evaluation.split='train': must be 'test' or 'validation'"),
        ("execution.jobs_per_device=-1", "or 'auto' to measure how many fit"),
        ("execution.jobs_per_device=many", "execution.jobs_per_device='many': must be a whole number, at least 1"),
        ("distributed.enabled=true", "say how many with training.gpus_per_job"),
        ("datasets.addition.grading.options={exact_match:[1]}", "options.exact_match=[1]: must be a table of the"),
        ("datasets.addition.grading.options={exact_match:{use:[1]}}", "exact_match={'use': [1]}: must be"),
        ("experiment.seeds=[10000000000000000000000]", "experiment.seeds[0]=10000000000000000000000: must be at"),
        ("experiment.seeds=[[1]]", "experiment.seeds=[[1]]: must be a list of whole numbers"),
        ("evaluation.etas=[{}]", "evaluation.etas=[{}]: must be a list of numbers"),
        ("evaluation.etas=[null]", "evaluation.etas=[None]: must be a list of numbers"),
        ("evaluation.budgets=[2,1,2]", "evaluation.budgets=[2.0, 1.0, 2.0] names 2.0 twice"),
        ("output_dir=''", "output_dir='': is empty"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(override: str, said: str) -> None:
    assert said in refuse(override)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.optimizer=muon", "training.optimizer=muon: a training has 2 devices"),
        ("training.strategy=single", "training.strategy=single with training.gpus_per_job=2"),
        ("distributed.strategy=single", "it trains on one device. Use ddp, or fsdp"),
        (
            "system.use_parallel_execution=false",
            "runs everything in one process, and a training asks for 2 devices",
        ),
    ],
)
def test_what_cannot_be_done_on_several_devices_is_refused(override: str, said: str) -> None:
    assert said in refuse("training.gpus_per_job=2", override)


def test_a_scalar_head_and_flash_attention_do_not_fit() -> None:
    assert "Use system.attn_impl=sdpa" in refuse("system.attn_impl=flash_attention_2", "algos.PITA.head=v")


def test_settings_of_a_disabled_algorithm_do_not_matter() -> None:
    check_config(quick_config(["experiment.name=t", "algos.PITA.enabled=false", "algos.PITA.eta=0"]))


def test_no_algorithm_at_all_is_refused() -> None:
    said = refuse("algos.PITA.enabled=false", "algos.QSharp.enabled=false")
    assert "no algorithm is enabled: name some, as in 'algos=[PITA,DPO]'" in said
    assert refuse("algos=[]").startswith("no algorithm is enabled: name some")
