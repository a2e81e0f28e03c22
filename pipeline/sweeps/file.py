"""Read and check W&B's sweep file, and turn it into a `Sweep`, plain data from here on.

What only this program understands stands in the block ``pipeline:``. YAML is read as PyYAML reads it, which is
how W&B does, with three differences: ``1e-5`` is a number and dates are texts, as YAML 1.2 has it; and a key that
is there twice is a mistake.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import yaml
from msgspec import Meta

from pipeline.config.plain import brief, one_line, refuse_all
from pipeline.engine.devices.inventory import is_of_launcher, is_of_other_run
from pipeline.errors import ConfigError, known_names, unknown_name
from pipeline.foreign import LARGEST_FILE, ForeignDataError, check_yaml, converted, read_plain
from pipeline.sweeps.reporting import VARIABLE

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
"""W&B's."""
MACROS = (
    *("env", "interpreter", "program", "args", "args_no_equals", "args_no_hyphens", "args_no_boolean_flags"),
    *("args_json", "args_json_file", "args_append_hydra", "args_override_hydra"),
)
"""Macros of a command, as ``${NAME}``, besides ``${envvar:NAME}``."""
ENVVAR = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")
NUM_GPUS = "num_gpus"
"""The parameter that says how many devices a trial needs."""
PROGRAM = "run_parallel.py"
SPLIT = "evaluation.split"
RESERVED = (
    *("experiment.name", "output_dir", "stage", "dry_run", "device", SPLIT),
    *("distributed.gpu_ids", "distributed.gpu_list", "distributed.num_gpus"),
)
"""Settings of a run of this package that its sweep decides."""

Goal = Literal["minimize", "maximize"]
_LARGEST = 1.7976931348623157e308
_Text = Annotated[str, Meta(min_length=1)]
_Word = str | int | float
_Count = Annotated[int, Meta(ge=1)]
_Whole = Annotated[int, Meta(ge=-(2**53), le=2**53)]
_Number = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
_Positive = Annotated[float, Meta(gt=0, le=_LARGEST)]
_List = Annotated[list[Any], Meta(min_length=1)]

