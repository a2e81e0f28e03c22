"""The papers' recipes: their experiments can be planned, and they train on what the papers' code trains on."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from pipeline.config.checks import check_config
from pipeline.config.tables import choices_of
from pipeline.errors import ConfigError
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.training.sequences import Sequences
from pipeline.plan.build import build_plan
from tests.doubles.composing import quick_config
from tests.doubles.small_runs import run_here

STARS = "paper/star_graph_cpu"
SMALL = [
    f"experiment={STARS}",
    "experiment.seeds=[3]",
    "models.tiny.steps=20",
    "models.tiny.seed=5",
    "models.tiny.n_layer=1",
    "data_collection.prompts_per_round=12",
    "training.warmup_steps=1000000",  # so that nothing is learnt, and a model stays what it began as
    *(f"algos.{name}.enabled=false" for name in ("QSharp", "PITA", "DPO", "GRPO", "BestOfN")),
    "algos.PaperQSharp.from_reference=false",
    "algos.PaperQSharp.batch_size=4",
    "algos.PaperREINFORCE.passes=2",
]


@pytest.mark.parametrize("name", [name for name in choices_of("experiment") if name.startswith("paper/")])
def test_every_experiment_can_be_planned(name: str) -> None:
    words = ["experiment.name=x", f"experiment={name}"]
    graphs = ["dataset=star_graph"] if name == "paper/star_graph" else []
    hf = (
        []
        if name.startswith((STARS, "paper/star_graph_4m", "paper/star_graph_arms", "paper/addition"))
        else ["models.hf.path=reference", "models.hf.value_path=pretrained"]
    )
    config = quick_config([*words, *graphs, *hf])
    check_config(config)
    assert build_plan(config).jobs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of all recipes, so small that nothing is learnt."""
    output = tmp_path_factory.mktemp("papers")
    run_here(output, *SMALL)
    return output / "t/latest/jobs/star_graph/tiny"


@pytest.mark.parametrize("method", ["PaperQSharp", "PaperDPO", "PaperRPO"])
def test_each_right_path_stands_beside_one_wrong_path(folder: Path, method: str) -> None:
    scored = sorted(folder.glob(f"s3/{method}/r1/score/*/output"))
    name = "pairs.safetensors" if method in ("PaperDPO", "PaperRPO") else "sequences.safetensors"
    data = Sequences.load(scored, name)
    tokenizer = AutoTokenizer.from_pretrained(folder / "reference/train/output")
    dataset = load_dataset(quick_config(["experiment.name=x", f"experiment={STARS}"]).datasets["star_graph"])
    assert data.labels.tolist() == [1.0, 0.0] * 12
    for place, row_id in enumerate(data.prompts.tolist()):
        row, start = dataset.row(row_id), int(data.starts[place])
        assert row_id == data.prompts[place - place % 2]
        shown = [tokenizer.decode(part[part >= 0]) for part in (data.ids[place, :start], data.ids[place, start:])]
        assert shown[0].removeprefix("<bos>") == row.prompt
        assert (shown[1] == row.columns["solution"]) == (place % 2 == 0)


def test_a_batch_has_both_paths_of_a_graph(folder: Path) -> None:
    curve = (folder / "s3/PaperQSharp/r1/train/output/metrics.jsonl").read_text().splitlines()
    # Nothing is learnt, so all predictions are 0.5, and right and wrong paths of a batch are equally many.
    assert [json.loads(step)["bias"] for step in curve] == [pytest.approx(0, abs=1e-4)] * len(curve)
    words = ["experiment.name=x", f"experiment={STARS}", "algos.PaperQSharp.batch_size=5"]
    with pytest.raises(ConfigError, match=r"algos\.PaperQSharp\.batch_size=5: must be even"):
        check_config(quick_config(words))


def test_a_value_model_begins_where_the_references_training_began(folder: Path) -> None:
    value = AutoModel.from_pretrained(folder / "s3/PaperQSharp/r1/train/output").state_dict()
    reference = AutoModelForCausalLM.from_pretrained(folder / "reference/train/output")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        untrained = AutoModelForCausalLM.from_config(reference.config)
    for name, weight in untrained.base_model.state_dict().items():
        torch.testing.assert_close(value[name], weight, rtol=0, atol=1e-4)
    assert not torch.allclose(value["wte.weight"], reference.base_model.wte.weight, atol=1e-3)
