"""How often a token is another one because the number of slots is: products of matrices are rounded otherwise.

    OMP_NUM_THREADS=1 python -m benchmarks.flips                          # float32, 1,009 tokens
    OMP_NUM_THREADS=1 python -m benchmarks.flips --vocabulary 32003 --tokens 24
    OMP_NUM_THREADS=1 python -m benchmarks.flips --dtype bfloat16

A random Llama whose logits have a standard deviation of `--spread` draws the same samples twice, with the one and
with the other number of `--slots`. Of each text the first token that differs counts, and no token behind it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from pipeline.learning.generation.decode import DecodeSettings, decode
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.models.load import frozen

_IDS = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
_LONGEST = 20


def random_model(vocabulary: int, spread: float, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """A Llama of two layers that is as sure of its tokens as `spread` says."""
    torch.manual_seed(2)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=48,
            intermediate_size=72,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=1,
            initializer_range=0.3,
            **_IDS,  # type: ignore[arg-type]
        )
    )
    with torch.inference_mode():
        found = model(torch.randint(1, vocabulary, (2, 9))).logits.std(-1).mean()
    model.lm_head.weight.data.mul_(spread / float(found))
    model.to(dtype)  # type: ignore[arg-type]
    return frozen(model, device)


def drawn(model: PreTrainedModel, args: argparse.Namespace, slots: int) -> list[list[int]]:
    """The texts."""
    numbers = np.random.default_rng(8)
    lengths = numbers.integers(1, _LONGEST, args.texts)
    found = decode(
        model,
        [numbers.integers(1, args.vocabulary, length).tolist() for length in lengths],
        np.full(args.texts, args.tokens),
        DecodeSettings(batch_size=slots, device=args.device),
        keys=sample_keys(9, "flips", np.arange(args.texts), 1),
    )
    return found.tokens


def same_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens before the first that differs."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True)))


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    model = random_model(args.vocabulary, args.spread, getattr(torch, args.dtype), args.device)
    one, other = (drawn(model, args, slots) for slots in args.slots)
    same = [same_tokens(*texts) for texts in zip(one, other, strict=True)]
    differ = sum(count < args.tokens for count in same)
    compared = sum(min(count + 1, args.tokens) for count in same)
    print(
        f"{args.dtype}, {args.vocabulary:,} tokens, {args.device}, {args.slots[0]} and {args.slots[1]} slots: "
        f"{differ} of {args.texts} texts of {args.tokens} tokens differ, {differ / compared:.1e} a token"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--vocabulary", type=int, default=1009)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--spread", type=float, default=2.5, help="standard deviation of the logits of a step")
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=48, help="of each text")
    parser.add_argument("--slots", type=int, nargs=2, default=[64, 7])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
