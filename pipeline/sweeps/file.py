"""The sweep file, W&B's, whole: read, checked, and turned into a `Sweep`, plain data from here on.

What only this program understands stands in the block ``pipeline:``. YAML is read as PyYAML reads it, which is
how W&B does, with three differences: ``1e-5`` is a number, as YAML 1.2 has it; dates and numbers of base 60
(``1:30``) are texts, likewise; and a key that is there twice is a mistake.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from pipeline.config.bounds import LARGEST_FILE, check_yaml
from pipeline.config.values import brief, one_line, refuse_all
from pipeline.engine.devices.worker_env import is_of_launcher
from pipeline.errors import ConfigError, known_names, unknown_name
from pipeline.foreign import ForeignDataError, read_plain
from pipeline.sweeps.reporting import VARIABLE
from pipeline.sweeps.space import DEPRECATED, LEAST_SHARE, Parameter, is_whole, kind_of, made

DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
"""W&B's."""
MACROS = (
    *("env", "interpreter", "program", "args", "args_no_equals", "args_no_hyphens", "args_no_boolean_flags"),
    *("args_json", "args_json_file", "args_append_hydra", "args_override_hydra"),
)
"""What stands in a command as ``${NAME}``, besides ``${envvar:NAME}``."""
NUM_GPUS = "num_gpus"
"""The parameter that says how many devices a trial needs."""


Goal = Literal["minimize", "maximize"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What trials are judged by.

    Attributes:
        name: As the program logs it.
        goal: Which values are better: ``minimize`` or ``maximize``.
        target: No trial is begun once one has reached it; None for none.
        impute: What a failed trial counts as in a search: ``worst``, ``best`` or ``latest``.
        impute_while_running: What one that still runs counts as; "" for nothing.
    """

    name: str
    goal: Goal = "minimize"
    target: float | None = None
    impute: str = "worst"
    impute_while_running: str = ""


@dataclass(frozen=True, kw_only=True)
class Hyperband:
    """When a trial is stopped before its end.

    Attributes:
        bands: Numbers of logged values at which trials are compared, ascending.
        eta: One of so many goes on.
        strict: Compare what a trial has at the band, rather than its best so far.
    """

    bands: tuple[int, ...]
    eta: float = 3.0
    strict: bool = True


@dataclass(frozen=True, kw_only=True)
class Options:
    """The block ``pipeline:`` of the file.

    Attributes:
        num_gpus: Devices of a trial, where `num_gpus` is no parameter.
        launcher: How a trial with several devices is started: ``torchrun``, a process for each, or ``none``, once.
        distributed_program: In place of ``program`` for a trial with several devices; "" for the same one.
        max_attempts: Times that a trial is begun before it counts as failed.
        max_failures: Failed trials in a row after which the sweep stops.
        seed: Of the search.
        prepare: A command that is run once before the first trial, with the macros of ``command``.
        environment: Variables that trials have besides those of this process.
    """

    num_gpus: int = 1
    launcher: str = "torchrun"
    distributed_program: str = ""
    max_attempts: int = 2
    max_failures: int = 3
    seed: int = 0
    prepare: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep as it was asked for.

    Attributes:
        name: Of its folder: a name as that of an experiment.
        method: How settings are chosen: ``grid``, ``random`` or ``bayes``.
        metric: What trials are judged by; None for grid and random ones that are not.
        parameters: By dotted name, in the order of the file, those of tables inside it too.
        program: What a trial runs; "" where `command` says all.
        command: How it is called, with W&B's macros.
        run_cap: The most trials; None for no bound.
        early_terminate: When trials are stopped early; None for never.
        options: What W&B does not know.
        given: The file as plain data, numbers as numbers, without the block ``pipeline:``; what W&B is given.
        folder: Where programs are found and trials start: the folder in which the sweep was begun.
    """

    name: str
    method: str
    metric: Metric | None
    parameters: Mapping[str, Parameter]
    program: str
    command: tuple[str, ...]
    run_cap: int | None = None
    early_terminate: Hyperband | None = None
    options: Options = field(default_factory=Options)
    given: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)

    @property
    def is_own(self) -> bool:
        """Whether its trials are runs of this package."""
        return is_of_package((self.program, *self.command))

    def notes(self) -> Iterator[str]:
        """Tell what is no mistake and yet may surprise, a line each."""
        for word in self.command:
            if macro_of(word) is None and (inside := [name for name in MACROS if f"${{{name}}}" in word]):
                yield f"command: ${{{inside[0]}}} stays as it is in {brief(word)}: a macro is an item of the list"
            elif (bare := word.strip("${}")) in MACROS and word not in (bare, f"${{{bare}}}"):
                yield f"command: {brief(word)} stays as it is: a macro is written ${{{bare}}}"
        for place, given in _blocks(self.given.get("parameters", {})):
            if (kind := kind_of(given)) in DEPRECATED:
                yield (
                    f"{dotted(place)}: {kind} takes its bounds as exponents of e; {DEPRECATED[kind]} takes values"
                )


