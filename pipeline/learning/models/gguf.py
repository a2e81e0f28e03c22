"""A GGUF file as a model of transformers: weights back in floating point, tokenizer and chat template included."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from pipeline.errors import JobError
from pipeline.learning.models.batch_size import is_out_of_memory
from pipeline.learning.models.load import save_tokenizer


def convert(file: Path, out: Path) -> PreTrainedModel:
    """Write the model of a GGUF file as a plain folder of safetensors.

    Values are those that the quantised weights stand for, in float32, which holds them exactly.

    Args:
        file: The GGUF file.
        out: Folder to write to.

    Returns:
        The model.

    Raises:
        JobError: The file is damaged, or transformers does not read its architecture.
    """
    # Both come with one progress bar for each tensor type, and one for the file that is written.
    logging.disable_progress_bar()
    place = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **place)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            str(file.parent), dtype=torch.float32, **place
        )
    except Exception as error:  # whatever a wrong byte leads the readers of this format to
        if is_out_of_memory(error):
            raise
        raise JobError(
            f"cannot read {file} as a model ({type(error).__name__}: {error}). transformers reads GGUF files of "
            "some architectures; for others, or a damaged file, get the safetensors of the model."
        ) from error
    # They say "quantised", which the weights no longer are.
    model.hf_quantizer = None  # type: ignore[assignment]
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # The name inside the file, and where it lay, are no part of the result.
    model.config._name_or_path = ""
    model.save_pretrained(out)
    save_tokenizer(tokenizer, out)
    return model
