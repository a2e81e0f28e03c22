"""Jobs of `pipeline check`, which prove that a machine is set up and computes as documented."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
from typing import TYPE_CHECKING, Any

from pipeline.config import schema
from pipeline.learning.algos.stage_entry import prepare_torch

if TYPE_CHECKING:
    from pipeline.engine.workers.work import Work

# -- fingerprint -------------------------------------------------------------------------------------------------
# A job that trains and decodes a little and hashes the results: a fingerprint of a machine's arithmetic.


_TOKENS = 64


def fingerprint_job(work: Work) -> None:
    """Write the fingerprint of this worker."""
    with work.loading():
        prepare_torch(1)
    (work.out / "fingerprint.json").write_text(json.dumps({"fingerprint": fingerprint()}))
    work.progress(1, 1, 0)


def fingerprint() -> str:
    """Imitate, fit a value model and decode with it on the CPU in float32.

    Return the start of a SHA-256 of the results.
    """
    import numpy as np
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from pipeline.learning.choices import HeadType
    from pipeline.learning.generation import decode, sampling
    from pipeline.learning.models.value import value_model_from
    from pipeline.learning.training import loop, sequences, value

    # Powers of a generator: tokens that are the same everywhere and follow a learnable rule.
    rows = [[pow(5 + 2 * start, 1 + at, 67) % _TOKENS for at in range(12 + start % 5)] for start in range(96)]
    data = sequences.Sequences.of(rows, [4] * len(rows), [start % 3 / 2 for start in range(len(rows))])
    training = schema.TrainingConfig(micro_batch_size=20, warmup_steps=2)
    config = GPT2Config(
        vocab_size=_TOKENS, n_embd=48, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=None,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, activation_function="gelu_pytorch_tanh",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config)
    how: dict[str, Any] = {"batch_size": 32, "training": training, "seed": 0, "device": "cpu"}
    loop.fit_sft(model, data, loop.Fitting(epochs=8, learning_rate=3e-3, **how))
    guide = value_model_from(model, HeadType.q)
    # Fixed values rather than defaults, so that the documented fingerprint stays valid.
    value.fit_value(guide, data, loop.Fitting(epochs=4, learning_rate=2e-3, head_learning_rate=2e-3, **how))
    decoded = decode.decode(
        model.eval(),
        [row[: 3 + at % 4] for at, row in enumerate(rows[:32])],
        [16] * 32,
        decode.DecodeSettings(batch_size=24),
        keys=sampling.sample_keys(0, "fingerprint", np.arange(32), 1),
        guidance=decode.Guidance(guide, sampling.Tilt(sampling.preference_offset(0.5), top_k=8)),
    )
    curve = np.exp(np.linspace(-5, 5, 1001))
    made = [decoded.kl, np.log(curve.cumsum()), curve[:900].reshape(30, 30) @ curve[100:1000].reshape(30, 30)]
    made += [weight.detach().numpy() for one in (model, guide) for weight in one.state_dict().values()]
    digest = hashlib.sha256(json.dumps(decoded.tokens).encode())
    for array in made:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


# -- probe -------------------------------------------------------------------------------------------------------
# A job that generates a little text and reports where it ran, to check a machine's set-up.


def probe(work: Work) -> None:
    """Decode with a small random model on the worker's device and report process, device, text and memory.

    The payload has ``prompts`` (a number), ``new_tokens`` and ``seed``. Draws depend on the seed alone, so every
    worker must produce the same text.
    """
    with work.loading():
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

    count, new_tokens = int(work.payload["prompts"]), int(work.payload["new_tokens"])
    torch.manual_seed(int(work.payload["seed"]))
    config = GPT2Config(
        vocab_size=64, n_embd=64, n_layer=2, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=None
    )
    model = GPT2LMHeadModel(config).eval().to(work.device)
    prompts = torch.arange(count * 4).reshape(count, 4).remainder(64).to(work.device)
    with torch.inference_mode():
        text = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    work.progress(count, count, count * new_tokens)
    on_gpu = work.device == "cuda"
    # ru_maxrss is in KiB on Linux and in bytes on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    report = {
        "pid": os.getpid(),
        "device": torch.cuda.get_device_name(0) if on_gpu else "cpu",
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "visible_gpus": torch.cuda.device_count(),
        "threads": torch.get_num_threads(),
        "tokens": count * new_tokens,
        "text": hashlib.sha256(text.cpu().numpy().tobytes()).hexdigest(),
        "memory_bytes": torch.cuda.max_memory_allocated() if on_gpu else peak,
    }
    (work.out / "probe.json").write_text(json.dumps(report))
