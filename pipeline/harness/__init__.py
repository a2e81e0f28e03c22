"""Trained models in the harnesses that people evaluate with: lm-evaluation-harness and inspect_ai.

Each is a thin model class over `pipeline.guided`, so prompts are made and texts drawn as in the run's evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from pipeline.learning.generation.guided import Guided

ARGUMENTS = ("round", "eta", "device", "dtype", "attention", "reference", "trust_remote_code", "output_dir")
"""Arguments of `pipeline.guided` that may be given as text."""


def load(model: str | Path, chain: str | None, given: Mapping[str, Any]) -> Guided:
    """Load a trained model by arguments of a command line; those that are None count as not given.

    Args:
        model: Model, as for `pipeline.guided`.
        chain: Chain of the model.
        given: Further arguments, by `ARGUMENTS`.

    Raises:
        PipelineError: An argument is unknown, or `pipeline.guided` refuses one.
    """
    import pipeline

    words = {name: value for name, value in given.items() if value is not None}
    if unknown := sorted(words.keys() - set(ARGUMENTS)):
        raise ConfigError(unknown_name("argument", unknown[0], [*ARGUMENTS, "chain", "folder", "name", "seed"]))
    try:
        words |= {name: read(words[name]) for name, read in (("eta", float), ("round", int)) if name in words}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"eta must be a number and round a whole one: {error}") from error
    return pipeline.guided(model, chain, **words)
