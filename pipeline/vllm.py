"""Guidance in `vllm serve`: the reference of an exported value model, guided at the strength of each request.

    vllm serve my_model/reference --served-model-name guided --logits-processors pipeline.vllm:Guided

Its log says by what it is guided. A request says ``"vllm_xargs": {"eta": 0.3}``. Its temperature and top_p apply
to the reference, before guidance.
"""

import logging
import math
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.config import schema
from pipeline.config.plain import brief
from pipeline.errors import ConfigError, unknown_name
from pipeline.foreign import ForeignDataError
from pipeline.learning.generation import sampling, vllm_draws
from pipeline.learning.generation.decode import Guidance
from pipeline.learning.generation.guided import STREAM, SavedGuide
from pipeline.learning.generation.vllm_plugin import GUIDED, guide_folder
from pipeline.learning.models import load
from pipeline.learning.models.value import ValueModel
from pipeline.outputs import formats
from pipeline.plan.compatibility import HEADS_ON_CPU

_REFUSED = (
    *("top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words"),
    *(
        "min_tokens",
        "allowed_token_ids",
        "structured_outputs",
        "thinking_token_budget",
        "logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "prompt_logprob_token_ids",
        "trace_decode_token_ids",
    ),
)
"""Settings of a request that would change the guided policy, or tell of another one."""
_OF_VLLM = ("kv_transfer_params", "ec_transfer_params", "session_id")
"""Names that vLLM itself puts among the extra arguments."""
_log = logging.getLogger("vllm.pipeline")  # vLLM shows what is told below its own name


@dataclass(eq=False, kw_only=True)
class _Request(vllm_draws.Request):
    """What a row is drawn with.

    Attributes:
        eta: Strength of guidance; `math.inf` is none.
    """

    eta: float


class Guided(vllm_draws.Draws):
    """Guides the reference that a server has loaded by the value model around it."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse what a request may not ask of a guided policy: vLLM replies with HTTP 400.

        Raises:
            ValueError: It asks for a setting that a guided policy does not have, or for a value out of range.
        """
        usual = type(sampling_params)()
        asked = {name: getattr(sampling_params, name, None) for name in _REFUSED}
        asked["top_k"] = max(0, sampling_params.top_k)  # -1 is none, too
        if given := [
            name
            for name, value in asked.items()
            if isinstance(value, np.ndarray) or value not in (getattr(usual, name, None), [], {})
        ]:
            raise ValueError(
                f"{', '.join(given)}: not for a guided policy, which follows temperature, top_p, seed and "
                'vllm_xargs={"eta": ...}; leave it out'
            )
        extra = {name: value for name, value in (sampling_params.extra_args or {}).items() if name not in _OF_VLLM}
        if unknown := extra.keys() - {"eta"}:
            raise ValueError(unknown_name("vllm_xargs", min(unknown), ["eta"]))
        _eta(sampling_params, math.inf)
        if (sampling_params.seed or 0) < 0:
            raise ValueError(f"seed={sampling_params.seed}: must be at least 0")

    def __init__(self, vllm_config: Any, device_or_state: Any, is_pin_memory: bool = False) -> None:
        """Load the value model; for arguments see `Draws`.

        Raises:
            ConfigError: There is no value model for what is served, or vLLM was started with what excludes it.
        """
        device = str(getattr(device_or_state, "device", device_or_state))
        _check(vllm_config, device)
        super().__init__(vllm_config, device_or_state, is_pin_memory)
        settings, folder = vllm_config.model_config, _folder(vllm_config)
        usage, saved = _read(folder)
        dtype = str(settings.dtype).removeprefix("torch.")
        system = schema.SystemConfig(dtype=schema.DType(dtype))
        is_one = GUIDED in settings.architectures
        with load.without_progress_bars():
            model = load.load_value(folder, system, "cpu" if is_one else device)
        if is_one:  # vLLM loads it with the reference, but does not check that its files are whole
            model.to(torch.device("meta"))  # type: ignore[arg-type] # as annotated by transformers
            _check_parts(settings, model, device)
        context = load.context_length(model.backbone)
        if context is not None and settings.max_model_len > context:
            raise ConfigError(
                f"--max-model-len {settings.max_model_len}: the value model reads at most {context} tokens; "
                f"give --max-model-len {context}"
            )
        self._usual_eta = math.inf if saved.eta is None else saved.eta
        self._greedy = formats.Sampling(**usage.drawing.options())
        self.begin(Guidance(model, SavedGuide(model=model, settings=saved).tilt(1.0)), None, None, pad_id=0)
        if not is_one:
            self._reserve()
        if dtype != usage.drawing.dtype:
            told = "--dtype %s: the run computed in %s, so texts may differ from its own"
            _log.warning(told, dtype, usage.drawing.dtype)
        told = f"guided by {folder.resolve().name} ({usage.chain}, round {usage.round})"
        told += f" in one {GUIDED}" if is_one else ""
        _log.info("%s, eta %g unless a request asks for another", told, self._usual_eta)

    @torch.inference_mode()
    def _reserve(self) -> None:
        """Allocate the cache of the value model, so that vLLM sees it when it measures memory."""
        assert self._guide is not None
        try:
            self._enter([[0]])
        except torch.OutOfMemoryError as error:
            sizes = f"--max-num-seqs {self._slots} and --max-model-len {self._width}"
            raise ConfigError(f"{sizes}: the cache of the value model does not fit; lower one of them") from error
        self._guide.keep(np.zeros(0, np.int64))

    def apply(self, logits: Tensor, ctx: Any = None) -> Tensor:
        """Draw as `Draws` does; for errors see `_flush`."""
        left = super().apply(logits, ctx)
        if not logits.is_cuda:
            self._flush()  # reading is free here; on a GPU many steps are read together
        return left

    def _flush(self) -> None:
        """Look at the last steps; what is known of each request is nobody's concern.

        Raises:
            JobError: What a model computed is no number. It ends the server, which has nothing to reply.
        """
        steps, self._steps = self._steps, []
        for _, _, (lost, kl, *_) in steps:
            if any(part is not None and bool(part.any()) for part in (lost, None if kl is None else kl.isnan())):
                raise sampling.no_number("reference or its value model")

    def _request(
        self, params: Any, prompt: Sequence[int] | None = None, output: list[int] | None = None
    ) -> vllm_draws.Request:
        eta = _eta(params, self._usual_eta)
        if params.temperature == 0:  # vLLM has forgotten the nucleus
            key, drawn = sampling.LIKELIEST, self._greedy
        else:
            seed = secrets.randbits(63) if params.seed is None else params.seed
            key = sampling.sample_keys(seed, STREAM, np.arange(1), 1)[0, 0]
            drawn = formats.Sampling(temperature=params.temperature, top_p=params.top_p)
        return _Request(None, key, drawn, prompt=prompt, output=output, eta=eta)

    def _tilt(self, requests: Sequence[vllm_draws.Request], device: torch.device) -> sampling.Tilt:
        tilt = super()._tilt(requests, device)
        assert isinstance(tilt.offset, sampling.KnownOffset)
        etas = [request.eta for request in requests if isinstance(request, _Request)]
        column = torch.tensor(etas, device=device)[:, None]
        return replace(tilt, offset=replace(tilt.offset, eta=column))


