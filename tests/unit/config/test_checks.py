"""Requests that are well-typed but cannot work are refused with a reason."""

import pytest

from pipeline.config.checks import check_config, idle_settings
from pipeline.config.tables import ALGORITHMS
from pipeline.errors import ConfigError
from tests.doubles.composing import quick_config


def refuse(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_config(quick_config(["experiment.name=t", *overrides]))
    return str(caught.value)


NO_NAMES = ("reference", "dataset", "greedy", "optimum", "mean", "a@b")
"""Which checkpoints cannot have, besides those of methods."""


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("execution.workers=0", "execution.workers=0: must be at least 1 and at most 4096, or null"),
        ("algos.PITA.eta=0", "algos.PITA.eta=0.0: must be at least 1e-06"),
        ("algos.QSharp.head_learning_rate=0", "head_learning_rate=0.0: must be above 0 and at most 100, or null"),
        ("experiment.seeds=[]", "experiment.seeds is empty"),
        ("experiment.seeds=[1,1]", "twice"),
        ("evaluation.split=train", "evaluation.split='train': must be 'test' or 'validation'"),
        ("execution.jobs_per_device=many", "execution.jobs_per_device='many': must be a whole number, at least 1"),
        ("distributed.enabled=true", "say how many with training.gpus_per_job"),
        ("datasets.addition.grading.options={exact_match:[1]}", "options.exact_match=[1]: must be a table of the"),
        ("experiment.seeds=[10000000000000000000000]", "experiment.seeds[0]=10000000000000000000000: must be at"),
        ("evaluation.etas=[{}]", "evaluation.etas=[{}]: must be a list of numbers"),
        ("evaluation.budgets=[2,1,2]", "evaluation.budgets=[2.0, 1.0, 2.0] names 2.0 twice"),
        ("output_dir=''", "output_dir='': is empty"),
        ("evaluation.on=[no_such_set]", "no_such_set"),
        ("evaluation.on=[gsm8k,gsm8k]", "twice"),
        ("evaluation.on=[mean]", "evaluation.on: mean"),
        ("evaluation.on_own=false", "evaluation.on_own=false: no test set"),
        ("evaluation.on=5", "must be a list"),
        ("evaluation={on: [gsm8k], on_own: false, etas: [1.0]}", "evaluation.etas chooses by"),
        ("datasets.addition.trained_on=false", "datasets.addition.trained_on=false"),
        *((f"evaluation.also={{{name}: /m}}", f"evaluation.also.{name}: a") for name in ("DPO", *NO_NAMES)),
        ("evaluation.also={own: ''}", "evaluation.also.own=''"),
        ("evaluation.grown_from=[[500]]", "evaluation.grown_from=[[500]]"),
        ("evaluation.grown_from=[[500,3]]", "can only grow"),
        ("datasets.addition.sampling={temperature: 0, num_samples: 2}", "sampling.num_samples=2"),
        ("datasets.addition.sampling.temperature=-1", "sampling.temperature=-1"),
        ("models.tiny.optimizer=adamw_8bit", "models.tiny.optimizer=adamw_8bit"),
        ("datasets.addition.digits=1", "datasets.addition.digits=1 makes 100 rows"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(override: str, said: str) -> None:
    assert said in refuse(override)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.optimizer=muon", "training.optimizer=muon: a training has 2 devices"),
        ("models.tiny.optimizer=muon", "models.tiny.optimizer=muon: a training has 2 devices"),
        ("training.strategy=single", "training.strategy=single with training.gpus_per_job=2"),
        ("distributed.strategy=single", "it trains on one device"),
        ("system.use_parallel_execution=false", "a training asks for 2 devices"),
    ],
)
def test_what_cannot_be_done_on_several_devices_is_refused(override: str, said: str) -> None:
    assert said in refuse("training.gpus_per_job=2", override)


def test_the_best_of_greedy_completions_is_refused() -> None:
    greedy = "datasets.addition.sampling.temperature=0"
    assert "algos.BestOfN: datasets.addition.sampling.temperature=0" in refuse("algos=[BestOfN]", greedy)


def test_a_scalar_head_and_flash_attention_do_not_fit() -> None:
    assert "algos.PITA.head=v: needs system.attn_impl=sdpa" in refuse(
        "system.attn_impl=flash_attention_2", "algos.PITA.head=v"
    )


def test_settings_of_a_disabled_algorithm_do_not_matter() -> None:
    check_config(quick_config(["experiment.name=t", "algos.PITA.enabled=false", "algos.PITA.eta=0"]))


def test_no_algorithm_at_all_is_refused() -> None:
    said = refuse("algos.PITA.enabled=false", "algos.QSharp.enabled=false")
    assert "no algorithm is enabled: name some, as in 'algos=[PITA,DPO]'" in said
    assert refuse("algos=[]").startswith("no algorithm is enabled: name some")


