"""A trained model leaves its run: as one object in Python, and as a folder that works alone."""

import contextlib
import io
import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from typer.testing import CliRunner

import pipeline
from pipeline.__main__ import app
from pipeline.commands import export as exporting
from pipeline.config.schema import Backend, ExecutionConfig
from pipeline.engine.keeper import remove_weights
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.run_jobs import run_jobs
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError, StoreError
from pipeline.learning.generation.guided import _Prompts
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.models.kinds import RewardModelSettings
from pipeline.learning.rewards.model import RewardModel
from pipeline.learning.training.grpo import Samples
from pipeline.learning.training.sequences import Sequences, prompt_folds
from pipeline.outputs.formats import GUIDANCE, Sample, read_guidance, read_lines, read_usage
from pipeline.plan.graph import Job
from pipeline.runs.loaded import LoadedRun, load
from pipeline.runs.origin import collect_notes
from pipeline.runs.report.model_card import command_for_all
from pipeline.runs.trained import config_of
from tests.doubles.families import tiny_model
from tests.doubles.small_runs import calm_run, results, run_here

STRONG = 1e-3
"""Of guidance: the value models of a small run have learnt little."""
PROMPTS = ["123+456=", "619+049=", "999+001="]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a finished run of PITA and QSharp, left as it is."""
    return calm_run(tmp_path_factory)


@pytest.fixture
def copied(outputs: Path, tmp_path: Path) -> Path:
    """The same, to be altered."""
    shutil.copytree(outputs, tmp_path / "outputs", symlinks=True)
    config = (tmp_path / "outputs" / "t" / "latest").resolve() / "config.yaml"
    plain = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**plain, "output_dir": str(tmp_path / "outputs")}))
    return tmp_path / "outputs"


@pytest.fixture(scope="module")
def exported(outputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A value model and a policy, exported."""
    folder = tmp_path_factory.mktemp("exported")
    export(outputs, "t", "QSharp", folder / "value")
    export(outputs, "t", "reference", folder / "policy")
    return folder


