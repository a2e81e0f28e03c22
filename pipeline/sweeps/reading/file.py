"""A sweep file as it is given: read, checked whole, and turned into what the rest of the package knows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pipeline.config.told import refuse_all
from pipeline.config.values import brief
from pipeline.errors import ConfigError
from pipeline.sweeps.reading.checks import sweep_faults, sweep_notes
from pipeline.sweeps.reading.malformed import schema_faults
from pipeline.sweeps.reading.parameters import entries_of, read_parameters
from pipeline.sweeps.reading.yaml_file import Document, Fault, Place, parse_yaml, read_yaml
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
        _refuse(path, document, document.faults)
        raise ConfigError(f"{path}: {'is empty' if document.data is None else 'holds no table'}: {_AN_EXAMPLE}")
    data, wrong = _with_overrides(document.data, overrides)
    told = (*schema_faults(document.data), *sweep_faults(data))
    found = [fault for fault in told if fault[0] not in document.unread]
    _refuse(path, document, [*document.faults, *found, *wrong, *_name_faults(path, data, name)])
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


def _with_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], list[Fault]]:
    """The file with the settings of the command line in it, and what is wrong with these."""
    found: dict[str, Any] = deepcopy(dict(data))
    block = found.setdefault("parameters", {}) if overrides else {}
    wrong: list[Fault] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not (_PLAIN.fullmatch(key) or _has(block, key)):
            said = "a setting of all trials is written KEY=VALUE, where KEY is the name of a parameter"
            wrong.append(((), f"{override!r}: {said}"))
            continue
        try:
            value = parse_yaml(text)
        except ConfigError as error:
            wrong.append(((), f"{override}: {error}"))
            continue
        wrong += [((), f"{override}: {value.where(place)}{said}") for place, said in value.faults]
        if isinstance(block, dict):
            _set(block, key, {"value": "" if value.data is None and not text else value.data})
    return found, wrong


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
"""What can be no slip of the finger; names of the file may be otherwise."""


def _has(block: Any, key: str) -> bool:
    return isinstance(block, dict) and any(entry.name == key for entry in entries_of(block))


def _set(block: dict[str, Any], key: str, given: dict[str, Any]) -> None:
    """Put a parameter in the place of the one of that dotted name, inside of tables too."""
    for name, table in block.items():
        inside = table.get("parameters") if isinstance(table, dict) else None
        if name != key and key.startswith(f"{name}.") and isinstance(inside, dict):
            return _set(inside, key.removeprefix(f"{name}."), given)
    block[key] = given
    return None


def _given_name(path: Path, data: Mapping[str, Any], name: str) -> tuple[Place, str]:
    """Where a sweep has its name from, and what that says; () for the command line or the file's own name."""
    options = data.get(OPTIONS)
    here = options.get("name") if isinstance(options, Mapping) else None
    places = {(): name, (OPTIONS, "name"): here, ("name",): data.get("name")}
    return next(((place, str(given)) for place, given in places.items() if given), ((), path.stem))


def _name(path: Path, data: Mapping[str, Any], name: str) -> str:
    """The one that was asked for, else of the file, with '-' for what folders should not have."""
    _, given = _given_name(path, data, name)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", given).strip("-._")[:_LONGEST_NAME]


def _name_faults(path: Path, data: Mapping[str, Any], name: str) -> Iterator[Fault]:
    place, given = _given_name(path, data, name)
    plain = _name(path, data, name)
    if not plain or (name and plain != name):
        yield (
            place,
            (
                f"{brief(given)} is no name for a sweep: it becomes a folder under output_dir, so use up to "
                f"{_LONGEST_NAME} letters, digits, '.', '_' or '-', starting with a letter or digit"
            ),
        )


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
