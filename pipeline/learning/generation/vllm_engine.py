"""vLLM backend: an engine that loads a policy's weights from the folder that the policy was loaded from.

vLLM draws by itself: each sample has a generator whose seed is derived from the sample's RNG key. A process keeps
one engine, for the policy used last, since an engine reserves its memory at the start.
"""

import importlib
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from pipeline.errors import JobError
from pipeline.learning.generation.decode import DecodeSettings, DecodingWork
from pipeline.learning.generation.sampling import LIKELIEST, Keys, no_number
from pipeline.learning.models import batch_size, cache
from pipeline.outputs.formats import adapter_folders

MIB = 1 << 20
SHARE = 0.8
"""Fraction of the free memory that an engine reserves if `generation.memory_mb` is not set."""
TURNS = 8
"""Number of batches to hand over: fewer batches mean rarer progress reports."""
INVARIANT_FROM = (9, 0)
"""Lowest compute capability on which all versions of vLLM support batch-invariant results."""
ON_CPU_MB = 256
"""Memory for keys and values on a CPU if `generation.memory_mb` is not set."""
_NO_ROOM = (
    *("no available memory for the cache blocks", "free memory on device", "larger than the maximum"),
    "larger than the available",
)
_REMEDY = (
    "Give it more of the GPU by generation.memory_mb, ask for shorter completions by generation.max_new_tokens, "
    "or use generation.backend=own."
)


_kept: list[tuple[object, Any]] = []
"""The engine, and all that it was started with; an engine for anything else replaces it."""


def release() -> bool:
    """Shut down the engine to free the GPU; return whether there was one."""
    had_one = bool(_kept)
    while _kept:
        # vLLM keeps references to an engine: dropping ours frees nothing.
        _kept.pop()[1].llm_engine.engine_core.shutdown()
    return had_one