def export(outputs: Path, name: str, chain: str, to: Path, *, number: int | None = None) -> str:
    """What the command says."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exporting.export(name, to, chain, number, output_dir=outputs)
    return said.getvalue()


def run_of(outputs: Path) -> LoadedRun:
    return load(RunFolder((outputs / "t" / "latest").resolve()))


def job_of(run: LoadedRun, end: str) -> Job:
    [job] = [job for job_id, job in run.plan.jobs.items() if job_id.endswith(end)]
    return job


def training(outputs: Path, end: str = "QSharp/r2/train") -> Path:
    run = run_of(outputs)
    return run.store.path(job_of(run, end).key)


def test_a_value_model_is_the_same_wherever_it_is_taken_from(outputs: Path, exported: Path) -> None:
    by_name = pipeline.guided("t", "QSharp", output_dir=outputs, device="cpu")
    told = by_name.complete(PROMPTS, n=8, seed=3, eta=STRONG)
    assert min(one.kl or 0.0 for one in told) > 1e-6
    run = pipeline.load_run("t", output_dir=outputs)
    for place, chain in ((exported / "value", None), (run, "s0/QSharp")):
        model = pipeline.guided(place, chain, device="cpu")
        assert (model.eta, model.complete(PROMPTS, n=8, seed=3, eta=STRONG)) == (by_name.eta, told)
    with pytest.raises(ConfigError, match="no exported model: give an experiment, a run"):
        pipeline.guided(run.folder)  # the store knows nothing of how texts are drawn
    first = pipeline.guided("t", "QSharp", round=1, output_dir=outputs, device="cpu")
    assert first.complete(PROMPTS, n=8, seed=3, eta=STRONG) != told


def test_it_draws_what_the_evaluation_of_its_run_drew(outputs: Path) -> None:
    model = pipeline.guided("t", "QSharp", output_dir=outputs, device="cpu")
    run = run_of(outputs)
    samples = list(read_lines(run.store.path(job_of(run, "QSharp/r2/evaluate/000").key) / "samples.jsonl", Sample))
    prompts = {sample.row: sample.prompt for sample in samples}
    policy = model._policy(_Prompts(list(prompts.values()), model.prompting), model._settings({}))
    count = len(samples) // len(prompts)
    keys = sample_keys(0, "evaluate", np.array(list(prompts)), count)
    decoded = policy.complete(policy.encode(list(prompts.values())), keys, samples=count)
    assert policy.text(decoded.tokens) == [sample.completion for sample in samples]


@pytest.mark.parametrize("name", ["policy", "value"])
def test_the_example_of_the_card_works_when_it_is_pasted(
    exported: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = shutil.copytree(exported / name, tmp_path / "given away")
    monkeypatch.chdir(given)
    card = (given / "README.md").read_text()
    assert str(exported) not in card
    examples = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(examples) == {"value": 1, "policy": 2}[name]
    for example in examples:
        exec(example, {})
        assert capsys.readouterr().out.strip()


CHATML = (
    "{{ strftime_now('%d %B %Y') }}{% if terse %}, be terse{% endif %}\n"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


ENDS = ("<|endoftext|>", "<|eom|>", "<|im_end|>", "<|stop|>")


@pytest.fixture(scope="module")
def of_conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that was fine-tuned on conversations, then by GRPO; nothing in the request says that they are.

    Tokenizer, settings of generation, template and request name an end each, the request a stop string besides.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("conversations")
    texts = Tokenizer(models.BPE())
    texts.pre_tokenizer, texts.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|im_start|>", *ENDS]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts.train_from_iterator([], trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=texts, eos_token=ENDS[0], chat_template=CHATML)
    tokenizer.save_pretrained(folder / "model")
    model = tiny_model("llama")
    own = tokenizer.convert_tokens_to_ids(ENDS[1])
    model.generation_config = GenerationConfig(eos_token_id=own, repetition_penalty=9.0, do_sample=True)
    model.save_pretrained(folder / "model")
    rows = [
        {
            "messages": [
                {"role": "system", "content": "Add."},
                {"role": "user", "content": f"{one} + 1"},
                {"role": "assistant", "content": str(one + 1)},
            ],
            "solution": str(one + 1),
        }
        for one in range(30)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = [
        *("experiment.name=t", f"output_dir={folder / 'outputs'}", "algos=[SFT,GRPO]", "rounds_of_training=1"),
        "algos.GRPO.start=SFT",
        *("model=hf", f"models.hf.path={folder / 'model'}", "dataset=jsonl", "datasets.jsonl.reward=length"),
        f"datasets.jsonl.path={folder / 'rows.jsonl'}",
        *("datasets.jsonl.test_size=5", "datasets.jsonl.validation_size=5", "generation.max_new_tokens=4"),
        *("data_collection.prompts_per_round=10", "evaluation.num_prompts=5", "evaluation.bootstrap_samples=20"),
        *(f"generation.stop=['{ENDS[3]}',zq]", "datasets.jsonl.chat_template_kwargs={terse: true}"),
        *("datasets.jsonl.date=2020-02-29", "device=cpu", "system.use_parallel_execution=false"),
    ]
    done = CliRunner().invoke(app, ["run", *request])
    assert done.exit_code == 0, done.output
    export(folder / "outputs", "t", "GRPO", folder / "policy")
    return folder / "policy"


def test_a_policy_of_conversations_is_used_by_its_template(
    of_conversations: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_usage(of_conversations / "usage.json").prompting.chat
    card = (of_conversations / "README.md").read_text()
    assert "--apply_chat_template" in card
    assert {"  SFT:", "  GRPO:"} < set(card.splitlines())
    # What the next round would go on with is of no use to others.
    assert [path.name for path in of_conversations.glob("*.safetensors")] == ["model.safetensors"]
    monkeypatch.chdir(of_conversations)
    for example in re.findall(r"```python\n(.*?)```", card, re.DOTALL):
        exec(example, {})
    assert capsys.readouterr().out
    model = pipeline.guided(of_conversations, device="cpu")
    turns = [{"role": "user", "content": "1 + 1"}]
    assert model.generate("1 + 1", greedy=True) == model.generate(turns, greedy=True)


def test_transformers_asks_draws_and_ends_as_the_run_did(of_conversations: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(of_conversations)
    tokenizer = AutoTokenizer.from_pretrained(of_conversations)
    turns = [{"role": "user", "content": "1 + 1"}]
    asked = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt", "terse": True}
    inputs = tokenizer.apply_chat_template(turns, **asked)
    assert tokenizer.decode(inputs["input_ids"][0]).startswith("29 February 2020, be terse<|im_start|>user")
    shape = {"max_new_tokens": 48, "pad_token_id": 0}
    first = inputs["input_ids"].shape[1]
    [greedy] = model.generate(**inputs, do_sample=False, **shape)[:, first:].tolist()
    [same] = pipeline.guided(of_conversations, device="cpu").complete("1 + 1", greedy=True, max_new_tokens=48)
    assert greedy == same.token_ids
    torch.manual_seed(0)
    drawn = model.generate(**inputs, num_return_sequences=96, **shape)[:, first:].tolist()
    ends = [tokenizer.convert_tokens_to_ids(end) for end in ENDS]
    met = [next((token for token in row if token in ends), None) for row in drawn]
    assert set(met) == {*ends, None}
    assert all(not any(row[row.index(end) + 1 :]) for row, end in zip(drawn, met, strict=True) if end is not None)


def test_a_card_tells_what_was_measured_and_how_to_repeat_it(outputs: Path, exported: Path) -> None:
    card = (exported / "value" / "README.md").read_text()
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["tags"] == ["posttrain-pipeline", "value-model", "QSharp"]
    rows = run_of(outputs).results.rows
    [row] = [row for row in rows if (row.algo, row.round, row.metric) == ("QSharp", 2, "pass@1")]
    assert {"type": "pass@1", "name": "pass@1", "value": row.value} in head["model-index"][0]["results"][0][
        "metrics"
    ]
    assert f"| pass@1 | {row.value:.4g} | [{row.ci_low:.4g}, {row.ci_high:.4g}] |" in card
    assert command_for_all(run_of(outputs).origin.command) in card
    assert str(outputs) not in card
    assert "experiment.name=t" in card
    assert "lm_eval run" in (exported / "policy" / "README.md").read_text()


def test_what_is_exported_is_a_copy_and_leaves_the_store_as_it_was(outputs: Path, exported: Path) -> None:
    files = [path for path in exported.rglob("*") if path.is_file()]
    assert files
    assert not any(path.is_symlink() or path.stat().st_nlink > 1 for path in files)
    assert sorted(path.name for path in exported.iterdir()) == ["policy", "value"]
    assert read_usage(exported / "value" / "usage.json").reference is not None
    store = Store(outputs / ".store")
    assert not [key for key in store.stored_keys() if store.problem(key) is not None]


def test_a_chain_that_is_not_finished_is_refused(copied: Path, tmp_path: Path) -> None:
    shutil.rmtree(training(copied))
    journal = run_of(copied).folder.path / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if "QSharp/r2/train" not in line))
    said = r"QSharp: the weights of round 2 of 2 are not trained.*Rounds that are there: 1\."
    with pytest.raises(StoreError, match=said):
        export(copied, "t", "QSharp", tmp_path / "x")
    with pytest.raises(StoreError, match=said):
        pipeline.guided("t", "QSharp", output_dir=copied)
    with pytest.raises(ConfigError, match="has no round 3; there are: 1, 2"):
        export(copied, "t", "QSharp", tmp_path / "x", number=3)
    export(copied, "t", "QSharp", tmp_path / "x", number=1)


def remove(run: LoadedRun, trained: list[Job]) -> None:
    scratch = run.store.scratch("t-1")
    scratch.mkdir(parents=True)
    for job in trained:
        assert remove_weights(run.store, job.key, job.weights, "execution.keep=results", scratch)


def test_weights_that_were_removed_are_made_again_to_be_exported(
    copied: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In this process, which has imported torch.
    def here(*given: Any, execution: ExecutionConfig, **settings: Any) -> Outcome:
        return run_jobs(*given, execution=replace(execution, backend=Backend.inline), **settings)

    monkeypatch.setattr(exporting, "run_jobs", here)
    run = run_of(copied)
    trained = [job_of(run, end) for end in ("QSharp/r1/train", "QSharp/r2/train")]
    remove(run, trained)
    with pytest.raises(
        StoreError, match=r"weights of round 2 of 2 were removed.*No round of it is there.*export t "
    ):
        pipeline.guided("t", "QSharp", output_dir=copied)
    said = export(copied, "t", "QSharp", tmp_path / "x")
    assert "running 2 jobs to make them again" in said
    for name in ("model.safetensors", "value_head.safetensors", "guidance.json"):
        assert (tmp_path / "x" / name).read_bytes() == (exported / "value" / name).read_bytes()
    assert [run.store.problem(job.key) for job in trained] == [None, None]


@pytest.mark.parametrize("end", ["QSharp/r2/train", "reference/train"])
def test_altered_weights_are_not_exported(copied: Path, tmp_path: Path, end: str) -> None:
    weights = training(copied, end) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(StoreError, match=r"model\.safetensors does not have its checksum"):
        export(copied, "t", "QSharp", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_value_model_without_its_reference_says_so(copied: Path, exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported / "value", tmp_path / "value")
    shutil.move(tmp_path / "value" / "reference", tmp_path / "reference")
    with pytest.raises(ConfigError, match="reference=FOLDER"):
        pipeline.guided(tmp_path / "value")
    told = pipeline.guided(tmp_path / "value", reference=tmp_path / "reference", device="cpu")
    assert told.generate(PROMPTS) == pipeline.guided(exported / "value", device="cpu").generate(PROMPTS)
    usage = json.loads((tmp_path / "value" / "usage.json").read_text())
    usage["reference"]["path"] = str(tmp_path / "reference")  # a folder from elsewhere reads nothing beside itself
    (tmp_path / "value" / "usage.json").write_text(json.dumps(usage))
    with pytest.raises(ConfigError, match="reference=FOLDER"):
        pipeline.guided(tmp_path / "value")


def test_the_page_works_as_it_stands_there(outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(pipeline.__file__).parents[1] / "docs" / "using-models.md").read_text()
    blocks = [
        re.sub(r"^    ", "", block, flags=re.M) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", page, re.M)
    ]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").symlink_to(outputs)
    names: dict[str, Any] = {}
    for block in (block.replace("first_run", "t") for block in blocks if "hf upload" not in block):
        if "pipeline export" in block:
            for line in block.split("python -m pipeline ")[1:]:
                assert CliRunner().invoke(app, line.split()).exit_code == 0
        elif not any(other in block for other in ("lm_eval", "pipeline.harness", "pipeline chat", "vllm")):
            exec(block, names)
    assert {path.name for path in tmp_path.iterdir()} == {"outputs", "my_model", "after_one_round"}
    assert len(names["model"].generate(PROMPTS)) == 3
    assert "processor" in names


def test_the_strength_that_a_sweep_has_chosen_is_taken(copied: Path, tmp_path: Path) -> None:
    run = run_of(copied)
    file = run.store.path(job_of(run, "QSharp/r2/metrics").key) / "metrics.json"
    rows = json.loads(file.read_text())["rows"]
    none = {"ci_low": None, "ci_high": None, "n": 0}
    tried = {"0.1": 0.0, "0.3": 1.0, "inf": 0.0}
    rows += [{"metric": f"chosen/eta={eta}", "value": value, **none} for eta, value in tried.items()]
    file.write_text(json.dumps({"rows": rows}))
    assert pipeline.guided("t", "QSharp", output_dir=copied).eta == 0.3
    assert pipeline.guided("t", "QSharp", round=1, output_dir=copied).eta == 0.1
    export(copied, "t", "QSharp", tmp_path / "x")
    assert read_guidance(tmp_path / "x" / GUIDANCE).eta == 0.3


COMPARED = "preferences: {ties: coin}, batch_size: 16, sampling: round"
FITTED = [
    "algos=[GRPO-HF,BestOfN,RM]",
    "evaluation.on=[two]",
    "datasets.two={kind: addition, digits: 1, trained_on: false, test_size: 5, validation_size: 5}",
    f"algos.GRPO-HF={{{COMPARED}}}",
    *(f"algos.{one}={{preferences: {{ties: coin}}, batch_size: 16}}" for one in ("BestOfN", "RM")),
    "algos.RM.held_out=0.3",
    "rounds_of_training=1",
    "data_collection.prompts_per_round=20",
    "evaluation.num_prompts=5",
]


@pytest.fixture(scope="module")
def of_preferences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs of a run that fitted reward models."""
    folder = tmp_path_factory.mktemp("preferences") / "outputs"
    run_here(folder, *FITTED)
    return folder


