"""What a shell offers for a word that has begun, beside the commands and options that typer itself knows."""

from __future__ import annotations

from pathlib import Path

import typer


def experiments(context: typer.Context, incomplete: str) -> list[str]:
    """Experiments that begin so, in the folder of the command."""
    folder = Path(context.params.get("output_dir") or "outputs")
    return sorted(path.parent.name for path in folder.glob("*/latest") if path.parent.name.startswith(incomplete))


def keys(incomplete: str) -> list[str]:
    """Keys of the configuration that begin so."""
    from pipeline.config.meaning import shipped_meanings

    return [f"{key}=" for key in shipped_meanings() if key.startswith(incomplete)]
