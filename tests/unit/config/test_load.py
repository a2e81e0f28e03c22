"""Configuration: what a user may write, and that it reaches a worker unchanged."""

import json
from pathlib import Path

import pytest
from omegaconf.errors import GrammarParseError, OmegaConfBaseException
from typer.main import get_command

from pipeline.__main__ import app
from pipeline.config.explain import explain
from pipeline.config.install import conf_dir
from pipeline.config.known import COMMANDS
from pipeline.config.load import config_from_plain, load_config
from pipeline.config.plain import schema_path, stage_config_from_plain, to_plain
from pipeline.config.schema import Attention, Backend, Config
from pipeline.errors import ConfigError
from pipeline.learning.algos.pita import PITAConfig
from pipeline.learning.algos.qsharp import QSharpConfig
from pipeline.learning.models.kinds import TinyModelConfig
from tests.doubles.composing import quick_config

NAME = "experiment.name=t"


def test_groups_are_those_the_documentation_names() -> None:
    assert {path.parent.name for path in conf_dir().glob("*/*.yaml")} >= {
        "algos",
        "dataset",
        "execution",
        "model",
        "profile",
    }


def test_a_round_trip_through_plain_data_changes_nothing() -> None:
    """For every file of every group the check of a machine tries it, and `test_check` that check."""
    config = quick_config([NAME, "algos=[QSharp-HF,DPO]", "algos.DPO.lora.rank=4", "evaluation.etas=[0.1,inf]"])
    wire = json.loads(json.dumps(to_plain(config)))
    assert config_from_plain(wire) == config


def test_defaults_are_typed() -> None:
    config = load_config([NAME])
    assert isinstance(config.algos["PITA"], PITAConfig)
    assert isinstance(config.algos["QSharp"], QSharpConfig)
    assert isinstance(config.models["tiny"], TinyModelConfig)
    assert config.system.attn_impl is Attention.sdpa
    assert config.execution.backend is Backend.local


def test_a_request_leaves_nothing_to_the_next() -> None:
    first = load_config([NAME])
    own = ["algos.Mine.class_path=examples.fudge.Fudge", "algos.PITA.eta=7", "datasets.addition.digits=2"]
    changed = load_config([NAME, *own, "+algos.PITA.options.a=1", "models.tiny.n_layer=3"])
    changed.algos["PITA"].options["b"] = changed.evaluation.etas.append(3.0)
    assert changed != first
    assert load_config([NAME]) == first


def test_a_stage_that_changes_its_settings_changes_those_of_no_other() -> None:
    plain = {"evaluation": to_plain(quick_config([NAME]).evaluation)}
    stage_config_from_plain(plain).evaluation.etas.append(3.0)
    assert stage_config_from_plain(plain).evaluation.etas == []


def test_defaults_of_the_files_are_those_of_the_schema() -> None:
    config = load_config([NAME])
    assert config.training == Config().training
    assert config.generation == Config().generation


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


def test_a_profile_does_not_enable_an_algorithm_that_was_not_chosen() -> None:
    config = quick_config([NAME, "profile=h200", "algos=[PITA]"])
    assert [name for name, algo in config.algos.items() if algo.enabled] == ["PITA"]


def test_lists_of_datasets_and_models() -> None:
    config = quick_config([NAME, "dataset=[addition]", "model=[tiny]", "experiment.seeds=[3,4]"])
    assert list(config.datasets) == ["addition"]
    assert list(config.models) == ["tiny"]
    assert config.experiment.seeds == [3, 4]


