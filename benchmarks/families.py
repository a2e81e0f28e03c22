"""Which families of models are decoded rightly: a tiny random model of each, beside a decoder without a cache.

    python -m benchmarks.families                # all families; prints the table of docs/models.md
    python -m benchmarks.families mamba gemma2   # some
    python -m benchmarks.families --write        # puts the table into docs/models.md; of some, their lines
    python -m benchmarks.families --make FOLDER gemma2    # saves models instead, with a tokenizer, for whole runs

Plain, and guided by a value model of the same family with a V and a Q head: greedily, prompts of several lengths
at batch sizes 8 and 1; and drawn, where the second token's frequencies are held to its exact distribution by
chi-square. Takes about 2 CPU seconds a family.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
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

from pipeline.learning.choices import HeadType, Others
from pipeline.learning.generation.decode import DecodeSettings, Guidance, decode
from pipeline.learning.generation.readers import reading
from pipeline.learning.generation.row_models import reads_rows
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.generation.tilt import Tilt, preference_offset
from pipeline.learning.generation.ways import Way
from pipeline.learning.models.load import frozen
from pipeline.learning.models.value import ValueModel, value_model_from
from tests.doubles.families import FAMILIES, GROUPS, VOCABULARY, tiny_model

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
PART = re.compile(r"(<!-- families -->\n).*?(<!-- end of families -->)", re.DOTALL)
ETA = 0.5
TILT = Tilt(preference_offset(ETA), top_k=4, others=Others.dropped)
LENGTHS = (3, 17, 5, 17, 9)
STEPS = 6
SAMPLES = 600
RARE = 0.001
"""A chance below which frequencies do not come from the distribution."""
HEAD = "| family | layers | read with | plain | V head | Q head |\n|---|---|---|---|---|---|"


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


def chance(model: PreTrainedModel, value: ValueModel | None, prompt: list[int]) -> float:
    """The p-value of how often each token is drawn second."""
    keys = sample_keys(0, "families", np.arange(1), SAMPLES)
    settings = DecodeSettings(batch_size=SAMPLES)
    guidance = None if value is None else Guidance(value, TILT)
    drawn = decode(model, [prompt], [2], settings, keys=keys, samples=SAMPLES, guidance=guidance)
    ids, first = exactly(model, value, torch.tensor([prompt]))
    longer = torch.cat([torch.tensor([prompt]).expand(ids.shape[1], -1), ids[0][:, None]], -1)
    after, second = exactly(model, value, longer)
    whole = torch.zeros(VOCABULARY, dtype=torch.float64)
    whole.index_add_(0, after.reshape(-1), (first[0][:, None] + second).double().exp().reshape(-1))
    counts = np.bincount([tokens[1] for tokens in drawn.tokens], minlength=VOCABULARY).astype(float)
    return _p_value(counts, whole.numpy() * SAMPLES)


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


def compare(model: PreTrainedModel, value: ValueModel | None, prompts: list[list[int]]) -> str:
    """What comes out otherwise than from the decoder without a cache; "yes" where nothing does."""
    wrong = differing(model, value, prompts, STEPS, 8, 1)
    if (p := chance(model, value, prompts[2])) < RARE:
        wrong.append(f"drawn p={p:.1g}")
    return "; ".join(wrong) or "yes"


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
    return "no cache" if reading(model).way is Way.anew else "transformers' cache"


@torch.inference_mode()
def row(family: str, kind: str) -> list[str]:
    """A line of the table."""
    prompts = some_prompts(*LENGTHS)
    cells = [family, kind]
    try:
        model = tiny_model(family)
        cells.append(way_of(model))
        cells.append(compare(model, None, prompts))
        cells += [compare(model, value_model(family, head), prompts) for head in (HeadType.v, HeadType.q)]
    except Exception as error:  # the table goes on
        cells.append(f"{type(error).__name__}: {str(error)[:200]}")
    return cells


def lines_of(families: Sequence[str]) -> Iterator[str]:
    """Lines of the table, in its order."""
    for kind, group in GROUPS.items():
        for family in group:
            if family in families:
                yield "| " + " | ".join([f"`{family}`", *row(family, kind)[1:]]) + " |"


def with_lines(page: str, lines: Sequence[str]) -> str:
    """A page whose table has these lines, in the place of those of the same families."""
    found = PART.search(page)
    assert found is not None
    known = {line.split("|")[1]: line for line in [*found[0].splitlines(), *lines] if line.startswith("| `")}
    table = [known[name] for family in FAMILIES if (name := f" `{family}` ") in known]
    return PART.sub(lambda part: "\n".join([part[1] + HEAD, *table, part[2]]), page)


WORDS = "the a cat dog sat ran on mat under tree happy sad blue red big small and then it was good bad nice"


def make(root: Path, families: Sequence[str]) -> Iterator[str]:
    """Save models with a tokenizer, prompts and a reward, for whole runs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    root.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    prompts = [" ".join(draw.choices(WORDS.split(), k=draw.randint(3, 12))) for _ in range(200)]
    (root / "train.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    (root / "share.py").write_text(
        "def share(completions, **_):\n    return [text.count('a') / max(1, len(text)) for text in completions]\n"
    )
    tokens: Any = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 8,
        special_tokens=["<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokens.train_from_iterator(prompts, trainer)
    kind: Any = transformers.PreTrainedTokenizerFast
    tokenizer = kind(tokenizer_object=tokens, eos_token="<eos>", pad_token="<pad>", bos_token="<eos>")
    for family in families:
        tiny_model(family, spread=0.02).save_pretrained(root / family)
        tokenizer.save_pretrained(root / family)
        yield family


def main() -> None:
    """Print the table, or write it, or save models."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", default=[])
    parser.add_argument("--write", action="store_true")
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
    lines = []
    for line in lines_of(chosen):
        print(line, flush=True)
        lines.append(line)
    if args.write:
        PAGE.write_text(with_lines(PAGE.read_text(), lines))


if __name__ == "__main__":
    main()