def export_reward(outputs: Path, chain: str, to: Path, fold: int | None = None) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exporting.export("t", to, chain, reward_model=True, fold=fold, output_dir=outputs)
    return said.getvalue()


@pytest.mark.parametrize("fold", [0, 1])
def test_a_reward_model_leaves_its_run_and_scores_as_it_did_there(
    of_preferences: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fold: int,
) -> None:
    said = export_reward(of_preferences, "GRPO-HF", tmp_path / "x", fold)
    assert f"reward model of fold {fold} of 2" in said
    run = run_of(of_preferences)
    out = run.store.path(job_of(run, "GRPO-HF/r1/reward").key)
    drawn = [run.store.path(job.key) for job_id, job in run.plan.jobs.items() if "GRPO-HF/r1/score" in job_id]
    whole, about = Samples.load([out]).sequences, json.loads((out / "reward.json").read_bytes())["fits"][fold]
    pairs = Sequences.load(drawn, "pairs.safetensors")
    mine = np.flatnonzero(prompt_folds(pairs.prompts[::2], whole.prompts, 2)[1] == fold)
    bias = load_file(out / f"fold_{fold}" / "value_head.safetensors")["bias"].item()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "x")
    texts = [
        [tokenizer.decode(ids, skip_special_tokens=True) for ids in (row[:start], row[start:end])]
        for row, start, end in zip(whole.ids[mine], whole.starts[mine], whole.lengths[mine], strict=True)
    ]
    # Some draw tokens that no text shows.
    shown = [
        tokenizer("".join(two))["input_ids"] == whole.ids[row, : whole.lengths[row]].tolist()
        for two, row in zip(texts, mine, strict=True)
    ]
    assert np.mean(shown) > 0.9
    mine, texts = mine[shown], [two for two, same in zip(texts, shown, strict=True) if same]
    reward = RewardModel(RewardModelSettings(path=str(tmp_path / "x")), "cpu")
    logits = np.array(reward(*zip(*texts, strict=True)))
    assert np.ptp(logits) > 0
    scored = (logits + bias - about["mean"]) / about["deviation"]
    assert scored.tolist() == pytest.approx(whole.labels[mine].tolist(), abs=1e-3)
    card = (tmp_path / "x" / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["pipeline_tag"] == "text-classification"
    assert str(of_preferences) not in card
    monkeypatch.chdir(tmp_path / "x")
    (example,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    exec(example, {})
    float(capsys.readouterr().out)
    with pytest.raises(ConfigError, match="no exported model"):
        pipeline.guided(tmp_path / "x")


def test_which_reward_model_is_asked_for(of_preferences: Path, tmp_path: Path) -> None:
    assert "reward model: " in export_reward(of_preferences, "BestOfN", tmp_path / "x")
    with pytest.raises(ConfigError, match="--fold 1: there is one reward model"):
        export_reward(of_preferences, "BestOfN", tmp_path / "y", 1)
    with pytest.raises(ConfigError, match="--fold 2: must be 0 to 1"):
        export_reward(of_preferences, "GRPO-HF", tmp_path / "y", 2)
    with pytest.raises(ConfigError, match="add --reward-model"):
        exporting.export("t", tmp_path / "y", "GRPO-HF", fold=0, output_dir=of_preferences)
    with pytest.raises(ConfigError, match="no policy or value model fits 'BestOfN'"):
        export(of_preferences, "t", "BestOfN", tmp_path / "y")
    assert not (tmp_path / "y").exists()


def test_a_reward_model_of_its_own_is_the_reward_of_another_run(of_preferences: Path, tmp_path: Path) -> None:
    (row,) = [
        row for row in json.loads(results(of_preferences)[0])["rows"] if row["metric"] == "held_out_accuracy"
    ]
    evaluated = {(row["dataset"], row["algo"]) for row in json.loads(results(of_preferences)[0])["rows"]}
    assert evaluated >= {("addition@two", algo) for algo in ("reference", "GRPO-HF", "BestOfN", "RM")}
    run = run_of(of_preferences)
    notes = collect_notes(run.store, run.plan.jobs.values(), config_of(run))
    (note,) = [note for note in notes if "/RM, round 1: its" in note]
    assert all(f"{row[name]:.3f}" in note for name in ("value", "ci_low", "ci_high"))
    export_reward(of_preferences, "RM", tmp_path / "x")
    assert f"{row['value']:.4g} of " in (tmp_path / "x" / "README.md").read_text()
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "x").config.num_labels == 1
    judged = "datasets.addition={reward: model, grading: {options: {model: {path: %s}}}}"
    asked = ("algos=[BestOfN]", "algos.BestOfN.batch_size=16", *FITTED[-3:])
    run_here(tmp_path / "outputs", *asked, judged % (tmp_path / "x"))
    rows = json.loads(results(tmp_path / "outputs")[0])["rows"]
    rewards = {row["algo"]: row["value"] for row in rows if row["metric"] == "reward"}
    assert rewards["BestOfN"] != rewards["reference"]


def test_a_run_without_reward_models_has_none_to_export(outputs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no reward model"):
        export_reward(outputs, "QSharp", tmp_path / "x")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.usefixtures("offline")
@pytest.mark.filterwarnings("default")
def test_the_harness_asks_and_ends_as_the_run_did_by_the_command_of_the_card(
    of_conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the texts that the model itself writes for the same prompts."""
    pytest.importorskip("lm_eval", reason="lm_eval is not installed; it is no dependency")
    from lm_eval.__main__ import cli_evaluate

    asked = [f"{one} + 1" for one in range(8)]
    texts = pipeline.guided(of_conversations, device="cpu").generate(asked, greedy=True)
    rows = [{"asked": one, "text": text} for one, text in zip(asked, texts, strict=True)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "mine",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{asked}}",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "exact_match"}],
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(task))
    (line,) = re.findall(r"^lm_eval run .*", (of_conversations / "README.md").read_text(), re.MULTILINE)
    words = [{"gsm8k": "mine"}.get(word, word) for word in shlex.split(line)]
    further = ["--include_path", str(tmp_path), "--device", "cpu", "--output_path", str(tmp_path / "found.json")]
    monkeypatch.chdir(of_conversations)
    monkeypatch.setattr(sys, "argv", [*words, *further, "--batch_size", "4"])
    cli_evaluate()
    (found,) = tmp_path.glob("found*.json")
    assert json.loads(found.read_text())["results"]["mine"]["exact_match,none"] == 1
