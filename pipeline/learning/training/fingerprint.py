"""A job that trains and decodes a little and says what came out: a fingerprint of the arithmetic of a machine."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.engine.workers.work import Work

FILE = "fingerprint.json"
_TOKENS = 64


def job(work: Work) -> None:
    """Write the fingerprint of this worker."""
    with work.loading():
        from pipeline.learning.algos.stage_entry import prepare_torch

        prepare_torch(1)
    (work.out / FILE).write_text(json.dumps({"fingerprint": fingerprint()}))
    work.progress(1, 1, 0)


def fingerprint() -> str:
    """Imitate, fit a value model and decode with it on the CPU in float32; the start of a SHA-256 of it all."""
    import numpy as np
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from pipeline.config.schema import TrainingConfig
    from pipeline.learning.choices import HeadType
    from pipeline.learning.generation.decode import DecodeSettings, Guidance, decode
    from pipeline.learning.generation.sampling import sample_keys
    from pipeline.learning.generation.tilt import Tilt, preference_offset
    from pipeline.learning.models.value import value_model_from
    from pipeline.learning.training.policy import Fitting, fit_sft
    from pipeline.learning.training.sequences import Sequences
    from pipeline.learning.training.value import fit_value

    # Powers of a generator: tokens that are the same everywhere and follow a rule that can be learnt.
    rows = [[pow(5 + 2 * start, 1 + at, 67) % _TOKENS for at in range(12 + start % 5)] for start in range(96)]
    data = Sequences.of(rows, [4] * len(rows), [start % 3 / 2 for start in range(len(rows))])
    training = TrainingConfig(micro_batch_size=20, warmup_steps=2)
    config = GPT2Config(
        vocab_size=_TOKENS, n_embd=48, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=None,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, activation_function="gelu_pytorch_tanh",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config)
    how: dict[str, Any] = {"batch_size": 32, "training": training, "seed": 0, "device": "cpu"}
    fit_sft(model, data, Fitting(epochs=8, learning_rate=3e-3, **how))
    value = value_model_from(model, HeadType.q)
    # Whatever the defaults become, so that the documented fingerprint stays.
    fit_value(value, data, Fitting(epochs=4, learning_rate=2e-3, head_learning_rate=2e-3, **how))
    decoded = decode(
        model.eval(),
        [row[: 3 + at % 4] for at, row in enumerate(rows[:32])],
        [16] * 32,
        DecodeSettings(batch_size=24),
        keys=sample_keys(0, "fingerprint", np.arange(32), 1),
        guidance=Guidance(value, Tilt(preference_offset(0.5), top_k=8)),
    )
    curve = np.exp(np.linspace(-5, 5, 1001))
    made = [decoded.kl, np.log(curve.cumsum()), curve[:900].reshape(30, 30) @ curve[100:1000].reshape(30, 30)]
    made += [weight.detach().numpy() for one in (model, value) for weight in one.state_dict().values()]
    digest = hashlib.sha256(json.dumps(decoded.tokens).encode())
    for array in made:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
