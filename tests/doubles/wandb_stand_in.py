"""A stand-in for the package wandb: a sweep is a file, and its agent runs trials of a grid. See `install`.

What it does instead of working is told by the file ``mode`` in the folder that WANDB_STAND_IN names: ``hangs``,
``garbage``, ``fails``, ``agent fails``, ``nothing``.
"""

import fcntl
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import yaml

FOLDER = "WANDB_STAND_IN"
ID = "abc123"


def install(folder: Path, environment: dict[str, str]) -> Path:
    """Put it in the place of wandb, for processes with an environment; returns the folder of its server."""
    package, server = folder / "site" / "wandb", folder / "server"
    package.mkdir(parents=True)
    server.mkdir()
    (server / "mode").write_text("")
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("from tests.doubles.wandb_stand_in import main\nmain()\n")
    root = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join([str(package.parent), root])
    environment[FOLDER] = str(server)
    return server


def _server() -> Path:
    return Path(os.environ[FOLDER])


def _mode() -> str:
    return (_server() / "mode").read_text()


def _sweep(file: str) -> None:
    if _mode() == "hangs":
        time.sleep(600)
    if _mode() == "fails":
        sys.exit("wandb: ERROR api_key not configured (no-tty)")
    print("wandb: Creating sweep with ID: nothing that anybody should read", file=sys.stderr)
    (_server() / "sweep.json").write_text(json.dumps({"config": yaml.safe_load(Path(file).read_text())}))
    path = "../\x1b[2J" if _mode() == "garbage" else f"me/sums/{ID}"
    print(f"wandb: Run sweep agent with: wandb agent {path}", file=sys.stderr)


def main() -> None:
    """``python -m wandb sweep FILE``, and ``agent --forward-signals --count 1 PATH``."""
    if sys.argv[1] == "sweep":
        _sweep(sys.argv[2])
        return
    assert sys.argv[1:] == ["agent", "--forward-signals", "--count", "1", f"me/sums/{ID}"], sys.argv
    if _mode() == "agent fails":
        sys.exit("wandb: ERROR BrokenPipeError")
    config = json.loads((_server() / "sweep.json").read_text())["config"]
    parameters = config["parameters"]
    names = sorted(parameters)
    points = [
        *itertools.product(*(parameters[name].get("values") or [parameters[name]["value"]] for name in names))
    ]
    number = _next()
    if number >= len(points) or _mode() == "nothing":
        return
    folder = Path(os.environ["WANDB_DIR"]) / "wandb" / f"sweep-{ID}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"config-run{number}.yaml").write_text("")
    arguments = [f"--{name}={value}" for name, value in zip(names, points[number], strict=True)]
    filled = {
        "${env}": ["/usr/bin/env"],
        "${interpreter}": ["python"],
        "${program}": [config["program"]],
        "${args}": arguments,
    }
    command = config.get("command", ["${env}", "${interpreter}", "${program}", "${args}"])
    words = [each for word in command for each in filled.get(word, [word])]
    subprocess.run(words, env={**os.environ, "WANDB_SWEEP_ID": ID, "WANDB_RUN_ID": f"run{number}"}, check=False)


def _next() -> int:
    """Number of the next trial, which no other agent is given."""
    with (_server() / "next").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = len(file.read())
        if _mode() != "nothing":
            file.write("x")
        return number
