"""The sweep file as a JSON schema of our own writing, and what it has against a file, in words.

It takes what W&B's takes, all of it, and the block ``pipeline:``. What joins values (``min`` below ``max``, the
sum of probabilities, what a method needs) no schema can say: that is in `checks` and `parameters`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pipeline.config.values import brief, short
from pipeline.errors import unknown_name
from pipeline.sweeps.spec import Launcher
from pipeline.sweeps.yaml_file import Fault, Place

if TYPE_CHECKING:
    from jsonschema import Validator
    from jsonschema.exceptions import ValidationError

_Schema = dict[str, Any]

_LARGEST = 1.7976931348623157e308
TEXT: _Schema = {"type": "string", "minLength": 1}
NUMBER: _Schema = {"type": "number", "minimum": -_LARGEST, "maximum": _LARGEST}
POSITIVE: _Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": _LARGEST}
WHOLE: _Schema = {"type": "integer"}
COUNT: _Schema = {"type": "integer", "minimum": 1}
LIST: _Schema = {"type": "array", "minItems": 1}
_NAME = "^[A-Za-z_][A-Za-z0-9_"


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

_SAYS_NOTHING = (
    "says nothing of its values: give `value`, `values`, `min` and `max`, `parameters` (a table of more), or a "
    "`distribution`"
)

_KEYS = (
    "parameters",
    "distribution",
    *dict.fromkeys(key for keys in DISTRIBUTIONS.values() for part in keys for key in part),
)
"""All that a parameter may have."""


def kind_of(given: Mapping[str, Any]) -> str:
    """Name of a parameter's distribution: as it says, or as W&B infers it; ``parameters`` of a table of more."""
    if "distribution" in given:
        return str(given["distribution"])
    inferred = {
        "parameters": "parameters",
        "probabilities": "categorical_w_probabilities",
        "values": "categorical",
        "value": "constant",
    }
    kind = next((kind for key, kind in inferred.items() if key in given), None)
    return kind or ("int_uniform" if all(_is_whole(given.get(key)) for key in ("min", "max")) else "uniform")


