"""The methods of a run within limits: which of their rounds, and tests of differences that others reckon too."""

import csv
import hashlib
import io
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.engine.run_folder import RunFolder
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError
from pipeline.outputs.prompts import PromptMeasures, write_prompts
from pipeline.plan.graph import Job, Plan
from pipeline.runs.equal import Block, Stored, block_data, block_tables, blocks_csv, blocks_of, limits_of
from pipeline.runs.frontier import leads_of
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.record import write_results
from tests.doubles.runs import WrittenRun

PROMPTS = 40
ANSWERS = 2
LEVELS: Mapping[str, Sequence[float]] = {"reference": [0.3], "DPO": [0.4, 0.6, 0.7], "GRPO": [0.5, 0.45, 0.8]}
"""How often each is right after each of its rounds."""
KL: Mapping[str, Sequence[float]] = {"reference": [0.0], "DPO": [0.2, 1.5, 0.9], "GRPO": [0.1, 0.3, 2.0]}
TRAINING: Mapping[str, float] = {"DPO": 100, "GRPO": 250}
"""FLOPs of each round of training; its tokens are a tenth of that."""
ANSWER: Mapping[str, float] = {"reference": 2, "DPO": 2, "GRPO": 1}
"""FLOPs of an answer."""


def right(algo: str, seed: int, number: int) -> NDArray[np.float64]:
    """Which prompts a policy answers right."""
    draw = np.random.default_rng([*algo.encode(), seed, number])
    level = LEVELS[algo][max(number - 1, 0)]
    return (draw.random(PROMPTS) < level).astype(float)


class StoredRun:
    """A run of some seeds that has stored what its stages say and took."""

    def __init__(self, output_dir: Path, seeds: int) -> None:
        self.store, self.jobs = Store(output_dir / ".store"), dict[tuple[str, str, int, int], Job]()
        for seed, algo in itertools.product(range(seeds), LEVELS):
            for at in range(len(LEVELS[algo])):
                self.add_round(algo, seed, 0 if algo == "reference" else at + 1)
        self.folder = WrittenRun(output_dir, Plan(list(self.jobs.values()), [])).folder
        self.folder.config.write_text("execution:\n  store: null\nrounds_of_training: 3\n")

    def add_round(self, algo: str, seed: int, number: int) -> None:
        """Train, evaluate and measure."""
        before = self.jobs.get(("train", algo, seed, number - 1))
        trained = None
        if algo != "reference":
            flops = TRAINING[algo]
            took = {"flops": flops, "flops/training": flops, "tokens": flops / 10}
            trained = self.add("train", algo, seed, number, [before] if before else [], took)
        answered = {"flops": ANSWERS * ANSWER[algo], "flops/decoding": ANSWERS * ANSWER[algo], "answers": ANSWERS}
        evaluated = self.add(
            "evaluate", algo, seed, number, [trained] if trained else [], {**answered, "tokens": 9}
        )
        values, kl = right(algo, seed, number), np.full(PROMPTS, KL[algo][max(number - 1, 0)])
        self.add("metrics", algo, seed, number, [evaluated], {"flops": 0, "tokens": 0, "answers": 0}, values, kl)

    def add(
        self,
        stage: str,
        algo: str,
        seed: int,
        number: int,
        inputs: Sequence[Job],
        took: Mapping[str, float],
        *measured: NDArray[np.float64],
    ) -> Job:
        name = f"d/m/s{seed}/{algo}/r{number}/{stage}"
        where: dict[str, Any] = {"dataset": "d", "model": "m", "seed": seed, "algo": algo, "round": number}
        job = Job(
            id=name,
            key=hashlib.sha256(name.encode()).hexdigest()[:40],
            entry="m:f",
            payload={},
            inputs={"before": tuple(one.key for one in inputs)},
            stage=stage,
            weights=("*.txt",) if stage == "train" else (),
            **where,
        )
        folder = self.store.begin(self.store.scratch("run"), job.key, 1)
        (folder / "left.txt").write_text(name)
        if measured:
            sums = dict(zip(("pass@1", "kl_per_sequence"), measured, strict=True))
            rows = [
                {"metric": metric, "value": one.mean(), "ci_low": 0, "ci_high": 1, "n": PROMPTS}
                for metric, one in sums.items()
            ]
            (folder / "metrics.json").write_text(json.dumps({"rows": rows}))
            ones = np.ones(PROMPTS)
            write_prompts(folder, PromptMeasures(np.arange(PROMPTS), {k: (v, ones) for k, v in sums.items()}))
        self.store.commit(job.key, folder, {})
        self.store.costs.note(job.key, {"run_s": 2.0, "load_s": 1.0, **took})
        self.jobs[stage, algo, seed, number] = job
        return job

    @cached_property
    def loaded(self) -> LoadedRun:
        return LoadedRun(RunFolder(self.folder.path))

    def block(self, at: str) -> Block:
        (found,) = blocks_of(self.loaded, limits_of([at]))
        return found


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """A run of four seeds; tests leave it as it is."""
    return StoredRun(tmp_path_factory.mktemp("crossed"), seeds=4)


