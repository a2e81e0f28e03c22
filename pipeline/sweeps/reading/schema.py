"""The sweep file as a JSON schema of our own writing; what it has against a file is worded in `malformed`.

It takes what W&B's takes, all of it, and the block ``pipeline:``. What joins values (``min`` below ``max``, the
sum of probabilities, what a method needs) no schema can say: that is in `checks` and `parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.sweeps.spec import Launcher

_Schema = dict[str, Any]

_LARGEST = 1.7976931348623157e308
TEXT: _Schema = {"type": "string", "minLength": 1}
NUMBER: _Schema = {"type": "number", "minimum": -_LARGEST, "maximum": _LARGEST}
POSITIVE: _Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": _LARGEST}
WHOLE: _Schema = {"type": "integer"}
COUNT: _Schema = {"type": "integer", "minimum": 1}
LIST: _Schema = {"type": "array", "minItems": 1}
_VARIABLE = "^[A-Za-z_][A-Za-z0-9_]*$(?!\n)"
PRINTABLE = "^[^\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff]+$(?!\n)"
"""Names of parameters: W&B's schema has letters, digits, `_`, `.` and `-`, and others are but warned of there."""


def _table(required: Mapping[str, _Schema], optional: Mapping[str, _Schema] | None = None) -> _Schema:
    """A table with these keys and no others."""
    properties = {**required, **(optional or {})}
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


# -- parameters ------------------------------------------------------------------------------------------------

_RANGE = {"min": NUMBER, "max": NUMBER}
_ABOVE_ZERO = {"min": POSITIVE, "max": POSITIVE}
_STEP = {"q": POSITIVE}
_NORMAL = {"mu": NUMBER, "sigma": POSITIVE}
_BETA = {"a": POSITIVE, "b": POSITIVE}
_PROBABILITIES = {**LIST, "items": {"type": "number", "minimum": 0, "maximum": 1}}