def read_sweep(path: Path, *, name: str = "", overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file.

    Args:
        path: The file: W&B's, with or without a block ``pipeline:``.
        name: Of the sweep; "" for that in the file, or the name of the file.
        overrides: ``KEY=VALUE``, each a parameter with one value, in place of what the file says of it.

    Raises:
        ConfigError: Says everything that is wrong, each with its place.
    """
    try:
        text = read_plain(path, LARGEST_FILE, follow=True).decode("utf-8-sig")
        return sweep_of(parse_yaml(text), path, name=name, overrides=overrides)
    except (OSError, ForeignDataError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: this is no UTF-8 text, and a sweep file is YAML") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def sweep_of(data: Any, path: Path, *, name: str = "", overrides: Sequence[str] = ()) -> Sweep:
    """Check what a file holds, and make a sweep of it; see `read_sweep`.

    Raises:
        ConfigError: As there, without the name of the file.
    """
    if not isinstance(data, dict):
        raise ConfigError("a sweep file is a table with `method`, `parameters` and `program` at least")
    data = deepcopy(data)
    wrong = list(_override(data, overrides))
    options = data.get("pipeline")
    wanted = name or (options.get("name") if isinstance(options, dict) else "") or data.get("name") or path.stem
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", str(wanted)).strip("-._")[:100]
    if not plain or (name and plain != name):
        wrong.append(((), f"{brief(wanted)} is no name for a sweep: 1 to 100 letters, digits, '.', '_' or '-'"))
    faults = [*wrong, *_faults(data)]
    refuse_all(list(dict.fromkeys(f"{dotted(place)}{': ' if place else ''}{text}" for place, text in faults)))
    metric, early, options = (dict(data.get(key, {})) for key in ("metric", "early_terminate", "pipeline"))
    metric["impute_while_running"] = {False: "", "false": ""}.get(
        metric.get("impute_while_running", False), metric.get("impute_while_running")
    )
    options.pop("name", None)
    if "prepare" in options:
        line = options["prepare"]
        options["prepare"] = tuple(shlex.split(line) if isinstance(line, str) else map(str, line))
    options["environment"] = {key: str(value) for key, value in options.get("environment", {}).items()}
    return Sweep(
        name=plain,
        method=data["method"],
        metric=Metric(**metric) if "metric" in data else None,
        parameters={each.name: each for each in map(made, *zip(*_leaves(data["parameters"]), strict=True))},
        program=data.get("program", ""),
        command=tuple(map(str, data.get("command", DEFAULT_COMMAND))),
        run_cap=data.get("run_cap"),
        early_terminate=Hyperband(
            bands=bands_of(early), eta=float(early.get("eta", 3)), strict=early.get("strict", True)
        )
        if early
        else None,
        options=Options(**options),
        given={key: value for key, value in data.items() if key != "pipeline"},
        folder=Path.cwd(),
    )


def macro_of(word: str) -> str | None:
    """Name of the macro that a word of a command is; None for one that is none."""
    found = re.fullmatch(r"\$\{([^}]*)\}", ENVVAR.sub("", word))
    return None if found is None else found[1]


ENVVAR = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")


def bands_of(block: Mapping[str, Any]) -> tuple[int, ...]:
    """Numbers of logged values at which W&B compares trials, ascending; none where `max_iter` is too small.

    Args:
        block: ``early_terminate``, with `max_iter` and `s`, or `min_iter`.
    """
    eta, most = block.get("eta", 3), 100
    if "max_iter" in block and "s" in block:
        found = [block["max_iter"] / eta**power for power in range(1, min(block["s"], most) + 1)]
    else:
        found = [block["min_iter"] * float(eta) ** power for power in range(most) if eta**power < 1e300]
    return tuple(sorted({int(band) for band in found if 1 <= band < 1e15}))


# -- YAML --------------------------------------------------------------------------------------------------------

Place = tuple[str | int, ...]
"""Keys, and positions in lists, from the top of the file."""
Fault = tuple[Place, str]
"""What is wrong, and where."""


def dotted(place: Place) -> str:
    """Write a place as ``parameters.lr.values[2]``."""
    parts = (
        f"[{part}]" if isinstance(part, int) else f".{part if part.isprintable() else brief(part)}"
        for part in place
    )
    return "".join(parts).removeprefix(".")[:200]


def parse_yaml(text: str) -> Any:
    """Read a text as plain data that JSON can hold.

    Raises:
        ConfigError: It is no YAML, too large or too deep, or has a value that no setting has.
    """
    try:
        check_yaml(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - it is a safe one
    except (yaml.YAMLError, ValueError, LookupError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        macro = re.search(r"[\[,]\s*\$\{", text)
        hint = ' A macro in a list stands in quotes: "${args}".' if macro and not where.endswith("0: ") else ""
        raise ConfigError(
            f"{where}not valid YAML: {getattr(error, 'problem', None) or one_line(str(error))}.{hint}"
        ) from error


class _Loader(yaml.SafeLoader):
    """PyYAML's, with other words for numbers, and without what is no plain data."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == f"{_TAG}merge":
                continue
            if key.tag != f"{_TAG}str":
                raise _mistake(key, f"the key {brief(str(key.value))} is no text: write it in quotes")
            if key.value in seen:
                raise _mistake(key, f"the key {brief(key.value)} is there twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        found = super().construct_scalar(node)
        if "\0" in str(node.value):
            raise _mistake(node, "has a NUL character, which no command line can have")
        return found

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        found = super().construct_yaml_float(node)
        if math.isnan(found) or (math.isinf(found) and "inf" not in node.value.lower()):
            raise _mistake(node, f"{brief(node.value)} is no number that settings may have")
        return float(found)

    def refuse(self, node: yaml.Node) -> Any:
        """Refuse dates, sets, bytes and Python's own objects, which nobody means without saying so by a tag."""
        raise _mistake(node, f"{node.tag.replace(_TAG, '!!')} is nothing that settings are made of")


_TAG = "tag:yaml.org,2002:"
_NUMBER = r"""^(?: [-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)? | [-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    | [-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)? | [-+]?\.(?:inf|Inf|INF) | \.(?:nan|NaN|NAN) )$"""
_WHOLE_NUMBER = r"^[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"
_OTHERWISE = {f"{_TAG}{kind}" for kind in ("float", "int", "timestamp", "value")}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, words) for tag, words in known if tag not in _OTHERWISE]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}float", re.compile(_NUMBER, re.VERBOSE), list("-+0123456789."))
_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(_WHOLE_NUMBER), list("-+0123456789"))
_Loader.yaml_constructors = {
    f"{_TAG}{kind}": yaml.SafeLoader.yaml_constructors[f"{_TAG}{kind}"]
    for kind in ("null", "bool", "int", "str", "seq", "map")
} | {f"{_TAG}float": _Loader.construct_yaml_float, None: _Loader.refuse}  # type: ignore[dict-item]