def test_an_algorithm_of_ones_own_has_the_settings_of_its_class() -> None:
    config = load_config([NAME, "algos.Mine.class_path=pipeline.learning.algos.pita.PITA", "algos.Mine.eta=2"])
    mine = config.algos["Mine"]
    assert isinstance(mine, PITAConfig)
    assert mine.enabled
    assert mine.eta == 2


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainin.micro_batch_size=3", "Did you mean 'training.micro_batch_size'"),
        ("lora.rank=4", "Did you mean 'algos.DPO.lora.rank' or 'algos.GRPO.lora.rank' or"),
        ("algos=[dpo]", "Did you mean 'DPO'?"),
        ("distributed.wait=true", "Did you mean 'execution.wait_for_devices' or 'execution.retry.wait_s'?"),
        ("execution.num_gpus=1", "Did you mean 'distributed.num_gpus'?"),
        ("algos.PITA.etta=1", "Did you mean 'algos.PITA.eta'"),
        (
            "algos.PITA.lora.rank=4",
            "PITA has no `lora`, a setting of DPO, GRPO, GRPO-HF, KTO, ORPO, RAFT, REINFORCEpp, RLOO, SFT, SimPO.",
        ),
        ("algos.PITA.lora=4", "PITA has no `lora`, a setting of DPO"),
        ("algos.RAFT.lor.rank=4", "Did you mean 'algos.RAFT.lora.rank'? Known in algos.RAFT: "),
        ("execution.retri.max_wait_s=3", "retry.max_wait_s'? Known in execution: backend, "),
        (
            "datasets.jsonl.prompt=question",
            "For a column that is called otherwise write 'datasets.jsonl.columns={prompt: question}'.",
        ),
        ("datasets.addition.prompt=question", "Known in datasets.addition"),
        ("foo=1", "unknown key 'foo'"),
        ("profil=cpu", "unknown key 'profil'. Did you mean 'profile'?"),
        ("algos.QSharpp.enabled=true", "unknown algorithm 'QSharpp'. Did you mean 'QSharp'"),
        ("algos=[PTA]", "unknown algorithm 'PTA'. Did you mean 'PITA'"),
        ("profile=h1000", "unknown profile 'h1000'"),
        ("dataset=adition", "Did you mean 'addition'"),
        ("algos.PITA.eta=strong", "algos.PITA.eta=strong"),
        ("execution.barrier=rond", "execution.barrier=rond: must be none or round. Did you mean round?"),
        ("rounds_of_training=three", "must be a whole number, at least 1 and at most 1,000,000 (by default 2)"),
        ("rounds_of_training=2.5", "rounds_of_training=2.5: must be a whole number"),
        (
            "generation.gpus_per_job=1.5",
            "generation.gpus_per_job=1.5: must be a whole number, at least 1 and at most 1024, or 'auto' for",
        ),
        (
            "execution.spares=true",
            "must be a whole number, at least 0 and at most 64, or 'auto' for one where that",
        ),
        ("execution.jobs_per_device=[1]", "execution.jobs_per_device=[1]: must be a whole number, at least 1"),
        ("rounds_of_training=null", "rounds_of_training=null: must be a whole number"),
        ("experiment.seeds=[a]", "experiment.seeds=[a]: must be a list of whole numbers, at least 0"),
        ("execution.workers=many", "at most 4096, or null to take what the machine has (by default null)"),
        ("dry_run=maybe", "dry_run=maybe: must be true or false (by default false)"),
        ("device=gpu", "device=gpu: must be auto or cpu or cuda. Did you mean cuda?"),
        ("device=CUDA", "Did you mean cuda?"),
        ("device=tpu", "device=tpu: must be auto or cpu or cuda"),
        ("system.dtype=fp16", "Did you mean float16?"),
        ("system.dtype=bf16", "Did you mean bfloat16?"),
        ("system.attn_impl=flash", "Did you mean flash_attention_2?"),
        ("generation.backend=hf", "Did you mean transformers?"),
        ("device=[cpu]", "device=[cpu]: must be auto or cpu or cuda"),
        ("tracking.report_to=[foo]", "must be a list of tensorboard or trackio or wandb"),
        ("output_dir=[a]", "output_dir=[a]: must be a path (by default outputs)"),
        ("execution.retry=5", "`python -m pipeline help execution.retry` lists them"),
        ("models.tiny=3", "models.tiny=3: must be a table of settings"),
        ("datasets.addition.digits=x", "datasets.addition.digits=x: must be a whole number, at least 1"),
        ("rounds_of_training=${oops}", "rounds_of_training: refers to ${oops}, and there is no key 'oops'"),
        ("rounds_of_training=${oops:1}", "refers to ${oops:...}, and nothing is called so"),
        ("experiment.seeds=3", "must be a list: 'experiment.seeds=[3]'"),
        ("experiment.seeds=0,1", "Write 'experiment.seeds=[0,1]' for one list, or add --multirun and write"),
        ("experiment.seeds=0,1", "--multirun and write 'experiment.seeds=[0],[1]' for a run for each"),
        (
            "algos.PITA.eta=0.3,1",
            "write 'algos.PITA.front={eta: [0.3,1]}' for all of them in one run, or add --multi",
        ),
        ("algos.PITA.enabled=true,false", "several values, where one is taken; add --multirun for a run for each"),
        ("experiment.seeds=[0],[1]", "several values, where one list is taken; add --multirun for a run for each"),
        ("output_dir=a,b", "where one is taken; write \"output_dir='a,b'\" if the commas are part of it, or add"),
        ("rounds_of_training=1,2", "several values, where one is taken; add --multirun for a run for each"),
        ("experiment.seeds=[0,", "write it in quotes, as in 'experiment.seeds=[0, 1]'"),
        ("seed=3", "Did you mean experiment.seeds=[3]?"),
        ("lr=0.1", "Did you mean algos.<NAME>.learning_rate=0.1?"),
        ("algos.GRPO.lr=0.1", "Did you mean 'algos.GRPO.learning_rate'?"),
        ("max_completion_length=9", "Did you mean generation.max_new_tokens=9?"),
        ("algos.GRPO.max_completion_length=9", "Did you mean 'generation.max_new_tokens'?"),
        ("gradient_accumulation_steps=2", "algos.NAME.batch_size is the batch of a step"),
        ("use_vllm=true", "Write generation.backend=vllm"),
        ("eval_steps=100", "every round is evaluated when it ends"),
        ("training.bf16=true", "Write system.dtype=bfloat16."),
        ("fp16=true", "Write system.dtype=float16."),
        ("max_steps=10", "steps follow from the data of a round, data_collection.prompts_per_round"),
        ("save_steps=10", "Did you mean training.checkpoint_every_steps=10?"),
        ("logging_steps=10", "every training keeps its curve"),
        ("max_prompt_length=512", "generation.long_prompts=truncate"),
        ("beta=0.1", "Did you mean algos.<NAME>.beta=0.1?"),
        ("mine", "Did you mean experiment.name=mine?"),
        ("PITA", "Did you mean 'algos=[PITA]'?"),
        ("training", "python -m pipeline help training"),
        ("kl_coef=0.1", "Did you mean algos.GRPO.beta=0.1?"),
        ("model_name_or_path=gpt2", "Write model=hf models.hf.path=gpt2."),
        ("num_generations=4", "Did you mean algos.<NAME>.num_generations=4?"),
        ("datasets.jsonl.file=a.jsonl", "Did you mean 'datasets.jsonl.path'?"),
        ("learning_rate=0.1", "Did you mean algos.<NAME>.learning_rate=0.1?"),
        ("dry_run", "Did you mean dry_run=true?"),
        ("training.learning_rate=0.1", "Did you mean algos.<NAME>.learning_rate=0.1?"),
        ("algos.PITA.rewards=5", "Did you mean datasets.<NAME>.rewards=5?"),
        ("status", "a command of its own: python -m pipeline status"),
        ("datasets=gsm8k", "choose one with dataset=gsm8k"),
        (
            "model=gpt2",
            "unknown model 'gpt2'. Known: hf, smollm2, tiny. For a folder or an id of the hub: model=hf",
        ),
        ("model=owner/name", "unknown model 'owner/name'"),
        ("a=b=[", "cannot read 'a=b=['"),
        ("algos.Mine.class_path=no_such_module.Mine", "cannot import 'no_such_module.Mine'"),
        ("algos.Mine.class_path=json.JSONDecoder", "is no Algorithm"),
        ("algos=[1,2]", "algos=[1,2]: must be a name, or a list of names, of files in conf/algos/"),
        ("algos=[PITA,DPO,PITA]", "algos=[PITA,DPO,PITA] names PITA twice"),
        ("dataset=[addition,'addition']", "names addition twice"),
        ("profile=null", "profile=null: must be a name"),
        ("algos.PITA=null", "algos.PITA=None: must be a table of settings"),
        ("algos.PITA.options={a:1}", "unknown key 'algos.PITA.options.a'"),
        ("datasets.addition.kind=[1]", "datasets.addition.kind=[1]"),
        ("algos.PITA.class_path=[1]", "cannot import '[1]'"),
        ("+x=1", "unknown key 'x'"),
        ("output_dir=???", "output_dir is missing"),
        ("evaluation.etas=[???]", "evaluation.etas[0] is missing"),
        ("output_dir=${experiment}", "output_dir"),
        ("training=${experiment}", "unknown key 'training.name'"),
        ("output_dir=a\udcffb", "cannot read 'output_dir=a"),
        ("output_dir=größe", "stands in quotes of its own: 'output_dir=\"größe\"'"),
        (
            "generation.stop=[<|end|>, ##]",
            'stands in quotes of its own: \'generation.stop=["<|end|>","##"]\'',
        ),
    ],
)
def test_a_wrong_override_is_explained_in_one_message(override: str, said: str) -> None:
    # As `load_config` does, and in a fifth of its time: that both say the same, `test_requests` holds.
    with pytest.raises(ConfigError) as caught:
        quick_config([NAME, override])
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_number_of_too_many_digits_is_explained_in_one_message() -> None:
    """Before anything reads it, which `quick_config` leaves out."""
    with pytest.raises(ConfigError) as caught:
        load_config([NAME, f"experiment.seeds=[{'1' * 5000}]"])
    assert "a number of 5,000 digits" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"experiment: [unclosed\n", "profile/mine.yaml: not valid YAML"),
        (b"training: {grad_clip: !two 2}\n", "profile/mine.yaml: not valid YAML"),
        (b"training: {}\ntraining: {}\n", "profile/mine.yaml: not valid YAML"),
        (b"\xff\xfe broken", "profile/mine.yaml: not valid YAML"),
        (b"trainin:\n  micro_batch_size: 2\n", "profile/mine.yaml: unknown key 'trainin'. Did you mean"),
        (
            b"training:\n  micro_batch_size: many\n",
            "profile/mine.yaml: training.micro_batch_size: must be a whole",
        ),
        (b"algos: {PITA: }\n", "algos.PITA=None: must be a table of settings, for example {enabled: true}"),
        (b"datasets: {addition: }\n", "datasets.addition=None: must be a table of settings"),
        (b"algos: 3\n", "profile/mine.yaml: algos: Cannot assign int"),
        (b"models: [a, b]\n", "profile/mine.yaml: "),
        (b"training:\n", "profile/mine.yaml: training: must be a table of settings"),
        (b"[1, 2]\n", "profile/mine.yaml: must be a table of settings, each written NAME: VALUE"),
        (b"3\n", "profile/mine.yaml: not valid YAML: Invalid loaded object type: int"),
        (b"training: {grad_clip: '${training.grad_clip}'}\n", "Recursive interpolation"),
    ],
    ids=[
        "yaml",
        "unknown tag",
        "key twice",
        "binary",
        "unknown key",
        "wrong type",
        "empty algorithm",
        "empty dataset",
        "number for a table",
        "list for a table",
        "empty section",
        "list",
        "no table",
        "circle",
    ],
)
def test_a_corrupt_file_is_explained(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "conf").mkdir()
    for path in conf_dir().rglob("*.yaml"):
        target = tmp_path / "conf" / path.relative_to(conf_dir())
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    (tmp_path / "conf" / "profile" / "mine.yaml").write_bytes(
        b"# @package _global_\n" * (content[0] < 128) + content
    )
    with pytest.raises(ConfigError) as caught:
        load_config([NAME, "profile=mine"], config_dir=tmp_path / "conf")
    assert said in str(caught.value)


