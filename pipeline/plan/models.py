"""Check from their files whether models can be used, and identify the content of models and datasets.

This module reads files, so it runs before planning, which reads none. It imports neither torch nor transformers.
"""

import hashlib
import importlib.util
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from packaging.version import Version
from safetensors import SafetensorError, safe_open

from pipeline.config.schema import PATH, AlgoConfig, Config, DatasetConfig, ModelConfig
from pipeline.config.tables import JUDGE, MODEL_REWARDS, as_typed
from pipeline.errors import ConfigError, install_command
from pipeline.files import file_sha256, open_plain
from pipeline.foreign import ForeignDataError, converted, read_model_json, recall, remember
from pipeline.learning.algos.checkpoint import CheckpointConfig
from pipeline.learning.algos.distilled import DistilledConfig
from pipeline.learning.datasets.base import SPLITS, load_dataset
from pipeline.learning.datasets.files import folder_called_nearly, in_cache, is_hub_id, offline
from pipeline.learning.datasets.from_files import FilesDataset, source_fingerprint
from pipeline.learning.models import kinds
from pipeline.learning.models.kinds import Base, HFModelConfig, RewardModelSettings, is_adapters, with_weights
from pipeline.learning.rewards.judge import JudgeSettings, judges_of
from pipeline.learning.rewards.registry import reward_models
from pipeline.outputs.formats import DATASET, OPTIMIZER, read_prepared_rows

# -- weight files ------------------------------------------------------------------------------------------------
# Weight files of a model: which files of a folder are loaded, what they contain, whether they are complete. Only
# the headers are read here, with the library that loads them; they say where each tensor ends.


REWARD_FILES = "content of rewards"
"""Section of a source: models, files and folders that options of rewards name, by ``reward.option``."""
FILES = "content of settings"
"""Section of a source: files that other settings name and that the user's own code reads, by setting."""
WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTERS = "adapter_config.json"
_LARGEST_INDEX = 100_000_000
_LFS = b"version https://git-lfs"


def weight_files(folder: Path) -> list[Path]:
    """Return the files that transformers loads a model from: one with all weights, else the parts of an index.

    The parts may be missing. Without an index and a single file the list is empty.

    Raises:
        ForeignDataError: The index is invalid.
        OSError: It cannot be read.
    """
    first = _first_file(folder)
    if first is None:
        return []
    if first.suffix != ".json":
        return [first]
    index = read_model_json(first, dict[str, Any], _LARGEST_INDEX)
    if not isinstance(index.get("metadata"), dict):
        raise ForeignDataError("it has no object `metadata`, which transformers asks for")
    names = sorted(set(converted(index.get("weight_map"), dict[str, str]).values()))
    # the files that identify a model are in its folder
    if odd := [name for name in names if Path(name).name != name]:
        raise ForeignDataError(f"it names {odd[0]!r}, and parts must be beside it")
    return [folder / name for name in names]