# -- what a file says --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Metric by which trials are judged.

    Attributes:
        name: Name under which the program logs it.
        goal: Direction of better values.
        target: Value after which no trial is begun; None for none.
        impute: Value that a failed trial counts as in a search.
        impute_while_running: Value that a running trial counts as; ``false`` for none.
    """

    name: _Text
    goal: Goal = "minimize"
    target: _Number | None = None
    impute: Literal["worst", "best", "latest"] = "worst"
    impute_while_running: Literal["worst", "best", "latest", "false"] = "false"


@dataclass(frozen=True, kw_only=True)
class Hyperband:
    """Rule by which a trial is stopped before its end.

    Attributes:
        min_iter: The first number of logged values at which trials are compared.
        max_iter, s: In place of min_iter: the last such number, and how many there are before it.
        eta: The best 1/eta of the trials go on.
        strict: Compare what a trial has there, rather than its best so far.
    """

    type: Literal["hyperband"] = "hyperband"
    min_iter: _Count | None = None
    max_iter: _Count | None = None
    s: _Count | None = None
    eta: Annotated[float, Meta(gt=1, le=_LARGEST)] = 3.0
    strict: bool = True

    @cached_property
    def bands(self) -> tuple[int, ...]:
        """Numbers of logged values at which W&B compares trials, ascending; none where `max_iter` is too small."""
        most, bands = 100, list[float]()
        if self.max_iter and self.s:
            bands = [self.max_iter / self.eta**power for power in range(1, min(self.s, most) + 1)]
        elif self.min_iter:
            powers = range(min(most, 1 + int(700 / math.log(self.eta))))
            bands = [self.min_iter * self.eta**power for power in powers]
        return tuple(sorted({int(band) for band in bands if 1 <= band < 1e15}))


@dataclass(frozen=True, kw_only=True)
class Options:
    """The block ``pipeline:`` of the file.

    Attributes:
        name: Name of the sweep.
        num_gpus: Devices of a trial, unless `num_gpus` is a parameter.
        launcher: Start of a trial with several devices: by ``torchrun``, a process for each, or once.
        distributed_program: Program in place of ``program`` for a trial with several devices; "" for the same.
        max_attempts: Attempts at a trial before it counts as failed.
        max_failures: Failed trials in a row after which the sweep stops.
        seed: Seed of the search.
        prepare: A command that is run once before the first trial, with the macros of ``command``.
        environment: Environment variables of trials, besides those of this process.
    """

    name: str = ""
    num_gpus: _Count = 1
    launcher: Literal["torchrun", "none"] = "torchrun"
    distributed_program: str = ""
    max_attempts: _Count = 2
    max_failures: _Count = 3
    seed: Annotated[int, Meta(ge=0)] = 0
    prepare: list[_Word] = field(default_factory=list)
    environment: dict[str, _Word] = field(default_factory=dict)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a sweep.

    Optuna samples a distribution that it has as such. Of every other one it samples a share of the probability,
    from 0 to 1, of which W&B's rule (`at`) makes the value.

    Attributes:
        path: Names from the outermost table to it; most have one.
        kind: Name of its distribution, of those that have bounds as values.
        given: Block of the file, with such bounds.
    """

    path: tuple[str, ...]
    kind: str
    given: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Dotted name."""
        return ".".join(self.path)

    @cached_property
    def points(self) -> Sequence[Any]:
        """Return the points of a grid in W&B's order: values, or labels of the values of a choice."""
        match self.kind:
            case "categorical":  # of equal ones the last, where the first stands
                values = map(fingerprint, self.given["values"])
                return list(dict(zip(values, self._labels, strict=True)).values())
            case "int_uniform":
                return range(self.given["min"], self.given["max"] + 1)
            case "q_uniform":
                import numpy as np

                return list(np.arange(self.given["min"], self.given["max"], self.given.get("q", 1.0)).tolist())
        return [self.given.get("value")]

    @cached_property
    def distribution(self) -> BaseDistribution:
        """Distribution for Optuna."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        match self.kind:
            case "categorical":
                return CategoricalDistribution(self._labels)
            case "int_uniform":
                return IntDistribution(self.given["min"], self.given["max"])
            case "uniform" | "log_uniform_values" | "inv_log_uniform_values":
                return FloatDistribution(self.given["min"], self.given["max"], log=self.kind != "uniform")
        return FloatDistribution(0.0, 1.0)

    def value(self, sampled: Any) -> Any:
        """Convert a value sampled by Optuna to the value for the program."""
        match self.kind:
            case "categorical":
                return self.given["values"][self._labels.index(sampled)]
            case "int_uniform" | "uniform" | "log_uniform_values" | "inv_log_uniform_values":
                return sampled
        return self.at(sampled)

    def at(self, share: float) -> Any:
        """Return the quantile of the distribution at a probability.

        Raises:
            OverflowError: It is too large for a number.
        """
        block, share = self.given, min(max(share, LEAST_SHARE), 1 - LEAST_SHARE)
        match kind := self.kind.removeprefix("q_"):
            case "categorical_w_probabilities":
                sums = list(accumulate(block["probabilities"]))
                # The sum may fall short of 1 by rounding: then the last that has a probability.
                return block["values"][
                    next((at for at, most in enumerate(sums) if share < most), sums.index(sums[-1]))
                ]
            case "normal" | "log_normal":
                value = NormalDist(block.get("mu", 0.0), block.get("sigma", 1.0)).inv_cdf(share)
                value = math.exp(value) if kind == "log_normal" else value
            case "beta":
                from scipy.special import betaincinv

                value = float(betaincinv(block.get("a", 1), block.get("b", 1), share))
            case _:
                to, back = (float, float) if kind == "uniform" else (math.log, math.exp)
                low, high = to(block["min"]), to(block["max"])
                value = float(min(max(back(low + share * (high - low)), block["min"]), block["max"]))
        return round(value / block.get("q", 1.0)) * block.get("q", 1.0) if kind != self.kind else value

    @cached_property
    def _labels(self) -> list[str]:
        """Names of the values of a choice: ``True`` and ``1`` are equal for Optuna, and tables are none of its."""
        plain = [str(value) for value in self.given["values"]]
        return plain if len(set(plain)) == len(plain) else [f"{at}: {label}" for at, label in enumerate(plain)]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The request of a sweep.

    Attributes:
        name: Name of its folder, as of an experiment.
        method: Search method: ``grid``, ``random`` or ``bayes``.
        metric: Metric of the trials; None if grid or random trials have none.
        parameters: Parameters by dotted name, nested ones included, in the order of the file.
        program: Program of a trial; "" if `command` is complete.
        command: Command line of the program, with W&B's macros.
        run_cap: Largest number of trials; None for no limit.
        early_terminate: Rule by which trials are stopped early; None for none.
        options: Options that W&B does not have.
        given: The file as plain data, numbers as numbers, without the block ``pipeline:``; for W&B.
        folder: Folder in which programs are found and trials start: the one in which the sweep was created.
    """

    name: str
    method: Method
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
        return _is_own((self.program, *self.command))

    @property
    def environment(self) -> dict[str, str]:
        """Variables that its trials have besides those of this process."""
        return {name: str(value) for name, value in self.options.environment.items()}


