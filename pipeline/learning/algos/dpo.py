"""DPO (Rafailov et al., arXiv 2305.18290), round by round on pairs of the current policy's own completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.config.schema import AlgoConfig, DPOConfig, PairSource
from pipeline.learning.algos.base import JobContext
from pipeline.learning.algos.post_training import PostTrainingAlgorithms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipeline.learning.algos.groups import Groups
    from pipeline.learning.datasets.base import Row, Text
    from pipeline.learning.generation.policy import TextPolicy
    from pipeline.learning.training.policy import Fitting
    from pipeline.learning.training.sequences import Sequences


class DPO(PostTrainingAlgorithms):
    """DPO with an explicit anchor, and the losses of TRL."""

    name: ClassVar[str] = "DPO"
    config_class: ClassVar[type[AlgoConfig]] = DPOConfig

    def generate(self, ctx: JobContext) -> None:
        """Draw, score and pair; or take the pairs that the dataset has."""
        if ctx.settings(DPOConfig).pairs is PairSource.sampled:
            super().generate(ctx)
            return
        with ctx.loading():
            from pipeline.learning.algos import toolbox
            from pipeline.learning.algos.groups import PAIRS
            from pipeline.learning.algos.rounds import write_generation
            from pipeline.outputs.formats import Tally
        rows = toolbox.round_rows(ctx, toolbox.open_dataset(ctx))
        _, tokenizer = toolbox.reference_model(ctx)
        pairs = existing_sequences(rows, tokenizer)
        pairs.save(ctx.out, PAIRS)
        ctx.progress(len(rows), total=len(rows))
        same = len(rows) - len(pairs) // 2
        write_generation(ctx, len(rows), 0, 0, Tally("pairs", len(rows), same=same))

    def keep(self, ctx: JobContext, policy: TextPolicy, groups: Groups) -> None:  # noqa: ARG002 - of the base
        """Write the pairs."""
        from pipeline.learning.algos.groups import PAIRS

        groups.pairs(ctx.settings(DPOConfig).preferences).save(ctx.out, PAIRS)

    def fit(self, ctx: JobContext, model: PreTrainedModel, fitting: Fitting) -> dict[str, Any]:
        """Compare the policy with its anchor on every pair."""
        with ctx.loading():
            from pipeline.learning.algos.groups import PAIRS
            from pipeline.learning.training.dpo import DPOObjective, fit_dpo
            from pipeline.learning.training.policy import trained_tokens
            from pipeline.learning.training.sequences import Sequences
        algo = ctx.settings(DPOConfig)
        pairs = Sequences.load(self.data(ctx), PAIRS)
        held = self._anchor_scores(ctx, pairs)
        objective = DPOObjective(
            loss_type=algo.loss_type,
            beta=algo.beta,
            label_smoothing=algo.label_smoothing,
            sft_weight=algo.sft_weight,
        )
        losses, reports = fit_dpo(model, pairs, held, objective, fitting)
        return {
            "pairs": len(pairs) // 2,
            "tokens_trained": trained_tokens(pairs, algo.epochs),
            "loss": losses,
            **reports,
        }

    def _anchor_scores(self, ctx: JobContext, pairs: Sequences) -> NDArray[np.float64]:
        """Log-probability of every completion under the anchor, which is let go of before training."""
        from pipeline.learning.training.policy import completion_logprobs, note_scored, score_sequences
        from pipeline.learning.training.precision import computing_in

        anchor = self.anchor_model(ctx, ctx.settings(DPOConfig).reference)
        note_scored(pairs, anchor)
        with computing_in(ctx.config.system.dtype, ctx.device):
            return score_sequences(
                pairs,
                lambda batch: completion_logprobs(anchor, batch).double().sum(-1),
                micro_batch_size=ctx.config.training.micro_batch_size,
                device=ctx.device,
                ranks=ctx.ranks,
            )


def existing_sequences(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> Sequences:
    """The pairs of a preference dataset as token ids: prompt and answer, and what ends an answer.

    An answer is tokenized apart from its prompt, as a policy would write it after that prompt.

    Raises:
        JobError: A row has no pair.
    """
    from pipeline.learning.datasets.tokenized import encode_prompts
    from pipeline.learning.rewards.preference import existing_pairs
    from pipeline.learning.training.sequences import Sequences

    pairs = existing_pairs([_with_columns(row) for row in rows])
    prompts = encode_prompts(tokenizer, [pair.prompt for pair in pairs])
    ids, starts = [], []
    for pair, prompt in zip(pairs, prompts, strict=True):
        for answer in (pair.chosen, pair.rejected):
            text = _ended(tokenizer, pair.prompt, answer)
            ids.append([*prompt, *tokenizer(text, add_special_tokens=False)["input_ids"]])
            starts.append(len(prompt))
    return Sequences.of(ids, starts, [1.0, 0.0] * len(pairs))


def _with_columns(row: Row) -> Row:
    if row.chosen is None:
        return row
    return replace(row, columns={**row.columns, "chosen": row.chosen, "rejected": row.rejected})


def _ended(tokenizer: PreTrainedTokenizerBase, prompt: Text, answer: str) -> str:
    """An answer with what the model writes when it has finished."""
    if not isinstance(prompt, str) and tokenizer.chat_template is not None:
        turns = [dict(turn) for turn in prompt]
        before = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        whole = tokenizer.apply_chat_template([*turns, {"role": "assistant", "content": answer}], tokenize=False)
        if str(whole).startswith(str(before)):
            return str(whole)[len(str(before)) :]
    return answer + (tokenizer.eos_token or "")