def _first_file(folder: Path) -> Path | None:
    """Return the file of all weights, or the index, that transformers opens; None if there is neither."""
    named = None
    with suppress(OSError, ForeignDataError):  # errors in it are reported where models are checked
        named = read_model_json(folder / "config.json", dict[str, Any]).get("transformers_weights")
    # Another name means a file in the folder.
    names = [Path(named).name] if isinstance(named, str) else [WHOLE, INDEX]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def shapes_in(folder: Path) -> dict[str, list[int]]:
    """Return the shape of each tensor in the weights of a folder, without those of files that cannot be read.

    Raises:
        ForeignDataError: The index of the files cannot be read.
    """
    shapes: dict[str, list[int]] = {}
    for file in weight_files(folder):
        with suppress(OSError, SafetensorError), safe_open(file, "np") as opened:
            shapes |= {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    return shapes


def check_whole(typed: str, folder: Path) -> None:
    """Refuse a model with missing or truncated weight files.

    Args:
        typed: The setting, for the message.
        folder: Folder of the model.

    Raises:
        ConfigError: The message says which file, and what is wrong with it.
        OSError: One may not be read.
    """
    if (folder / ADAPTERS).is_file():
        raise ConfigError(
            f"{typed}: the folder holds {ADAPTERS}, so transformers would load the model that it names rather "
            "than the weights beside it. Merge them (merge_and_unload() of peft), or remove that file if they are."
        )
    try:
        files = weight_files(folder)
    except ForeignDataError as error:
        raise ConfigError(f"{typed}: cannot read {folder / INDEX} ({error}). Get the model again.") from error
    if not files:
        raise ConfigError(
            f"{typed}: the folder has neither {WHOLE} nor {INDEX}, one of which is loaded; weights in pickles are "
            "not. Save it with save_pretrained; of a GGUF file give the path of the file."
        )
    if missing := [file.name for file in files if not file.is_file()]:
        raise ConfigError(
            f"{typed}: {missing[0]} is missing, one of {len(files)} files of weights that {INDEX} names"
        )
    for file in files:
        if wrong := wrong_with(file):
            raise ConfigError(f"{typed}: {file.name} {wrong}")


def wrong_with(file: Path) -> str:
    """Say what is wrong with a weight file, as a text that follows its name; "" if it is complete."""
    with open_plain(file, follow=True) as opened:
        if opened.read(len(_LFS)) == _LFS:
            return "only names a file of Git LFS. Fetch that with `git lfs pull`, or get the model again."
    try:
        with safe_open(file, "np"):
            return ""
    except SafetensorError as error:
        why = str(error).removeprefix("Error while deserializing header: ")
        return f"is cut off or damaged: it has {file.stat().st_size:,} bytes ({why}). Get the model again."


GGUF = ".gguf"
MAGIC = b"GGUF"
OLDEST_FOR_GGUF = "5.23"
"""First transformers known to read the special tokens of GGUF files; 5.17 does not."""
CONFIG = "config.json"
TEMPLATES = "additional_chat_templates"
"""Folder beside it with templates by name; rows with tools may use another than the default one."""
_SETTINGS = (kinds.ENDS, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Other settings files, each of which may be missing."""
LARGEST_CONFIG = 10_000_000
"""Largest size in bytes; the largest known ones have some ten thousand."""
_WRITTEN = re.compile(r"(^|_)(cache|debug|dumps?|logs?|out|outputs?|results|save|temp|tmp)(_|$)", re.IGNORECASE)
"""Parts of option names that mean a file that is written rather than read."""
_SIZE_IN_NAME = re.compile(r"(\d+(?:\.\d+)?)\s*([BM])(?![a-z])", re.IGNORECASE)
_MODEL_FILES = re.compile(
    r".*\.(safetensors|safetensors\.index\.json|py|jinja|model|tiktoken)|tokenizer.*|vocab.*|merges\.txt"
    r"|(config|generation_config|adapter_config|special_tokens_map|added_tokens|tekken|emoji)\.json"
)
"""Files that a loaded model or its tokenizer may depend on; README files and other weight formats do not count."""


def is_gguf(path: str | Path) -> bool:
    """Return whether a path names a GGUF file."""
    return Path(path).suffix.lower() == GGUF


def is_local(path: str) -> bool:
    """Return whether a path means a file or folder rather than a hub id: it exists, or looks like a path."""
    return Path(path).exists() or is_gguf(path) or not is_hub_id(path)


def all_models(config: Config) -> dict[str, ModelConfig]:
    """Return the models of a request, and the checkpoints evaluated beside them, by the key of their section."""
    models = {f"models.{name}": model for name, model in config.models.items()}
    also = {name: algo for name, algo in config.enabled.items() if isinstance(algo, CheckpointConfig)}
    return models | {f"algos.{name}": algo.model for name, algo in also.items()}


def check_models(config: Config) -> None:
    """Refuse models that cannot be loaded, as far as their files tell; for a hub id, the files in the cache.

    Raises:
        ConfigError: The message says which file is missing or cannot be used, and what to do.
    """
    for name, key, typed, base, trusted in _all_places(config):
        with _reading(typed):
            if is_adapters(base.path):
                folder = Path(base.path)
                kinds.check_folder(typed, folder)
                _check_settings(typed, folder)
                if wrong := wrong_with(folder / kinds.WEIGHTS):
                    raise ConfigError(f"{typed}: {kinds.WEIGHTS} {wrong}")
                base = with_weights(*base)
                typed += _of_adapters(base.path)
            _check_base(name, key, typed, base, trusted)
    for setting, settings in models_of_rewards(config).items():
        typed = f"{setting}={settings.path}"
        with _reading(typed):
            _check_reward(typed, settings)


def models_of_rewards(config: Config) -> dict[str, RewardModelSettings | JudgeSettings]:
    """Return the settings of models that rewards load, by the setting that says where one is.

    Raises:
        ConfigError: A setting is missing, unknown or wrong.
    """
    models: dict[str, RewardModelSettings | JudgeSettings] = {}
    for name, section in config.datasets.items():
        for found in (judges_of(section), reward_models(section)):
            models |= {f"datasets.{name}.grading.options.{reward}.path": each for reward, each in found.items()}
    return {typed: settings for typed, settings in models.items() if settings.path}


def _check_reward(typed: str, settings: RewardModelSettings | JudgeSettings) -> None:
    """Refuse a reward model or a judge that cannot be loaded, or that has no such label."""
    folder, judges = Path(settings.path), isinstance(settings, JudgeSettings)
    file: Path | None = folder / CONFIG
    if not folder.exists() and is_hub_id(settings.path):
        file = in_cache(settings.path, CONFIG)
    elif not folder.is_dir():
        raise ConfigError(f"{typed}: there is no such folder, and this is no hub id")
    if file is None:
        return
    config = _read_config(typed, file)
    why = kinds.unknown_kind(config) or (kinds.why_not_usable(config) if judges else None)
    if folder.is_dir() and why is None:
        check_whole(typed, folder)
        _check_settings(typed, folder)
        if not judges:
            why = kinds.why_no_scores(shapes_in(folder))
    if why:
        raise ConfigError(f"{typed}: {why}")
    if isinstance(settings, RewardModelSettings):
        try:
            settings.place_of_label(kinds.classes_of(config))
        except ConfigError as error:
            raise ConfigError(f"{typed}: {error}") from error


def _check_base(model: str, key: str, typed: str, base: Base, trusted: bool) -> None:
    """Refuse a path that is not a model; it comes from a setting, or from the settings of adapters."""
    if is_local(base.path):
        _check_local(model, key, typed, Path(base.path), trusted)
        config = {} if is_gguf(base.path) else _read_config(typed, Path(base.path) / CONFIG)
    elif file := in_cache(base.path, CONFIG, base.revision):
        config = _read_config(typed, file)
        _check_kind(model, key, typed, config, trusted)
    else:
        return
    if "quantization_config" in config and _of_adapters(base.path) in typed:
        raise ConfigError(f"{typed}: its weights are in few bits, which nothing is merged into: name whole ones")


def _of_adapters(base: str) -> str:
    """Return the text that follows the folder of adapters in messages about their base model."""
    return f", adapters of {base} (base_model_name_or_path of their {kinds.SETTINGS})"


def fetched_models(config: Config, needed: Collection[str]) -> list[str]:
    """Return warnings about models that will be fetched from the hub, though a folder may have been meant.

    Args:
        config: The request.
        needed: Models, checkpoints and teachers that the run still uses, by the key of their section.

    Raises:
        ConfigError: A model is not in this machine's cache, and the hub may not be contacted.
    """
    warnings = []
    for name, _, typed, base, _ in _all_places(config):
        path, revision = with_weights(*base)
        if name not in needed or is_local(path) or in_cache(path, CONFIG, revision):
            continue
        near = folder_called_nearly(path)
        typed += _of_adapters(path) if is_adapters(base.path) else ""
        typed += f": there is no folder {path} here{f', but {near}' if near else ''}"
        if offline():
            raise ConfigError(
                f"{typed}, nor such a model in the cache of the hub, which HF_HUB_OFFLINE forbids to ask. "
                f"Unset it, or give a folder: `hf download {path} --local-dir DIR` makes one elsewhere"
            )
        if near:
            warnings.append(f"{typed}. It is taken for the id of a model on the hub")
    return warnings


def teachers(config: Config) -> dict[str, HFModelConfig]:
    """Return the models that teach policies, by the key of the section that names each as its `teacher`."""
    named = {name: algo for name, algo in config.enabled.items() if isinstance(algo, DistilledConfig)}
    return {f"algos.{name}": algo.model for name, algo in named.items() if algo.model}


def _all_places(config: Config) -> Iterator[tuple[str, str, str, Base, bool]]:
    """Yield section, key, words for messages and place of each model, and whether its own code is trusted."""
    for name, model in all_models(config).items():
        for key, path, role in (("path", model.path, "reference"), ("value_path", model.value_path, "value")):
            if path is not None:
                typed = as_typed(f"{name}.{key}={path}", (), config.evaluation.also)
                yield name, key, typed, Base(path, model.revisions[role]), model.trusts_code
    for name, model in teachers(config).items():
        base = Base(str(model.path), model.revision)
        yield name, "path", f"{name}.teacher={model.path}", base, model.trusts_code


def model_identities(model: ModelConfig, file_hash: Callable[[Path], str]) -> dict[str, dict[str, Any]]:
    """Return data that identify the content of a model and of the backbone of its value models, wherever they are.

    Args:
        model: Its configuration, checked.
        file_hash: Returns the SHA-256 of a file's content; a caller that caches hashes passes its own.

    Returns:
        Plain data by role, ``reference`` and ``value``; a role that has no files of its own is left out.

    Raises:
        ConfigError: A file cannot be read.
    """
    paths = {"reference": None if model.is_trained else model.path, "value": model.value_path}
    identities = {}
    for role, path in paths.items():
        if path:
            with _reading(path):
                identities[role] = identity_of(path, model.revisions[role], file_hash)
    return identities


def lacks_sdpa(model: ModelConfig) -> bool:
    """Return whether a reference policy has no fused attention, judged by its folder.

    The answer is False for a hub id, so that keys do not depend on a machine's cache.
    """
    if model.is_trained or not model.path or not Path(model.path).is_dir():
        return False
    if not (folder := Path(with_weights(model.path, None).path)).is_dir():
        return False
    return read_config(folder / CONFIG).get("model_type") in kinds.WITHOUT_SDPA


def model_files(folder: Path) -> list[Path]:
    """Return the files of a folder that a loaded model or its tokenizer may depend on, by name."""
    named = [path for path in folder.iterdir() if _MODEL_FILES.fullmatch(path.name) and path.name != OPTIMIZER]
    return sorted(path for path in [*named, *(folder / TEMPLATES).glob("*.jinja")] if path.is_file())


def count_weights(model: ModelConfig) -> int:
    """Return the number of weights of a reference policy, from its settings, file headers or name.

    0 if unknown.
    """
    return weights_at(model.path, model.revisions["reference"]) if model.path else model.weights


def weights_at(path: str, revision: str | None) -> int:
    """Return the number of weights of the model at a path or hub id; 0 if unknown."""
    path, revision = with_weights(path, revision)
    folder = Path(path)
    if folder.is_file():
        return folder.stat().st_size  # quantised, about a byte each
    if not folder.exists():
        config = in_cache(path, CONFIG, revision)
        if (guessed := weights_in_name(path)) or config is None:
            return guessed
        folder = config.parent
    with suppress(OSError, ForeignDataError):  # errors in it are reported where models are checked
        if counted := sum(map(math.prod, shapes_in(folder).values())):
            return counted
    return weights_in_name(path)


def weights_in_name(path: str) -> int:
    """Return the number of weights in a model's name, such as ``Qwen2.5-1.5B-Instruct``.

    0 if the name does not say.
    """
    sizes = _SIZE_IN_NAME.findall(path.rpartition("/")[2])
    return int(float(sizes[-1][0]) * {"b": 1e9, "m": 1e6}[sizes[-1][1].lower()]) if sizes else 0


@contextmanager
def _reading(typed: str) -> Iterator[None]:
    """Refuse a model with a file that cannot be read."""
    try:
        yield
    except OSError as error:
        problem = f"cannot read {error.filename or 'its files'} ({reason(error)})"
        raise ConfigError(f"{typed}: {problem}. See that you may read all of its files.") from error


def identity_of(path: str, revision: str | None, file_hash: Callable[[Path], str]) -> dict[str, Any]:
    """Return data that identify a model in a folder, a GGUF file or on the hub; adapters include their base."""
    if not is_local(path):
        return {"hub": path, "revision": revision}
    files = [Path(path)] if is_gguf(path) else model_files(Path(path))
    whole = hashlib.sha256()
    for file in files:
        # A GGUF file can have any name; the files of a folder have fixed names.
        name = GGUF if is_gguf(file) else file.relative_to(path).as_posix()
        whole.update(f"{name} {file_hash(file)}\n".encode())
    size = sum(file.stat().st_size for file in files)
    base = {"base": identity_of(*with_weights(path, None), file_hash)} if is_adapters(path) else {}
    return {"files": len(files), "bytes": size, "sha256": whole.hexdigest(), **base}


def _check_local(model: str, key: str, typed: str, path: Path, trusted: bool) -> None:
    if not path.exists():
        raise ConfigError(
            f"{typed}: there is no such file or folder. Give the folder of a model saved by save_pretrained, a "
            "GGUF file, or a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct. docs/models.md has a "
            "small one that needs no hub"
        )
    if path.is_file():
        _check_gguf(typed, path)
        return
    config = _read_config(typed, path / CONFIG)
    _check_kind(model, key, typed, config, trusted)
    check_whole(typed, path)
    if why := kinds.why_other_weights(config, shapes_in(path)):
        raise ConfigError(f"{typed}: {why}")
    _check_settings(typed, path)


def _check_settings(typed: str, folder: Path) -> None:
    """Refuse a folder with settings that transformers could not read, or whose end tokens it would ignore."""
    for file in (folder / name for name in _SETTINGS):
        if not file.exists():
            continue
        settings = _read_config(typed, file)
        ends = settings.get("eos_token_id") if file.name == kinds.ENDS else None
        if not all(type(end) is int for end in (ends if isinstance(ends, list) else [ends]) if end is not None):
            raise ConfigError(
                f"{typed}: eos_token_id={ends} in {file} must be the id of a token, or a list of ids, since "
                "completions end there. Write these, or leave it out"
            )


def _read_config(typed: str, file: Path) -> dict[str, Any]:
    try:
        return read_config(file)
    except (OSError, ForeignDataError) as error:
        raise ConfigError(
            f"{typed}: cannot read {file} ({reason(error)}). Give the folder of a model saved by save_pretrained."
        ) from error


def _check_kind(model: str, key: str, typed: str, config: dict[str, Any], trusted: bool) -> None:
    unknown = kinds.unknown_kind(config)
    if unknown and "auto_map" in config:
        if not trusted:
            raise ConfigError(
                f"{typed}: this model needs Python code that comes with it. If you trust that code, set "
                f"{model}.trust_remote_code=true"
            )
        unknown = None
    if why := kinds.why_not_usable(config, for_values=key == "value_path") or unknown:
        raise ConfigError(f"{typed}: {why}")


def read_config(path: Path) -> dict[str, Any]:
    """Read the configuration of a model, or of its tokenizer.

    Raises:
        ForeignDataError: It is too large, or is not a JSON object.
        OSError: It is not a regular file, or cannot be read.
    """
    return read_model_json(path, dict[str, Any], LARGEST_CONFIG)


def reason(error: OSError | ForeignDataError) -> str:
    """Say why a file could not be read, in a few words."""
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)


def _check_gguf(typed: str, path: Path) -> None:
    with open_plain(path, follow=True) as file:
        start = file.read(len(MAGIC))
    if start != MAGIC or not is_gguf(path):
        raise ConfigError(f"{typed}: is no GGUF file, as it begins with {start!r}. Give the folder of a model.")
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"{typed}: GGUF files need a package: {install_command('gguf')}")
    if Version(release := version("transformers")) < Version(OLDEST_FOR_GGUF):
        raise ConfigError(
            f"{typed}: GGUF files need transformers {OLDEST_FOR_GGUF}, and {release} is installed, which may take "
            "another token for an end of text: pip install -U transformers, or give the safetensors of the model"
        )


# -- sources -----------------------------------------------------------------------------------------------------
# Sources: the content of files, or a hub id, that datasets and models depend on besides their settings. Reads
# files, so it runs before planning, which reads none. Hashes of unchanged files are cached.


FILE = "file_hashes.json"
_Sum = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


def read_sources(config: Config, hints: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return fingerprints of all datasets of a request, by name; empty for datasets that make their rows.

    Fingerprints of files that settings of algorithms name are included under ``algos.NAME``.

    Args:
        config: The request.
        hints: Folder of the store that caches hashes; without it, or if it does not exist, none are cached.

    Raises:
        PipelineError: A dataset's settings are wrong, or a file is missing.
    """
    hashes = _Hashes(hints)
    sources: dict[str, dict[str, Any]] = {}
    for name, section in config.datasets.items():
        own = _named(f"datasets.{name}", _own_settings(section), hashes.sha256)
        rewards = _of_rewards(f"datasets.{name}.grading.options", section, hashes.sha256)
        sources[name] = source_fingerprint(load_dataset(section), hashes.sha256)
        sources[name] |= {kind: files for kind, files in ((FILES, own), (REWARD_FILES, rewards)) if files}
    for name, algo in config.enabled.items():
        if isinstance(algo, CheckpointConfig):
            content = identity_of(algo.path, algo.revision, hashes.sha256)
            sources[f"algos.{name}"] = {FILES: {"path": content}}
        elif teacher := teachers(config).get(f"algos.{name}"):
            content = identity_of(str(teacher.path), teacher.revision, hashes.sha256)
            sources[f"algos.{name}"] = {FILES: {"teacher": content}}
        elif own := _named(f"algos.{name}", _own_settings(algo), hashes.sha256):
            sources[f"algos.{name}"] = {FILES: own}
    hashes.save()
    return sources


def known_rows(config: Config, output: Callable[[str], Path]) -> Callable[[str, str], Mapping[str, int]]:
    """Return a function that gives the rows of each split of a dataset: from its preparation or small files.

    Args:
        config: The request.
        output: Returns the folder of a key's output, if there is one.
    """

    def rows(name: str, key: str) -> Mapping[str, int]:
        dataset = load_dataset(config.datasets[name])
        if not key:
            with suppress(Exception):  # of a class of the user's own; errors in it are reported elsewhere
                return {split: len(dataset.ids(split)) for split in SPLITS}
        with suppress(OSError, ForeignDataError):
            return read_prepared_rows(output(key) / DATASET).rows
        from pipeline.learning.datasets.rows import rows_of_small  # a saved plan does not need these

        return rows_of_small(dataset) if isinstance(dataset, FilesDataset) else {}

    return rows


def _of_rewards(prefix: str, section: DatasetConfig, file_hash: Callable[[Path], str]) -> dict[str, Any]:
    """Identify the content of models, files and folders that options of rewards name, by reward and option."""
    options = {name: dict(own or {}) for name, own in section.grading.options.items()}
    models = {}
    for name, own in options.items():
        used, path = own.get("use", name), own.get("path")
        if used in MODEL_REWARDS and isinstance(path, str):
            models[f"{name}.path"] = identity_of(path, None, file_hash)
            del own["path"]
        if used == JUDGE:  # what a model is called at an endpoint, a template: texts, whatever files there are
            own.clear()
    return models | _named(prefix, options, file_hash)


def _own_settings(section: AlgoConfig | DatasetConfig) -> dict[str, Any]:
    """Return the settings that shipped code does not read, and that may name files."""
    own = [
        field.name
        for field in fields(section)
        if field.metadata.get(PATH) and field.metadata.get("affects_result", True)
    ]
    return {name: getattr(section, name) for name in ("options", *own)}


def _named(prefix: str, settings: Mapping[str, Any], file_hash: Callable[[Path], str]) -> dict[str, Any]:
    """Identify the content of files and folders that texts in settings name, by dotted place of the text.

    Files whose setting's name says that they are written are left out.
    """
    files: dict[str, Any] = {}
    for name, value in settings.items():
        inner = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(inner, Mapping):
            own = {str(key): setting for key, setting in inner.items() if not _WRITTEN.search(str(key))}
            files |= {f"{name}.{at}": of for at, of in _named(f"{prefix}.{name}", own, file_hash).items()}
        elif isinstance(value, str) and os.path.exists(value):  # noqa: PTH110 - a text may be no path at all
            try:
                if content := _content(Path(value), file_hash):
                    files[name] = content
            except OSError as error:
                where = f"{prefix}.{name}={value}"
                raise ConfigError(f"{where}: cannot read {error.filename or value} ({error.strerror})") from error
    return files


def _content(path: Path, file_hash: Callable[[Path], str]) -> dict[str, str]:
    """Identify a file, or a folder by its visible files; empty for the current folder."""
    if path.is_file():
        return {"sha256": file_hash(path)}
    if Path.cwd().is_relative_to(path.resolve()):
        return {}
    named = {file.relative_to(path): file for file in path.rglob("*") if file.is_file()}
    seen = {name: file for name, file in named.items() if not any(part.startswith(".") for part in name.parts)}
    lines = [f"{name.as_posix()} {file_hash(seen[name])}\n" for name in sorted(seen)]
    return {"sha256": hashlib.sha256("".join(lines).encode()).hexdigest()} if lines else {}


def check_sources(config: Config) -> None:
    """Check that the source of every dataset exists, without reading it.

    Raises:
        PipelineError: As for `read_sources`.
    """
    for section in config.datasets.values():
        source_fingerprint(load_dataset(section), lambda _: "")


def read_models(config: Config, hints: Path | None = None) -> dict[str, dict[str, Any]]:
    """Identify the content of all models of a request, by name; see `plan.models`.

    Args:
        config: The request; its models have been checked.
        hints: As for `read_sources`.
    """
    hashes = _Hashes(hints)
    identities = {name: model_identities(section, hashes.sha256) for name, section in config.models.items()}
    hashes.save()
    return identities


class _Hashes:
    """SHA-256 of files, cached by path, size, inode and change time."""

    def __init__(self, hints: Path | None) -> None:
        # Not Path.is_dir(), which raises without permission.
        self._path = hints / FILE if hints is not None and os.path.isdir(hints) else None  # noqa: PTH112
        self._sums: dict[str, str] = {}
        self._new = False
        if self._path is not None:
            self._sums = recall(self._path, dict[str, _Sum]) or {}

    def sha256(self, path: Path) -> str:
        status = path.stat()
        name = f"{path.absolute()}:{status.st_size}:{status.st_ino}:{status.st_mtime_ns}:{status.st_ctime_ns}"
        if name not in self._sums:
            self._sums[name] = file_sha256(path, follow=True)
            self._new = True
        return self._sums[name]

    def save(self) -> None:
        if self._path is not None and self._new:
            remember(self._path, self._sums)
