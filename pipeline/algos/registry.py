"""Algorithms by name; a module is imported when its algorithm is used."""

from __future__ import annotations

from pipeline.algos.base import Algorithm
from pipeline.config.load import import_object
from pipeline.errors import ConfigError, unknown_name

ALGORITHMS = {
    "BestOfN": "pipeline.algos.best_of_n:BestOfN",
    "CD": "pipeline.algos.cd:CD",
    "DPO": "pipeline.algos.dpo:DPO",
    "GRPO": "pipeline.algos.grpo:GRPO",
    "GRPO-HF": "pipeline.algos.grpo_hf:GRPOHF",
    "PITA": "pipeline.algos.pita:PITA",
    "QSharp": "pipeline.algos.qsharp:QSharp",
    "QSharp-HF": "pipeline.algos.qsharp_hf:QSharpHF",
    "SFT": "pipeline.algos.sft:SFT",
}
"""Name -> dotted path of the class."""

SHARED = {
    "dataset": "pipeline.algos.prepare:Preparation",
    "reference": "pipeline.algos.reference:Reference",
}
"""What all chains share, written as algorithms of round 0."""


def known_algorithms() -> list[str]:
    """Names of the algorithms that ship, sorted."""
    return sorted(ALGORITHMS)


def load_algorithm(name: str, class_path: str | None = None) -> type[Algorithm]:
    """Find an algorithm's class.

    Raises:
        ConfigError: The name is unknown, the path names no `Algorithm`, or a stage has no method.
    """
    known = {**ALGORITHMS, **SHARED}
    if class_path is None and name not in known:
        raise ConfigError(unknown_name("algorithm", name, ALGORITHMS))
    path = class_path or known[name]
    kind = import_object(path)
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise ConfigError(f"'{path}' is no algorithm: it must be a subclass of pipeline.algos.base.Algorithm")
    missing = [stage.name for stage in kind.stages if not callable(getattr(kind, stage.name, None))]
    if missing:
        raise ConfigError(f"{path} lists the stages {', '.join(missing)} but has no method of that name")
    return kind
