"""The stage of methods whose reward is learnt: fit a reward model to preferences, score samples by it.

generate -> reward -> train -> ...

A reward model is made anew from the backbone in every round, and fitted to the pairs of all rounds that the method
trains on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.algos.base import REFERENCE_TRAIN, JobContext, Read, Stage
from pipeline.config.schema import DType, HeadType, RewardModelConfig
from pipeline.results.outputs import REWARD as REWARD_FIT
from pipeline.results.outputs import read_input, read_reward_fit
from pipeline.results.paths import json_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipeline.models.value import ValueModel
    from pipeline.training.sequences import Sequences

REWARD = Stage(
    "reward",
    reads=(REFERENCE_TRAIN, Read("generate", "so_far")),
    config=("system", "training", "algo", "model"),
    scales=True,
    seconds=10.0,
)


class LearntReward:
    """A reward model fitted in this stage.

    Attributes:
        about: What became of the fit, for a file.
    """

    def __init__(
        self, ctx: JobContext, folders: Sequence[Path], settings: RewardModelConfig, *, more: bool = True
    ) -> None:
        """Fit to the pairs of some folders.

        Args:
            ctx: Of the stage.
            folders: Outputs with pairs.
            settings: Batch size, epochs, learning rate.
            more: Whether the stage goes on with other work afterwards.
        """
        with ctx.loading():
            from pipeline.algos.groups import PAIRS
            from pipeline.algos.post_training import fitting_of
            from pipeline.algos.rounds import tally_of
            from pipeline.algos.shortage import noted
            from pipeline.training.policy import trained_tokens
            from pipeline.training.reward_model import fit_reward_model
            from pipeline.training.sequences import Sequences
        self._ctx = ctx
        self.model = _fresh(ctx)
        pairs = Sequences.load(folders, PAIRS)
        how = (settings.batch_size, settings.epochs, settings.learning_rate)
        losses = fit_reward_model(self.model, pairs, fitting_of(ctx, "reward_model", *how, more=more))
        self.about: dict[str, Any] = {
            "pairs": len(pairs) // 2,
            "tokens_trained": trained_tokens(pairs, settings.epochs),
            "loss": losses,
        }
        if ctx.ranks.is_first:
            self.about |= noted(
                len(pairs), settings.batch_size, tally_of(folders), "the reward model was fitted to"
            )

    def scores(self, data: Sequences) -> NDArray[np.float64]:
        """Standardised scores of sequences: of mean 0 and deviation 1 over them all."""
        from pipeline.training.reward_model import Scale, reward_scores

        raw = reward_scores(
            self.model,
            data,
            micro_batch_size=self._ctx.config.training.micro_batch_size,
            device=self._ctx.device,
            ranks=self._ctx.ranks,
        )
        scale = Scale.of(raw)
        self.about |= {"mean": scale.mean, "deviation": scale.deviation, "scored": len(data)}
        return scale(raw)

    def save(self, name: str = REWARD_FIT) -> None:
        """Save the model with its tokenizer, and what became of the fit."""
        from pipeline.algos.text import reference_source, trusts_code
        from pipeline.models.load import load_tokenizer
        from pipeline.training.distributed import save_model

        save_model(self.model, self._ctx.out, self._ctx.ranks)
        if not self._ctx.ranks.is_first:
            return
        source, trust = reference_source(self._ctx), trusts_code(self._ctx)
        load_tokenizer(source, trust_remote_code=trust).save_pretrained(self._ctx.out)
        (self._ctx.out / name).write_text(json_text(self.about) + "\n")


def reward_tokens_trained(ctx: JobContext) -> int:
    """Tokens that the reward model of this round was trained on."""
    return read_input(ctx.input("reward"), REWARD_FIT, read_reward_fit).tokens_trained


def _fresh(ctx: JobContext) -> ValueModel:
    from pipeline.algos.text import reference_source, trusts_code
    from pipeline.models.load import load_policy
    from pipeline.models.source import value_folder
    from pipeline.models.value import value_model_from

    system = replace(ctx.config.system, dtype=DType.float32)
    with ctx.loading(), tempfile.TemporaryDirectory(dir=ctx.out) as scratch:
        source = value_folder(ctx.config.model, Path(scratch)) or reference_source(ctx)
        backbone = load_policy(source, system, ctx.first_device, trust_remote_code=trusts_code(ctx))
        model = value_model_from(backbone, HeadType.v)
    model.to(ctx.first_device)  # type: ignore[arg-type]
    model.requires_grad_(True)
    return model
