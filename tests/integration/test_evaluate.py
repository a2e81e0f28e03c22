"""Test sets, checkpoints of other programs and further completions, for a run that is done."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from pipeline.__main__ import app
from tests.doubles import own_rewards
from tests.doubles.small_runs import INLINE, events, run_here

TWO = ["datasets.two.kind=addition", "datasets.two.digits=2", "datasets.two.test_size=1000"]
SET = [*TWO, "datasets.two.validation_size=100", "datasets.two.trained_on=false"]
BASE = ["algos=[DPO]", "rounds_of_training=1", "algos.DPO.epochs=1", "evaluation.num_samples=1", *SET]


def evaluate(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["evaluate", *words])
    assert done.exit_code == code, done.output
    return done.output


def rows_of(output: Path, name: str) -> dict[tuple[str, str, str], float]:
    found: Any = json.loads((output / name / "latest" / "results.json").read_text())
    return {(row["dataset"], row["algo"], row["metric"]): row["value"] for row in found["rows"]}


def padded(folder: Path, to: Path) -> Path:
    """Save a policy with more outputs than its tokenizer has tokens, as some families have them."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(model.config.vocab_size + 8)
    model.save_pretrained(to)
    AutoTokenizer.from_pretrained(folder).save_pretrained(to)
    return to


def computed(output: Path, name: str) -> set[str]:
    """Stages of the jobs that the newest run of an experiment has carried out."""
    parts = [job.split("/") for job in events(output, "JobStarted", name)]
    return {part[-2] if part[-1].isdigit() else part[-1] for part in parts}


def test_a_finished_run_is_extended_and_nothing_else_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "outputs"
    run_here(output, *BASE, "evaluation.on=[two]", "evaluation.num_prompts=10")
    at = ["--output-dir", str(output)]
    evaluated = rows_of(output, "t")
    assert {place for place, _, _ in evaluated} == {"addition", "addition@two"}

    exported = CliRunner().invoke(app, ["export", "t", "DPO", "--to", str(tmp_path / "own"), *at])
    assert exported.exit_code == 0, exported.output
    evaluate("t", "--samples", "3", "--prompts", "20", "--also", f"own={tmp_path / 'own'}", *at)
    assert computed(output, "t") == {"evaluate", "metrics", "find"}
    extended = rows_of(output, "t")
    for (place, algo, metric), value in list(extended.items()):
        if algo == "own" and "/vs_" not in metric:  # the same policy, by its exported weights
            assert value == extended[place, "DPO", metric]
    told = json.loads((output / "t" / "latest" / "results.json").read_text())
    assert told["grown_from"] == [[10, 1]]
    assert {row["dataset"] for row in told["pooled"]} == {"addition", "addition@two", "addition@mean"}
    assert len([one for one in told["comparisons"] if one["second"] == "reference"]) == 6

    before = sorted(path.name for path in (output / "t").iterdir())
    two_names = ["t", "--also", f"a={tmp_path / 'own'}", "--also", "a=/models/b"]
    for words, named in (
        (two_names, "--also a=/models/b"),
        (["t", "--chain", "KTO"], "KTO"),  # which ships, and which the run has not trained
        (["t", "--samples", "2"], "--samples 2"),
        (["t", "evaluation.num_samples=2"], "2: the run has 3"),
        (["t", str(tmp_path / "own"), "--on", "addition"], "t is an experiment"),
        (["t", "rounds_of_training=2"], "addition/tiny/s0/DPO/r2/train"),
    ):
        assert named in " ".join(evaluate(*words, *at, code=2).split())
    assert sorted(path.name for path in (output / "t").iterdir()) == before
    # A set of one's own is never trained on here.
    Path("mine.jsonl").write_text('{"prompt": "12+34=", "solution": "460"}\n')
    mine = ["datasets.mine.kind=jsonl", "datasets.mine.path=mine.jsonl"]
    evaluate("t", "--on", "mine", *mine, *at)
    assert {place for place, _, _ in rows_of(output, "t")} == {"addition", "addition@two", "addition@mine"}
    # What the newest run evaluates can be left out again, as where its file or folder is gone.
    Path("mine.jsonl").unlink()
    evaluate("t", "evaluation.on=[two]", "evaluation.also.own=null", *at)
    assert {(place, algo) for place, algo, _ in rows_of(output, "t")} == {
        (place, algo) for place in ("addition", "addition@two") for algo in ("reference", "DPO")
    }
    assert "evaluation.on='two'" in evaluate("t", "evaluation.on=two", *at, code=2)

    # Without a run, beside itself: the same policy again, and at no distance.
    others = {"again": tmp_path / "own", "padded": padded(tmp_path / "own", tmp_path / "it's, padded")}
    also = [word for name, path in others.items() for word in ("--also", f"{name}={path}")]
    both = [str(tmp_path / "own"), *also, "--on", "addition"]
    evaluate(*both, "--samples", "2", "--prompts", "10", INLINE, "device=cpu", *at)
    alone = rows_of(output, "evaluated")
    assert alone["addition", "again", "kl_per_sequence"] == 0
    assert alone["addition", "again", "length"] == alone["addition", "reference", "length"]
    # With outputs that the reference lacks, its divergence is unknown.
    assert alone["addition", "padded", "length"] > 0
    assert alone.get(("addition", "padded", "kl_per_sequence")) is None

    # Of a file of one's own all rows are evaluated, also of the first set.
    (tmp_path / "own.jsonl").write_text("".join(f'{{"prompt": "{n}+1=", "solution": "2"}}\n' for n in range(37)))
    own = [
        "datasets.mine.kind=jsonl",
        f"datasets.mine.path={tmp_path}/own.jsonl",
        "datasets.mine.trained_on=false",
    ]
    planned = evaluate(str(tmp_path / "own"), "--on", "mine", *own, "--samples", "1", "dry_run=true", *at)
    assert "37" in planned.split()  # completions

    # Drawn at once they are the same completions.
    run_here(
        output, *BASE, "evaluation.on=[two]", "evaluation.num_samples=3", "evaluation.num_prompts=20", name="u"
    )
    at_once = rows_of(output, "u")
    assert at_once == pytest.approx({place: value for place, value in extended.items() if place[1] != "own"})


