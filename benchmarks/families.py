"""Which families of models are decoded rightly and go through whole runs: a tiny random model of each.

    python -m benchmarks.families                # all families; prints a table, and what it comes to
    python -m benchmarks.families mamba gemma2   # some
    python -m benchmarks.families --make FOLDER gemma2    # saves models instead, with a tokenizer, for whole runs

Decoding is held beside a decoder without a cache, plain and guided by a value model of the same family with V and
Q heads. Greedily: the same tokens of prompts of several lengths at batch sizes 8, where they are padded, and 1.
Drawing: the frequencies of the second token against its exact distribution by chi-square, at batch size 8 with
prompts of several lengths and of one, and at 1. Whole runs are those of `benchmarks.family_runs`. Takes about 10
CPU seconds a family.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from scipy.stats import chisquare
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.family_runs import make, whole_run
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.generation.decode import DecodeSettings, Guidance, decode
from pipeline.learning.generation.row_models import Way, reading, reads_rows
from pipeline.learning.generation.sampling import Tilt, preference_offset, sample_keys
from pipeline.learning.models.load import frozen
from pipeline.learning.models.value import ValueModel, value_model_from
from tests.doubles.families import FAMILIES, GROUPS, VOCABULARY, tiny_model

ETA = 0.5
TILT = Tilt(preference_offset(ETA), top_k=4, others=Others.dropped)
LENGTHS = (3, 17, 5, 17, 9)
STEPS = 6
SAMPLES = 160
DRAWN = {"8, padded": (8, (9, 12)), "8": (8, (9, 9)), "1": (1, (9,))}
"""How is drawn: batch size and lengths of the prompts in a batch, of which the first is looked at."""
LEVEL = 0.01
TESTS = 3 * len(DRAWN) * len(FAMILIES)
RARE = LEVEL / TESTS
"""A p-value below which frequencies do not come from the distribution: Bonferroni's correction for all tests."""
COLUMNS = ("family", "layers", "read with", "right", "least p")
PARTS = ("plain", "V head", "Q head", "whole runs")
"""Of what is right."""
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def values_after(texts: Tensor, candidates: Tensor, value: ValueModel) -> Tensor:
    """Values of candidates of texts that are read whole, shape [B, K]."""
    if value.config.head == HeadType.q.name:
        found: Tensor = value(texts)[:, -1].gather(-1, candidates)
        return found
    count = candidates.shape[1]
    longer = torch.cat([texts.repeat_interleave(count, 0), candidates.reshape(-1, 1)], -1)
    alone: Tensor = value(longer)[:, -1].view(-1, count)
    return alone