def _is_whole(value: object) -> bool:
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
    inferred: _Schema = {"not": {}}
    for condition, name in (
        ({"anyOf": [_has("min"), _has("max")]}, "uniform"),
        (both_whole, "int_uniform"),
        (_has("value"), "constant"),
        (_has("values"), "categorical"),
        (_has("probabilities"), "categorical_w_probabilities"),
        (_has("parameters"), "nested"),
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
_HYPERBAND = {
    **_table(
        {"type": {"enum": ["hyperband"]}},
        {
            "min_iter": COUNT,
            "max_iter": COUNT,
            "s": COUNT,
            "eta": {"type": "number", "exclusiveMinimum": 1, "maximum": _LARGEST},
            "strict": {"type": "boolean"},
        },
    ),
    "anyOf": [_has("min_iter"), _has("max_iter")],
    "dependentRequired": {"max_iter": ["s"]},
    "description": "`min_iter` is missing, or `max_iter` and `s`",
}
_WORD = {"type": ["string", "number"]}
_OPTIONS = _table(
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
            "propertyNames": {"pattern": f"{_NAME}]*$(?!\n)"},
            "additionalProperties": _WORD,
        },
    },
)
_ELSEWHERE = ("custom", "optuna", "ax")
"""What is known, and refused with words of its own."""
METHODS = ["grid", "random", "bayes"]
_ONLY_TEXT = ("name", "description", "entity", "project", "job", "image_uri", "apiVersion")
"""Keys that say nothing of what is done here."""
SCHEMA: _Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Sweep file",
    "$defs": {
        "parameter": _parameter(),
        "parameters": {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": f"{_NAME}.-]*$(?!\n)"},
            "additionalProperties": {"$ref": "#/$defs/parameter"},
        },
        "nested": _table({"parameters": {"$ref": "#/$defs/parameters"}}),
        **{
            name: _table(required, {**optional, "distribution": {"const": name}})
            for name, (required, optional) in DISTRIBUTIONS.items()
        },
    },
    **_table(
        {"method": {"enum": [*METHODS, "custom"]}},
        {
            "parameters": {"$ref": "#/$defs/parameters"},
            "program": TEXT,
            "command": {**LIST, "items": _WORD},
            "metric": _METRIC,
            "metrics": {"type": "array", "minItems": 2, "items": _METRIC},
            "early_terminate": _HYPERBAND,
            "run_cap": COUNT,
            "pipeline": _OPTIONS,
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


# -- in words --------------------------------------------------------------------------------------------------


def schema_faults(data: Any) -> Iterator[Fault]:
    """What is wrong with single values and keys of a sweep file, each with its place.

    Args:
        data: The file as plain data.
    """
    for error in _validator().iter_errors(data):
        yield from _in_words(error, tuple(error.absolute_path))


@cache
def _validator() -> Validator:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    # By JSON Schema 1.0 is an integer; here, as for W&B, it makes a range one of floats.
    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: _is_whole(value))
    return extend(Draft202012Validator, type_checker=checker)(SCHEMA)


_TYPES = {
    "string": "a text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a table",
}


def _in_words(error: ValidationError, place: Place) -> Iterator[Fault]:
    given, rule = error.instance, error.validator_value
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        yield from (((*place, key), _unknown_key(key, place, given, known)) for key in given if key not in known)
    elif error.validator == "required":
        yield from ((place, f"`{key}` is missing{_HELP.get(key, '')}") for key in rule if key not in given)
    elif error.validator == "not":  # a parameter by no key of which its distribution can be inferred
        strange = [key for key in given if key not in _KEYS]
        yield from (((*place, key), unknown_name("key", key, _KEYS)) for key in strange)
        if not strange:
            yield place, _SAYS_NOTHING
    else:
        yield place, _of_value(error, given, rule, place)


def _of_value(error: ValidationError, given: Any, rule: Any, place: Place) -> str:
    match error.validator:
        case "type":
            wanted = " or ".join(_TYPES[kind] for kind in ([rule] if isinstance(rule, str) else rule))
            return f"{_shown(given)}, where {wanted} must be{_hint(given, rule)}"
        case "enum":
            known = [value for value in rule if isinstance(value, str) and value not in _ELSEWHERE]
            if not isinstance(given, str):
                return f"{_shown(given)}, where one of these must be: {', '.join(known)}"
            return unknown_name(str(place[-1]).replace("_", " "), given, known)
        case "minItems" | "minProperties" | "minLength":
            return "is empty" if rule == 1 else f"must have {rule} entries at least"
        case "dependentRequired":
            return "`max_iter` needs `s`, the number of comparisons before it"
        case "minimum" | "exclusiveMinimum" | "maximum":
            return _out_of_range(given, error.schema)
        case "pattern":
            return f"{brief(given)} is no name here: letters, digits and '_', also '.' and '-' in parameters"
        case _:
            return str(error.schema.get("description", error.message))


_HELP = {
    "method": ": grid, random or bayes",
    "name": ": of the metric, as the program logs it",
    "engine": ": leave out the block `scheduler`",
    "min": ", as there is a `max` or a distribution that needs it",
    "max": ", as there is a `min` or a distribution that needs it",
}


def _shown(value: object) -> str:
    kind = (
        "null"
        if value is None
        else next((word for type_, word in _OF.items() if type(value) is type_), type(value).__name__)
    )
    return kind if isinstance(value, list | dict) or value is None else f"{kind}, {brief(value)}"


_OF = {str: "a text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a table"}


def _hint(given: object, wanted: object) -> str:
    if isinstance(given, str) and wanted in ("number", "integer"):
        try:
            float(given)
        except ValueError:
            return ""
        return ": take away the quotes"
    if wanted == "integer" and isinstance(given, float) and given.is_integer():
        return f": write {int(given)}"
    if wanted == "array":
        return f": write [{brief(given)}]" if isinstance(given, str | int | float) else ""
    return ""


def _out_of_range(given: float, schema: _Schema) -> str:
    if given in (float("inf"), float("-inf")):
        return f"{given} is not finite: give a number"
    if "exclusiveMinimum" in schema:
        return f"{brief(given)} must be more than {short(schema['exclusiveMinimum'])}"
    low, high = schema.get("minimum"), schema.get("maximum")
    return f"{brief(given)} must be " + (f"from {low} to {high}" if high is not None else f"{low} or more")


def _unknown_key(key: str, place: Place, given: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    said = unknown_name("key", key, known)
    if not place and key in _OPTIONS["properties"]:
        return f"{said} Options of this program belong in the block `pipeline:`."
    if place[:1] != ("parameters",) or key not in _KEYS:
        return said
    owners = [name for name, (required, optional) in DISTRIBUTIONS.items() if key in {**required, **optional}]
    return f"does not belong to {kind_of(given)} ({', '.join(known)}), but to {', '.join(owners)}"