class VLLMBackend:
    """Completes prompts with vLLM."""

    def __init__(
        self, model: PreTrainedModel, settings: DecodeSettings, sizes: batch_size.BatchSizes, memory_mb: int | None
    ) -> None:
        """Prepare; the engine starts with the first prompts.

        Args:
            model: The policy, still with its weights in the folder that it was loaded from.
            settings: Decoding settings; `batch_size` is the number of sequences at once.
            sizes: Names what did not fit.
            memory_mb: GPU memory for the engine; None takes `SHARE` of the free memory.

        Raises:
            JobError: The model was not loaded from a folder.
        """
        self._folder = str(model.name_or_path)
        if not Path(self._folder).is_dir():
            raise JobError(
                f"generation.backend=vllm reads models from folders, and {self._folder!r} is none; "
                "use generation.backend=own"
            )
        self._model, self._settings, self._sizes, self._memory_mb = model, settings, sizes, memory_mb

    def complete(self, work: DecodingWork, keys: Keys | None) -> None:
        """Complete prompts, the shortest first, in batches small enough to report progress."""
        waiting = [prompt * work.samples + sample for prompt in work.queue for sample in range(work.samples)]
        streams = np.full(len(work.tokens), LIKELIEST) if keys is None else keys.reshape(-1)
        at_once = TURNS * self._settings.batch_size
        engine = self._engine(int((work.lengths + work.budgets).max())) if waiting else None
        for start in range(0, len(waiting), at_once):
            part = waiting[start : start + at_once]
            requests = [(work.prompts[at // work.samples], int(work.budgets[at // work.samples])) for at in part]
            seeds = [None if streams[at] == LIKELIEST else int(streams[at] >> np.uint64(1)) for at in part]
            for at, written in zip(part, self._drawn(engine, requests, seeds), strict=True):
                # The engine has no tokenizer, so it ignores stop strings and writes on.
                stops, begun = self._settings.stops, work.begun_with(at // work.samples)
                work.finish(at, stops.until(begun, written) if stops else written, 0.0)
        work.count(self._model, None)  # counted like our own decoder

    def _drawn(
        self, engine: Any, requests: Sequence[tuple[Sequence[int], int]], seeds: Sequence[int | None]
    ) -> list[list[int]]:
        """Return completions; without a seed by greedy decoding."""
        vllm, ends = importlib.import_module("vllm"), self._ends
        settings = [
            vllm.SamplingParams(
                **({"temperature": 0.0} if seeds[number] is None else self._settings.sampling.options()),
                seed=seeds[number],
                max_tokens=budget,
                stop_token_ids=ends,
                ignore_eos=True,  # all end tokens are given explicitly
                detokenize=False,
                logprobs=0,  # of the drawn tokens
            )
            for number, (_, budget) in enumerate(requests)
        ]
        texts = [vllm.TokensPrompt(prompt_token_ids=list(prompt)) for prompt, _ in requests]
        try:
            outputs = [each.outputs[0] for each in engine.generate(texts, settings, use_tqdm=False)]
        except BaseException as error:
            release()  # the engine keeps unfinished requests, and would wait for them for ever
            self._tell_no_room(error)
            raise
        if any(math.isnan(output.cumulative_logprob or 0.0) for output in outputs):  # vLLM then draws token 0
            raise no_number("policy")
        return [self._ended(output) for output in outputs]

    @property
    def _ends(self) -> list[int]:
        settings = self._settings
        return [token for token in (settings.eos_id, *settings.further_end_ids) if token is not None]

    def _ended(self, written: Any) -> list[int]:
        """Return the tokens of a completion, including its end token."""
        ids = [int(token) for token in written.token_ids]
        if written.finish_reason == "stop" and (not ids or ids[-1] not in self._ends):
            ids.append(written.stop_reason if isinstance(written.stop_reason, int) else self._ends[0])
        return ids

    def _engine(self, longest: int) -> Any:
        """Return the running engine, or replace it.

        Raises:
            OutOfMemory: The engine does not fit.
        """
        from pipeline.learning.models.load import context_length

        # A power of two, so that jobs of nearly the same length share an engine.
        context, room = context_length(self._model), 1 << max(0, longest - 1).bit_length()
        wanted = {
            "model": self._folder,
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "max_num_seqs": self._settings.batch_size,
            "max_model_len": room if context is None else max(longest, min(room, context)),
            "trust_remote_code": type(self._model).__module__.startswith("transformers_modules"),
        }
        files = sorted(Path(self._folder).rglob("*.safetensors"))
        stats = [(file.name, (stat := file.stat()).st_size, stat.st_mtime_ns, stat.st_ino) for file in files]
        started_with = (wanted, self._memory_mb, stats)
        if _kept and _kept[0][0] == started_with:
            return _kept[0][1]
        release()
        batch_size.free_memory()
        # vLLM reads these at import: a single process with a fixed order of work, and batch-invariant results.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        if torch.cuda.is_available() and torch.cuda.get_device_capability() >= INVARIANT_FROM:
            os.environ.setdefault("VLLM_BATCH_INVARIANT", "1")
        vllm, threads = importlib.import_module("vllm"), torch.get_num_threads()
        try:
            with self._whole() as folder:
                engine = vllm.LLM(
                    **{**wanted, "model": folder},
                    seed=0,
                    **self._memory(),
                    skip_tokenizer_init=True,
                    generation_config="vllm",  # no tokenizer beside the weights
                )
        except (RuntimeError, MemoryError, ValueError) as error:
            self._tell_no_room(error)
            raise
        finally:
            torch.set_num_threads(threads)  # on CPUs an engine sets it for all that comes later
        _kept.append((started_with, engine))
        return engine

    @contextmanager
    def _whole(self) -> Iterator[str]:
        """Yield a folder with all weights of the model: its own, or a temporary one."""
        if not adapter_folders(Path(self._folder)):
            yield self._folder
            return
        with TemporaryDirectory(prefix="merged-", dir=cache.scratch_folder()) as folder:
            self._model.save_pretrained(folder)
            yield folder

    def _memory(self) -> dict[str, Any]:
        """Return the arguments that limit the memory of an engine."""
        if self._settings.device == "cpu":  # compiled steps are slower there
            return {"kv_cache_memory_bytes": (self._memory_mb or ON_CPU_MB) * MIB, "enforce_eager": True}
        free, total = torch.cuda.mem_get_info()
        taken = free * SHARE if self._memory_mb is None else self._memory_mb * MIB
        return {"gpu_memory_utilization": min(1.0, taken / total)}

    def _tell_no_room(self, error: BaseException) -> None:
        """Raise `OutOfMemory` if an error means that: messages of vLLM vary, and trying again is useless."""
        text = str(error)
        if batch_size.is_out_of_memory(error) or any(words in text.lower() for words in _NO_ROOM):
            rows = self._settings.batch_size
            batch = self._sizes.begin("generate by vLLM", rows, length=1, group=rows, remedy=_REMEDY)
            raise batch.give_up(error) from error