def _eta(params: Any, usual: float) -> float:
    """Return the strength that a request asks for, or the usual one.

    Raises:
        ValueError: It is no number in range. vLLM itself makes a 1 of true.
    """
    given = (params.extra_args or {}).get("eta", usual)
    if type(given) in (int, float, str) and "_" not in str(given):
        with suppress(ValueError, OverflowError):
            if (eta := float(given)) >= schema.SMALLEST_DIVISOR:
                return eta
    raise ValueError(
        f'vllm_xargs eta={brief(given)}: must be a number of at least {schema.SMALLEST_DIVISOR:g}, or "inf" for '
        "the plain reference; without it, the eta of the run holds"
    )


def _check(vllm_config: Any, device: str) -> None:
    """Refuse ways to run vLLM that a value model cannot follow."""
    if vllm_config.speculative_config is not None:
        raise ConfigError("speculative decoding: a value model reads each token as it is drawn; leave it out")
    if (devices := vllm_config.parallel_config.world_size) > 1:
        raise ConfigError(
            f"{devices} devices for one model (tensor or pipeline parallel): the value model is on one; "
            "serve several copies with --data-parallel-size instead"
        )
    if getattr(vllm_config, "watermark_config", None) is not None:
        raise ConfigError("--watermark-config: tokens are drawn before vLLM could mark them; leave it out")
    if getattr(vllm_config.model_config, "enable_prompt_embeds", False):
        raise ConfigError("--enable-prompt-embeds: a value model reads tokens; leave it out")
    if device == "cpu" and (size := vllm_config.model_config.get_head_size()) not in HEADS_ON_CPU:
        raise ConfigError(  # vLLM would start, and end at the first request
            f"the heads of the reference have {size} numbers, and vLLM on CPUs takes {HEADS_ON_CPU}; train "
            "another reference (models.tiny.n_head=2), or serve on a GPU"
        )


def _folder(vllm_config: Any) -> Path:
    folder = guide_folder(vllm_config)
    if not (folder / formats.GUIDANCE).is_file():
        raise ConfigError(
            f"{folder} is no exported value model (it has no {formats.GUIDANCE}): serve the reference in one "
            '(`vllm serve my_model/reference`), or name it: --additional-config \'{"guide": "my_model"}\''
        )
    return folder


def _check_parts(settings: Any, model: ValueModel, device: str) -> None:
    """Refuse a value model that vLLM cannot read with its reference, as one model.

    Raises:
        ConfigError: It says so.
    """
    from pipeline.learning.generation.vllm_model import why_apart

    beside = "leave out --hf-overrides, so that it is read beside vLLM"
    if settings.quantization is not None:
        raise ConfigError(f"--quantization: the value model has no such weights; {beside}")
    if (why := why_apart(settings.hf_config, model.backbone.config, device)) is not None:
        raise ConfigError(f"the value model and the reference are no one {GUIDED}: {why}; {beside}")


def _read(folder: Path) -> tuple[formats.Usage, formats.GuidanceSettings]:
    try:
        return formats.read_usage(folder / formats.USAGE), formats.read_guidance(folder / formats.GUIDANCE)
    except (OSError, ForeignDataError) as error:
        raise ConfigError(f"{folder} cannot be used: {formats.problem_in_words(error)}") from error
