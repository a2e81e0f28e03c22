"""How often a token is another one because sums are rounded otherwise: in another number of slots, or by vLLM.

    OMP_NUM_THREADS=1 python -m benchmarks.flips                          # float32, 1,009 tokens
    OMP_NUM_THREADS=1 python -m benchmarks.flips --vocabulary 32003 --tokens 24
    OMP_NUM_THREADS=1 python -m benchmarks.flips --dtype bfloat16
    OMP_NUM_THREADS=1 python -m benchmarks.flips --dtype bfloat16 --head-size 32 --ways float32:64 own:64 vllm:64

A random Llama whose logits have a standard deviation of `--spread` draws the same samples in each of the `--ways`:
by our decoder, by it with the same weights in float32, or by vLLM, each in a number of slots. Of each text the
first token that differs from that of the first way counts, and no token behind it.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from benchmarks.arguments import positive
from pipeline.learning.choices import HeadType
from pipeline.learning.generation import vllm_engine
from pipeline.learning.generation.decode import DecodeSettings, DecodingWork, Guidance, do
from pipeline.learning.generation.sampling import Tilt, preference_offset, sample_keys
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.load import frozen
from pipeline.learning.models.value import value_model_from

_IDS = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
_LONGEST = 20


def random_model(
    vocabulary: int, spread: float, dtype: torch.dtype, device: str, head_size: int = 16
) -> PreTrainedModel:
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
            head_dim=head_size,
            initializer_range=0.3,
            **_IDS,  # type: ignore[arg-type]
        )
    )
    with torch.inference_mode():
        found = model(torch.randint(1, vocabulary, (2, 9))).logits.std(-1).mean()
    model.lm_head.weight.data.mul_(spread / float(found))
    model.to(dtype)  # type: ignore[arg-type]
    return frozen(model, device)


def drawn(model: PreTrainedModel, args: argparse.Namespace, way: str) -> list[list[int]]:
    """The texts."""
    by, slots = way.split(":")
    numbers = np.random.default_rng(8)
    lengths = numbers.integers(1, _LONGEST, args.texts)
    prompts = [numbers.integers(1, args.vocabulary, length).tolist() for length in lengths]
    work = DecodingWork(prompts, np.full(args.texts, args.tokens), 1)
    settings = DecodeSettings(batch_size=int(slots), device=args.device)
    keys = sample_keys(9, "flips", np.arange(args.texts), 1)
    if by == "float32":
        model = copy.deepcopy(model).to(torch.float32)  # type: ignore[arg-type]
    guidance = _guidance(model, args) if args.guided else None
    if by == "vllm":
        sizes = BatchSizes(None, args.device, model)
        vllm_engine.VLLMBackend(model, settings, sizes, None, guidance).complete(work, keys)
        vllm_engine.release()
    else:
        do(work, model, settings, keys=keys, guidance=guidance)
    return work.tokens


def _guidance(model: PreTrainedModel, args: argparse.Namespace) -> Guidance:
    """Guidance by the same model with a random head."""
    value = value_model_from(copy.deepcopy(model), HeadType[args.guided])
    torch.manual_seed(3)
    torch.nn.init.normal_(value.head.weight, std=0.1)
    return Guidance(frozen(value, args.device), Tilt(preference_offset(1.0), top_k=6, min_p=0.02))


def same_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens before the first that differs."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True)))


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    model = random_model(args.vocabulary, args.spread, dtype, args.device, args.head_size)
    first = drawn(model, args, args.ways[0])
    for way in args.ways[1:]:
        same = [same_tokens(*texts) for texts in zip(first, drawn(model, args, way), strict=True)]
        differ = sum(count < args.tokens for count in same)
        compared = sum(min(count + 1, args.tokens) for count in same)
        print(
            f"{args.dtype}, {args.vocabulary:,} tokens, {args.device}, {args.ways[0]} and {way} slots: "
            f"{differ} of {args.texts} texts of {args.tokens} tokens differ, {differ / compared:.1e} a token"
        )


def _way(given: str) -> str:
    """Check a way, as `own:64`."""
    by, _, slots = given.partition(":")
    if by not in ("own", "float32", "vllm") or positive(slots) < 1:
        raise argparse.ArgumentTypeError(f"{given}: none of own:64, float32:64 and vllm:64")
    return given


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--vocabulary", type=int, default=1009)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--spread", type=float, default=2.5, help="standard deviation of the logits of a step")
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=48, help="of each text")
    parser.add_argument(
        "--ways", nargs="+", type=_way, default=["own:64", "own:7"], help="own, float32 or vllm : slots"
    )
    parser.add_argument("--head-size", type=int, default=16, help="of attention; vLLM on CPUs needs 32")
    parser.add_argument("--guided", choices=[head.name for head in HeadType], help="head of a value model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