def rounds(block: Block) -> dict[str, int | None]:
    return {one.algo: one.round for one in block.methods if one.algo != "reference"}


@pytest.mark.parametrize(
    ("at", "dpo", "grpo"),
    [
        ("flops=300", 3, 1),
        ("flops=299.9", 2, 1),
        ("flops=249", 2, None),
        ("tokens=50", 3, 2),
        ("kl=1", 3, 2),  # divergence rises and falls, and nobody asks which round is best
        ("kl=0.3", 1, 2),
        ("flops_per_answer=1", None, 3),
        ("total=500@100", 3, 1),
        ("total=750@250", 2, 2),
        ("kl=1+flops=2e2", 1, None),
        ("kl=1 + flops=2e+2 + tokens=inf", 1, None),
        ("kl=1+tokens=50", 3, 2),
        ("flops=inf", 3, 3),
    ],
)
def test_a_method_is_told_after_its_last_round_within_all_limits(
    crossed: StoredRun, at: str, dpo: int | None, grpo: int | None
) -> None:
    assert rounds(crossed.block(at)) == {"DPO": dpo, "GRPO": grpo}


def test_what_is_told_of_a_method_is_of_that_round(crossed: StoredRun) -> None:
    reached = {one.algo: one for one in crossed.block("flops=250").methods}
    means = [right("DPO", seed, 2).mean() for seed in range(4)]
    result, cost = reached["DPO"].result, reached["DPO"].cost
    assert result is not None
    assert cost is not None
    assert result.value == pytest.approx(np.mean(means))
    assert (reached["DPO"].kl, cost.flops, cost.tokens, cost.answer) == (1.5, 200, 20, 2)
    assert reached["reference"].round == 0


def p_crossed(differences: NDArray[np.float64]) -> float:
    """Of the mean over seeds and prompts [S, P], by the formula of docs/evaluation.md."""
    seeds, prompts = differences.shape
    of_seeds = differences.mean(1).var(ddof=1) / seeds
    covariances = np.cov(differences)[np.triu_indices(seeds, 1)]
    of_prompts = max(0.0, covariances.mean()) / prompts
    error = math.sqrt(of_seeds + of_prompts)
    share = of_seeds / error**2

    def beyond(level: float) -> float:
        critical = share * stats.t.isf(level / 2, seeds - 1) + (1 - share) * stats.t.isf(level / 2, prompts - 1)
        return float(critical - abs(differences.mean()) / error)

    return float(optimize.brentq(beyond, 1e-14, 1))


def holm(*p_values: float) -> list[float]:
    """Of at most two tests."""
    low = min(1.0, len(p_values) * min(p_values))
    return [low if p == min(p_values) else max(low, p) for p in p_values]