def exactly(model: PreTrainedModel, value: ValueModel | None, texts: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens that may follow texts and their log-probabilities, without a cache; shape [B, K] each."""
    logprobs = model(texts, use_cache=False).logits[:, -1].float().log_softmax(-1)
    if value is None:
        return torch.arange(VOCABULARY).expand(len(texts), -1), logprobs
    top = logprobs.topk(TILT.top_k)
    return top.indices, (top.values + values_after(texts, top.indices, value) / ETA).log_softmax(-1)


def slowly(model: PreTrainedModel, value: ValueModel | None, prompt: list[int], steps: int) -> list[int]:
    """The likeliest tokens, each found by reading the whole text."""
    text = torch.tensor([prompt])
    for _ in range(steps):
        ids, logprobs = exactly(model, value, text)
        text = torch.cat([text, ids[:, logprobs[0].argmax()][:, None]], -1)
    found: list[int] = text[0, len(prompt) :].tolist()
    return found


def drawn_seconds(model: PreTrainedModel, value: ValueModel | None, way: str, seed: int) -> NDArray[np.float64]:
    """How often each token was drawn second after the first prompt of a way of drawing, shape [V]."""
    size, lengths = DRAWN[way]
    prompts = some_prompts(*lengths)
    guidance = None if value is None else Guidance(value, TILT)
    samples = size // len(prompts)
    counts = np.zeros(VOCABULARY)
    for start in range(0, SAMPLES, samples):
        keys = sample_keys(seed, f"families {start}", np.arange(len(prompts)), samples)
        drawn = decode(
            model,
            prompts,
            [2] * len(prompts),
            DecodeSettings(batch_size=size),
            keys=keys,
            samples=samples,
            guidance=guidance,
        )
        counts += np.bincount([tokens[1] for tokens in drawn.tokens[:samples]], minlength=VOCABULARY)
    return counts


def chances(model: PreTrainedModel, value: ValueModel | None) -> dict[str, float]:
    """The p-value of how often each token is drawn second, by the way of drawing."""
    prompt = some_prompts(9)
    ids, first = exactly(model, value, torch.tensor(prompt))
    longer = torch.cat([torch.tensor(prompt).expand(ids.shape[1], -1), ids[0][:, None]], -1)
    after, second = exactly(model, value, longer)
    whole = torch.zeros(VOCABULARY, dtype=torch.float64)
    whole.index_add_(0, after.reshape(-1), (first[0][:, None] + second).double().exp().reshape(-1))
    expected = whole.numpy() * SAMPLES
    return {way: _p_value(drawn_seconds(model, value, way, seed), expected) for seed, way in enumerate(DRAWN)}


def _p_value(counts: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    often = expected >= 5
    if counts[expected < 1e-9].any():
        return 0.0
    seen, wanted = [*counts[often], counts[~often].sum()], [*expected[often], expected[~often].sum()]
    if wanted[-1] < 1:
        seen, wanted = seen[:-1], wanted[:-1]
    scale = sum(seen) / sum(wanted)
    return float(chisquare(seen, np.array(wanted) * scale).pvalue) if len(seen) > 1 else 1.0


def differing(
    model: PreTrainedModel, value: ValueModel | None, prompts: list[list[int]], steps: int, *batches: int
) -> list[str]:
    """At which batch sizes other tokens come out than from the decoder without a cache."""
    right = [slowly(model, value, prompt, steps) for prompt in prompts]
    wrong = []
    for batch in batches:
        guidance = None if value is None else Guidance(value, TILT)
        budgets = [steps] * len(prompts)
        found = decode(model, prompts, budgets, DecodeSettings(batch_size=batch), keys=None, guidance=guidance)
        same = sum(one == other for one, other in zip(found.tokens, right, strict=True))
        if same < len(prompts):
            wrong.append(f"{same} of {len(prompts)} at batch size {batch}")
    return wrong


def compare(model: PreTrainedModel, value: ValueModel | None, prompts: list[list[int]]) -> tuple[str, float]:
    """What comes out otherwise than without a cache, "yes" where nothing does, and the least p-value."""
    wrong = differing(model, value, prompts, STEPS, 8, 1)
    found = chances(model, value)
    wrong += [f"drawn at batch size {way}: p={p:.1g}" for way, p in found.items() if p < RARE]
    return "; ".join(wrong) or "yes", min(found.values())


def value_model(family: str, head: HeadType) -> ValueModel:
    """A value model with opinions."""
    value = frozen(value_model_from(tiny_model(family, seed=1), head), "cpu")
    torch.nn.init.normal_(value.head.weight, std=0.5, generator=torch.Generator().manual_seed(2))
    return value


def some_prompts(*lengths: int) -> list[list[int]]:
    """Random prompts."""
    draw = np.random.default_rng(0)
    return [draw.integers(2, 300, length).tolist() for length in lengths]


def way_of(model: PreTrainedModel) -> str:
    """What a model is read with."""
    if reads_rows(model):
        return "slots"
    return "no cache" if reading(model) is Way.anew else "transformers' cache"


@torch.inference_mode()
def decoded(family: str) -> list[str]:
    """What the table says of decoding: how it is read, plain, beside a V and a Q head, and the least p-value."""
    prompts = some_prompts(*LENGTHS)
    cells = []
    try:
        model = tiny_model(family)
        cells.append(way_of(model))
        guides = [None, *(value_model(family, head) for head in (HeadType.v, HeadType.q))]
        found = [compare(model, guide, prompts) for guide in guides]
    except Exception as error:  # the table goes on
        return [*(cells or ["-"]), *[f"{type(error).__name__}: {str(error)[:200]}"] * 3, "-"]
    return [*cells, *(said for said, _ in found), f"{min(p for _, p in found):.2g}"]


def lines_of(families: Sequence[str]) -> Iterator[str]:
    """Lines of the table, in its order."""
    with tempfile.TemporaryDirectory() as root:
        for kind, group in GROUPS.items():
            for family in group:
                if family in families:
                    way, *parts, least = decoded(family)
                    wrong = [
                        f"{name}: {said}"
                        for name, said in zip(PARTS, [*parts, whole_run(Path(root), family)], strict=True)
                        if said != "yes"
                    ]
                    cells = [f"`{family}`", kind, way, "; ".join(wrong) or "yes", least]
                    yield "| " + " | ".join(cells) + " |"


def summary(table: Sequence[str]) -> str:
    """What the lines come to, and the versions that they hold for."""
    rows = [dict(zip(COLUMNS, line.strip("| ").split(" | "), strict=True)) for line in table]
    ran, p_values = [row["right"] == "yes" for row in rows], [row["least p"] for row in rows]
    known = [float(p) for p in p_values if p != "-"]
    return (
        f"{sum(ran)} of {len(rows)} families are right. {3 * len(DRAWN) * len(known)} tests by chi-square, the "
        f"least p-value {min(known):.2g}; below {RARE:.2g} one is wrong at the level of {LEVEL} (Bonferroni). "
        f"transformers {transformers.__version__}, torch {torch.__version__}, on CPU."
    )


def main() -> None:
    """Print the table, or write it, or save models."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", default=[])
    parser.add_argument("--make", type=Path)
    args = parser.parse_args()
    logging: Any = transformers.logging
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = args.families or list(FAMILIES)
    if args.make:
        for family in make(args.make, chosen):
            print(family, flush=True)
        return
    print(HEAD)
    lines = []
    for line in lines_of(chosen):
        print(line, flush=True)
        lines.append(line)
    print(f"\n{summary(lines)}")


if __name__ == "__main__":
    main()
