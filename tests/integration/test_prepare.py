"""A dataset from a file and a model from a folder, through the real engine: prepared once, then used by all."""

import json
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.plan.build import build_plan
from tests.doubles import small_runs
from tests.doubles.composing import quick_config
from tests.doubles.small_runs import events, results, run_here


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a tokenizer of digits, and sums as JSON lines."""
    folder = tmp_path_factory.mktemp("files")
    addition = load_dataset(quick_config(["experiment.name=x"]).datasets["addition"])
    tokenizer = make_tokenizer(addition)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=len(addition.vocabulary), n_embd=16, n_layer=1, n_head=2, n_positions=32, eos_token_id=None
        )
        GPT2LMHeadModel(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [addition.row(int(row)) for row in addition.ids("train")[:120]]
    lines = [
        json.dumps({"prompt": row.prompt, "completion": row.columns["solution"], "label": row.id % 2 == 0})
        for row in rows
    ]
    (folder / "sums.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


def settings(files: Path) -> list[str]:
    return [
        "dataset=jsonl",
        "model=hf",
        f"datasets.jsonl.path={files / 'sums.jsonl'}",
        "datasets.jsonl.test_size=20",
        "datasets.jsonl.validation_size=20",
        "datasets.jsonl.reward=length",
        "algos.QSharp.value_min=-1",
        "algos.QSharp.atoms=11",
        f"models.hf.path={files / 'model'}",
        "data_collection.prompts_per_round=20",
        "evaluation.num_prompts=20",
        "generation.max_new_tokens=4",
        "rounds_of_training=1",
        "algos=[QSharp,SFT,RAFT,KTO]",
        "algos.RAFT.start=SFT",
        "algos.KTO.pairs=existing",
    ]


def without_tiny(settings: list[str]) -> list[str]:
    """What `run` passes for the embedded model does not fit another."""
    return [one for one in settings if not one.startswith("models.tiny")]


@pytest.fixture
def main_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_runs, "SMALL", [*without_tiny(small_runs.SMALL)[:-2], "algos.QSharp.epochs=1"])


@pytest.mark.usefixtures("main_job")
def test_preparation_alone_and_then_the_rest(files: Path, tmp_path: Path) -> None:
    output_dir = tmp_path / "outputs"
    few = tmp_path / "few.jsonl"
    few.write_text("".join((files / "sums.jsonl").read_text().splitlines(keepends=True)[:20]))
    more = ["datasets.jsonl.test_size=30", "evaluation.num_prompts=30", "evaluation.num_samples=2"]  # there are 20
    asked = [*settings(files), f"datasets.jsonl.test_path={few}", *more]
    printed = run_here(output_dir, *asked, "stage=prepare")
    done = events(output_dir, "JobFinished")
    assert sorted(name.rsplit("/", 1)[1] for name in done) == ["check", "prepare", "tokenize", "train"]
    assert "prepared" in printed
    timed = json.loads((output_dir / ".store" / "durations.json").read_bytes())
    assert timed
    assert not any(name.startswith("load: ") for name in timed)  # of imports alone, which plans count for each job
    no_pairs = ["algos=[QSharp,SFT,RAFT,KTO,DPO]", "algos.DPO.pairs=existing"]
    run_here(output_dir, *asked, *no_pairs, "stage=prepare", code=2)  # of rows that are stored as well
    run_here(output_dir, *asked)
    later = events(output_dir, "JobStarted")
    assert later
    assert not {name for name in later if "/dataset/" in name}
    rows = json.loads(results(output_dir)[0])["rows"]
    assert {row["algo"] for row in rows} == {"reference", "QSharp", "SFT", "RAFT", "KTO"}
    assert json.loads(results(output_dir)[0])["starts"] == {"RAFT": "SFT"}
    found = json.loads((output_dir / "t" / "latest" / "compute.json").read_bytes())
    compute = found["rows"]
    assert {row["stage"] for row in compute} >= {"prepare", "tokenize", "generate", "train", "evaluate"}
    assert {row["algo"] for row in compute if row["stage"] == "generate"} == {"QSharp", "RAFT"}, "others take rows"
    assert {row["answers"] for row in compute if row["stage"] == "evaluate"} == {20 * 2}
    answering = {row["algo"] for row in found["costs"] if row["answer"] > 0}
    assert answering == {"reference", "QSharp", "SFT", "RAFT", "KTO"}
    flops = {row["algo"]: row["flops"] for row in found["costs"]}
    assert flops["RAFT"] > flops["SFT"] > 0
    before, after = (
        build_plan(quick_config([*small_runs.SMALL, "experiment.name=t", *asked, *more])).jobs
        for more in ((), ("datasets.jsonl.rewards={length: 0.5}",))
    )
    anew = {name.split("/", 2)[-1].removeprefix("s0/") for name in after if after[name].key != before[name].key}
    assert {"dataset/check", "RAFT/r1/score/000", "RAFT/r1/train"} <= anew
    kept = ("dataset/prepare", "SFT/r1/train", "RAFT/r1/generate", "QSharp/r1/generate")
    assert not {name for name in anew if name.startswith(kept)}


@pytest.mark.usefixtures("main_job")
def test_a_row_without_its_prompt_is_named_before_anything_starts(files: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "1+1="}\n{"question": "2+2="}\n')
    printed = run_here(tmp_path / "outputs", *settings(files), f"datasets.jsonl.path={broken}", code=2)
    assert "broken.jsonl:2: no prompt. The columns are question" in printed
    assert "write 'datasets.jsonl.columns={prompt: COLUMN}'" in printed
    assert not (tmp_path / "outputs" / "t").exists()