def test_differences_of_rounds_within_a_limit_are_tested_over_seeds_and_prompts(crossed: StoredRun) -> None:
    block = crossed.block("total=750@250")
    gaps = {
        pair: np.array([right(pair[0], seed, 2) - right(pair[1], seed, number) for seed in range(4)])
        for pair, number in {("DPO", "reference"): 0, ("GRPO", "reference"): 0, ("DPO", "GRPO"): 2}.items()
    }
    p_values = [p_crossed(one) for one in gaps.values()]
    expected = [*holm(*p_values[:2]), p_values[2]]
    assert [(one.first, one.second) for one in block.comparisons] == list(gaps)
    assert [one.test for one in block.comparisons] == ["crossed"] * 3
    assert [one.difference for one in block.comparisons] == pytest.approx([one.mean() for one in gaps.values()])
    assert [one.p for one in block.comparisons] == pytest.approx(expected, rel=1e-6)


def test_of_one_seed_the_prompts_that_one_alone_has_right_are_counted(tmp_path: Path) -> None:
    block = StoredRun(tmp_path, seeds=1).block("flops=250")
    p_values = []
    for first, second in (
        (("DPO", 2), ("reference", 0)),
        (("GRPO", 1), ("reference", 0)),
        (("DPO", 2), ("GRPO", 1)),
    ):
        ours, theirs = (right(algo, 0, number) for algo, number in (first, second))
        wins, losses = int((ours > theirs).sum()), int((ours < theirs).sum())
        p_values.append(stats.binomtest(wins, wins + losses).pvalue)
    assert [one.test for one in block.comparisons] == ["mcnemar"] * 3
    assert [one.p for one in block.comparisons] == pytest.approx([*holm(*p_values[:2]), p_values[2]])


@pytest.mark.parametrize("seeds", [1, 3])
def test_without_a_bound_it_is_what_the_run_has_compared(tmp_path: Path, seeds: int) -> None:
    run = StoredRun(tmp_path, seeds)
    compared = run.loaded.results.comparisons
    assert len(compared) == 3
    for at in ("flops=inf", "kl=inf", "total=inf@1e6+tokens=1e9"):
        assert run.block(at).comparisons == compared
    write_results(run.folder, run.loaded.results)
    del run.loaded
    assert run.block("flops=inf").comparisons == run.loaded.results.comparisons == compared


def test_a_method_that_is_never_within_is_told_with_its_least_and_not_tested(crossed: StoredRun) -> None:
    block = crossed.block("flops=200+kl=1.6")
    grpo = next(one for one in block.methods if one.algo == "GRPO")
    assert (grpo.state, grpo.least) == ("beyond", {"flops": 250, "kl": 0.1})
    assert [(one.first, one.second) for one in block.comparisons] == [("DPO", "reference")]
    assert "GRPO flops 250" in block_tables(block, crossed.loaded.results)[0].caption
    with pytest.raises(ConfigError, match=r"DPO flops 100; GRPO flops 250"):
        crossed.block("flops=99")


def test_a_round_of_which_costs_are_lost_is_not_passed_over(tmp_path: Path) -> None:
    run = StoredRun(tmp_path, seeds=3)
    job = run.jobs["train", "DPO", 1, 2]
    noted = run.store.root / ".costs" / f"{job.key[:2]}.jsonl"
    noted.write_text("".join(line for line in noted.read_text().splitlines(keepends=True) if job.key not in line))
    state = {one.algo: one.state for one in run.block("flops=250").methods}
    assert state == {"reference": "within", "DPO": "unknown", "GRPO": "within"}
    assert rounds(run.block("kl=1")) == {"DPO": 3, "GRPO": 2}, "divergence is known"
    with pytest.raises(ConfigError, match="no method is within"):
        run.block("flops=50")


def test_what_is_stored_no_more_is_told(tmp_path: Path) -> None:
    run = StoredRun(tmp_path, seeds=3)
    write_results(run.folder, run.loaded.results)
    (run.store.path(run.jobs["metrics", "GRPO", 0, 1].key) / "prompts.safetensors").unlink()
    (run.store.path(run.jobs["train", "DPO", 2, 2].key) / "manifest.json").unlink()
    block = run.block("flops=250")
    methods, pairs = block_tables(block, run.loaded.results)
    assert "DPO round 2" in methods.caption
    assert "GRPO round 1" in pairs.caption
    assert [(one.first, one.second) for one in block.comparisons] == [("DPO", "reference")]
    assert next(one.result for one in block.methods if one.algo == "GRPO") is not None


