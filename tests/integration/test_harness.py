"""Harnesses find the texts that a trained model itself writes for the same prompts."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import pipeline
from pipeline.commands.export import export
from pipeline.errors import ConfigError, DataError
from tests.doubles.small_runs import calm_run

pytestmark = pytest.mark.filterwarnings("default")
ASKED = [f"{one}+{one + 17}=" for one in range(100, 110)]
STRONG = 1e-3


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return calm_run(tmp_path_factory)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


def texts_by_lm_eval(tmp_path: Path, words: list[str], **task: Any) -> list[Any]:
    """Answers to rows in GSM8K's form, or what they score, by the command."""
    pytest.importorskip("lm_eval", reason="lm_eval is not installed: the extra lm-eval")
    from pipeline.harness.__main__ import main

    rows = [{"question": one, "answer": f"So it is.\n#### {one}"} for one in ASKED]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = {
        "task": "mine",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "exact_match"}],
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(told | task))
    further = ["--tasks", "mine", "--include_path", str(tmp_path), "--log_samples"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lm_eval", *words, *further, "--output_path", str(tmp_path / "out")])
        main()
    (file,) = (tmp_path / "out").rglob("samples_mine*.jsonl")
    samples = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()
    return [sample["resps"][0][0] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        pytest.param({"until": ["\n\n"]}, {"greedy": True}, id="greedy"),
        pytest.param({"until": ["4"], "do_sample": True}, {"seed": 5, "stop": ["4"]}, id="drawn"),
        pytest.param(
            {"until": ["\n"], "temperature": 0.7, "max_gen_toks": 2},
            {"seed": 5, "temperature": 0.7, "max_new_tokens": 2},
            id="short",
        ),
    ],
)
@pytest.mark.parametrize("chain", ["QSharp", "reference"])
def test_lm_eval_completes_as_the_model_does(
    outputs: Path, tmp_path: Path, chain: str, asked: dict[str, Any], options: dict[str, Any]
) -> None:
    eta = {"eta": STRONG} if chain == "QSharp" else {}
    words = ["run", "--model", "pipeline", "--model_args", f"name=t,chain={chain},output_dir={outputs},seed=5"]
    words[-1] += "".join(f",{name}={value}" for name, value in eta.items())
    found = texts_by_lm_eval(tmp_path, words, generation_kwargs=asked)
    model = pipeline.guided("t", chain, output_dir=outputs, device="cpu", **eta)
    assert found == model.generate(ASKED, **options)
    assert len(set(found)) > 1


def test_the_command_of_a_card_evaluates_the_guided_policy(outputs: Path, tmp_path: Path) -> None:
    export("t", tmp_path / "given", "QSharp", output_dir=outputs)
    (line,) = re.findall(r"^python -m pipeline.harness (.*)", (tmp_path / "given" / "README.md").read_text(), re.M)
    words = [{"folder=.": f"folder={tmp_path / 'given'}"}.get(word, word) for word in shlex.split(line)]
    place = words.index("--tasks")  # of gsm8k, which is on the hub
    found = texts_by_lm_eval(tmp_path, words[:place] + words[place + 2 :])
    assert found == pipeline.guided(tmp_path / "given", device="cpu").generate(ASKED, greedy=True)


CHOICES = {"output_type": "multiple_choice", "doc_to_choice": ["1", "2"], "doc_to_target": 0}
CHOICES["metric_list"] = [{"metric": "acc"}]


def test_lm_eval_scores_by_a_plain_policy_alone(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--model", "pipeline", "--model_args"]
    found = texts_by_lm_eval(tmp_path, [*words, f"name=t,chain=reference,output_dir={outputs}"], **CHOICES)
    model = pipeline.guided("t", "reference", output_dir=outputs, device="cpu")
    ids = model.tokenizer([f"{ASKED[0]} 1"], return_tensors="pt")["input_ids"]
    logprobs = model.model(ids).logits[0].log_softmax(-1)
    read = len(model.tokenizer(ASKED[0])["input_ids"])
    expected = sum(float(logprobs[place - 1, ids[0, place]]) for place in range(read, ids.shape[1]))
    assert float(found[0][0]) == pytest.approx(expected, abs=1e-4)
    with pytest.raises(SystemExit, match=r"log-likelihoods.*eta=inf"):
        texts_by_lm_eval(tmp_path, [*words, f"name=t,chain=QSharp,output_dir={outputs}"], **CHOICES)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("chain=QSharp", "give either name=RUN"),
        ("name=t,etta=1", "unknown argument 'etta'"),
        ("name=t,chain=QSharp,eta=strong", "eta must be a number"),
        ("name=t,chain=nothing", "nothing"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(outputs: Path, tmp_path: Path, given: str, said: str) -> None:
    words = ["run", "--model", "pipeline", "--model_args", f"{given},output_dir={outputs}"]
    with pytest.raises(SystemExit, match=said):
        texts_by_lm_eval(tmp_path, words)


def inspected(model: str, *, config: dict[str, Any] | None = None, epochs: int = 1, **given: Any) -> list[Any]:
    """Outputs of inspect_ai, sorted by prompt and epoch."""
    pytest.importorskip("inspect_ai", reason="inspect_ai is not installed: the extra inspect")
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes

    task = Task([Sample(input=one, target="1") for one in ASKED], scorer=includes())
    (log,) = evaluate(
        task, model=model, model_args=given, display="none", epochs=epochs, log_dir="logs", **(config or {})
    )
    assert log.status == "success", log.error
    assert log.samples is not None
    places = {one: place for place, one in enumerate(ASKED)}
    ordered = sorted(log.samples, key=lambda one: (places[str(one.input)], one.epoch))
    return [one.output for one in ordered]


@pytest.mark.parametrize("chain", ["QSharp", "reference"])
def test_inspect_completes_as_the_model_does(outputs: Path, chain: str) -> None:
    given = {"output_dir": str(outputs), "device": "cpu", **({"eta": STRONG} if chain == "QSharp" else {})}
    model = pipeline.guided("t", chain, **given)
    found = inspected(f"pipeline/t/{chain}", config={"temperature": 0.0}, **given)
    assert [one.completion for one in found] == model.generate(ASKED, greedy=True)
    drawn = inspected(f"pipeline/t/{chain}", config={"max_tokens": 3, "stop_seqs": ["4"]}, epochs=2, **given)
    told = [
        model.generate(one, seed=output.metadata["seed"], max_new_tokens=3, stop=["4"])[0]
        for one, output in zip([one for one in ASKED for _ in range(2)], drawn, strict=True)
    ]
    assert [one.completion for one in drawn] == told
    assert len({one.metadata["seed"] for one in drawn}) == 2 * len(ASKED)


def test_inspect_is_told_what_has_no_effect(outputs: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="frequency_penalty has no effect"):
        inspected("pipeline/t/QSharp", config={"frequency_penalty": 1.0}, output_dir=str(outputs))
    with pytest.raises(Exception, match="nothing"):
        inspected("pipeline/t/nothing", output_dir=str(outputs))


def test_a_text_is_read_as_the_rows_of_the_run(outputs: Path) -> None:
    model = pipeline.guided("t", "QSharp", output_dir=outputs, device="cpu")
    assert model.prompt_text("1+1=") == "1+1="
    with pytest.raises(DataError):
        model.prompt_text(" ")
    with pytest.raises(ConfigError, match="stop"):
        model.generate("1+1=", stop="4")  # type: ignore[arg-type]
