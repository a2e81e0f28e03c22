"""Configuration: what a user may write, and that it reaches a worker unchanged."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline import cli
from pipeline.config.checks import check_config
from pipeline.config.load import as_meant, config_from_plain, load_config
from pipeline.config.plain import stage_config_from_plain, to_plain, with_schema
from pipeline.config.tables import conf_dir
from pipeline.errors import ConfigError
from tests.doubles.composing import quick_config

NAME = "experiment.name=t"
GROUPS = ("algos", "dataset", "model")


def test_a_round_trip_through_plain_data_changes_nothing() -> None:
    every = [
        f"{group}=[{','.join(path.stem for path in (conf_dir() / group).glob('*.yaml'))}]" for group in GROUPS
    ]
    config = quick_config([NAME, *every, "algos.DPO.lora.rank=4", "evaluation.etas=[0.1,inf]"])
    wire = json.loads(json.dumps(to_plain(config)))
    assert config_from_plain(wire) == config


def test_a_request_leaves_nothing_to_the_next() -> None:
    first = load_config([NAME])
    own = ["algos.Mine.class_path=examples.fudge.Fudge", "algos.PITA.eta=7", "datasets.addition.digits=2"]
    changed = load_config([NAME, *own, "+algos.PITA.options.a=1", "models.tiny.n_layer=3"])
    changed.algos["PITA"].options["b"] = changed.evaluation.etas.append(3.0)
    assert changed != first
    assert load_config([NAME]) == first


@pytest.mark.parametrize(
    ("profile", "pita_batch", "micro_batch", "checkpointing"),
    [("a100_40gb", 16, 2, True), ("a100_80gb", 32, 4, False)],
)
def test_gpu_profiles_set_the_published_values(
    profile: str, pita_batch: int, micro_batch: int, checkpointing: bool
) -> None:
    config = load_config([NAME, f"profile={profile}"])
    assert config.algos["PITA"].batch_size == pita_batch
    assert config.algos["PITA"].num_workers == 4
    assert config.training.micro_batch_size == micro_batch
    assert config.training.gradient_checkpointing is checkpointing
    assert config.data_collection.reward_batch_size == 32
    assert [name for name, algo in config.algos.items() if algo.enabled] == ["PITA", "QSharp"]


def test_a_stage_sees_only_the_sections_it_declared() -> None:
    config = quick_config([NAME])
    plain = {
        "training": to_plain(config.training),
        "algo": with_schema(config.algos["PITA"]),
    }
    rebuilt = stage_config_from_plain(json.loads(json.dumps(plain)))
    assert rebuilt.training == config.training
    assert rebuilt.algo == config.algos["PITA"]
    with pytest.raises(AttributeError):
        _ = rebuilt.evaluation


def test_the_default_gives_way_to_what_is_held_out_and_a_number_that_was_given_does_not() -> None:
    few = ["experiment.name=t", "datasets.addition.test_size=50"]
    config = quick_config(few)
    check_config(config)
    assert config.evaluation.num_prompts == 50
    for given in ("evaluation.num_prompts=500", "++evaluation.num_prompts=51", "evaluation={num_prompts: 500}"):
        with pytest.raises(
            ConfigError, match=r"datasets\.addition\.test_size sets aside 50 prompts at most; ask for fewer"
        ):
            check_config(quick_config([*few, given]))
    asked = [*few, "evaluation.num_prompts=20"]
    assert quick_config(asked).evaluation.num_prompts == 20


def test_a_number_in_a_file_holds_where_it_is_the_default_too(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    given = ["experiment.name=t", "datasets.addition.test_size=50", "experiment=mine"]
    given.append(f"hydra.searchpath=[file://{tmp_path}]")
    file.write_text("# @package _global_\nevaluation:\n  num_prompts: 500\n")
    with pytest.raises(ConfigError, match=r"sets aside 50 prompts at most; ask for fewer"):
        check_config(load_config(given))
    file.write_text("# @package _global_\nevaluation:\n  split: test\n")
    assert load_config(given).evaluation.num_prompts == 50
    same = "rounds_of_training=${evaluation.num_prompts}"
    assert load_config(["experiment.name=t", same]).rounds_of_training == 500


def test_the_command_takes_settings_on_both_sides_of_a_flag(capfd: pytest.CaptureFixture[str]) -> None:
    own = ["algos.Mine.class_path=pipeline.learning.algos.value_guided.PITA", "algos.Mine.batch_size=7"]
    assert cli.main(["experiment.name=x", *own, "--cfg", "job", "rounds_of_training=7"]) == 0
    printed = capfd.readouterr().out
    assert "Mine:" in printed
    assert "rounds_of_training: 7" in printed
    assert "num_prompts: 500" in printed
    assert "${" not in printed


# -- test faults -------------------------------------------------------------------------------------------------
# All faults of a request are told at once, each with its key, what is allowed and the nearest right name.


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["foo=1", "rounds_of_training=-1"], ["'foo'", "rounds_of_training=-1"]),
        (["algos.PITA.etta=2", "training.grad_clip=abc"], ["'algos.PITA.eta'", "training.grad_clip=abc"]),
        (["dataset=nope", "model=gpt2", "foo=1"], ["dataset 'nope'", "model 'gpt2'", "'foo'"]),
        (["[a,b", "foo=1", "seed"], ["[a,b", "'foo'", "experiment.seeds"]),
        (["training.gpus_per_job=0", "evaluation.split=tset", "bar=1"], ["gpus_per_job=0", "'test'", "'bar'"]),
        (["algos.DPO.front={beta: [0.1, a]}", "algos=[DPO]", "foo=1"], ["algos.DPO.front.beta=a", "'foo'"]),
        (["algos.Nobody.eta=1", "datasets.gsm8k.path=x"], ["'Nobody'", "dataset=gsm8k"]),
        (["experiment.seeds=[a]", "output_dir=???", "dry_run=1,2"], ["seeds", "output_dir", "--multirun"]),
    ],
)
def test_every_wrong_setting_has_its_message(words: list[str], told: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        quick_config([NAME, *words])
    said = str(caught.value)
    assert [part for part in told if part not in said] == []
    assert said.startswith(f"{len(set(told))} settings are wrong:")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainin.micro_batch_size=3", "'training.micro_batch_size'"),
        ("lora.rank=4", "'algos.<NAME>.lora.rank'"),
        ("algos=[dpo]", "'DPO'"),
        ("execution.num_gpus=1", "'distributed.num_gpus'"),
        ("algos.BestOfN.lora.rank=4", ".lora.rank'"),
        ("rounds=1", "'rounds_of_training'"),
        ("execution.barrier=rond", "none or round. Did you mean round?"),
        ("tracking.report_to=[wandb,tensorbord]", "Did you mean [tensorboard]?"),
        ("algos=[PITTA,QSarp]", "Unknown as well: QSarp."),
        ("rounds_of_training=2.5", "a whole number, at least 1 and at most 1,000,000 (by default 2)"),
        ("dry_run=maybe", "true or false"),
        ("training=3", "a table of settings"),
        ("datasets=gsm8k", "dataset=gsm8k"),
        ("datasets.addition.kind=[1]", "must be a name"),
        ("algos.GRPO.lr=0.1", "'algos.GRPO.learning_rate'"),
        ("algos.GRPO.num_train_epochs=2", "'rounds_of_training'"),
        ("model_name_or_path=gpt2", "'models.hf.path'"),
        ("experiment.rounds=1", "'rounds_of_training'"),
        ("batch_size=8", "'generation.batch_size' or 'algos.<NAME>.batch_size'"),
        ("hydra.searchpath=[file://nowhere]", "no folder nowhere"),
        ("model=owner/name", "models.hf.path=owner/name"),
        ("algorithms.PITA.eta=1", "'algos.<NAME>.eta'"),
        ("a=b=[", "cannot read 'a=b=['"),
        ("output_dir=${experimen.name}", "nothing sets 'experimen.name'"),
        ("output_dir=${output_dir}", "output_dir"),
        (f"training.grad_clip={10**400}", "a number, at least 0 and at most"),
        (f"evaluation.etas=[1,{10**400}]", "a list of numbers"),
        ("rounds_of_training=" + "9" * 5000, "a number has too many digits"),
    ],
)
def test_a_wrong_setting_is_one_line_with_what_is_allowed_and_the_nearest_name(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        quick_config([NAME, override])
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("words", "said"), [([], "experiment.name is missing"), (["experiment.nme=x"], "unknown key")]
)
def test_a_request_without_a_name_says_so(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        quick_config(words)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("experiment: [unclosed\n", "mine"),
        ("trainin:\n  micro_batch_size: 2\n", "'training.micro_batch_size'"),
        ("algos: 3\n", "algos"),
        ("training:\n", "training=None"),
        ("[1, 2]\n", "mine"),
        ("training: {grad_clip: '${training.grad_clip}'}\n", "grad_clip"),
        ("experiment: {name: 1.10}", "in quotes"),
        ("datasets: {jsonl: {further_columns: [a, 007]}}", "in quotes"),
        ("datasets: {jsonl: {system_prompt: None}}", "null"),
        ("training: {lr: 1}\nevaluation: {splt: test}\n", "2 settings are wrong"),
        (f"rounds_of_training: {'9' * 5000}\n", "a number has too many digits"),
        (f"training: {{grad_clip: 0x{'f' * 5000}}}\n", "training.grad_clip"),
        (f"algos: {{PITA: {{options: {{a: 0x{'f' * 5000}}}}}}}\n", "algos.PITA.options.a"),
    ],
)
def test_a_wrong_file_is_refused_in_words(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{content}")
    words = ["dataset=jsonl", "datasets.jsonl.path=x.jsonl", f"hydra.searchpath=[file://{tmp_path}]"]
    with pytest.raises(ConfigError) as caught:
        check_config(load_config([*words, "experiment=mine", *([NAME] if "name:" not in content else [])]))
    assert said in str(caught.value)


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text("defaults:\n  - nowhere\n")
    search = f"hydra.searchpath=[file://{tmp_path}]"
    with pytest.raises(ConfigError, match="nowhere"):
        load_config([NAME, search, "experiment=mine"])
    with pytest.raises(ConfigError, match=r"unknown experiment 'mina'\. Did you mean 'mine'"):
        load_config([NAME, search, "experiment=mina"])
    with pytest.raises(ConfigError, match=r"unknown algorithm 'PITTA'\. Did you mean 'PITA'"):
        load_config([NAME, search, "algos=[PITTA]"])


@pytest.mark.parametrize(
    "words",
    [
        ["algos=[DPO]", "algos.DPO.beta=0.3", "+algos.DPO.options.a=1", "evaluation={etas: [1]}"],
        ["profile=h200", "algos=[SFT, CD]", "dataset=[star_graph_5_5,jsonl]", "datasets.jsonl.path=a"],
    ],
)
def test_quick_answers_are_those_of_hydra(words: list[str]) -> None:
    assert repr(quick_config([NAME, *words])) == repr(load_config([NAME, *words])), "in the same order too"


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


def test_checkpoints_may_be_called_as_folders_are_and_null_leaves_one_out() -> None:
    named = "evaluation.also={1000: /m/1, true: /m/2, nan: /m/3, step-5: /m/4, none: null}"
    config = quick_config(["experiment.name=t", named])
    assert set(config.evaluation.also) == {"1000", "true", "nan", "step-5"} <= set(config.algos)
    assert "none" not in config.algos


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("experiment.name=1.1,1.10", "experiment.name='1.1','1.10'"),
        ("datasets.mine.system_prompt=None,short", "datasets.mine.system_prompt=null,short"),
        (r"datasets.jsonl.path=C:\new", r"datasets.jsonl.path=C:\new"),
        ("datasets.jsonl.columns.prompt=1.10", "datasets.jsonl.columns.prompt='1.10'"),
        ("experiment.seeds=[0,1]", "experiment.seeds=[0,1]"),
        ("algos.GRPO.options={name: 1.10}", "algos.GRPO.options={name: 1.10}"),
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