def _is_own(words: Iterable[str]) -> bool:
    return any(Path(word).name == PROGRAM for word in words)


# -- parameters --------------------------------------------------------------------------------------------------

LEAST_SHARE = 2.0**-53
"""Least distance of a share from 0 and from 1, at which a normal distribution is infinite."""
DEPRECATED = {f"{prefix}log_uniform": f"{prefix}log_uniform_values" for prefix in ("", "q_", "inv_")}
"""Distributions whose bounds are exponents of e -> those that W&B has put in their place."""
_INFERRED = {
    "parameters": "parameters",
    "probabilities": "categorical_w_probabilities",
    "values": "categorical",
    "value": "constant",
}


def kind_of(block: Mapping[str, Any]) -> str:
    """Return the name of a parameter's distribution, given or inferred like W&B.

    ``parameters`` for a nested table.
    """
    whole = all(type(block.get(key)) is int for key in ("min", "max"))
    inferred = next(
        (kind for key, kind in _INFERRED.items() if key in block), "int_uniform" if whole else "uniform"
    )
    return str(block.get("distribution", inferred))


def fingerprint(value: Any) -> str:
    """Return a key that distinguishes values like W&B: ``1`` and ``1.0`` are equal, ``True`` is another."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, sort_keys=True)


def made(path: tuple[str, ...], block: Mapping[str, Any]) -> Parameter:
    """Return the parameter of a valid block; exponents become the bounds that they stand for."""
    return Parameter(path, DEPRECATED.get(kind_of(block), kind_of(block)), as_values(block))


def as_values(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a block with bounds instead of exponents of e; other blocks are unchanged."""
    if (kind := kind_of(block)) not in DEPRECATED:
        return block
    sign = -1 if kind.startswith("inv") else 1
    low, high = sorted(math.exp(sign * block[bound]) for bound in ("min", "max"))
    return {**block, "distribution": DEPRECATED[kind], "min": low, "max": high}


