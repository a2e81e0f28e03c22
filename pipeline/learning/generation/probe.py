"""A job that generates a little text and says where it ran: how a machine's set-up is proven."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.engine.workers.work import Work


def probe(work: Work) -> None:
    """Decode with a small random model on the worker's device and report process, device, text and memory.

    The payload has ``prompts`` (how many), ``new_tokens`` and ``seed``. The draws depend on the seed alone, so
    every worker must produce the same text.
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
    # ru_maxrss counts KiB on Linux and bytes on macOS.
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