def _mistake(node: yaml.Node, text: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, text, node.start_mark)


# -- settings of the command line --------------------------------------------------------------------------------


def _override(data: dict[str, Any], overrides: Sequence[str]) -> Iterator[Fault]:
    """Put them into the block of parameters, and tell what is wrong with them."""
    for override in overrides:
        key, equals, text = override.partition("=")
        block = data.setdefault("parameters", {})
        known = [".".join(path) for path, _ in _leaves(block)] if isinstance(block, dict) else []
        if not equals or not (key in known or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", key)):
            yield (), f"{override!r}: a setting of all trials is written KEY=VALUE, with the name of a parameter"
            continue
        try:
            value = parse_yaml(text) if text else ""
        except ConfigError as error:
            yield (), f"{override}: {error}"
            continue
        if isinstance(block, dict):
            _set(block, key, {"value": value})


def _set(block: dict[str, Any], key: str, given: dict[str, Any]) -> None:
    """Put a parameter in the place of the one of that dotted name, inside of tables too."""
    for name, table in block.items():
        inside = table.get("parameters") if isinstance(table, dict) else None
        if name != key and key.startswith(f"{name}.") and isinstance(inside, dict):
            return _set(inside, key.removeprefix(f"{name}."), given)
    block[key] = given
    return None


# -- what a file may say -----------------------------------------------------------------------------------------

Kind = tuple[str, Callable[[Any], bool]]
"""Of a value: in words, and whether one is it."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1.7976931348623157e308


def _one_of(*names: Any) -> Kind:
    return f"one of {', '.join(map(str, names))}", lambda value: value in names and type(value) in map(type, names)


TEXT: Kind = "a text", lambda value: isinstance(value, str) and value != ""
_NOTE: Kind = "a text", lambda value: isinstance(value, str)
NUMBER: Kind = "a finite number", _is_number
POSITIVE: Kind = "a finite number above 0", lambda value: _is_number(value) and value > 0
WHOLE: Kind = "a whole number", is_whole
COUNT: Kind = "a whole number, 1 or more", lambda value: is_whole(value) and value >= 1
LIST: Kind = "a list with something in it", lambda value: isinstance(value, list) and len(value) > 0
_ANY: Kind = "", lambda _value: True
_WORD: Kind = "a text or a number", lambda value: isinstance(value, str) or _is_number(value)
_WORDS: Kind = "a list of words", lambda value: LIST[1](value) and all(map(_WORD[1], value))
_SHARES: Kind = (
    "a list of numbers from 0 to 1",
    lambda value: LIST[1](value) and all(_is_number(each) and 0 <= each <= 1 for each in value),
)
_TABLE: Kind = "a table", lambda value: isinstance(value, dict)
_RANGE, _ABOVE_ZERO = {"min": NUMBER, "max": NUMBER}, {"min": POSITIVE, "max": POSITIVE}
_NORMAL, _BETA, _STEP = {"mu": NUMBER, "sigma": POSITIVE}, {"a": POSITIVE, "b": POSITIVE}, {"q": POSITIVE}

DISTRIBUTIONS: Mapping[str, tuple[Mapping[str, Kind], Mapping[str, Kind]]] = {
    "constant": ({"value": _ANY}, {}),
    "categorical": ({"values": LIST}, {}),
    "categorical_w_probabilities": ({"values": LIST, "probabilities": _SHARES}, {}),
    "int_uniform": ({"min": WHOLE, "max": WHOLE}, {}),
    "uniform": (_RANGE, {}),
    "q_uniform": (_RANGE, _STEP),
    "log_uniform": (_RANGE, {}),
    "q_log_uniform": (_RANGE, _STEP),
    "inv_log_uniform": (_RANGE, {}),
    "log_uniform_values": (_ABOVE_ZERO, {}),
    "q_log_uniform_values": (_ABOVE_ZERO, _STEP),
    "inv_log_uniform_values": (_ABOVE_ZERO, {}),
    "normal": ({}, _NORMAL),
    "q_normal": ({}, {**_NORMAL, **_STEP}),
    "log_normal": ({}, _NORMAL),
    "q_log_normal": ({}, {**_NORMAL, **_STEP}),
    "beta": ({}, _BETA),
    "q_beta": ({}, {**_BETA, **_STEP}),
}
"""Name -> keys that a parameter of this distribution must have, and those that it may have."""
METHODS = ("grid", "random", "bayes")
_IMPUTE = ("worst", "best", "latest")
_METRIC = {
    "name": TEXT,
    "goal": _one_of("minimize", "maximize"),
    "target": NUMBER,
    "impute": _one_of(*_IMPUTE),
    "impute_while_running": _one_of(*_IMPUTE, "false", False),
}
_EARLY = {
    "type": _one_of("hyperband"),
    **dict.fromkeys(("min_iter", "max_iter", "s"), COUNT),
    "eta": ("a finite number above 1", lambda value: _is_number(value) and value > 1),
    "strict": ("true or false", lambda value: isinstance(value, bool)),
}
_OPTIONS: Mapping[str, Kind] = {
    "name": TEXT,
    "num_gpus": COUNT,
    "launcher": _one_of("torchrun", "none"),
    "distributed_program": TEXT,
    "max_attempts": COUNT,
    "max_failures": COUNT,
    "seed": ("a whole number, 0 or more", lambda value: is_whole(value) and value >= 0),
    "prepare": ("a list of words, or a line", lambda value: TEXT[1](value) or _WORDS[1](value)),
    "environment": _TABLE,
}
KEYS: Mapping[str, Kind] = {
    "method": _one_of(*METHODS),
    "parameters": ("a table with something in it", lambda value: isinstance(value, dict) and len(value) > 0),
    "program": TEXT,
    "command": _WORDS,
    "run_cap": COUNT,
    **dict.fromkeys(("metric", "early_terminate", "pipeline", "controller"), _TABLE),
    **dict.fromkeys(("name", "description", "entity", "project", "apiVersion", "kind", "job", "image_uri"), _NOTE),
}
_ELSEWHERE = {
    "scheduler": "leave the block out and say `method: bayes`, Optuna's TPE",
    "metrics": "judge by one `metric`, and log the others, which the report of the sweep shows too",
}
"""What W&B has others do, with code of the user's own -> what to write instead."""


def _table(data: Any, place: Place, keys: Mapping[str, Kind], needed: Sequence[str] = ()) -> Iterator[Fault]:
    """Tell what single keys and values of a table have against them."""
    for key, value in data.items():
        if key not in keys:
            own = (
                " Options of this program belong in the block `pipeline:`."
                if key in _OPTIONS and not place
                else ""
            )
            yield (*place, key), f"unknown key.{known_names(key, keys)}{own}"
        elif not keys[key][1](value):
            words, names = keys[key][0], keys[key][0].removeprefix("one of ").split(", ")
            named = isinstance(value, str) and words.startswith("one of ")
            said = unknown_name(key, value, names) if named else f"{brief(value)}, where {words} must be"
            yield (*place, key), said
    yield from ((place, f"`{key}` is missing: {keys[key][0]}") for key in needed if key not in data)


def _faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Tell what is wrong with a sweep file, each with its place."""
    for key, instead in _ELSEWHERE.items():
        if key in data:
            yield (key,), f"a scheduler of your own at W&B carries it out: {instead}"
    rest = {key: value for key, value in data.items() if key not in _ELSEWHERE}
    yield from _table(rest, (), KEYS, ("method", "parameters"))
    metric, early, options = (
        rest[key] if isinstance(rest.get(key), dict) else {} for key in ("metric", "early_terminate", "pipeline")
    )
    if "metric" in rest:
        yield from _table(metric, ("metric",), _METRIC, ("name",))
    elif early or data.get("method") == "bayes":
        yield (), "`metric` is missing: `bayes` and `early_terminate` judge by it. Give it a `name` and a `goal`"
    if "early_terminate" in rest:
        yield from _early(early)
    yield from _table(options, ("pipeline",), _OPTIONS)
    yield from _command(rest, options)
    if isinstance(rest.get("parameters"), dict):
        yield from _parameters(rest, rest["parameters"])


def _early(early: Mapping[str, Any]) -> Iterator[Fault]:
    place: Place = ("early_terminate",)
    found = list(_table(early, place, _EARLY, ("type",)))
    yield from found
    if not found and "min_iter" not in early and not {"max_iter", "s"} <= early.keys():
        yield place, "`min_iter` is missing, or `max_iter` and `s`"
    elif not found and not bands_of(early):
        yield place, "no trial would ever be stopped: the first comparison is at max_iter / eta logged values"


def _command(data: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[Fault]:
    """Tell what is wrong with what is run."""
    words = data.get("command") if isinstance(data.get("command"), list) else []
    if "program" not in data and (not words or "${program}" in words):
        launched = " (`job` and `image_uri` are of W&B Launch, which is not run here)" if "job" in data else ""
        yield (), f"`program` is missing: what a trial runs{launched}"
    prepare = options.get("prepare", [])
    if isinstance(prepare, str):
        try:
            prepare = shlex.split(prepare)
        except ValueError as error:
            yield ("pipeline", "prepare"), f"{brief(prepare)} cannot be taken apart as a shell does: {error}"
            prepare = []
    for place, line in ((("command",), words or []), (("pipeline", "prepare"), prepare)):
        for number, word in enumerate(line if isinstance(line, list) else []):
            if (macro := macro_of(str(word))) is not None and macro not in MACROS:
                yield (*place, number), unknown_name("macro", macro, [*MACROS, "envvar:NAME"])
    environment = options.get("environment")
    for name, value in (environment if isinstance(environment, dict) else {}).items():
        own: Place = ("pipeline", "environment", name)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield own, "is no name of a variable: letters, digits and '_'"
        if not _WORD[1](value):
            yield own, f"{brief(value)}, where {_WORD[0]} must be"
        if name in ("CUDA_VISIBLE_DEVICES", "WANDB_DIR", VARIABLE) or is_of_launcher(name):
            yield own, "each trial has one of its own, by its devices, its ranks and its folder: leave it out"


# -- parameters --------------------------------------------------------------------------------------------------


def _blocks(block: Mapping[str, Any], place: Place = ("parameters",)) -> Iterator[tuple[Place, Any]]:
    """Places and blocks of all parameters, those of tables inside too, whatever is wrong with them."""
    for name, given in block.items():
        inside = given.get("parameters") if isinstance(given, dict) else None
        if isinstance(inside, dict) and inside and len(given) == 1:
            yield from _blocks(inside, (*place, name, "parameters"))
        else:
            yield (*place, name), given


def _leaves(block: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The same by their paths, without the names of the tables that hold them."""
    return ((tuple(map(str, place[1::2])), given) for place, given in _blocks(block))


def _parameters(data: Mapping[str, Any], block: Mapping[str, Any]) -> Iterator[Fault]:
    seen: set[str] = set()
    command = data.get("command") if isinstance(data.get("command"), list) else []
    own = is_of_package(str(word) for word in (data.get("program"), *(command or [])))
    varies = False
    for place, given in _blocks(block):
        name = ".".join(map(str, place[1::2]))
        found = list(_parameter(place, given))
        if not found:
            parameter = made((name,), given)
            varies = varies or parameter.kind != "constant"
            found = [(place, said) for said in _together(data, parameter)]
        if own:
            found += [(place, said) for said in _own(name, given)]
        if name in seen:
            found.append((place, f"two parameters have the dotted name {name}: rename one"))
        if not all(str(part) and str(part).isprintable() for part in place):
            found.append((place, "is no name here: any characters but line breaks and such"))
        seen.add(name)
        varies = varies or bool(found)
        yield from found
    if block and data.get("method") == "bayes" and not varies:
        yield ("parameters",), "every parameter has one value, so there is nothing to search: say `method: grid`"


_SAYS_NOTHING = (
    "says nothing of its values: give `value`, `values`, `min` and `max`, `parameters` or `distribution`"
)


def _parameter(place: Place, given: Any) -> Iterator[Fault]:
    """Tell what is wrong with one parameter by itself."""
    if not isinstance(given, dict):
        meant = "values" if isinstance(given, list) else "value"
        yield place, f"{brief(given)}, where a table must be: write {{{meant}: {brief(given)}}}"
        return
    kind = kind_of(given)
    if kind == "uniform" and not {"min", "max", "distribution"} & given.keys():
        nested = next((name for name in given if isinstance(given[name], dict)), None)
        hint = f": parameters inside of one stand in a table, {{parameters: {{{nested}: ...}}}}" if nested else ""
        near = f".{known_names(next(iter(given)), _PARAMETER_KEYS)}" if given and not nested else ""
        yield place, f"{_SAYS_NOTHING}{hint}{near}"
        return
    if kind == "parameters":
        yield place, "`parameters` is a table with something in it, and stands alone"
        return
    if kind not in DISTRIBUTIONS:
        yield (*place, "distribution"), unknown_name("distribution", kind, DISTRIBUTIONS)
        return
    needed, optional = DISTRIBUTIONS[kind]
    found = list(_table(given, place, {**needed, **optional, "distribution": _ANY}, list(needed)))
    yield from found or ((place, said) for said in _values(kind, given))


_PARAMETER_KEYS = ("value", "values", "probabilities", "min", "max", "q", "mu", "sigma", "a", "b", "distribution")


def _values(kind: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Tell what joins values, and so cannot be said of a single one."""
    if "probabilities" in given:
        values, total = given["values"], math.fsum(given["probabilities"])
        if len(values) != len(given["probabilities"]):
            yield f"{len(values)} values and {len(given['probabilities'])} probabilities: one for each value"
        if abs(total - 1) > 1.001e-5:  # as W&B's `numpy.isclose`
            yield f"the sum of the probabilities is {total:.6g}, and must be 1"
        return
    low, high = given.get("min", 0), given.get("max", 1)
    if low >= high:
        yield f"min {brief(low)} is not below max {brief(high)}" + (
            " (one value is `value`)" if low == high else ""
        )
    elif kind in DEPRECATED and max(abs(low), abs(high)) > 700:
        yield f"its bounds are exponents of e, and numbers go up to e^709: for values use {DEPRECATED[kind]}"
    elif "min" in given and kind != "int_uniform" and math.isinf(float(high) - float(low)):
        yield f"the range from {brief(low)} to {brief(high)} is too large for numbers"
    elif kind not in ("constant", "categorical", "int_uniform"):
        try:
            parameter = made(("",), given)
            ends = [parameter.at(share) for share in (LEAST_SHARE, 1 - LEAST_SHARE)]
        except OverflowError:
            ends = [math.inf]
        if not all(map(math.isfinite, ends)) or not math.isfinite(max(ends) - min(ends)):
            yield "its values, or the number of its steps, would be too large for numbers"


def _together(data: Mapping[str, Any], parameter: Parameter) -> Iterator[str]:
    """Tell what a parameter must be for the method, or as the number of devices."""
    if data.get("method") == "grid":
        steps = (
            (parameter.given["max"] - parameter.given["min"]) / parameter.given.get("q", 1.0)
            if parameter.kind == "q_uniform"
            else 0
        )
        if steps > 1e6:
            yield "a grid of more than a million steps: give a larger q"
        elif parameter.kind not in ("constant", "categorical", "int_uniform", "q_uniform"):
            yield "a grid goes through `values`, whole numbers, or q_uniform; or say `method: random`"
    if parameter.name == NUM_GPUS:
        values = parameter.given.get(
            "values", [parameter.given.get(key) for key in ("value", "min") if key in parameter.given]
        )
        known = parameter.kind in ("constant", "categorical", "categorical_w_probabilities", "int_uniform")
        if not known or not all(map(COUNT[1], values)):
            yield "says how many devices a trial needs: whole numbers, 1 or more"


# -- runs of this package ----------------------------------------------------------------------------------------

PROGRAM = "run_parallel.py"
SPLIT = "evaluation.split"
RESERVED = (
    *("experiment.name", "output_dir", "stage", "dry_run", "device"),
    *("distributed.gpu_ids", "distributed.gpu_list", "distributed.num_gpus"),
)
"""Settings of a run that its sweep decides."""


def is_of_package(words: Iterator[str] | Sequence[str]) -> bool:
    """Whether a command runs this package."""
    return any(Path(word).name == PROGRAM for word in words)


def _own(name: str, given: Any) -> Iterator[str]:
    """Tell why a parameter cannot be one of a run of this package."""
    if name in RESERVED:
        yield "the sweep decides it for each of its runs: leave it out; options of `sweep run` say it"
    if name == SPLIT:
        yield "trials are compared on validation prompts, and the best one is tested at the end. Leave it out"
    values = given.get("values") if isinstance(given, dict) else None
    if isinstance(values, list) and any(map(_is_number, values)):
        from pipeline.config.meaning import shipped_meanings  # what no sweep of another program has a use for

        if (meaning := shipped_meanings().get(name)) and meaning.type.startswith("list"):
            yield f"a trial is given one of its values, and {name} is a list: write `values: [[0], [1]]`"
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
        yield f"is no setting of {PROGRAM}, which is given its parameters as KEY=VALUE"