def test_an_evaluation_that_failed_leaves_no_settings_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "outputs"
    run_here(output, *BASE[: -len(SET)], "evaluation.num_prompts=10")
    (tmp_path / "mine.jsonl").write_text('{"prompt": "12+34=", "solution": "460"}\n' * 9)
    mine = ["datasets.mine.kind=jsonl", "datasets.mine.path=mine.jsonl"]
    wrong = f"datasets.mine.reward={own_rewards.__name__}.expects_json"
    again = ["t", "--on", "mine", *mine, "--output-dir", str(output)]
    evaluate(*again, wrong, code=1)
    evaluate(*again)
    assert ("addition@mine", "DPO", "pass@1") in rows_of(output, "t")
    evaluate(*again[:1], "--samples", "2", *again[-2:])  # what succeeded is kept
    assert ("addition@mine", "DPO", "pass@1") in rows_of(output, "t")


def test_weights_that_were_removed_are_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "outputs"
    greedy = ["evaluation.on=[two]", "datasets.two.sampling.temperature=0"]
    run_here(output, *BASE, "evaluation.num_prompts=10", "execution.keep=results", *greedy)
    found = rows_of(output, "t")
    assert ("addition@two", "reference", "greedy/length") not in found  # it is the row itself
    assert found["addition@two", "DPO", "kl_per_sequence"] is None
    assert found["addition", "DPO", "kl_per_sequence"] is not None
    before = sorted(path.name for path in (output / "t").iterdir())
    for dry_run in ("dry_run=true", "dry_run=false"):
        said = evaluate("t", "--samples", "2", dry_run, "--output-dir", str(output), code=2)
        assert "addition/tiny/s0/DPO/r1/train" in " ".join(said.split())
    assert sorted(path.name for path in (output / "t").iterdir()) == before


def test_chains_are_evaluated_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output, best = tmp_path / "outputs", ["algos=[DPO,BestOfN]", "algos.BestOfN.selection=majority"]
    run_here(output, *BASE, *best, "evaluation.num_prompts=10", "evaluation.on=[two]")
    at = ["--output-dir", str(output)]
    for chain, known in (("DPO", {"DPO"}), ("BestOfN", {"DPO", "BestOfN"})):
        evaluate("t", "--chain", chain, "--samples", "2", *at)
        evaluated = {job.split("/")[3] for job in events(output, "JobStarted", "t") if "/train" not in job}
        assert evaluated - {"reference"} == {chain}
        assert {algo for _, algo, _ in rows_of(output, "t")} == {"reference", *known}


def test_what_cannot_be_evaluated_is_refused_before_anything_starts(tmp_path: Path) -> None:
    at, empty = ["--output-dir", str(tmp_path / "outputs")], tmp_path / "Name-2.5 of mine"
    empty.mkdir()
    for words, named in (
        (["nothing", "--on", "gsm8k"], "nothing"),
        (["owner/name"], "--on"),
        (["owner/name", "--on", "gsm8k", "--also", "x"], "--also x"),
        (["owner/name", "--on", "gsm8k", "--also", "a/b=/models/x"], "--also a/b"),
        (["owner/name", str(empty), "--on", "addition"], "evaluation.also.Name-2.5-of-mine="),
        (["owner/name", "--on", "no_such_set"], "no_such_set"),
    ):
        assert named in evaluate(*words, *at, code=2)
    assert not (tmp_path / "outputs" / "evaluated").exists()