def nested(parameters: Mapping[str, Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as nested tables.

    Args:
        parameters: Parameters of the sweep, by dotted name.
        values: Values of one trial, likewise.
    """
    tables: dict[str, Any] = {}
    for name, value in values.items():
        *outer, last = parameters[name].path if name in parameters else (name,)
        table = tables
        for key in outer:
            table = table.setdefault(key, {})
        table[last] = value
    return tables


# -- reading -----------------------------------------------------------------------------------------------------


def read_sweep(path: Path, *, name: str = "", overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file.

    Args:
        path: The file: W&B's, with or without a block ``pipeline:``.
        name: Name of the sweep; "" for that in the file, or the name of the file.
        overrides: ``KEY=VALUE``, each a parameter with one value, in place of what the file says of it.

    Raises:
        ConfigError: Says everything that is wrong, each with its place.
    """
    try:
        text = read_plain(path, LARGEST_FILE, follow=True).decode("utf-8-sig")
        return sweep_of(parse_yaml(text), path, name=name, overrides=overrides)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}: line {line}: it is not in UTF-8. Save it as UTF-8 (iconv -t UTF-8)") from error
    except (OSError, ForeignDataError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
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
    faults = list(_override(data, overrides))
    wanted = name or _block(data, "pipeline").get("name") or data.get("name") or path.stem
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", str(wanted)).strip("-._")[:100]
    if not plain or (name and plain != name):
        faults.append(f"{brief(wanted)} is no name for a sweep: 1 to 100 letters, digits, '.', '_' or '-'")
    if _block(data, "metric").get("impute_while_running") is False:
        data["metric"]["impute_while_running"] = "false"  # as W&B has it
    refuse_all(list(dict.fromkeys([*faults, *_faults(data)])))
    return Sweep(
        name=plain,
        method=data["method"],
        metric=converted(data["metric"], Metric) if "metric" in data else None,
        parameters={".".join(names): made(names, block) for names, _, block in _blocks(data["parameters"])},
        program=data.get("program", ""),
        command=tuple(map(str, data.get("command", DEFAULT_COMMAND))),
        run_cap=data.get("run_cap"),
        early_terminate=converted(data["early_terminate"], Hyperband) if "early_terminate" in data else None,
        options=converted(data.get("pipeline", {}), Options),
        given={key: value for key, value in data.items() if key != "pipeline"},
        folder=Path.cwd(),
    )


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = Counter(str(key.value) for key, _ in node.value if not key.tag.endswith(":merge"))
        for key, times in keys.items():
            if times > 1:
                problem = f"the key {brief(key)} is there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, words) for tag, words in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_FLOAT = re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*[eE][-+]?[0-9]+|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?)$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def parse_yaml(text: str) -> Any:
    """Read a text as plain data that JSON can hold.

    Raises:
        ConfigError: It is no YAML, too large or too deep, or has a value that no setting has.
    """
    try:
        check_yaml(text)
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 - it is a safe one
    except (yaml.YAMLError, ValueError, LookupError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or one_line(str(error))
        raise ConfigError(f"{where}not valid YAML: {problem}; a macro in a list stands in quotes") from error
    refuse_all(list(_odd("", data)))
    return data


def _odd(where: str, value: Any) -> Iterator[str]:
    """Tell what is no plain data, as dates, sets and bytes, and what no command line can have."""
    if isinstance(value, dict):
        for key, inside in value.items():
            if isinstance(key, str):
                yield from _odd(_at(where, key), inside)
            else:
                yield f"{_at(where, str(key))}: the key is no text: write it in quotes"
    elif isinstance(value, list):
        for number, inside in enumerate(value):
            yield from _odd(_at(where, number), inside)
    elif (
        not isinstance(value, str | int | float | None) or value != value or (type(value) is str and "\0" in value)
    ):
        yield f"{where or 'the file'}: {brief(value)} is nothing that a setting may be"


def _at(where: str, key: str | int) -> str:
    """Return a place in the file, as ``parameters.lr.values[2]``."""
    inside = f"[{key}]" if isinstance(key, int) else f".{key if key.isprintable() else brief(key)}"
    return f"{where}{inside}".removeprefix(".")[:200]


def _block(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table of the file; empty if it is missing or not a table."""
    block = data.get(key)
    return block if isinstance(block, dict) else {}


def _override(data: dict[str, Any], overrides: Sequence[str]) -> Iterator[str]:
    """Put settings of the command line into the block of parameters, and tell what is wrong with them."""
    for override in overrides:
        key, equals, text = override.partition("=")
        block = data.setdefault("parameters", {})
        names = {".".join(path) for path, _, _ in _blocks(block)} if isinstance(block, dict) else ()
        if not equals or not (key in names or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", key)):
            hint = "" if equals else "; how many there are: --agents N --gpus-per-agent N --count TRIALS"
            yield f"{override!r}: a setting of all trials is written KEY=VALUE, with the name of a parameter{hint}"
            continue
        try:
            value = parse_yaml(text) if text else ""
        except ConfigError as error:
            yield f"{override}: {error}"
            continue
        if isinstance(block, dict):
            _set(block, key, {"value": value})


def _set(block: dict[str, Any], key: str, entry: dict[str, Any]) -> None:
    """Put a parameter in the place of the one of that dotted name, inside of tables too."""
    for name, table in block.items():
        inside = table.get("parameters") if isinstance(table, dict) else None
        if name != key and key.startswith(f"{name}.") and isinstance(inside, dict):
            return _set(inside, key.removeprefix(f"{name}."), entry)
    block[key] = entry
    return None


def _blocks(
    block: Mapping[str, Any], where: str = "parameters", outer: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Yield names, place and block of each parameter, also in nested tables and with faults."""
    for name, entry in block.items():
        inside, here = entry.get("parameters") if isinstance(entry, dict) else None, _at(where, name)
        if isinstance(inside, dict) and inside and len(entry) == 1:
            yield from _blocks(inside, _at(here, "parameters"), (*outer, name))
        else:
            yield (*outer, name), here, entry


def macro_of(word: str) -> str | None:
    """Return the macro that a word of a command is, or None."""
    match = re.fullmatch(r"\$\{([^}]*)\}", ENVVAR.sub("", word))
    return None if match is None else match[1]


# -- what a file may say -----------------------------------------------------------------------------------------

Kinds = Mapping[str, Any]
"""Key -> type of its value."""
_RANGE, _ABOVE_ZERO = {"min": _Number, "max": _Number}, {"min": _Positive, "max": _Positive}
_NORMAL, _BETA, _STEP = {"mu": _Number, "sigma": _Positive}, {"a": _Positive, "b": _Positive}, {"q": _Positive}
_SHARES = Annotated[list[Annotated[float, Meta(ge=0, le=1)]], Meta(min_length=1)]
DISTRIBUTIONS: Mapping[str, tuple[Kinds, Kinds]] = {
    "constant": ({"value": Any}, {}),
    "categorical": ({"values": _List}, {}),
    "categorical_w_probabilities": ({"values": _List, "probabilities": _SHARES}, {}),
    "int_uniform": ({"min": _Whole, "max": _Whole}, {}),
    **dict.fromkeys(("uniform", "log_uniform", "inv_log_uniform"), (_RANGE, {})),
    **dict.fromkeys(("q_uniform", "q_log_uniform"), (_RANGE, _STEP)),
    **dict.fromkeys(("log_uniform_values", "inv_log_uniform_values"), (_ABOVE_ZERO, {})),
    "q_log_uniform_values": (_ABOVE_ZERO, _STEP),
    **dict.fromkeys(("normal", "log_normal"), ({}, _NORMAL)),
    **dict.fromkeys(("q_normal", "q_log_normal"), ({}, {**_NORMAL, **_STEP})),
    "beta": ({}, _BETA),
    "q_beta": ({}, {**_BETA, **_STEP}),
}
"""Name -> keys that a parameter of this distribution must have, and those that it may have."""
Method = Literal["grid", "random", "bayes"]
KEYS: Kinds = {
    "method": Method,
    "parameters": Annotated[dict[str, Any], Meta(min_length=1)],
    "program": _Text,
    "command": Annotated[list[_Word], Meta(min_length=1)],
    "run_cap": _Count,
    **dict.fromkeys(("metric", "early_terminate", "pipeline", "controller"), dict[str, Any]),
    **dict.fromkeys(("name", "description", "entity", "project", "apiVersion", "kind", "job", "image_uri"), str),
}


def _table(data: Mapping[str, Any], where: str, kinds: Kinds | type, needed: Iterable[str] = ()) -> Iterator[str]:
    """Tell what single keys and values of a table have against them."""
    allowed = get_type_hints(kinds, include_extras=True) if isinstance(kinds, type) else kinds
    for key, value in data.items():
        here, kind = _at(where, key), allowed.get(key)
        choices = get_args(kind) if isinstance(kind, type(Goal)) else ()
        if key not in allowed:
            yield f"{here}: unknown key.{known_names(key, allowed)}"
        elif isinstance(value, str) and choices and value not in choices:
            yield f"{here}: {unknown_name(key, value, choices)}"
        else:
            try:
                converted(value, allowed[key])
            except ForeignDataError as error:
                yield f"{here}: {brief(value)}: {error}"
    yield from (f"{where}{': ' if where else ''}`{key}` is missing" for key in needed if key not in data)


def _faults(data: Mapping[str, Any]) -> Iterator[str]:
    """Tell what is wrong with a sweep file, each with its place."""
    yield from _table(data, "", KEYS, ("method", "parameters"))
    metric, early, options = (_block(data, key) for key in ("metric", "early_terminate", "pipeline"))
    if "metric" in data:
        yield from _table(metric, "metric", Metric, ("name",))
    elif early or data.get("method") == "bayes":
        yield "`metric` is missing: `bayes` and `early_terminate` judge by it. Give it a `name` and a `goal`"
    early_faults = list(_table(early, "early_terminate", Hyperband))
    yield from early_faults
    if early and not early_faults and not converted(early, Hyperband).bands:
        yield "early_terminate: give `min_iter`, or `max_iter` and `s` where max_iter / eta is 1 or more"
    yield from _table(options, "pipeline", Options)
    command, prepare = data.get("command"), options.get("prepare")
    words: list[Any] = command if isinstance(command, list) else []
    if "program" not in data and (not words or "${program}" in words):
        yield "`program` is missing: what a trial runs (jobs and images of W&B Launch are not run here)"
    for where, line in (("command", words), ("pipeline.prepare", prepare)):
        for number, word in enumerate(line if isinstance(line, list) else []):
            if (macro := macro_of(str(word))) is not None and macro not in MACROS:
                yield f"{_at(where, number)}: {unknown_name('macro', macro, [*MACROS, 'envvar:NAME'])}"
            elif macro is None and (inside := [other for other in MACROS if f"${{{other}}}" in str(word)]):
                yield f"{_at(where, number)}: ${{{inside[0]}}} is filled in where it is the whole word alone"
    for name in _block(options, "environment"):
        is_own = name in ("CUDA_VISIBLE_DEVICES", "WANDB_DIR", VARIABLE)
        if is_own or is_of_launcher(name) or is_of_other_run(name):
            yield f"{_at('pipeline.environment', name)}: each trial has one of its own: leave it out"
    yield from _parameters(data, _is_own(map(str, (data.get("program"), *words))))


def _parameters(data: Mapping[str, Any], own: bool) -> Iterator[str]:
    """Tell what is wrong with the parameters; `own` is whether trials are runs of this package."""
    seen, varies, method = set[str](), False, data.get("method")
    for names, where, block in _blocks(_block(data, "parameters")):
        name, faults = ".".join(names), list(_parameter(where, block))
        varies = varies or bool(faults) or kind_of(block) != "constant"
        yield from faults or (f"{where}: {fault}" for fault in _together(method, made(names, block)))
        if own and name in RESERVED:
            yield f"{where}: the sweep decides it for each of its runs: leave it out"
        if name in seen or not all(part and part.isprintable() for part in names):
            yield f"{where}: {brief(name)} is another's dotted name, or no name: rename one"
        seen.add(name)
    if seen and method == "bayes" and not varies:
        yield "parameters: every one has one value, so there is nothing to search: say `method: grid`"


def _parameter(where: str, block: Any) -> Iterator[str]:
    """Tell what is wrong with one parameter by itself."""
    is_block = isinstance(block, dict) and {"distribution", "min", "max", *_INFERRED} & block.keys()
    kind = kind_of(block) if is_block else ""
    if kind in ("", "parameters"):
        table = "a table with `value`, `values`, `min` and `max`, or `parameters`"
        yield f"{where}: {brief(block)}, where {table} must be"
    elif kind not in DISTRIBUTIONS:
        yield f"{_at(where, 'distribution')}: {unknown_name('distribution', kind, DISTRIBUTIONS)}"
    else:
        needed, optional = DISTRIBUTIONS[kind]
        faults = list(_table(block, where, {**needed, **optional, "distribution": str}, needed))
        yield from faults or (f"{where}: {fault}" for fault in _values(kind, block))


def _values(kind: str, block: Mapping[str, Any]) -> Iterator[str]:
    """Tell what joins values, and so cannot be said of a single one."""
    if "probabilities" in block:
        if len(block["values"]) != len(block["probabilities"]):
            yield "there must be one probability for each value"
        if abs((total := math.fsum(block["probabilities"])) - 1) > 1.001e-5:  # as W&B's `numpy.isclose`
            yield f"the sum of the probabilities is {total:.6g}, and must be 1"
        return
    low, high = block.get("min", 0), block.get("max", 1)
    if low >= high:
        yield f"min {brief(low)} is not below max {brief(high)}"
    elif kind not in ("constant", "categorical", "int_uniform"):
        values = f"; for values themselves use {DEPRECATED[kind]}" if kind in DEPRECATED else ""
        try:
            ends = [made(("",), block).at(share) for share in (LEAST_SHARE, 1 - LEAST_SHARE)]
            fits = math.isfinite(ends[1] - ends[0]) and math.isfinite(high - low)
        except (OverflowError, ValueError):
            fits = False
        if not fits:
            yield f"its values, or the number of its steps, would be too large for numbers{values}"
        elif values and low > 0 and high < 1:  # as rates have them, and no exponents
            yield f"its bounds are exponents of e, so that values go from {ends[0]:.6g} to {ends[1]:.6g}{values}"


def _together(method: object, parameter: Parameter) -> Iterator[str]:
    """Tell what a parameter must be for the method, or as the number of devices."""
    block, kind = parameter.given, parameter.kind
    if method == "grid" and kind not in ("constant", "categorical", "int_uniform", "q_uniform"):
        yield "a grid goes through `values`, whole numbers, or q_uniform; or say `method: random`"
    if method == "grid" and kind == "q_uniform" and (block["max"] - block["min"]) / block.get("q", 1) > 1e6:
        yield "a grid of more than a million steps: give a larger q"
    if method != "grid" and kind.startswith("q_") and (only := parameter.at(0)) == parameter.at(1):
        yield f"every value would be {only:g}, a multiple of q={block.get('q', 1):g}: give a smaller q"
    if parameter.name == NUM_GPUS:
        values = [*block.get("values", ()), *(block[key] for key in ("value", "min") if key in block)]
        whole = kind.startswith(("constant", "categorical", "int"))
        if not whole or not all(type(value) is int and value > 0 for value in values):
            yield "says how many devices a trial needs: whole numbers, 1 or more"
