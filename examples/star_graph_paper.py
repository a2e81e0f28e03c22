"""The recipes of Q#'s code for star graphs (arXiv 2502.20548); docs/papers.md says what they give.

    python run_parallel.py experiment=paper/star_graph_cpu experiment.name=stars

Methods learn from pairs: the right path, and the first wrong one that the reference draws. A prompt for which
`tries` draws are all right has no pair, as in that code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline import (
    DPO,
    METRICS,
    AlgoConfig,
    Algorithm,
    Config,
    Dataset,
    DPOConfig,
    JobContext,
    QSharp,
    QSharpConfig,
    Stage,
    number,
)
from pipeline.toolbox import (
    REFERENCE_TRAIN,
    TEACHER_TRAIN,
    TEXT,
    REINFORCEpp,
    REINFORCEppConfig,
    Settings,
    TaughtConfig,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipeline.toolbox import Drawn, Samples, TextPolicy, ValueModel


@dataclass(kw_only=True)
class Tries(Settings):
    """How often a wrong path is looked for."""

    tries: int = number(1000, at_least=1, at_most=1_000_000)
    """Most draws of the reference for a prompt."""


class Paired:
    """For methods that learn from these pairs, and share them."""

    @classmethod
    def drawn_with(cls, settings: AlgoConfig) -> Mapping[str, Any]:
        """Return what decides the pairs; raise the version when their code changes."""
        assert isinstance(settings, Tries)
        return {"pairs": "gold against wrong", "tries": settings.tries, "version": 1}


def gold_against_wrong(ctx: JobContext, dataset: Dataset, reference: TextPolicy, tries: int) -> Drawn:
    """Return a group of two for each prompt of a shard: its right path, and a wrong one of the reference."""
    import numpy as np

    from pipeline import toolbox

    rows, tokenizer = toolbox.round_rows(ctx, dataset), toolbox.reference_model(ctx)[1]
    prompts = toolbox.encode(ctx, reference, rows)
    gold = tokenizer([str(row.columns["solution"]) for row in rows], add_special_tokens=False).input_ids
    ids, left = toolbox.row_ids(rows), [*range(len(rows))]
    wrong: dict[int, list[int]] = {}
    generated, tried, count = 0, 0, 1
    while left and tried < tries:
        keys = toolbox.sample_keys(ctx.seed, f"{ctx.round}/wrong/{tried}", ids[left], count)
        drawn = reference.complete([prompts[at] for at in left], keys, samples=count).tokens
        generated += sum(map(len, drawn))
        for place, at in enumerate(left):
            own = [tokens for tokens in drawn[place * count : (place + 1) * count] if tokens != gold[at]]
            wrong |= {at: own[0]} if own else {}
        left, tried = [at for at in left if at not in wrong], tried + count
        count = min(2 * count, max(1, tries - tried))  # few prompts are left, and are drawn for at once
        ctx.progress(len(wrong), total=len(rows), tokens=generated)
    both, tokens = [at for at in sorted(wrong) for _ in range(2)], []
    for at in sorted(wrong):
        tokens += [gold[at], wrong[at]]
    return toolbox.Drawn(
        size=2,
        prompts=[prompts[at] for at in both],
        tokens=tokens,
        texts=reference.text(tokens, [rows[at] for at in both]),
        ids=ids[sorted(wrong)],
        cuts=np.zeros(len(wrong), np.int64),
        truncated=np.array([*map(reference.truncated, tokens)], np.bool_),
        generated=generated,
    )


@dataclass(kw_only=True)
class PaperQSharpConfig(Tries, QSharpConfig):
    """Settings of QSharp, and what training begins with."""

    from_reference: bool = False
    """Begin with the reference itself, as QSharp does."""

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also report a batch that would split a pair."""
        yield from super().problems(key, config)
        if self.batch_size % 2:
            yield f"{key}.batch_size={self.batch_size}: must be even, as a batch has both paths of a graph"


class PaperQSharp(Paired, QSharp):
    """Q# with a value model fitted to gold and wrong paths, whole and without roll-in.

    It adds log(1 - p + p exp(1 / eta)) to a candidate's log-probability, of its probability p to be right.
    """

    name: ClassVar[str] = "PaperQSharp"
    together: ClassVar[int] = 2  # both paths of a graph are in one batch, as in that code
    config_class: ClassVar[type[AlgoConfig]] = PaperQSharpConfig

    def draw(self, ctx: JobContext, dataset: Dataset, roll_in: TextPolicy, reference: TextPolicy) -> Drawn:
        """Return the pairs; `label` gives 1 to the right path and 0 to the wrong one, by the reward."""
        return gold_against_wrong(ctx, dataset, reference, ctx.settings(PaperQSharpConfig).tries)

    def _start(self, ctx: JobContext) -> ValueModel:
        """Begin where the reference's training began, not with the reference.

        For a model of kind hf that is its `value_path`, for one that the run trains its random weights.
        """
        import torch
        from transformers import AutoModelForCausalLM

        model = super()._start(ctx)
        if ctx.config.model.is_trained and not ctx.settings(PaperQSharpConfig).from_reference:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(ctx.config.model.references[0] or 0)
                untrained = AutoModelForCausalLM.from_config(model.backbone.config)
            model.backbone.load_state_dict(untrained.base_model.state_dict())
        return model