DISTRIBUTIONS: Mapping[str, tuple[Mapping[str, _Schema], Mapping[str, _Schema]]] = {
    "constant": ({"value": {}}, {}),
    "categorical": ({"values": LIST}, {}),
    "categorical_w_probabilities": ({"values": LIST, "probabilities": _PROBABILITIES}, {}),
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

LISTABLE = ("constant", "categorical", "int_uniform", "q_uniform")
"""Distributions whose values can be gone through one by one, in a grid: W&B takes the same ones."""

PARAMETER_KEYS = (
    "parameters",
    "distribution",
    *dict.fromkeys(key for keys in DISTRIBUTIONS.values() for part in keys for key in part),
)
"""All that a parameter may have."""


_INFERRED = {
    "parameters": "parameters",
    "probabilities": "categorical_w_probabilities",
    "values": "categorical",
    "value": "constant",
}
"""Key -> what a parameter is that has it and names no distribution; the first that is there counts."""


def kind_of(given: Mapping[str, Any]) -> str:
    """Name of a parameter's distribution: as it says, or as W&B infers it; ``parameters`` of a table of more."""
    if "distribution" in given:
        return str(given["distribution"])
    kind = next((kind for key, kind in _INFERRED.items() if key in given), None)
    return kind or ("int_uniform" if all(is_whole(given.get(key)) for key in ("min", "max")) else "uniform")


def is_whole(value: object) -> bool:
    """Whether a value is a whole number as it is written: ``1``, and neither ``1.0`` nor ``true``."""
    return isinstance(value, int) and not isinstance(value, bool)


def _has(key: str) -> _Schema:
    return {"required": [key]}


def _parameter() -> _Schema:
    """Chosen by ``distribution``, or by the keys that there are; so a fault is told of the one that was meant."""
    named = [
        {"if": {"properties": {"distribution": {"const": name}}}, "then": {"$ref": f"#/$defs/{name}"}}
        for name in DISTRIBUTIONS
    ]
    both_whole = {"properties": {"min": WHOLE, "max": WHOLE}, "required": ["min", "max"]}
    by_key = [(_has(key), kind) for key, kind in _INFERRED.items()]
    inferred: _Schema = {"not": {}}
    for condition, name in (
        ({"anyOf": [_has("min"), _has("max")]}, "uniform"),
        (both_whole, "int_uniform"),
        *reversed(by_key),
    ):
        inferred = {"if": condition, "then": {"$ref": f"#/$defs/{name}"}, "else": inferred}
    return {
        "if": {"type": "object"},
        "then": {
            "if": _has("distribution"),
            "then": {"properties": {"distribution": {"enum": list(DISTRIBUTIONS)}}, "allOf": named},
            "else": inferred,
        },
        "else": {"type": "object"},
    }


# -- the file --------------------------------------------------------------------------------------------------

_IMPUTE = ["worst", "best", "latest"]
_METRIC = _table(
    {"name": TEXT},
    {
        "goal": {"enum": ["minimize", "maximize"]},
        "target": NUMBER,
        "impute": {"enum": _IMPUTE},
        "impute_while_running": {"enum": [*_IMPUTE, "false", False]},
    },
)
BANDS = {
    "min_iter": COUNT,
    "max_iter": COUNT,
    "s": COUNT,
    "eta": {"type": "number", "exclusiveMinimum": 1, "maximum": _LARGEST},
}
"""Numbers by which trials are stopped early."""
_HYPERBAND = {
    **_table({"type": {"enum": ["hyperband"]}}, {**BANDS, "strict": {"type": "boolean"}}),
    "anyOf": [_has("min_iter"), _has("max_iter")],
    "dependentRequired": {"max_iter": ["s"]},
    "description": "`min_iter` is missing, or `max_iter` and `s`",
}
_WORD = {"type": ["string", "number"]}
OPTIONS = _table(
    {},
    {
        "name": TEXT,
        "num_gpus": COUNT,
        "launcher": {"enum": [each.value for each in Launcher]},
        "distributed_program": TEXT,
        "max_attempts": COUNT,
        "max_failures": COUNT,
        "seed": {"type": "integer", "minimum": 0},
        "prepare": {"type": ["string", "array"], "minLength": 1, "minItems": 1, "items": _WORD},
        "environment": {
            "type": "object",
            "propertyNames": {"pattern": _VARIABLE},
            "additionalProperties": _WORD,
        },
    },
)
ELSEWHERE = ("custom", "optuna", "ax")
"""What is known, and refused with words of its own."""
METHODS = ["grid", "random", "bayes"]
_ONLY_TEXT = ("name", "description", "entity", "project", "job", "image_uri", "apiVersion")
"""Keys that say nothing of what is done here."""
SCHEMA: _Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Sweep file",
    "$defs": {
        "parameter": _parameter(),
        "block": {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": PRINTABLE},
            "additionalProperties": {"$ref": "#/$defs/parameter"},
        },
        "parameters": _table({"parameters": {"$ref": "#/$defs/block"}}),
        **{
            name: _table(required, {**optional, "distribution": {"const": name}})
            for name, (required, optional) in DISTRIBUTIONS.items()
        },
    },
    **_table(
        {"method": {"enum": [*METHODS, "custom"]}},
        {
            "parameters": {"$ref": "#/$defs/block"},
            "program": TEXT,
            "command": {**LIST, "items": _WORD},
            "metric": _METRIC,
            "metrics": {"type": "array", "minItems": 2, "items": _METRIC},
            "early_terminate": _HYPERBAND,
            "run_cap": COUNT,
            "pipeline": OPTIONS,
            **{key: {"type": "string"} for key in _ONLY_TEXT},
            "kind": {"enum": ["sweep"]},
            "controller": _table({"type": {"enum": ["cloud", "local"]}}),
            "scheduler": _table(
                {"engine": {"enum": ["wandb", "optuna", "ax"]}},
                dict.fromkeys(("source", "optimizer", "search_space"), TEXT),
            ),
        },
    ),
}
