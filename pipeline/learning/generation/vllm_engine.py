"""vLLM backend: an engine in this process that draws by our own draws, and gets a policy's weights from memory.

A process keeps one engine, since an engine reserves its memory at the start; on a CPU one for plain jobs and one
with a guide inside, as jobs of both kinds take turns. For a policy of the same shape only weights are replaced.
"""

import importlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from weakref import ref

import numpy as np
import torch
import torch.distributed as dist
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from transformers import PreTrainedModel

from pipeline.errors import JobError
from pipeline.learning.choices import HeadType
from pipeline.learning.generation import sampling
from pipeline.learning.generation.decode import DecodeSettings, DecodingWork, Guidance
from pipeline.learning.generation.sampling import LIKELIEST, Keys
from pipeline.learning.generation.vllm_plugin import GUIDED
from pipeline.learning.memory.shape import cached_numbers
from pipeline.learning.models import batch_size, cache
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training.lora import whole_weights

if TYPE_CHECKING:
    from pipeline.learning.generation.vllm_draws import Draws

MIB = 1 << 20
SHARE = 0.8
"""Fraction of the free memory that an engine reserves if `generation.memory_mb` is not set."""
BESIDE_TRAINING = 0.3
"""Fraction of a GPU that an engine reserves beside the training that it draws for, as in TRL."""
TURNS = 8
"""Number of batches to hand over: fewer batches mean rarer progress reports."""
FEW_TOKENS = 2048
"""Sequences beyond which a step's limit of tokens, at least this in all versions of vLLM, must be raised."""
ROUNDING = {torch.float32: 0.02, torch.bfloat16: 0.5, torch.float16: 0.5}
"""Mean differences of log-probabilities, at temperature 1, that rounding does not explain."""
ON_CPU_MB = (256, 4096)
"""Least and most memory for keys and values on a CPU if `generation.memory_mb` is not set."""
CPU_BLOCK = 128
"""Tokens of a block of keys and values on a CPU."""
_NO_ROOM = (
    *("no available memory for the cache blocks", "free memory on device", "larger than the maximum"),
    *("larger than the available", "less than requested memory"),
)
_REMEDY = (
    "Give it more memory, or less than there is, by generation.memory_mb, ask for shorter completions by "
    "generation.max_new_tokens, or use generation.backend=own."
)


@dataclass
class Engine:
    """A running engine.

    Attributes:
        started_with: All that it was started with but weights; another one replaces it for anything else.
        is_guided: Whether its model has a guide inside.
        llm: The engine of vLLM.
        draws: Its logits processor.
        weights: Return the models whose weights it has, unless those were freed: the policy, and a guide inside.
        versions: How often their weights had been changed in place.
    """

    started_with: object
    is_guided: bool
    llm: Any
    draws: "Draws"
    weights: "Sequence[ref[PreTrainedModel]]" = ()
    versions: int = 0

    def load(self, model: PreTrainedModel, guide: ValueModel | None) -> None:
        """Take the weights of a policy, and of the guide of a model that has one inside, unless it has them.

        Raises:
            JobError: vLLM knows no weight of such a name.
        """
        models = [model] if guide is None else [model, guide]
        versions = sum(weight._version for one in models for weight in one.parameters())
        same = [kept() for kept in self.weights] == models and self.versions == versions
        if not same or _is_trained(model):  # fused optimizers change weights without a new version
            kernels = self.llm.apply_model(_without_kernels)[0]
            try:
                self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": _weights(model, guide)})
            except (KeyError, ValueError) as error:
                raise JobError(
                    f"vLLM does not take the weights of {type(model).__name__} by their names "
                    f"({str(error)[:200]}); use generation.backend=own"
                ) from error
            for experts, kernel in kernels:
                experts.moe_kernel = experts.moe_kernel or kernel
            self.llm.apply_model(_tied_again)
            self.weights, self.versions = [ref(one) for one in models], versions
        self.llm.reset_prefix_cache()  # what is computed must not depend on earlier jobs of the worker