@pytest.mark.parametrize(
    ("algo", "overrides", "said"),
    [
        ("GRPO", ["algos.GRPO.batch_size=130"], "=130: must be a multiple of algos.GRPO.num"),
        ("GRPO", ["training.micro_batch_size=2"], "=2: must be a multiple of algos.GRPO.num"),
        ("GRPO", ["algos.GRPO.num_generations=1"], "algos.GRPO.num_generations=1: must be at least 2"),
        ("GRPO", ["algos.GRPO.loss_type=cispo"], "algos.GRPO.epsilon_high: must be at least 1"),
        ("GRPO-HF", ["algos.GRPO-HF.scale_rewards=mean"], "learnt rewards are 0 on average"),
        ("REINFORCEpp", ["algos.REINFORCEpp.num_generations=1", "algos.REINFORCEpp.baseline=true"], "at least 2"),
        ("DPO", ["algos.DPO.batch_size=7"], "algos.DPO.batch_size=7: must be even"),
        ("DPO", ["algos.DPO.loss_type=exo_pair"], "algos.DPO.label_smoothing=0: must be above 0"),
        ("QSharp-HF", ["algos.QSharp-HF.atoms=1"], "atoms=1: must be 2 or more"),
        ("CD", ["algos.CD.value_min=2"], "algos.CD.value_min=2.0 must be below algos.CD.value_max=1.0"),
        (
            "QSharp",
            [f"algos.QSharp.{each}" for each in ("atoms=1", "value_min=-1", "others=offset_zero")],
            "atoms=1: must be 2 or",
        ),
        ("GRPO", ["algos.GRPO.horizon=1"], "GRPO.horizon=1: must be null or at least rounds_of_training=2"),
        ("GRPO", ["algos.GRPO.horizon=2", "training.schedule=constant"], "GRPO.horizon=2: .*one that ends"),
        ("GRPO", ["training.gpus_per_job=2"], "GRPO.sampling=online: needs training.strategy=ddp"),
        ("DPO", ["algos.DPO.sampling=online", "algos.DPO.pairs=existing"], "DPO.pairs=existing"),
        ("QSharp-HF", ["algos.QSharp-HF.pairs=existing"], "QSharp-HF.pairs=existing"),
        ("RM", ["algos.RM.held_out=0.01", "data_collection.prompts_per_round=50"], "held_out=0.01: less than one"),
        ("RM", ["algos.RM.num_generations=1"], "RM.num_generations=1: must be at least 2"),
        ("CD,BlockSearch", [], r"BlockSearch.teacher=null: no method of the run that guides. Known: CD\."),
        (
            "CD,BlockSearch",
            ["algos.BlockSearch={teacher: CD, beams: 3}"],
            "num_generations=4: must be a multiple of",
        ),
        ("DPO", ["algos.DPO.start=SFT"], "start=SFT: the run has no such method"),
        ("DPO,PITA", ["algos.DPO.start=PITA"], "PITA trains no policy to begin with"),
        ("DPO", ["algos.DPO.start=DPO"], "would begin with what comes out of itself"),
        ("SFT,DPO,GRPO", ["algos.SFT.start=GRPO", "algos.GRPO.start=DPO", "algos.DPO.start=SFT"], "of itself"),
        ("SFT,GRPO", ["algos.GRPO.start=SFT", "algos.GRPO.lora.rank=2"], "needs algos.SFT.lora.rank too"),
    ],
)
def test_what_cannot_work_is_refused(algo: str, overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_config(quick_config(["experiment.name=t", f"algos=[{algo}]", *overrides]))


def test_strengths_at_which_the_atoms_would_be_wrong_are_refused_with_what_would_do() -> None:
    asked = ["experiment.name=t", "algos=[QSharp,CD]", "algos.QSharp.atoms=11", "algos.QSharp.eta=0.05"]
    asked.append("evaluation.etas=[0.04,0.1,0.3,inf]")
    with pytest.raises(ConfigError, match=r"evaluation.etas: 0\.04 \(0\.15 nats\), 0\.1 .*algos\.QSharp\.atoms"):
        check_config(quick_config(asked))
    for atoms in (14, 1):
        check_config(quick_config([*asked, f"algos.QSharp.atoms={atoms}"]))


@pytest.mark.parametrize("profile", ["a100_80gb", "h200", "cpu"])
def test_profiles_fit_every_algorithm(profile: str) -> None:
    taught = [f"algos.{name}.teacher=CD" for name in ("BlockSearch", "Distilled")]
    config = quick_config(["experiment.name=t", f"algos=[{','.join(ALGORITHMS)}]", f"profile={profile}", *taught])
    check_config(config)
    assert {name for name, one in config.algos.items() if one.enabled} == {*ALGORITHMS}


# -- test ignored ------------------------------------------------------------------------------------------------
# Settings that were given and change nothing are named, and no others.


NAME = "experiment.name=t"


def warned(*overrides: str, gpu: bool = False) -> list[str]:
    return list(idle_settings(quick_config([NAME, *overrides]), overrides, gpu=gpu))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["models.tiny.path=gpt2"], "models.tiny.path=gpt2 has no effect in this run: a model of kind tiny"),
        (["algos.DPO.beta=0.1"], "in this run: DPO is not part of it; 'algos=[PITA,QSharp,DPO]' adds it"),
        (["algos.PITA.num_workers=4"], "no processes load it"),
        (["distributed.fsdp_cpu_offload=true"], "each training has one device here"),
        (["training.warmup_steps=5", "training.schedule=constant"], "training.schedule=constant has none"),
        (["algos=[DPO]", "data_collection.samples_per_example=2"], "it is for value-guided algorithms"),
        (["algos=[DPO]", "algos.DPO.lora.alpha=8"], "there are no adapters"),
        (
            ["algos=[BestOfN]", "algos.BestOfN.selection=majority", "model=hf", "training.grad_clip=1"],
            "nothing is trained",
        ),
        (["datasets.addition.reward=length", "datasets.addition.rewards={exact_match: 1}"], "`rewards`"),
        (["algos.PITA.beta=2"], "with preference=hard the higher score wins"),
        (["algos.PITA.pairs=existing", "algos.PITA.pairing=sampled"], "come from the dataset"),
        (["algos=[DPO]", "algos.DPO.pairs=existing", "algos.DPO.num_generations=8"], "come from the dataset"),
        (["algos=[BestOfN]", "algos.BestOfN.selection=majority", "algos.BestOfN.epochs=3"], "no reward model"),
        (["algos=[RM]", "algos.RM.pairs=existing", "algos.RM.preferences.ties=coin"], "come from the dataset"),
        (["tracking.project=p"], "no tracker is asked for; tracking.report_to=[tensorboard] does"),
        (["tracking.report_to=[trackio]", "tracking.mode=online"], "it is for wandb"),
        (["algos=[DPO]", "algos.DPO.front={beta: [1, 2]}", "algos.DPO.beta=3"], "a value of its own"),
        (["algos.PITA.front={preference: [hard], eta: [1, 2]}", "algos.PITA.beta=2"], "preference=hard"),
        (["algos.DPO.front={beta: [1, 2]}"], "algos.DPO.front={beta: [1, 2]} has no effect in this run: DPO is"),
        (["evaluation.also={own: /m}", "algos=[PITA]", "algos.DPO.beta=2"], "'algos=[PITA,DPO]' adds it"),
        (["algos=[]", "model=hf", "evaluation.also={own: /m}", "training.grad_clip=1"], "nothing is trained"),
        (["execution.backend=inline", "execution.workers=3"], "all jobs run in one process"),
        (["algos=[GRPO,DPO]", "training.schedule=cosine"], "on GRPO, which draws while it trains"),
        (["algos=[GRPO]", "algos.GRPO.front={beta: [0, 1]}", "training.schedule=linear"], "horizon=2 lets"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_setting_without_effect_is_named_with_the_reason(overrides: list[str], said: str) -> None:
    (warning,) = warned(*overrides)
    assert said in warning


@pytest.mark.parametrize(
    ("overrides", "gpu"),
    [
        (["algos.PITA.eta=0.5", "training.grad_clip=1", "evaluation.etas=[1]"], False),
        (["algos=[DPO]", "algos.DPO.beta=0.1", "algos.DPO.enabled=true"], False),
        (["algos.DPO.enabled=false"], False),
        (["profile=h200", "distributed.num_gpus=2", "training.memory_mb=100"], True),
        (["algos.PITA.beta=2", "algos.PITA.preference=bradley_terry"], False),
        (["algos=[BestOfN]", "algos.BestOfN.epochs=3"], False),
        (["model=hf", "models.hf.path=gpt2"], False),
        (["algos.PITA.front={preference: [hard, bradley_terry]}", "algos.PITA.beta=2"], False),
        (["training.gpus_per_job=2", "distributed.fsdp_cpu_offload=true", "training.strategy=fsdp"], False),
        (["device=cpu", "distributed.num_gpus=null", "distributed.gpu_ids=null"], False),
    ],
)
def test_what_has_an_effect_is_not(overrides: list[str], gpu: bool) -> None:
    assert warned(*overrides, gpu=gpu) == []
