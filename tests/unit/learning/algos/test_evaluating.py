"""What the evaluation of the reference leaves beside its samples: the greedy reference and the exact optimum."""

import math
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.learning.algos import evaluating
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.evaluation.metrics import read_log_right, read_samples, write_samples
from pipeline.learning.models.load import load_policy, load_tokenizer
from pipeline.learning.rewards import answers
from pipeline.outputs.formats import SAMPLES, Sample
from tests.unit.learning.algos.test_chain import Chains

TEMPERATURE = 0.7
SMALL = (
    "experiment.name=t",
    "algos=[QSharp]",
    "datasets.addition.digits=1",
    "datasets.addition.test_size=12",
    "datasets.addition.validation_size=8",
    "models.tiny.steps=60",
    "models.tiny.batch_size=32",
    "data_collection.prompts_per_round=20",
    "rounds_of_training=1",
    "execution.shard_size=7",
    "evaluation.num_prompts=12",
    "evaluation.num_samples=3",
    "evaluation.bootstrap_samples=20",
    f"generation.temperature={TEMPERATURE}",
    "evaluation.etas=[0.3,inf]",
    "evaluation.common_eta=0.2",
)


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Chains:
    return Chains(
        tmp_path_factory.mktemp("anchors"),
        *SMALL,
        "datasets.addition.reward=exact_match",
        "datasets.addition.grading.correct_by=null",
    )


class Enumerated:
    """Every completion of every prompt, with its probability under the reference."""

    def __init__(self, chains: Chains) -> None:
        (folder,) = chains.folders("reference", 0, "train")
        dataset = load_dataset(chains.config.datasets["addition"])
        model = load_policy(folder, chains.config.system, "cpu")
        tokenizer = load_tokenizer(folder)
        self.rows = [dataset.row(int(row)) for row in dataset.ids("test")]
        self.ids = list(product(range(len(tokenizer)), repeat=2))
        self.texts = [str(tokenizer.decode(ids, skip_special_tokens=True)) for ids in self.ids]
        self.steps = []
        for row in self.rows:
            prompt = tokenizer(str(row.prompt))["input_ids"]
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *ids] for ids in self.ids])).logits
            logprobs = (logits.double() / TEMPERATURE).log_softmax(-1)[:, len(prompt) - 1 : -1]
            self.steps.append(logprobs.gather(-1, torch.tensor(self.ids)[:, :, None]).squeeze(-1).numpy())

    def right(self, place: int) -> NDArray[np.float64]:
        """Rewards of all completions, by the function that grades the run."""
        solution = [self.rows[place].columns["solution"]] * len(self.texts)
        return np.array(answers.exact_match(completions=self.texts, solution=solution), np.float64)


@pytest.fixture(scope="module")
def enumerated(chains: Chains) -> Enumerated:
    return Enumerated(chains)


def test_the_optimum_is_that_of_all_completions(chains: Chains, enumerated: Enumerated) -> None:
    known = read_log_right(chains.folders("reference", 0, "evaluate"))
    found = chains.metrics("reference", 0)
    figures = []
    for place, row in enumerate(enumerated.rows):
        chances, rewards = np.exp(enumerated.steps[place].sum(1)), enumerated.right(place)
        assert chances.sum() == pytest.approx(1, abs=1e-6)
        assert known[row.id] == pytest.approx(math.log(chances @ rewards), abs=1e-5)
        for eta in (0.2, 0.3):
            tilted = chances * np.exp(rewards / eta)
            tilted /= tilted.sum()
            kl = float(tilted @ np.log(tilted / chances))
            figures.append((eta, tilted @ rewards, kl, tilted @ rewards - eta * kl))
    for eta, suffix in ((0.2, ""), (0.3, "/eta=0.3")):
        means = np.mean([figure[1:] for figure in figures if figure[0] == eta], axis=0)
        names = ("pass@1", "kl_per_sequence", "regularized_reward")
        assert [found[f"optimum/{name}{suffix}"] for name in names] == pytest.approx(means, abs=1e-5)


def test_the_greedy_reference_and_its_divergence(chains: Chains, enumerated: Enumerated) -> None:
    folders = [folder / "greedy" for folder in chains.folders("reference", 0, "evaluate")]
    samples = {sample.row: sample for sample in read_samples(folders)}
    found = chains.metrics("reference", 0)
    for place, row in enumerate(enumerated.rows):
        first = int(np.argmax(enumerated.steps[place][:, 0])) // 13 * 13
        best = first + int(np.argmax(enumerated.steps[place][first : first + 13, 1]))
        assert samples[row.id].completion == enumerated.texts[best]
        assert samples[row.id].kl == pytest.approx(-enumerated.steps[place][best].sum(), abs=1e-5)
    assert found["greedy/pass@1"] == np.mean([bool(sample.correct) for sample in samples.values()])
    assert found["greedy/regret"] == pytest.approx(
        found["optimum/regularized_reward"] - found["greedy/regularized_reward"]
    )


@pytest.mark.parametrize(("reward", "told"), [(1.0, False), (0.5, True), (None, True)])
def test_a_sample_that_is_graded_otherwise_is_told(
    reward: float | None, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = Sample(0, 0, "1+2=", " 3", 1, reward, correct=True, kl=0.0, truncated=False)
    write_samples(tmp_path / SAMPLES, [sample])
    ctx: Any = SimpleNamespace(out=tmp_path)
    assert evaluating._is_contradicted(ctx, {0: {"3"}}) is told
    assert ("no row for the optimum: the reward gives" in capsys.readouterr().out) is told
