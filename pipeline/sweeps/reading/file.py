"""A sweep file as it is given: read, checked whole, and turned into what the rest of the package knows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pipeline.config.checks import refuse_all
from pipeline.errors import ConfigError
from pipeline.sweeps.reading.checks import sweep_faults, sweep_notes
from pipeline.sweeps.reading.malformed import schema_faults
from pipeline.sweeps.reading.parameters import read_parameters
from pipeline.sweeps.reading.yaml_file import Document, Fault, parse_yaml, read_yaml
from pipeline.sweeps.searching.hyperband import bands_of
from pipeline.sweeps.spec import Goal, Hyperband, Impute, Launcher, Method, Metric, Options, Sweep

DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
"""W&B's."""
OPTIONS = "pipeline"
"""The block of what only this program understands."""


def read_sweep(path: Path, *, name: str = "", overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file.

    Args:
        path: The file: W&B's, with or without a block ``pipeline:``.
        name: Of the sweep; "" for that in the file, or the name of the file.
        overrides: ``KEY=VALUE``, each a parameter with one value, in place of what the file says of it.

    Raises:
        ConfigError: Says everything that is wrong, each with its place, and what to try.
    """
    return sweep_of(read_yaml(path), path, name=name, overrides=overrides)


def sweep_of(document: Document, path: Path, *, name: str = "", overrides: Sequence[str] = ()) -> Sweep:
    """Check what a file holds, and make a sweep of it; see `read_sweep`.

    Raises:
        ConfigError: As there.
    """
    if not isinstance(document.data, dict):
        raise ConfigError(f"{path}: {'is empty' if document.data is None else 'holds no table'}: {_AN_EXAMPLE}")
    _refuse(path, document, schema_faults(document.data))
    data = _with_overrides(document.data, overrides)
    _refuse(path, document, sweep_faults(data))
    return _sweep(data, _name(path, data, name))


_AN_EXAMPLE = "a sweep file has `method`, `parameters` and `program` at least, see docs/sweep-file.md"


def _refuse(path: Path, document: Document, faults: Iterable[Fault]) -> None:
    """Tell all faults in the order of the file.

    Raises:
        ConfigError: There are any.
    """
    found = sorted(faults, key=lambda fault: document.line(fault[0]))
    said = dict.fromkeys(f"{document.where(place)}{text}" for place, text in found)
    if len(said) == 1:
        raise ConfigError(f"{path}: {next(iter(said))}")
    try:
        refuse_all(list(said))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _with_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = deepcopy(dict(data))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", key):
            raise ConfigError(
                f"{override!r}: a setting of all trials is written KEY=VALUE, where KEY is the name of a parameter"
            )
        try:
            value = parse_yaml(text).data
        except ConfigError as error:
            raise ConfigError(f"{override}: {error}") from error
        _set(found.setdefault("parameters", {}), key, {"value": "" if value is None and not text else value})
    return found


def _set(block: dict[str, Any], key: str, given: dict[str, Any]) -> None:
    """Put a parameter in the place of the one of that dotted name, inside of tables too."""
    for name, inside in block.items():
        if name != key and key.startswith(f"{name}.") and "parameters" in inside:
            return _set(inside["parameters"], key.removeprefix(f"{name}."), given)
    block[key] = given
    return None


def _name(path: Path, data: Mapping[str, Any], name: str) -> str:
    """The one that was asked for, else of the file, with '-' for what folders should not have."""
    given = name or data.get(OPTIONS, {}).get("name") or data.get("name") or path.stem
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", str(given)).strip("-._")[:_LONGEST_NAME]
    if not plain or (name and plain != name):
        raise ConfigError(
            f"{path}: {given!r} is no name for a sweep: it becomes a folder under output_dir, so use up to "
            f"{_LONGEST_NAME} letters, digits, '.', '_' or '-', starting with a letter or digit"
        )
    return plain


_LONGEST_NAME = 100


# -- data that has no faults -------------------------------------------------------------------------------------


def _sweep(data: Mapping[str, Any], name: str) -> Sweep:
    parameters = {parameter.name: parameter for parameter in read_parameters(data["parameters"])}
    return Sweep(
        name=name,
        method=Method(data["method"]),
        metric=_metric(data["metric"]) if "metric" in data else None,
        parameters=parameters,
        program=data.get("program", ""),
        command=tuple(map(str, data.get("command", DEFAULT_COMMAND))),
        run_cap=data.get("run_cap"),
        early_terminate=_hyperband(data["early_terminate"]) if "early_terminate" in data else None,
        options=_options(data.get(OPTIONS, {})),
        given={key: value for key, value in data.items() if key != OPTIONS},
        folder=Path.cwd(),
        notes=tuple(sweep_notes(data)),
    )


def _metric(block: Mapping[str, Any]) -> Metric:
    while_running = block.get("impute_while_running", False)
    return Metric(
        name=block["name"],
        goal=Goal(block.get("goal", "minimize")),
        target=block.get("target"),
        impute=Impute(block.get("impute", "worst")),
        impute_while_running=None if while_running in (False, "false") else Impute(while_running),
    )


def _hyperband(block: Mapping[str, Any]) -> Hyperband:
    return Hyperband(bands=bands_of(block), eta=float(block.get("eta", 3)), strict=block.get("strict", True))


def _options(block: Mapping[str, Any]) -> Options:
    prepare = block.get("prepare", ())
    as_they_are = ("num_gpus", "distributed_program", "max_attempts", "max_failures", "seed")
    return Options(
        **{key: block[key] for key in as_they_are if key in block},
        launcher=Launcher(block.get("launcher", "torchrun")),
        prepare=tuple(shlex.split(prepare) if isinstance(prepare, str) else map(str, prepare)),
        environment={key: str(value) for key, value in block.get("environment", {}).items()},
    )
