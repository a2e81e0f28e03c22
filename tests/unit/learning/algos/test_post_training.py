"""Chains of every algorithm in this process: what stages write, and that methods are what they say."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.config.schema import SystemConfig
from pipeline.errors import JobError
from pipeline.learning.algos import opening
from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.block_search import BlockSearch
from pipeline.learning.datasets.base import Row
from pipeline.learning.datasets.shipped import Addition
from pipeline.learning.evaluation.metrics import read_samples
from pipeline.learning.models import load
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training import sequences, value
from pipeline.outputs.formats import read_curve, read_metrics, read_reward_fit
from tests.unit.learning.algos.test_chain import Chains

SETTINGS = (
    "algos=[GRPO-HF,QSharp-HF]",  # what the others write, `test_golden` holds to the byte
    "algos.RewardWeighted.class_path=tests.doubles.own_methods.RewardWeighted",
    "algos.GRPO-HF.sampling=round",  # drawing while training has tests of its own
    "algos.QSharp-HF.epochs=1",
    "algos.PITA.enabled=false",
    "algos.QSharp.enabled=false",
    "data_collection.prompts_per_round=20",
    "execution.shard_size=20",  # stages in parts, `test_chain` has
    "evaluation.num_prompts=8",
    "training.micro_batch_size=64",
    "datasets.addition.grading.isolated=false",
)


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Chains:
    return Chains(tmp_path_factory.mktemp("chains"), *SETTINGS, "rounds_of_training=1")


def training(chains: Chains, algo: str, number: int) -> dict:
    (folder,) = chains.folders(algo, number, "train")
    found: dict = json.loads((folder / "training.json").read_bytes())
    return found


@pytest.mark.parametrize("algo", ["GRPO-HF", "QSharp-HF", "RewardWeighted"])
def test_a_chain_ends_in_metrics(chains: Chains, algo: str) -> None:
    found = chains.metrics(algo, 1)
    assert 0 <= found["pass@1"] <= found["reward"] <= 1
    assert found["length"] == 4
    assert found["kl_per_sequence"] > 0
    assert "pass@1/vs_reference" in found
    about = training(chains, algo, 1)
    assert about["tokens_trained"] > 0
    assert all(np.isfinite(loss) for loss in about["loss"])
    if algo != "QSharp-HF":
        assert about["tokens_generated"] == 20 * 4 * 4


@pytest.mark.parametrize("algo", ["GRPO-HF", "QSharp-HF"])
def test_a_reward_model_scores_the_prompts_that_it_has_not_seen(chains: Chains, algo: str) -> None:
    """Recomputed by hand: each half by the model of the other half, standardised by itself."""
    (out,) = chains.folders(algo, 1, "reward")
    drawn = chains.folders(algo, 1, "score")
    data, scored = sequences.Sequences.load(drawn), sequences.Sequences.load([out])
    pairs = sequences.Sequences.load(drawn, "pairs.safetensors")
    fold_of_pairs, fold_of_data = sequences.prompt_folds(pairs.prompts[::2], data.prompts, 2)
    assert len({(*ids[:9], row) for ids, row in zip(data.ids.tolist(), data.prompts.tolist(), strict=True)}) == 20
    assert not set(data.prompts[fold_of_data == 0]) & set(data.prompts[fold_of_data == 1])
    about = json.loads((out / "reward.json").read_bytes())
    assert [fit["pairs"] for fit in about["fits"]] == [int((fold_of_pairs != fold).sum()) for fold in (0, 1)]
    for fold in (0, 1):
        model = ValueModel.from_pretrained(out / f"fold_{fold}")
        mine = fold_of_data == fold
        raw = value.reward_scores(model, data.some(np.flatnonzero(mine)), micro_batch_size=64, device="cpu")
        expected = (raw - raw.mean()) / raw.std()
        if algo == "QSharp-HF":
            expected = (expected.clip(-2, 2) + 2) / 4
        assert scored.labels[mine] == pytest.approx(expected, abs=1e-4)
        held_out = pairs.some(np.flatnonzero(np.repeat(fold_of_pairs == fold, 2)))
        unseen = value.reward_scores(model, held_out, micro_batch_size=64, device="cpu")
        fit = about["fits"][fold]
        assert fit["held_out_pairs"] == len(held_out) // 2
        assert fit["held_out_accuracy"] == pytest.approx(float((unseen[::2] > unseen[1::2]).mean()))
    assert (
        chains.tokens[out.name] == about["tokens_trained"] == sum(fit["tokens_trained"] for fit in about["fits"])
    )
    told = training(chains, algo, 1)["reward_model"]
    assert told["folds"] == 2
    assert told["held_out_pairs"] == len(pairs) // 2
    assert 0 <= told["held_out_accuracy"] <= 1


class Paired(Addition):
    """Each two rows share a prompt and its right answer, and have a wrong one of their own."""

    def row(self, row_id: int) -> Row:
        row = super().row(row_id - row_id % 2)
        right = str(row.columns["solution"])
        wrong = right[:-1] + str((int(right[-1]) + 1 + row_id % 2) % 10)
        return replace(row, id=row_id, columns={**row.columns, "chosen": right, "rejected": wrong})


def test_a_reward_model_is_tried_on_the_pairs_of_prompts_that_it_has_not_seen(tmp_path: Path) -> None:
    found = Chains(
        tmp_path,
        *SETTINGS[3:],
        "algos=[RM]",
        "algos.RM={pairs: existing, held_out: 0.3, batch_size: 16}",
        f"datasets.addition.class_path={__name__}.Paired",
        *(f"datasets.addition.{each}" for each in ("digits=1", "test_size=10", "validation_size=10")),
        "data_collection.prompts_per_round=80",
        "rounds_of_training=1",
    )
    (out,), (told,) = (found.folders("RM", 1, stage) for stage in ("train", "metrics"))
    pairs = sequences.Sequences.load(found.folders("RM", 1, "score"), "pairs.safetensors")
    prompts = [tuple(ids[:4]) for ids in pairs.ids.tolist()]
    apart = value.held_out(pairs.prompts, 0, 0.3)
    unseen, seen = ({prompts[at] for at in np.flatnonzero(which)} for which in (apart, ~apart))
    assert not unseen & seen
    assert len(unseen | seen) < len(pairs) / 2 == 80
    model = ValueModel.from_pretrained(out)
    scores = value.reward_scores(model, pairs.some(apart), micro_batch_size=64, device="cpu")
    (fit,) = read_reward_fit(out / "reward.json").fits
    assert (fit.pairs, fit.held_out_pairs) == ((~apart).sum() // 2, apart.sum() // 2)
    assert fit.held_out_accuracy == pytest.approx(float((scores[::2] > scores[1::2]).mean()))
    (row,) = [row for row in read_metrics(told).rows if row.metric == "held_out_accuracy"]
    assert (row.value, row.n) == (pytest.approx(fit.held_out_accuracy), len(unseen))
    assert row.ci_low is not None
    assert row.ci_high is not None
    assert 0 <= row.ci_low < row.ci_high <= 1
    assert found.metrics("RM", 1)["kl_per_sequence"] == pytest.approx(np.log(4) - 3 / 4, abs=1e-6)


def test_value_models_learn_from_the_pairs_of_a_dataset_whole(tmp_path: Path) -> None:
    found = Chains(
        tmp_path,
        *SETTINGS[7:],
        "algos=[QSharp,PITA]",
        *(f"algos.{name}={{pairs: existing, held_out: 0.25, batch_size: 16}}" for name in ("QSharp", "PITA")),
        f"datasets.addition.class_path={__name__}.Paired",
        *(f"datasets.addition.{each}" for each in ("digits=1", "test_size=10", "validation_size=10")),
        "data_collection.prompts_per_round=40",
        "rounds_of_training=1",
    )
    for name in ("QSharp", "PITA"):
        data = sequences.Sequences.load(found.folders(name, 1, "score"))
        assert data.labels.tolist() == [1.0, 0.0] * 40
        assert (data.starts == 5).all()  # after <bos> and the prompt, so that all of a completion is learnt
        assert training(found, name, 1)["sequences"] == (~value.held_out(data.prompts, 0, 0.25)).sum()
        assert training(found, name, 1)["tokens_generated"] == 0


def test_a_majority_needs_no_training(tmp_path: Path) -> None:
    found = Chains(
        tmp_path,
        *SETTINGS[4:],
        "algos=[BestOfN]",
        "algos.BestOfN.selection=majority",
        "rounds_of_training=1",
        "datasets.addition.reward=exact_match",  # which says what an answer is
        "datasets.addition.grading.correct_by=null",
    )
    assert training(found, "BestOfN", 1) == {"tokens_generated": 0, "tokens_trained": 0}
    n = 4
    assert found.metrics("BestOfN", 1)["kl_per_sequence"] == pytest.approx(np.log(n) - (n - 1) / n, abs=1e-6)


class Worst(BlockSearch):
    """Goes on from what the value model likes least."""

    name = "Worst"

    def choose(
        self, ctx: JobContext, candidates: Sequence[Sequence[int]], values: NDArray[np.float64], count: int
    ) -> NDArray[np.int64]:
        return super().choose(ctx, candidates, -values, count)


def test_a_search_goes_on_from_what_the_value_model_of_another_method_likes(tmp_path: Path) -> None:
    n, searches = 3, ("num_generations: 3", "block_size: 3", "teacher: QSharp")
    found = Chains(
        tmp_path,
        "algos=[QSharp]",
        f"algos.BlockSearch={{enabled: true, {', '.join(searches)}}}",
        f"algos.Worst={{enabled: true, class_path: {__name__}.Worst, {', '.join(searches)}}}",
        "algos.QSharp.batch_size=16",
        "rounds_of_training=2",
    )
    # A bound for each of the two blocks of four tokens.
    bound = 2 * (np.log(n) - (n - 1) / n)
    assert found.metrics("BlockSearch", 2)["kl_per_sequence"] == pytest.approx(bound, abs=1e-6)
    (last,) = found.folders("QSharp", 2, "train")
    model, tokenizer = ValueModel.from_pretrained(last), load.load_tokenizer(last)

    def liked(algo: str) -> float:
        answers = read_samples(found.folders(algo, 2, "evaluate"))
        texts = [[tokenizer.bos_token, *one.prompt, *one.completion] for one in answers]
        data = sequences.Sequences.of(
            [tokenizer.convert_tokens_to_ids(text) for text in texts],
            [len(text) - 4 for text in texts],
            [0.0] * len(texts),
        )
        return float(value.reward_scores(model, data, micro_batch_size=64, device="cpu", as_labels=True).mean())

    assert liked("BlockSearch") > liked("Worst")
    searched = [job for job in found.plan.jobs.values() if (job.algo, job.stage) == ("BlockSearch", "evaluate")]
    assert {job.round for job in searched} == {2}
    for job in searched:
        assert job.inputs["teacher.train"] == (last.name,)
        assert 0 < found.flops[job.id]["decoding"] < found.flops[job.id]["guidance"]


def test_a_chain_begins_with_the_policy_of_another_method_and_is_held_to_that(tmp_path: Path) -> None:
    started = ("algos.DPO.start=RAFT", "algos.GRPO.start=DPO", "algos.GRPO.batch_size=16")
    ranks = ("algos.RAFT.lora.rank=2", "algos.DPO.lora.rank=2", "algos.GRPO.lora.rank=2")
    few = ("evaluation.num_prompts=2", "data_collection.prompts_per_round=12")
    found = Chains(
        tmp_path, *SETTINGS[4:], "algos=[GRPO,DPO,RAFT]", "algos.RAFT.only_correct=false", *started, *ranks, *few
    )
    # Here the anchor is what the first round starts from; in the second one they have parted.
    assert training(found, "DPO", 1)["loss"][0] == pytest.approx(np.log(2), abs=1e-6)
    assert training(found, "DPO", 2)["loss"][0] != pytest.approx(np.log(2), abs=1e-6)
    first, second = (read_curve(folder)[0] for each in (1, 2) for folder in found.folders("GRPO", each, "train"))
    assert first.extra["kl"] == pytest.approx(0, abs=1e-6)
    assert (second.extra["kl"] or 0) > 1e-6
    (base,) = (found.root / job.key for job in found.plan.jobs.values() if job.id.endswith("reference/train"))
    for algo, numbers in {"RAFT": "12", "DPO": "1234", "GRPO": "12346"}.items():
        (folder,) = found.folders(algo, 2, "train")
        stored = sorted(path.parent.name for path in folder.rglob("*.safetensors") if "adapter" in path.name)
        assert "".join(stored) == numbers
        assert load.load_policy(folder, SystemConfig(), "cpu", base=base).num_parameters() > 0
        with pytest.raises(JobError, match=r"holds adapters rather than a model; .*base=toolbox"):
            load.load_policy(folder, SystemConfig(), "cpu")


def test_an_anchor_below_adapters_is_not_loaded_again_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("evaluation.num_prompts=2", "data_collection.prompts_per_round=12", "models.tiny.steps=2")
    ranks = ("algos.DPO.lora.rank=2", "algos.GRPO.lora.rank=2", "algos.GRPO.batch_size=16", "algos.GRPO.beta=0.1")
    settings = (*SETTINGS[4:], "algos=[DPO,GRPO]", "algos.DPO.reference=previous", *ranks, *few)
    loaded = opening.frozen_policy

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a second copy is loaded")

    monkeypatch.setattr(opening, "frozen_policy", refused)
    shared = Chains(tmp_path / "shared", *settings)
    monkeypatch.setattr(opening, "frozen_policy", loaded)
    monkeypatch.setattr(opening, "is_below_adapters", lambda *_, **__: False)
    apart = Chains(tmp_path / "apart", *settings)
    for algo in ("DPO", "GRPO"):
        for each in (1, 2):
            ((one,), (other,)) = (found.folders(algo, each, "train") for found in (shared, apart))
            (job,) = (job for job in shared.plan.jobs.values() if job.key == one.name)
            assert shared.flops[job.id] == apart.flops[job.id]
            assert {path.name: path.read_bytes() for path in one.rglob("*.*") if path.is_file()} == {
                path.name: path.read_bytes() for path in other.rglob("*.*") if path.is_file()
            }


def test_a_value_model_with_adapters_is_stored_whole_and_leaves_other_layers_as_they_were(tmp_path: Path) -> None:
    few = ("evaluation.num_prompts=2", "data_collection.prompts_per_round=12", "models.tiny.steps=2")
    adapters = ("algos.QSharp.lora.rank=2", "algos.QSharp.lora.target_modules=[c_fc]", "algos.QSharp.batch_size=4")
    enabled = (each for each in SETTINGS[5:] if "QSharp.enabled" not in each)
    found = Chains(tmp_path, *enabled, "algos=[QSharp]", *adapters, *few)
    (base,) = (found.root / job.key for job in found.plan.jobs.values() if job.id.endswith("reference/train"))
    before = dict(load.load_policy(base, SystemConfig(), "cpu").base_model.named_parameters())
    for each in (1, 2):
        (folder,) = found.folders("QSharp", each, "train")
        model = load.load_value(folder, SystemConfig(), "cpu")
        after = dict(model.backbone.named_parameters())
        assert before.keys() == after.keys()
        changed = {name for name, weight in after.items() if not weight.equal(before[name])}
        assert changed == {name for name in after if name.endswith("c_fc.weight")}
        moved = next(after[name] - before[name] for name in sorted(changed))
        assert int(np.linalg.matrix_rank(moved.numpy(), tol=1e-6)) <= 2 * each
        assert float(model.head.weight.abs().max()) > 0
