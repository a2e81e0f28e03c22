"""Settings of algorithms that cannot work are refused in a message that says what to do."""

import pytest

from pipeline.config.checks import check_config
from pipeline.config.tables import ALGORITHMS
from pipeline.errors import ConfigError
from pipeline.learning.memory.fit import GB
from pipeline.machine.memory import usable_bytes
from tests.doubles.composing import quick_config


@pytest.mark.parametrize(
    ("algo", "overrides", "said"),
    [
        (
            "GRPO",
            ["algos.GRPO.batch_size=130"],
            "batch_size=130: .*must be a multiple of algos.GRPO.num_generations=4. Use 128",
        ),
        ("GRPO", ["training.micro_batch_size=2"], "training.micro_batch_size=2: would split a group, .* Use 4"),
        ("GRPO", ["algos.GRPO.num_generations=1"], "at least 2, since the completions of a prompt are compared"),
        ("GRPO", ["algos.GRPO.loss_type=cispo"], "epsilon_high=null: with loss_type=cispo"),
        ("GRPO-HF", ["algos.GRPO-HF.scale_rewards=mean"], "learnt rewards are 0 on average"),
        ("REINFORCEpp", ["algos.REINFORCEpp.num_generations=1", "algos.REINFORCEpp.baseline=true"], "at least 2"),
        ("DPO", ["algos.DPO.batch_size=7"], "algos.DPO.batch_size=7: must be even"),
        ("DPO", ["algos.DPO.loss_type=exo_pair"], "the loss exo_pair needs it between 0 and 1"),
        ("QSharp-HF", ["algos.QSharp-HF.atoms=1"], "atoms=1: a learnt reward has any value"),
        ("CD", ["algos.CD.value_min=2"], "algos.CD.value_min=2.0 must be below algos.CD.value_max=1.0"),
        (
            "QSharp",
            ["algos.QSharp.atoms=1", "algos.QSharp.value_min=-1", "algos.QSharp.others=offset_zero"],
            "algos.QSharp.atoms=2 tells both",
        ),
        ("DPO", ["algos.DPO.start=SFT"], "start=SFT: the run has no such method"),
        ("DPO,PITA", ["algos.DPO.start=PITA"], "PITA trains no policy to begin with"),
        ("DPO", ["algos.DPO.start=DPO"], "would begin with what comes out of itself"),
        ("SFT,DPO,GRPO", ["algos.SFT.start=GRPO", "algos.GRPO.start=DPO", "algos.DPO.start=SFT"], "of itself"),
        ("SFT,GRPO", ["algos.GRPO.start=SFT", "algos.GRPO.lora.rank=2"], "start=SFT must have adapters too"),
    ],
)
def test_what_cannot_work_is_refused(algo: str, overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_config(quick_config(["experiment.name=t", f"algos=[{algo}]", *overrides]))


def test_strengths_at_which_the_atoms_would_be_wrong_are_refused_with_what_would_do() -> None:
    asked = ["experiment.name=t", "algos=[QSharp,CD]", "algos.QSharp.atoms=11", "algos.QSharp.eta=0.05"]
    asked.append("evaluation.etas=[0.04,0.1,0.3,inf]")
    with pytest.raises(ConfigError, match=r"eta=0\.04 \(0\.15 nats\), .*algos\.QSharp\.atoms=14 would do"):
        check_config(quick_config(asked))
    for atoms in (14, 1):
        check_config(quick_config([*asked, f"algos.QSharp.atoms={atoms}"]))


@pytest.mark.parametrize("profile", ["a100_80gb", "h200", "cpu"])
def test_profiles_fit_every_algorithm(profile: str) -> None:
    config = quick_config(["experiment.name=t", f"algos=[{','.join(ALGORITHMS)}]", f"profile={profile}"])
    check_config(config)
    assert {name for name, one in config.algos.items() if one.enabled} == {*ALGORITHMS}


@pytest.mark.parametrize(("profile", "card_gb"), [("a100_40gb", 42), ("a100_80gb", 85), ("h200", 150)])
def test_what_a_profile_decodes_at_once_fits_its_card(profile: str, card_gb: int) -> None:
    """An 8B policy and a 1B guide, 2,048 tokens each: caches of eight heads of 128 in 32 layers, of 64 in 16."""
    config = quick_config(["experiment.name=t", f"profile={profile}"])
    of_token = 2 * 2 * 8 * (128 * 32 + 64 * 16)
    caches = config.generation.batch_size * 2048 * of_token * 1.5  # kept once more while rows are chosen, at worst
    logits = config.generation.batch_size * 128_256 * 4 * 6
    assert 2 * 9.3 * GB + caches + logits < usable_bytes(card_gb * GB)
    assert config.system.clear_cache_interval == 0