def _weights(model: PreTrainedModel, guide: ValueModel | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a policy, then those of a guide, as `vllm_model` names them."""
    yield from whole_weights(model)
    if guide is not None:
        inside = guide.backbone.base_model_prefix
        yield from ((f"guide.{inside}.{name}", weight) for name, weight in whole_weights(guide.backbone))
        yield from ((f"value_head.{name}", weight.detach()) for name, weight in guide.head.named_parameters())


def _is_trained(model: nn.Module) -> bool:
    return any(weight.requires_grad for weight in model.parameters())


def _without_kernels(model: Any) -> list[tuple[Any, Any]]:
    """Take the kernels of experts away on a CPU, where vLLM packs weights only for a new one; return both."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    methods: list[Any] = [getattr(layer, "quant_method", None) for layer in model.modules()] if on_cpu else []
    found = [(one, one.moe_kernel) for one in methods if getattr(one, "moe_kernel", None) is not None]
    for experts, _ in found:
        experts.moe_kernel = None
    return found


def _tied_again(model: Any) -> None:
    """Have layers whose weights are tied compute with the new ones: on CPUs each keeps a copy in another order."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for layer in model.modules():
        if isinstance(layer, VocabParallelEmbedding):
            layer.quant_method.process_weights_after_loading(layer)


_kept: list[Engine] = []
"""The engines of this process."""


def release() -> bool:
    """Shut down the engines to free the GPU; return whether there was one."""
    had_one = bool(_kept)
    while _kept:
        # vLLM keeps references to an engine: dropping ours frees nothing.
        _kept.pop().llm.llm_engine.engine_core.shutdown()
    if had_one:
        from vllm.model_executor.model_loader.reload import layerwise

        layerwise.LAYERWISE_INFO.clear()  # in vLLM 0.32 its values refer to its keys, so that weights stay
    return had_one


_ALONE = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",  # on GPUs it would tell its makers
    "GLOO_SOCKET_IFNAME": "lo",
}
"""Variables of the environment for an engine that is in this process and speaks to no other machine."""


@contextmanager
def _as_before() -> Iterator[None]:
    """Leave a process as it was, although vLLM is imported and an engine starts in it.

    A changed environment would replace the worker after the job. The process group is of this process alone; that
    of vLLM would leave a file behind when a worker is killed.
    """
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    variables = {"VLLM_LOGGING_LEVEL": "ERROR"} | os.environ | _ALONE
    with (
        patch.dict(os.environ, variables),
        patch.object(torch, "set_num_threads", set_threads),  # vLLM sets it on CPUs, and takes away the function
        torch.random.fork_rng(),
        warnings.catch_warnings(action="ignore", category=FutureWarning),  # of its own code
    ):
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        try:
            yield
        finally:
            set_threads(threads)


class VLLMBackend:
    """Completes prompts with vLLM."""

    def __init__(
        self,
        model: PreTrainedModel,
        settings: DecodeSettings,
        sizes: batch_size.BatchSizes,
        memory_mb: int | None,
        guidance: Guidance | None = None,
    ) -> None:
        """Prepare; the engine starts with the first prompts.

        Args:
            model: The policy.
            settings: Decoding settings; `batch_size` is the number of sequences at once.
            sizes: Names what did not fit.
            memory_mb: GPU memory for the engine; None takes `SHARE` of the free memory, or `BESIDE_TRAINING`.
            guidance: Guides the policy; None for none.
        """
        self._model, self._settings, self._sizes, self._memory_mb = model, settings, sizes, memory_mb
        self._guidance = guidance

    def complete(self, work: DecodingWork, keys: Keys | None) -> None:
        """Complete prompts, the shortest first, in batches small enough to report progress."""
        waiting = [prompt * work.samples + sample for prompt in work.queue for sample in range(work.samples)]
        streams = np.full(len(work.tokens), LIKELIEST) if keys is None else keys.reshape(-1)
        at_once, compared = TURNS * self._settings.batch_size, False
        if waiting:
            engine, ends = self._engine(int((work.lengths + work.budgets).max())), self._ends
            engine.draws.begin(
                self._guidance, self._settings.stops, ends[0] if ends else None, self._settings.pad_id
            )
        for start in range(0, len(waiting), at_once):
            part = waiting[start : start + at_once]
            for at, written in zip(part, self._drawn(engine, work, part, streams), strict=True):
                stops, prompt = self._settings.stops, at // work.samples
                tokens = stops.until(work.begun_with(prompt), written) if stops else written
                told = engine.draws.told(at)
                kl, num_read, logprobs = told.first(len(tokens))
                positions = work.lengths[prompt] + 1 + np.arange(len(tokens))
                work.finish(at, tokens, kl, np.array([num_read.sum(), (num_read * positions).sum()]), logprobs)
                if len(tokens) and (not compared or at == waiting[-1]):  # a short text and a long one
                    self._compare(work.prompts[prompt], tokens, logprobs, told.values)
                    compared = True
        work.count(self._model, None if self._guidance is None else self._guidance.model)

    def _compare(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        found: NDArray[np.float32],
        values: Mapping[int, Any],
    ) -> None:
        """Refuse an engine whose class, or whose new weights, compute something else than the models.

        Args:
            prompt: Token ids.
            tokens: Its completion.
            found: Log-probabilities of these tokens by vLLM.
            values: Their values by vLLM, by step; empty where it computes none.

        Raises:
            JobError: They differ by more than rounding.
        """
        ids = torch.tensor([[*prompt, *tokens]], device=self._model.device)
        temperature = self._settings.sampling.temperature
        known = None if self._guidance is None else self._guidance.model.vocabulary  # tokens that are drawn from
        with torch.inference_mode():
            logits = self._model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1, :known]
            logprobs = sampling.policy_logprobs(logits, temperature).gather(-1, ids[0, len(prompt) :, None])
        apart = float(np.abs(logprobs.squeeze(-1).cpu().numpy() - found).mean()) * temperature
        if not apart <= ROUNDING[self._dtype]:
            raise JobError(
                f"vLLM computes other probabilities than {type(self._model).__name__} of transformers: the "
                f"log-probabilities of a completion differ by {apart:.2g} a token; use generation.backend=own"
            )
        if values:
            assert self._guidance is not None
            with torch.inference_mode():
                wanted = self._guidance.model(ids, following=ids[:, 1:])[0, len(prompt) - 1 :].cpu().numpy()
            computed = np.array([values[step] for step in range(len(tokens))])
            apart = float(np.abs(wanted - computed).mean())
            if not apart <= ROUNDING[self._dtype] * max(1.0, float(np.abs(wanted).mean())):
                raise JobError(
                    "vLLM computes other values than the value model of transformers: those of a completion "
                    f"differ by {apart:.2g} a token; use generation.backend=own"
                )

    def _drawn(self, engine: Engine, work: DecodingWork, part: Sequence[int], keys: Keys) -> list[list[int]]:
        """Return completions of samples."""
        from pipeline.learning.generation.vllm_draws import arguments

        vllm, ends = importlib.import_module("vllm"), self._ends
        prompts = [at // work.samples for at in part]
        settings = [
            vllm.SamplingParams(
                temperature=0.0,  # our processor leaves one token
                extra_args=arguments(at, keys[at], self._settings.sampling, len(work.begun_with(prompt))),
                max_tokens=int(work.budgets[prompt]),
                stop_token_ids=ends,
                ignore_eos=True,  # all end tokens are given explicitly
                detokenize=False,
            )
            for at, prompt in zip(part, prompts, strict=True)
        ]
        texts = [vllm.TokensPrompt(prompt_token_ids=list(work.prompts[prompt])) for prompt in prompts]
        try:
            outputs = engine.llm.generate(texts, settings, use_tqdm=False)
        except BaseException as error:
            release()  # the engine keeps unfinished requests, and would wait for them for ever
            self._tell_no_room(error)
            raise
        return [self._ended(output.outputs[0]) for output in outputs]

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

    @property
    def _dtype(self) -> torch.dtype:
        """Type of numbers to compute in; weights of a policy in training may be of another one."""
        kind = self._model.device.type
        autocast: torch.dtype = torch.get_autocast_dtype(kind)
        return autocast if torch.is_autocast_enabled(kind) else self._model.dtype

    def _engine(self, longest: int) -> Engine:
        """Return the running engine with the weights of the policy, or replace it.

        Raises:
            JobError: vLLM does not know the policy's class, or its weights.
            OutOfMemory: The engine does not fit.
        """
        from pipeline.learning.models.load import context_length

        # A power of two, so that jobs of nearly the same length share an engine.
        context, room = context_length(self._model), 1 << max(0, longest - 1).bit_length()
        guide = self._inside()
        wanted = {
            "dtype": str(self._dtype).removeprefix("torch."),
            "max_num_seqs": self._settings.batch_size,
            "max_model_len": room if context is None else max(longest, min(room, context)),
            "trust_remote_code": type(self._model).__module__.startswith("transformers_modules"),
        }
        if self._settings.batch_size > FEW_TOKENS:
            wanted["max_num_batched_tokens"] = self._settings.batch_size
        models = [self._model] if guide is None else [self._model, guide.backbone]
        shapes = [{**model.config.to_dict(), "_name_or_path": None} for model in models]
        started_with = (wanted, self._memory_mb, shapes, None if guide is None else guide.config.atoms)
        try:
            engine = next((one for one in _kept if one.started_with == started_with), None)
            if engine is None:
                is_guided = guide is not None
                if self._settings.device != "cpu" or any(one.is_guided == is_guided for one in _kept):
                    release()  # of all: none can end alone, as vLLM takes away what engines of a process share
                batch_size.free_memory()
                engine = self._started(wanted, started_with, guide)
                _kept.append(engine)
            engine.load(self._model, guide)
        except BaseException as error:
            release()
            self._tell_no_room(error)
            raise
        return engine

    def _inside(self) -> ValueModel | None:
        """Return the value model if vLLM can read it with the policy, as one model (`vllm_model`); else None.

        Else it is read beside vLLM (`vllm_draws`), as a V head must be: its candidates are known only when the
        policy was read.
        """
        guide = None if self._guidance is None else self._guidance.model
        if guide is None or guide.config.head != HeadType.q.name or guide.dtype != self._dtype:
            return None
        with _as_before():
            from pipeline.learning.generation.vllm_model import architecture_of, why_apart

            policy = self._model.config
            if type(self._model) is not getattr(transformers, architecture_of(policy), None):
                return None  # its code came with it
            return None if why_apart(policy, guide.backbone.config, self._settings.device) else guide

    def _started(self, wanted: dict[str, Any], started_with: object, guide: ValueModel | None) -> Engine:
        with ExitStack() as after:
            after.enter_context(_as_before())
            vllm = importlib.import_module("vllm")
            from pipeline.learning.generation.vllm_draws import Draws
            from pipeline.learning.generation.vllm_model import GuidedForCausalLM, has_class

            name = type(self._model).__name__
            if not has_class(name):
                # It would run transformers' own classes, and change them for this process.
                raise JobError(f"vLLM {vllm.__version__} has no {name} of its own; use generation.backend=own")
            folder = self._model.name_or_path
            if not wanted["trust_remote_code"]:
                around = after.enter_context(TemporaryDirectory(prefix="config-", dir=cache.scratch_folder()))
                config = type(self._model.config).from_dict(self._model.config.to_dict())
                config.architectures = [name]
                if config.model_type == "cohere2":
                    config.sliding_window -= 1  # vLLM 0.32 adds one to it, transformers none
                folder = f"{around}/reference"
                config.save_pretrained(folder)
            more: dict[str, Any] = {}
            if guide is not None:
                guide.backbone.config.save_pretrained(around)
                guide.save_settings(around)
                vllm.ModelRegistry.register_model(GUIDED, GuidedForCausalLM)  # before vLLM finds the plugin
                more = {"hf_overrides": {"architectures": [GUIDED]}}
            llm = vllm.LLM(
                **wanted,
                **self._memory(wanted["max_model_len"], wanted["dtype"], guide),
                **more,
                model=folder,
                load_format="dummy",  # weights come from memory
                seed=0,
                skip_tokenizer_init=True,
                generation_config="vllm",  # no other defaults
                logits_processors=[Draws],
            )
        return Engine(started_with, guide is not None, llm, Draws.made)

    def _memory(self, longest: int, dtype: str, guide: ValueModel | None) -> dict[str, Any]:
        """Return the arguments that limit the memory of an engine for texts of a type of numbers."""
        if self._settings.device == "cpu":  # compiled steps are slower there
            tokens = self._settings.batch_size * -(-longest // CPU_BLOCK) * CPU_BLOCK
            models = [self._model] if guide is None else [self._model, guide.backbone]
            numbers = sum(cached_numbers(model.config.get_text_config()) for model in models)
            cached = numbers * getattr(torch, dtype).itemsize
            usual = min(max(tokens * cached // MIB, ON_CPU_MB[0]), ON_CPU_MB[1])
            return {"kv_cache_memory_bytes": (self._memory_mb or usual) * MIB, "enforce_eager": True}
        free, total = torch.cuda.mem_get_info()
        usual = min(free * SHARE, total * BESIDE_TRAINING) if _is_trained(self._model) else free * SHARE
        taken = usual if self._memory_mb is None else self._memory_mb * MIB
        return {"gpu_memory_utilization": min(1.0, taken / total)}

    def _tell_no_room(self, error: BaseException) -> None:
        """Raise `OutOfMemory` if an error means that: messages of vLLM vary, and trying again is useless."""
        text = str(error)
        if batch_size.is_out_of_memory(error) or any(words in text.lower() for words in _NO_ROOM):
            rows = self._settings.batch_size
            batch = self._sizes.begin("generate by vLLM", rows, length=1, group=rows, remedy=_REMEDY)
            raise batch.give_up(error) from error