class Rule(Enum):
    """What the codes add to a candidate's log-probability with the same value model."""

    cd = "cd"  # log(p / eta), so log p: FUDGE, whatever eta
    pita = "pita"  # of PITA's code: log of the odds, clamped to 0.01 and 0.99, over eta


@dataclass(kw_only=True)
class PaperTiltedConfig(TaughtConfig):
    """Settings of guidance by the value model of another method."""

    rule: Rule = Rule.cd
    eta: float = number(0.1, above=0)
    """Strength of the guidance of `pita`."""
    top_k: int = number(10, at_least=1)
    """Number of candidates: the most likely tokens of the reference."""


class PaperTilted(Algorithm):
    """The reference guided by the value model of `teacher`; other tokens than candidates are never drawn."""

    name: ClassVar[str] = "PaperTilted"
    config_class: ClassVar[type[AlgoConfig]] = PaperTiltedConfig
    is_fixed: ClassVar[bool] = True
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage("evaluate", "eval", (REFERENCE_TRAIN, TEACHER_TRAIN), (*TEXT, "evaluation", "algo")),
        METRICS,
    )

    def evaluate(self, ctx: JobContext) -> None:
        """Sample from the guided policy."""
        from torch.nn.functional import logsigmoid

        from pipeline import toolbox

        algo, dataset, offset = ctx.settings(PaperTiltedConfig), toolbox.open_dataset(ctx), logsigmoid
        if algo.rule is Rule.pita:
            offset = lambda z: z.exp().clamp(0.01, 0.99).log() / algo.eta  # noqa: E731 - an offset is a function
        tilt = toolbox.Tilt(offset, top_k=algo.top_k, min_p=0.0, others=toolbox.Others.dropped)
        policy = toolbox.guided_policy(ctx, dataset, ctx.input(TEACHER_TRAIN.name), tilt)
        toolbox.evaluate(ctx, policy, dataset, ctx.out)

    def metrics(self, ctx: JobContext) -> None:
        """Numbers with intervals."""
        from pipeline import toolbox

        toolbox.write_metrics(ctx)


@dataclass(kw_only=True)
class PaperDPOConfig(Tries, DPOConfig):
    """Settings of DPO, and of its pairs."""


class PaperDPO(Paired, DPO):
    """DPO on the same pairs; with `sft_weight` it is RPO."""

    name: ClassVar[str] = "PaperDPO"
    config_class: ClassVar[type[AlgoConfig]] = PaperDPOConfig

    def generate(self, ctx: JobContext) -> None:
        """Return the pairs; `keep` prefers the right path, by the reward."""
        from pipeline import toolbox

        dataset, tries = toolbox.open_dataset(ctx), ctx.settings(PaperDPOConfig).tries
        gold_against_wrong(ctx, dataset, toolbox.reference_policy(ctx, dataset), tries).save(ctx.out)


@dataclass(kw_only=True)
class PaperREINFORCEConfig(REINFORCEppConfig):
    """Settings of REINFORCE++, and how long it trains."""

    passes: int = number(10, at_least=1, at_most=10_000)
    """As many graphs as in this number of passes over a round's; each is a new one."""


class PaperREINFORCE(REINFORCEpp):
    """REINFORCE on greedy completions, each reward measured against the mean of its batch, without a KL term."""

    name: ClassVar[str] = "PaperREINFORCE"
    config_class: ClassVar[type[AlgoConfig]] = PaperREINFORCEConfig

    def train(self, ctx: JobContext) -> None:
        """Train on the likeliest completions (`top_k=1` of the code): a tiny nucleus has one token."""
        config, passes = copy(ctx.config), ctx.settings(PaperREINFORCEConfig).passes
        count = config.data_collection.prompts_per_round * passes
        config.generation = replace(config.generation, top_p=1e-9)
        config.data_collection = replace(config.data_collection, prompts_per_round=count)
        if hasattr(config.dataset, "train_size"):
            config.dataset = replace(config.dataset, train_size=count)
        super().train(replace(ctx, config=config))

    def advantages(self, ctx: JobContext, samples: Samples) -> NDArray[np.float32]:
        """Return each reward minus the mean of the batch."""
        import numpy as np

        return np.nan_to_num(samples.rewards - np.nanmean(samples.rewards)).astype(np.float32)