def test_an_error_that_was_raised_from_itself_is_explained() -> None:
    error = ValueError("around and around")
    error.__cause__ = error
    assert str(explain(error)) == "around and around."


def test_a_message_about_a_long_setting_is_not_as_long() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([NAME, f"trainin.{'x' * 9000}=1"])
    assert len(str(caught.value)) < 2000


def test_a_stage_sees_only_the_sections_it_declared() -> None:
    config = quick_config([NAME])
    plain = {
        "training": to_plain(config.training),
        "algo": {"_schema_": schema_path(config.algos["PITA"]), **to_plain(config.algos["PITA"])},
    }
    rebuilt = stage_config_from_plain(json.loads(json.dumps(plain)))
    assert rebuilt.training == config.training
    assert rebuilt.algo == config.algos["PITA"]
    with pytest.raises(AttributeError):
        _ = rebuilt.evaluation


def test_the_file_that_is_missing_is_named_and_not_the_one_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text("defaults:\n  - nowhere\n")
    search = f"hydra.searchpath=[file://{tmp_path}]"
    with pytest.raises(ConfigError, match=r"experiment/mine\.yaml: its `defaults` name 'experiment/nowhere'"):
        load_config([NAME, search, "experiment=mine"])
    with pytest.raises(ConfigError, match=r"unknown experiment 'mina'\. Did you mean 'mine'"):
        load_config([NAME, search, "experiment=mina"])


def test_a_word_that_is_a_command_is_known_as_one() -> None:
    every = vars(get_command(app))["commands"].values()
    commands = {command.name for command in every if not command.hidden}  # hidden are those that scripts type
    assert commands == set(COMMANDS)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("# @package _global_\nrounds_of_training: " + "1" * 6000, "line 2: a number of 6,000 digits"),
        ("defaults: [" + "a, " * 201 + "]", "201 entries of `defaults`, and 200 are the most"),
    ],
    ids=["number", "defaults"],
)
def test_a_file_that_cannot_be_read_is_named(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text(content)
    with pytest.raises(ConfigError) as refused:
        load_config([NAME, f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"])
    assert "mine.yaml: " in str(refused.value)
    assert said in str(refused.value)


def test_a_byte_order_mark_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text(
        "# @package _global_\nrounds_of_training: 7\n", encoding="utf-8-sig"
    )
    loaded = load_config([NAME, f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"])
    assert loaded.rounds_of_training == 7


def test_an_error_that_says_nothing_itself_is_told_by_its_cause() -> None:
    error = OmegaConfBaseException("")
    error.__cause__ = GrammarParseError("no viable alternative at input '${'")
    assert str(explain(error)) == "no viable alternative at input '${'."
