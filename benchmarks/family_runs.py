"""Whole runs of tiny random models: every kind of method, from generation to evaluation, for one round.

A run counts where every job is done, every chain was trained and evaluated, and each method then draws otherwise
than the reference that it came from: by a divergence from it that is finite and above 0.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import transformers

from pipeline import run
from pipeline.errors import PipelineError
from pipeline.learning.models.load import without_progress_bars
from tests.doubles.families import VOCABULARY, tiny_model

GUIDED = {
    "PITA": ("class_path=pipeline.PITA", "head=v", "source=reward"),
    "PITA-Q": ("class_path=pipeline.PITA", "head=q", "source=reward"),
    "QSharp": ("class_path=pipeline.QSharp", "head=v"),
    "QSharp-Q": ("class_path=pipeline.QSharp", "head=q"),
}
METHODS = {
    # Of a random model every token is unlikely, and a candidate all the same.
    **{name: ("min_p=0", "top_k=8", "batch_size=8", *chosen) for name, chosen in GUIDED.items()},
    "DPO": ("class_path=pipeline.DPO", "num_generations=4", "batch_size=8"),
    "GRPO": ("class_path=pipeline.GRPO", "num_generations=4", "batch_size=8"),
}
"""Chains of a run, each with what makes it."""
WORDS = "the a cat dog sat ran on mat under tree happy sad blue red big small and then it was good bad nice"


def make(root: Path, families: Sequence[str]) -> Iterator[str]:
    """Save models with a tokenizer, prompts and a reward, for whole runs."""
    root.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    prompts = [" ".join(draw.choices(WORDS.split(), k=draw.randint(3, 12))) for _ in range(200)]
    (root / "train.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    (root / "share.py").write_text(
        "def share(completions, **_):\n    return [text.count('a') / max(1, len(text)) for text in completions]\n"
    )
    tokenizer = _tokenizer(prompts)
    for family in families:
        with without_progress_bars():
            tiny_model(family, spread=0.02).save_pretrained(root / family)
        tokenizer.save_pretrained(root / family)
        yield family


def _tokenizer(texts: Sequence[str]) -> transformers.PreTrainedTokenizerBase:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokens: Any = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 8,
        special_tokens=["<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokens.train_from_iterator(texts, trainer)
    kind: Any = transformers.PreTrainedTokenizerFast
    made: transformers.PreTrainedTokenizerBase = kind(
        tokenizer_object=tokens, eos_token="<eos>", pad_token="<pad>", bos_token="<eos>"
    )
    return made


def settings(root: Path, family: str, *more: str) -> list[str]:
    """A small run of a family whose model `make` saved."""
    return [
        f"experiment.name={family}",
        f"output_dir={root / 'outputs'}",
        "model=hf",
        f"models.hf.path={root / family}",
        "dataset=jsonl",
        f"datasets.jsonl.path={root / 'train.jsonl'}",
        "datasets.jsonl.test_size=8",
        "datasets.jsonl.validation_size=8",
        "datasets.jsonl.rewards={benchmarks.bodies.odd: 1.0}",
        "algos=[]",
        *(f"algos.{name}.{setting}" for name, chosen in METHODS.items() for setting in chosen),
        "rounds_of_training=1",
        "data_collection.prompts_per_round=16",
        "evaluation.num_prompts=6",
        "evaluation.bootstrap_samples=20",
        "generation.max_new_tokens=8",
        "generation.batch_size=8",
        "execution=inline",
        "execution.shard_size=16",
        "device=cpu",
        "system.portable=false",
        *more,
    ]


def whole_run(root: Path, family: str, *more: str) -> str:
    """What a whole run of a family came to: "yes", or what went wrong."""
    for _ in make(root, [family]):
        pass
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            done = run(settings(root, family, *more))
    except PipelineError as error:
        return f"refused: {error}"
    failed = [line for line in shown.getvalue().splitlines() if line.startswith("failed:")]
    if done.exit_code:
        return "; ".join(failed) or "failed"
    rows = done.results
    found = {
        name: float(value)
        for name, value in rows[(rows.metric == "kl_per_sequence") & (rows["round"] == 1)][
            ["algo", "value"]
        ].to_numpy()
    }
    wrong = [name for name in METHODS if not (math.isfinite(kl := found.get(name, math.nan)) and kl > 0)]
    return f"not trained: {', '.join(wrong)}" if wrong else "yes"
