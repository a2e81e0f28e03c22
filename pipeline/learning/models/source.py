"""Find the files of a model.

The files are a folder, the snapshot of a hub id, or the converted form of a GGUF file or adapters. The output of
the reference's first stage points to a folder or a commit on the hub, or is itself the model.
"""

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline import errors, files, foreign
from pipeline.config.schema import ModelConfig
from pipeline.learning.datasets.files import folder_called_nearly, reaching, why_not
from pipeline.learning.models import kinds
from pipeline.outputs.formats import POINTER, read_input, read_pointer

_PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "*.txt", "*.py"]
"""Files to fetch for a hub id: no weights in other formats."""


def write_reference(model: ModelConfig, out: Path) -> None:
    """Write where the configured model is; a GGUF file or adapters are converted to a whole model here.

    Args:
        model: Configuration of kind ``hf``.
        out: Folder to write to.

    Raises:
        JobError: The hub has no such model, or cannot be reached.
    """
    path = str(model.path)
    if Path(path).is_file():
        from pipeline.learning.models.load import convert

        convert(Path(path), out)
        return
    if kinds.is_adapters(path):
        _write_merged(Path(path), out, trusted=model.trusts_code)
        return
    pointer: dict[str, Any] = {"path": str(Path(path).absolute())}
    if not Path(path).is_dir():
        # Every later job uses the commit found now, whatever the branch points to by then.
        revision = model.revisions["reference"]
        pointer = {"hub": path, "commit": Path(snapshot(path, revision, is_new=True)).name}
    (out / POINTER).write_text(files.json_text(pointer) + "\n")


def reference_folder(output: Path, model: ModelConfig) -> str:
    """Return the folder of the reference's model and tokenizer.

    Args:
        output: Output of the reference's first stage.
        model: Configuration in the current run: a folder may have moved since the output was made.
    """
    if not (output / POINTER).is_file():
        return str(output)
    pointer = read_input(output, POINTER, read_pointer)
    if pointer.hub is not None:
        return snapshot(pointer.hub, pointer.commit)
    return str(Path(str(model.path)).absolute())


def value_folder(model: ModelConfig, scratch: Path) -> str | None:
    """Return the folder of the value models' backbone, or None if that is the reference's.

    Args:
        model: Configuration of the model.
        scratch: Folder for the conversion of a GGUF file or adapters; removed by the caller.
    """
    path = model.value_path
    if path is None:
        return None
    if Path(path).is_file():
        from pipeline.learning.models.load import convert

        convert(Path(path), scratch)
        return str(scratch)
    if kinds.is_adapters(path):
        _write_merged(Path(path), scratch, trusted=model.trusts_code)
        return str(scratch)
    if Path(path).is_dir():
        return path
    return snapshot(path, model.revisions["value"])


def _write_merged(folder: Path, out: Path, *, trusted: bool) -> None:
    """Write a base merged with adapters as a model in float32, with the tokenizer of either.

    Raises:
        JobError: The adapters do not fit their base, or the hub does not provide the base.
    """
    from transformers import GenerationConfig

    from pipeline.config.schema import SystemConfig
    from pipeline.learning.models.adapters import merged_by_peft
    from pipeline.learning.models.load import load_policy, load_tokenizer, save_tokenizer

    base, words = (_folder_of(find(str(folder), None)) for find in (kinds.with_weights, kinds.tokenizer_place))
    whole = merged_by_peft(load_policy(base, SystemConfig(), "cpu", trust_remote_code=trusted), folder)
    if (
        folder / kinds.ENDS
    ).is_file():  # as adapters that were taught another end bring it; peft looks at the base alone
        whole.generation_config = GenerationConfig.from_pretrained(folder)
    tokenizer = load_tokenizer(words, trust_remote_code=trusted)
    rows = len(whole.get_input_embeddings().get_parameter("weight"))
    if len(tokenizer) > rows:
        raise errors.JobError(
            f"{folder}: the tokenizer has {len(tokenizer):,} tokens, and the model {rows:,} rows for them. Save "
            "the adapters together with the embedding that was resized (save_embedding_layers=True of peft)"
        )
    # The place of the files is no part of the result.
    whole.config._name_or_path = ""
    whole.save_pretrained(out)
    save_tokenizer(tokenizer, out)


def _folder_of(base: kinds.Base) -> str:
    return base.path if Path(base.path).is_dir() else snapshot(base.path, base.revision)


def value_context(model: ModelConfig) -> int | None:
    """Return the number of tokens in the context of a separate value backbone.

    None for no limit or no such backbone.
    """
    from transformers import AutoConfig

    from pipeline.learning.models.load import config_context

    with tempfile.TemporaryDirectory() as scratch:
        folder = value_folder(model, Path(scratch))
        if folder is None:
            return None
        return config_context(AutoConfig.from_pretrained(folder, trust_remote_code=model.trusts_code))


def snapshot(repo: str, revision: str | None, *, is_new: bool = False) -> str:
    """Return the local folder of a model on the hub, fetched if it is not there.

    Args:
        repo: Id of the model.
        revision: Commit, tag or branch; None for the newest.
        is_new: The model becomes a reference and is not checked yet: weights are fetched only after a check of its
            kind.

    Raises:
        JobError: The hub has no such model, or cannot be reached and the cache lacks it; or the model cannot
            continue texts.
    """
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    with reaching("models", repo) as trouble:
        try:
            if is_new:
                _check_kind(repo, Path(hf_hub_download(repo, "config.json", revision=revision)))
            return str(snapshot_download(repo, revision=revision, allow_patterns=_PATTERNS))
        except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
            at = "" if revision is None else f" at revision {revision}"
            reason, cause = why_not(error, trouble)
            raise errors.JobError(
                f"cannot get the model '{repo}'{at} from the hub: {reason}. {_no_folder(repo)}On a machine with "
                f"network run `hf download {repo} --local-dir DIR`, copy DIR here and set the path to it."
            ) from cause


def _check_kind(repo: str, file: Path) -> None:
    config: Any = None
    with suppress(foreign.ForeignDataError):  # transformers will say what is wrong with it
        config = foreign.parse_json(file.read_bytes())
    if isinstance(config, dict) and (
        why := kinds.why_not_usable(config) or ("auto_map" not in config and kinds.unknown_kind(config))
    ):
        raise errors.JobError(f"{repo}: {why}")


def _no_folder(repo: str) -> str:
    """Describe that there is no such folder, and name a folder with a similar name if there is one."""
    near = folder_called_nearly(repo)
    meant = f", but {near}" if near else ""
    return f"There is no folder {repo} here{meant}. "
