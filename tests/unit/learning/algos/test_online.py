"""Methods that draw while they train: what comes out, and that nothing which cuts them off changes it."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.learning.algos import online
from pipeline.learning.algos.groups import Groups
from pipeline.learning.rewards.scoring import Scored
from pipeline.learning.training import checkpoint
from pipeline.outputs import formats
from tests.doubles.forked import forked
from tests.doubles.judges import ASKED
from tests.doubles.models import groups_of
from tests.unit.learning.algos.test_chain import Chains

TOLD = {"reward", "kl", "length", "truncated", "without_signal", "staleness", "entropy"}
SMALL = (
    "experiment.name=t",
    "data_collection.prompts_per_round=24",
    "rounds_of_training=2",
    "evaluation.num_prompts=2",
    "training.checkpoint_every_steps=2",
    "datasets.addition.reward=tests.doubles.judges.never_the_same",
    "datasets.addition.grading.correct_by=tests.doubles.judges.never_the_same",
)
GRPO = ("algos=[GRPO]", "algos.GRPO.batch_size=16", "algos.GRPO.dynamic_sampling=2", *SMALL)


def trained(chains: Chains, algo: str, number: int) -> dict[str, bytes]:
    (folder,) = chains.folders(algo, number, "train")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Chains:
    root = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(ASKED, str(root / "asked"))
        return Chains(root / "store", *GRPO)


def test_training_draws_and_its_curve_says_of_what(whole: Chains) -> None:
    assert not whole.folders("GRPO", 1, "score")
    (folder,) = whole.folders("GRPO", 1, "train")
    about = json.loads((folder / "training.json").read_text())
    assert (len(about["loss"]), about["groups"]) == (6, 24)
    assert about["groups_drawn_anew"] > 0
    assert about["tokens_generated"] == (24 + about["groups_drawn_anew"]) * 4 * 4
    assert whole.tokens[folder.name] == about["tokens_generated"] + about["tokens_trained"]
    rows = formats.read_curve(folder)
    assert {row.extra["times_drawn"] for row in rows} == {1, 2}
    row = rows[0]
    assert row.extra.keys() >= TOLD | {"clip_share"}
    assert (row.extra["staleness"], row.extra["length"], row.extra["clip_share"]) == (0, 4, 0)


def test_groups_that_score_alike_make_way_for_further_prompts_up_to_a_limit() -> None:
    """Of prompts 4 to 7 the odd ones have a signal; further ones follow on, and are as many as are missing."""

    def draw(first: int, count: int, time: int) -> Groups:
        asked.append((first, count, time))
        ids, size = np.arange(first, first + count), 2
        values = np.stack([ids % 2, np.where(ids == 8, np.nan, 0)], 1).reshape(-1).astype(float)
        scored = Scored(values, {}, *([None] * len(values),) * 3)
        tokens = [[place] for place in range(len(values))]
        return groups_of(size, tokens, tokens, scored, ids=ids)

    asked: list[tuple[int, int, int]] = []
    every, taken = online.drawn_anew(draw, (4, 8), 3)
    assert asked == [(4, 4, 0), (8, 2, 1), (10, 1, 2)]
    assert [groups.ids.tolist() for groups in every] == [[4, 5, 6, 7], [8, 9], [10]]
    assert [groups.ids.tolist() for groups in taken] == [[5, 7], [9], [10]]
    assert taken[0].tokens == [[2], [3], [6], [7]]
    assert [groups.ids.tolist() for groups in online.drawn_anew(draw, (8, 9), 2)[1]] == [[9]]
    assert [groups.ids.tolist() for groups in online.drawn_anew(draw, (4, 8), 1)[1]] == [[4, 5, 6, 7]]


def test_what_a_round_leaves_goes_on_in_the_next(whole: Chains) -> None:
    first, second = (trained(whole, "GRPO", number) for number in (1, 2))
    steps = [json.loads(each["optimizer.json"])["param_groups"][0]["lr"] for each in (first, second)]
    assert steps == pytest.approx([6.5e-4 * 6 / 20, 6.5e-4 * 12 / 20])  # the warm-up takes 20


def at_call(number: int, of: Callable[..., Any], after: bool) -> Callable[..., Any]:
    """The same function, which ends this process for good at one of its calls."""
    left = [number]

    def called(*args: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        found = of(*args, **named)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return called


MOMENTS: dict[str, tuple[Any, str, int, bool]] = {
    "a batch is drawn, and not written": (online, "_counts", 3, False),
    "a batch is written": (online.KeptBatches, "first_fault", 4, False),
    "a checkpoint is written": (checkpoint.Checkpoints, "save", 2, True),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_training_that_is_killed_goes_on_to_the_same_bytes(moment: str, whole: Chains, tmp_path: Path) -> None:
    """With rewards that would not say the same again: asked for a batch that is kept, they would differ."""
    owner, name, number, after = MOMENTS[moment]
    (job,) = (one for one in whole.plan.jobs.values() if (one.algo, one.round, one.stage) == ("GRPO", 1, "train"))
    shutil.copytree(whole.root, tmp_path / "store")
    (tmp_path / "store" / "asked").unlink(missing_ok=True)
    out, asked = tmp_path / "store" / job.key, tmp_path / "asked"
    kept, rows = trained(whole, "GRPO", 1), formats.read_curve(out)
    shutil.rmtree(tmp_path / "store" / ".checkpoints" / job.key, ignore_errors=True)

    def attempt(killed: bool) -> None:
        os.environ[ASKED] = str(asked)
        if killed:
            setattr(owner, name, at_call(number, getattr(owner, name), after))
        again = Chains.__new__(Chains)
        again.__dict__ |= {**whole.__dict__, "root": tmp_path / "store", "memory": {}}
        shutil.rmtree(out)
        again.run(job)

    with forked("pipeline.learning.algos.online") as start:
        for killed in (True, False):
            process = start(attempt, killed)
            process.join()
            assert process.exitcode == (-signal.SIGKILL if killed else 0)
            if killed and "not written" in moment:
                anew = int(rows[number - 1].extra["times_drawn"])  # questions that have to be asked again
                asked.write_text(str(int(asked.read_text()) - anew))
    assert {path.name: path.read_bytes() for path in out.iterdir()} == kept


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("batch.json", Path.unlink),
        ("0/samples", lambda file: os.truncate(file, 0)),
        ("sums.json", lambda file: file.write_text("[]")),
    ],
)
def test_a_batch_that_is_not_what_was_written_is_drawn_again(
    tmp_path: Path, file: str, damage: Callable[[Path], object]
) -> None:
    kept = online.KeptBatches(tmp_path)
    for number in range(4):
        with kept.writing(number, durable=number == 2) as folder:
            (folder / "0").mkdir()
            for name in ("batch.json", "0/samples"):
                (folder / name).write_text("{}")
    damage(kept.folder(2) / file)
    assert kept.has(1)
    assert not kept.has(2)
    assert [kept.folder(number).exists() for number in range(4)] == [True, True, False, False]


def test_pairs_and_labels_of_the_present_policy_are_drawn_online_too(tmp_path: Path) -> None:
    how = ("sampling=online", "batch_size=16", "epochs=1")
    own = [f"algos.{algo}.{each}" for algo in ("DPO", "KTO") for each in how]
    chains = Chains(tmp_path, "algos=[DPO,KTO]", *own, *SMALL, "rounds_of_training=1")
    (folder,) = chains.folders("DPO", 1, "train")
    about = json.loads((folder / "training.json").read_text())
    assert len(about["loss"]) == 6
    assert 0 < about["pairs"] <= 24 * 6
    assert formats.read_curve(folder)[0].extra.keys() >= TOLD | {"accuracy", "margin"}
    (folder,) = chains.folders("KTO", 1, "train")
    about = json.loads((folder / "training.json").read_text())
    assert (len(about["loss"]), about["sequences"]) == (6, 24 * 4)
    assert 0 < about["sequences_desirable"] < 24 * 4
    assert {"kl", "reward_desirable", "reward_undesirable"} <= formats.read_curve(folder)[0].extra.keys()


def test_reward_models_of_the_rounds_first_draws_score_what_is_drawn_later(tmp_path: Path) -> None:
    hf = ("algos=[GRPO-HF]", "algos.GRPO-HF.batch_size=16", "algos.GRPO-HF.lora.rank=2")
    chains = Chains(tmp_path, *hf, *SMALL)
    for number in (1, 2):
        (reward,), (folder,) = (chains.folders("GRPO-HF", number, stage) for stage in ("reward", "train"))
        about = json.loads((folder / "training.json").read_text())
        fit = json.loads((reward / "reward.json").read_text())
        assert about["reward_model"]["held_out_pairs"] == fit["held_out_pairs"] > 0
        assert about["tokens_generated"] == 2 * 24 * 4 * 4
        assert about["tokens_trained"] == fit["tokens_trained"] + 24 * 4 * 13
        assert formats.read_curve(folder)[0].extra.keys() >= TOLD
        scores = np.array([row.extra["reward"] for row in formats.read_curve(folder)])
        assert np.abs(scores).max() < 3
        assert np.abs(scores % 0.25).min() > 0  # no share of completions that are right
        # Adapters go on as the weights that they are.
        assert json.loads((folder / formats.ADAPTERS).read_text())["rounds"] == [number]
