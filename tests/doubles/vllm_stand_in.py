"""What is used of vLLM, by its documented interface, for tests: draws by a model that reads each text as a whole.

`LLM` and `SamplingParams` take the arguments of vLLM 0.30 that are used and no others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypedDict

import torch

from pipeline.config.schema import SystemConfig
from pipeline.learning.generation.sampling import cut, policy_logprobs
from pipeline.learning.models.load import load_policy
from pipeline.outputs.formats import Sampling

ENGINES: list[LLM] = []
"""All that were started."""
ENDED: list[LLM] = []
"""All that were shut down."""


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


@dataclass(kw_only=True)
class SamplingParams:
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    logprobs: int | None = None

    def __post_init__(self) -> None:
        assert 0 < self.top_p <= 1
        assert self.temperature >= 0
        assert self.seed is None or -(2**63) <= self.seed < 2**63
        assert self.max_tokens is None or self.max_tokens >= 1


@dataclass
class CompletionOutput:
    token_ids: list[int]
    finish_reason: str
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = 0.0


@dataclass
class RequestOutput:
    outputs: list[CompletionOutput] = field(default_factory=list)


class LLM:
    def __init__(
        self,
        *,
        model: str,
        dtype: str,
        seed: int,
        max_num_seqs: int,
        max_model_len: int,
        kv_cache_memory_bytes: int,
        enforce_eager: bool,
        trust_remote_code: bool,
        skip_tokenizer_init: bool,
        generation_config: str,
    ) -> None:
        assert Path(model).is_dir()
        assert enforce_eager
        self.settings = {
            "dtype": dtype,
            "max_num_seqs": max_num_seqs,
            "max_model_len": max_model_len,
            "kv_cache_memory_bytes": kv_cache_memory_bytes,
        }
        self.calls: list[int] = []
        self.asked: list[SamplingParams] = []
        self._model: Any = load_policy(model, SystemConfig(), "cpu")
        self._read: dict[tuple[int, ...], torch.Tensor] = {}
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=lambda: ENDED.append(self)))
        ENGINES.append(self)

    @torch.inference_mode()
    def generate(
        self, prompts: list[TokensPrompt], sampling_params: list[SamplingParams], *, use_tqdm: bool
    ) -> list[RequestOutput]:
        assert len(prompts) == len(sampling_params)
        self.calls.append(len(prompts))
        self.asked += sampling_params
        return [
            RequestOutput([self._one(prompt["prompt_token_ids"], params)])
            for prompt, params in zip(prompts, sampling_params, strict=True)
        ]

    def _one(self, prompt: list[int], params: SamplingParams) -> CompletionOutput:
        assert params.ignore_eos, "otherwise it stops at the end of text of the model's files, too"
        assert not params.detokenize, "there is no tokenizer"
        draw = torch.Generator().manual_seed(0 if params.seed is None else params.seed)
        written: list[int] = []
        while len(written) < (params.max_tokens or 16):
            text = (*prompt, *written)
            assert len(text) < self.settings["max_model_len"]
            if text not in self._read:
                self._read[text] = self._model(torch.tensor([text])).logits[:, -1]
            logits = self._read[text]
            if params.temperature == 0:
                written.append(int(logits.argmax()))
            else:
                chances = cut(policy_logprobs(logits, params.temperature), Sampling(top_p=params.top_p)).exp()
                written.append(int(torch.multinomial(chances, 1, generator=draw)))
            if written[-1] in (params.stop_token_ids or ()):
                return CompletionOutput(written, "stop", written[-1])
        return CompletionOutput(written, "length")