def test_the_csv_and_the_json_have_every_method_and_every_pair(crossed: StoredRun) -> None:
    blocks = [crossed.block(at) for at in ("flops=250", "flops=249")]
    rows = list(csv.DictReader(io.StringIO(blocks_csv(blocks))))
    assert [(row["at"], row["algo"], row["round"], row["second"], row["second_round"]) for row in rows] == [
        ("flops=250", "reference", "0", "", ""),
        ("flops=250", "DPO", "2", "reference", "0"),
        ("flops=250", "GRPO", "1", "reference", "0"),
        ("flops=250", "DPO", "2", "GRPO", "1"),
        ("flops=249", "reference", "0", "", ""),
        ("flops=249", "DPO", "2", "reference", "0"),
        ("flops=249", "GRPO", "", "reference", "0"),
    ]
    assert (rows[3]["training_flops"], rows[3]["flops_per_answer"]) == ("200.0", "2.0")
    assert float(rows[3]["p"]) == blocks[0].comparisons[-1].p
    assert (rows[6]["state"], rows[6]["value"], rows[6]["p"]) == ("beyond", "", "")
    told = block_data(blocks[0])
    assert [one["p"] for one in told["comparisons"]] == [one.p for one in blocks[0].comparisons]
    assert json.loads(json.dumps(told, allow_nan=False)) == told


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("flop=1", "Did you mean 'flops'"),
        ("seconds=1", "flops, flops_per_answer, kl, tokens, total"),
        ("flops", "flops=NUMBER"),
        ("flops=", "''"),
        ("flops=many", "'many'"),
        ("flops=-1", "'-1'"),
        ("kl=nan", "'nan'"),
        ("kl=1@2", "kl=NUMBER"),
        ("total=1e9", "total=FLOPS@ANSWERS"),
        ("total=1@inf", "'inf'"),
        ("kl=1,", "''"),
        ("kl=1+2", "'1\\+2'"),
    ],
)
def test_what_is_no_limit_is_refused_with_what_may_be_given(at: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        limits_of([at])


def test_commas_and_repeated_options_make_blocks_of_their_own() -> None:
    found = limits_of(["flops=1e+3,kl=1+flops=2", "total=1e9@10", "kl=1+flops=2"])
    assert [one.text for one in found] == ["flops=1e+3", "kl=1+flops=2", "total=1e9@10"]
    assert [[(limit.name, limit.most, limit.answers) for limit in one.every] for one in found] == [
        [("flops", 1000, 0)],
        [("kl", 1, 0), ("flops", 2, 0)],
        [("total", 1e9, 10)],
    ]


def test_the_command_prints_and_writes_them(crossed: StoredRun, tmp_path: Path) -> None:
    outputs = str(crossed.folder.path.parents[1])

    def asked(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["compare", "x", *words, "--output-dir", outputs])
        assert done.exit_code == code, done.output
        return done.output

    printed = asked("--at", "flops=250,kl=1")
    rows = [line.split()[:2] for line in printed.splitlines()]
    assert [rows.count(one) for one in (["DPO", "2"], ["DPO", "3"], ["DPO", "GRPO"])] == [1, 1, 2]
    assert [one["at"] for one in json.loads(asked("--at", "flops=250", "--at", "kl=1", "--json"))] == [
        "flops=250",
        "kl=1",
    ]
    asked("--at", "kl=1", "--csv", str(tmp_path / "at.csv"))
    assert (tmp_path / "at.csv").read_text() == asked("--at", "kl=1", "--csv", "-")
    for wrong in (["--at", "kl"], ["--json"], ["--at", "kl=1", "--html", "x.html"], ["y", "--at", "kl=1"]):
        assert asked(*wrong, code=2).count("error:") <= 1


# -- the front of a run ------------------------------------------------------------------------------------------


def test_a_front_has_the_best_within_each_pair_of_limits_and_claims_what_tests_do(crossed: StoredRun) -> None:
    leads = leads_of(crossed.loaded)
    # DPO costs 2 an answer and GRPO 1; the largest divergence is that of GRPO's last round, 2.0.
    assert [(lead.kl, lead.answer) for lead in leads] == [(0.5, 1), (2.0, 1), (0.5, 2), (1.0, 2), (2.0, 2)]
    assert [lead.best.algo for lead in leads] == ["GRPO", "GRPO", "GRPO", "DPO", "GRPO"]
    for lead in leads:
        others = {row.algo for row in (*lead.block.within, lead.block.methods[0])} - {lead.best.algo}
        named = (*lead.above, *lead.open, *lead.untested)
        assert {name.split()[0] for name in named} == others
        p = {frozenset((one.first, one.second)): one.p for one in lead.block.comparisons}
        assert {name for name in named if p[frozenset((lead.best.algo, name.split()[0]))] < 0.05} >= {*lead.above}
    assert leads[-1].above == ("reference",)
    # Within 0.5 nats are DPO's first round and GRPO's second, of three each.
    assert (leads[2].name, leads[2].open[0], leads[-1].name) == ("GRPO (round 2)", "DPO (round 1)", "GRPO")


def test_a_front_has_the_same_p_values_in_its_data_as_in_its_claims(crossed: StoredRun) -> None:
    leads = leads_of(crossed.loaded)
    every = {(one.first, one.second, one.difference): one.p for lead in leads for one in lead.block.comparisons}
    alone = {one.second: one.p for one in crossed.block("kl=0.5+flops_per_answer=1").comparisons}
    (shown,) = leads[0].block.comparisons
    assert shown.second == "reference"
    assert shown.p > alone["reference"]  # one of many pairs
    assert len(every) > 1


def test_pairs_that_are_tested_at_once_are_corrected_for_their_number(crossed: StoredRun) -> None:
    stored, reference = Stored(crossed.loaded), ("reference", 0)
    (alone,) = stored.compare(("d", "m"), [(("GRPO", 3), reference)]).values()
    policies = [("DPO", 3), ("GRPO", 2), ("GRPO", 3)]
    several = stored.compare(("d", "m"), [(policy, reference) for policy in policies])
    p = [one.p for one in several.values()]
    each = [next(iter(stored.compare(("d", "m"), [(one, reference)]).values())).p for one in policies]
    assert p == pytest.approx(holm(*each))
    assert alone.p == each[-1]
    same = crossed.block("kl=inf")  # each chain there is tested against the reference as well
    assert alone.difference in {one.difference for one in same.comparisons if one.second == "reference"}


def test_the_command_writes_the_blocks_of_a_front(crossed: StoredRun, tmp_path: Path) -> None:
    common = ["compare", "x", "--front", "--output-dir", str(crossed.folder.path.parents[1])]
    told = CliRunner().invoke(app, [*common, "--json"])
    assert [block["at"] for block in json.loads(told.stdout)][-1] == "kl=2.0+flops_per_answer=2.0"
    assert CliRunner().invoke(app, [*common, "--at", "kl=1"]).exit_code == 2
    assert "GRPO is above reference" in CliRunner().invoke(app, common).stdout


def test_a_front_of_policies_that_are_the_reference_is_at_no_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for algo in ("DPO", "GRPO"):
        monkeypatch.setitem(KL, algo, [-1e-9] * len(KL[algo]))
    leads = leads_of(StoredRun(tmp_path, seeds=1).loaded)
    assert [(lead.kl, lead.answer) for lead in leads] == [(0.0, 1), (0.0, 2)]


def test_a_front_without_costs_of_answers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for algo in ANSWER:
        monkeypatch.setitem(ANSWER, algo, 0)
    folder = StoredRun(tmp_path, seeds=1).folder
    told = CliRunner().invoke(app, ["compare", "x", "--front", "--output-dir", str(folder.path.parents[1])])
    assert (told.exit_code, told.output.count("error:")) == (2, 1)
