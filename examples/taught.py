"""The policy taught the right answers to its training prompts: what supervision alone would give, to compare with.

    python run_parallel.py experiment.name=x algos.Taught.class_path=examples.taught.Taught \
        algos.Taught.options.column=solution

An algorithm with two stages of its own, `teach` and `evaluate`, before the `metrics` that all share. It has no
settings class of its own: ``options`` takes whatever a user writes there.
"""

from __future__ import annotations

from typing import ClassVar

from pipeline.algos.base import METRICS, REFERENCE_TRAIN, TEXT, Algorithm, JobContext, Read, Stage


class Taught(Algorithm):
    """Each stage has a method of its name, reads what it declares and writes to ``ctx.out``."""

    name: ClassVar[str] = "Taught"
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage(
            "teach",
            reads=(REFERENCE_TRAIN, Read("teach", "previous")),
            config=(*TEXT, "training", "data_collection", "algo"),
        ),
        Stage("evaluate", shards="eval", reads=(REFERENCE_TRAIN, Read("teach")), config=(*TEXT, "evaluation")),
        METRICS,
    )

    def teach(self, ctx: JobContext) -> None:
        """Go on from the last round's policy with this round's prompts and their answers."""
        with ctx.loading():  # counts as loading, not as work
            from pipeline.algos import post_training, text
            from pipeline.models.load import load_policy
            from pipeline.training import sequences, sft
        algo, dataset = ctx.config.algo, text.open_dataset(ctx)
        count = ctx.config.data_collection.prompts_per_round
        _, tokenizer = text.reference_model(ctx)
        rows = [dataset.row(int(row)) for row in dataset.round_ids(ctx.seed, ctx.round, count)]
        prompts = text.encode(ctx, text.reference_policy(ctx, dataset), rows)
        column, end = algo.options.get("column", "solution"), tokenizer.eos_token or ""
        answers = tokenizer([f"{row.columns[column]}{end}" for row in rows], add_special_tokens=False).input_ids
        whole = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        data = sequences.Sequences.of(whole, [len(prompt) for prompt in prompts], [1.0] * len(rows))
        source = ctx.optional_input("teach@previous") or text.reference_source(ctx)
        model = load_policy(source, ctx.config.system, ctx.device).requires_grad_(True)
        # Reports progress, and saves checkpoints that the next attempt goes on from.
        sft.fit_sft(model, data, post_training.fitting_of(ctx, "policy", algo.batch_size, algo.epochs, 1e-3))
        model.cpu().save_pretrained(ctx.out)
        tokenizer.save_pretrained(ctx.out)

    def evaluate(self, ctx: JobContext) -> None:
        """Sample held-out prompts, and compare with the reference."""
        from pipeline.algos import post_training, text

        dataset = text.open_dataset(ctx)
        policy = post_training.trained_policy(ctx, dataset, ctx.input("teach"), compared=True)
        text.evaluate(ctx, policy, dataset, ctx.out)

    def metrics(self, ctx: JobContext) -> None:
        """Numbers with intervals."""
        from pipeline.algos import text

        text.write_metrics(ctx)
