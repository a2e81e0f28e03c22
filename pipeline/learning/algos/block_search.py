"""Search among blocks of the reference's samples, guided by the value model of another method. Nothing is trained.

Value-guided search (Wang et al., arXiv 2505.17373), and with one beam blockwise best of n (Mudgal et al., arXiv
2310.17022, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import AlgoConfig, Config, number
from pipeline.learning.algos import base, parts
from pipeline.learning.algos.policy_config import TaughtConfig
from pipeline.learning.algos.post_training import EVALUATE
from pipeline.learning.algos.reward_stage import without_choice


@dataclass(kw_only=True)
class BlockSearchConfig(TaughtConfig):
    """Search among blocks of samples of the reference, by the values of what is written so far."""

    num_generations: int = number(4, at_least=1, at_most=100_000)
    """Number of candidates for each block, n."""
    beams: int = number(1, at_least=1, at_most=100_000, hint=" (1 is blockwise best of n)")
    """Number of candidates that the next blocks go on from, `num_generations / beams` from each."""
    block_size: int = number(2, at_least=1, at_most=1_000_000)
    """Tokens of a block."""

    @property
    def trains(self) -> bool:
        """Whether anything is trained: never."""
        return False

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also report beams that do not share candidates equally, and greedy decoding."""
        yield from super().problems(key, config)
        if self.num_generations % self.beams:
            given = f"{key}.num_generations={self.num_generations}"
            yield f"{given}: must be a multiple of {key}.beams={self.beams}, as each beam has as many candidates"
        yield from without_choice(key, self, config)

    def idle(self, setting: str) -> str:
        """Also report settings of training as unused."""
        return super().idle(setting) or (
            "nothing is trained" if setting in ("batch_size", "learning_rate", "epochs") else ""
        )


class BlockSearch(base.Algorithm):
    """Answers with the best of samples that grow block by block. The policy is the same in every round.

    evaluate    search for each answer      (per shard)
    metrics     numbers with intervals
    """

    name: ClassVar[str] = "BlockSearch"
    config_class: ClassVar[type[AlgoConfig]] = BlockSearchConfig
    is_fixed: ClassVar[bool] = True
    kl_is_bound: ClassVar[bool] = True
    stages: ClassVar[tuple[base.Stage, ...]] = (
        replace(EVALUATE, reads=(base.REFERENCE_TRAIN, base.TEACHER_TRAIN), seconds=0.8),
        base.METRICS,
    )

    def choose(
        self,
        ctx: base.JobContext,
        candidates: Sequence[Sequence[int]],
        values: NDArray[np.float64],
        count: int,
    ) -> NDArray[np.int64]:
        """Return the places of the candidates to keep: those of the highest values, the first of equals.

        It is called for every block of an answer; at the end it picks one of several beams.

        Args:
            ctx: Context of the evaluation.
            candidates: Token ids of what each has written so far.
            values: Expected labels of the value model, from 0 to 1, shape [N].
            count: How many to keep, fewer than N.
        """
        return np.sort(np.argsort(-values, kind="stable")[:count])

    def evaluate(self, ctx: base.JobContext) -> None:
        """Search for an answer to every prompt."""
        algo, dataset = ctx.settings(BlockSearchConfig), parts.open_dataset(ctx)
        model = parts.opening.value_model(ctx, ctx.input(base.TEACHER_TRAIN.name))
        context = parts.load.context_length(model.backbone)
        policy = parts.opening.reference_policy(ctx, dataset, context, parts.blocks.BlockSearchPolicy)
        assert isinstance(policy, parts.blocks.BlockSearchPolicy)
        policy.count, policy.beams, policy.block = algo.num_generations, algo.beams, algo.block_size
        policy.choose = partial(self.choose, ctx)
        how: dict[str, Any] = {"micro_batch_size": ctx.config.generation.batch_size, "device": ctx.device}
        how |= {"purpose": "guidance", "hints": ctx.hints, "as_labels": True}
        policy.values = partial(parts.policy.of_texts, partial(parts.value.reward_scores, model, **how))
        parts.evaluate(ctx, policy, dataset, ctx.out)

    def metrics(self, ctx: base.JobContext) -> None:
        """Compute the metrics of all evaluated samples."""
        parts.write_metrics(ctx)
