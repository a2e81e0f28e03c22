"""The policy taught the right answers to its training prompts: what supervision alone gives, to compare with.

    python run_parallel.py experiment.name=x algos.Taught.class_path=examples.taught.Taught

Two stages of its own, `teach` and `evaluate`, before the `metrics` that all algorithms share. It has no settings
class: ``algos.Taught.options.column=answer`` sets what ``options`` holds.
"""

from __future__ import annotations

from typing import ClassVar

from pipeline import METRICS, Algorithm, JobContext, Read, Stage, toolbox
from pipeline.toolbox import REFERENCE_TRAIN, TEXT

TEACH = (*TEXT, "training", "data_collection", "algo")


class Taught(Algorithm):
    """Each stage has a method of its name, reads what it declares and writes to ``ctx.out``."""

    name: ClassVar[str] = "Taught"
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage("teach", None, (REFERENCE_TRAIN, Read("teach", "previous")), TEACH),
        Stage("evaluate", "eval", (REFERENCE_TRAIN, Read("teach")), (*TEXT, "evaluation")),
        METRICS,
    )

    def teach(self, ctx: JobContext) -> None:
        """Go on from the last round's policy with this round's prompts and their answers."""
        with ctx.loading():  # imports of torch count as loading, not as work; planning does without
            from pipeline.toolbox import Sequences, fit_sft, fitting_of, load_policy
        algo, dataset, tokenizer = ctx.config.algo, toolbox.open_dataset(ctx), toolbox.reference_model(ctx)[1]
        count = ctx.config.data_collection.prompts_per_round
        rows = [dataset.row(int(row)) for row in dataset.round_ids(ctx.seed, ctx.round, count)]
        prompts = toolbox.encode(ctx, toolbox.reference_policy(ctx, dataset), rows)
        column, end = algo.options.get("column", "solution"), tokenizer.eos_token or ""
        answers = tokenizer([f"{row.columns[column]}{end}" for row in rows], add_special_tokens=False).input_ids
        whole = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        data = Sequences.of(whole, [*map(len, prompts)], [1.0] * len(rows))
        source = ctx.optional_input("teach@previous") or toolbox.reference_source(ctx)
        model = load_policy(source, ctx.config.system, ctx.device).requires_grad_(True)
        fitting = fitting_of(ctx, "policy", algo.batch_size, algo.epochs, algo.learning_rate)
        fit_sft(model, data, fitting)  # reports progress, saves checkpoints for the next attempt
        model.cpu().save_pretrained(ctx.out)

    def evaluate(self, ctx: JobContext) -> None:
        """Sample held-out prompts, and compare with the reference."""
        policy = toolbox.trained_policy(ctx, toolbox.open_dataset(ctx), ctx.input("teach"), compared=True)
        toolbox.evaluate(ctx, policy, toolbox.open_dataset(ctx), ctx.out)

    def metrics(self, ctx: JobContext) -> None:
        """Numbers with intervals."""
        toolbox.write_metrics(ctx)
