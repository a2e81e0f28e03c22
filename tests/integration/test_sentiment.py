"""The shipped experiment on a real language model, with a model of a few kilobytes in its place."""

import io
import json
from pathlib import Path

from rich.console import Console
from transformers import AutoModel, AutoModelForCausalLM

from pipeline.commands.run import run_experiment
from pipeline.config.checks import check_config
from pipeline.config.tables import conf_dir
from tests.doubles.composing import quick_config
from tests.doubles.gguf import TOKENS, write_gguf

SMALL = [
    "system.use_parallel_execution=false",
    "rounds_of_training=1",
    "data_collection.prompts_per_round=6",
    "evaluation.num_prompts=4",
    "generation.max_new_tokens=5",
    "algos.PITA.epochs=1",
]

PROMPTS = conf_dir() / "prompts" / "movie_openings"


def test_the_request_is_sound() -> None:
    config = quick_config(["experiment=sentiment"])
    check_config(config)
    assert {name for name, algo in config.algos.items() if algo.enabled} == {"PITA", "QSharp", "DPO", "GRPO"}
    assert config.datasets["movie_openings"].path == str(PROMPTS)


def test_no_opening_is_in_two_files() -> None:
    files = [PROMPTS / f"{split}.jsonl" for split in ("train", "validation", "test")]
    rows = [json.loads(line)["prompt"] for file in files for line in file.read_text().splitlines()]
    assert len(rows) == len(set(rows)) == 776


def test_it_runs_and_leaves_plain_models(tmp_path: Path) -> None:
    # With a token for every letter, so that any opening has some.
    letters = [chr(code) for code in range(33, 127)]
    model = write_gguf(tmp_path / "tiny.gguf", [*TOKENS[:3], *letters, "Ġ", "ab"])
    outputs = [f"output_dir={tmp_path / 'outputs'}", "experiment=sentiment", "generation.long_prompts=truncate"]
    request = quick_config([*outputs, f"models.smollm2.path={model}", *SMALL])
    assert run_experiment(request, Console(file=io.StringIO())) == 0
    rows = json.loads((tmp_path / "outputs/sentiment/latest/results.json").read_text())["rows"]
    rewards = {row["algo"]: row["value"] for row in rows if row["metric"] == "reward"}
    assert rewards.keys() == {"reference", "PITA", "QSharp", "DPO", "GRPO"}
    assert all(0 <= value <= 1 for value in rewards.values())
    jobs = tmp_path / "outputs/sentiment/latest/jobs/movie_openings/smollm2"
    AutoModelForCausalLM.from_pretrained(jobs / "reference/train/output")
    AutoModelForCausalLM.from_pretrained(jobs / "s0/DPO/r1/train/output")
    AutoModel.from_pretrained(jobs / "s0/PITA/r1/train/output")
    # The model has another place now, and every result is found again.
    model.rename(tmp_path / "moved.gguf")
    again = quick_config([*outputs, f"models.smollm2.path={tmp_path / 'moved.gguf'}", *SMALL])
    printed = io.StringIO()
    assert run_experiment(again, Console(file=printed, width=200)) == 0
    assert "are stored; nothing to run" in printed.getvalue()
