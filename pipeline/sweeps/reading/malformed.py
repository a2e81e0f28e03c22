"""What the schema has against a sweep file, in words: the place, what was given, what may be, what to try."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pipeline.config.values import brief, short
from pipeline.errors import known_names, unknown_name
from pipeline.sweeps.reading.schema import (
    DISTRIBUTIONS,
    ELSEWHERE,
    OPTIONS,
    PARAMETER_KEYS,
    PRINTABLE,
    SCHEMA,
    is_whole,
    kind_of,
)
from pipeline.sweeps.reading.yaml_file import Fault, Place

if TYPE_CHECKING:
    from jsonschema import Validator
    from jsonschema.exceptions import ValidationError


def schema_faults(data: Any) -> Iterator[Fault]:
    """What is wrong with single values and keys of a sweep file, each with its place.

    Args:
        data: The file as plain data.
    """
    for error in _validator().iter_errors(data):
        yield from _in_words(error, tuple(error.absolute_path))


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value has nothing against it by a part of the schema."""
    return bool(_validator().evolve(schema=schema).is_valid(value))


@cache
def _validator() -> Validator:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    # By JSON Schema 1.0 is an integer; here, as for W&B, it makes a range one of floats.
    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: is_whole(value))
    return extend(Draft202012Validator, type_checker=checker)(SCHEMA)


_SAYS_NOTHING = (
    "says nothing of its values: give `value`, `values`, `min` and `max`, `parameters` (a table of more), or a "
    "`distribution`"
)
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
        schemas = error.schema.get("properties", {})
        yield from ((place, f"`{key}` is missing{_help(key, schemas)}") for key in rule if key not in given)
    elif error.validator == "not":  # a parameter by no key of which its distribution can be inferred
        strange = [key for key in given if key not in PARAMETER_KEYS]
        yield from (((*place, key), _strange(key, given)) for key in strange)
        if not strange:
            yield place, _SAYS_NOTHING
    else:
        yield place, _of_value(error, given, rule, place)


def _strange(key: str, given: Mapping[str, Any]) -> str:
    """Of a key that no parameter has: where it is a parameter itself, what it has to stand in."""
    if isinstance(given[key], Mapping):
        return (
            f"parameters inside of a parameter stand in a table `parameters`: write {{parameters: {{{key}: ...}}}}"
        )
    return _no_such_key(key, PARAMETER_KEYS)


def _of_value(error: ValidationError, given: Any, rule: Any, place: Place) -> str:
    match error.validator:
        case "type":
            if given is None and _is_parameter(place):
                return _SAYS_NOTHING
            wanted = " or ".join(_TYPES[kind] for kind in ([rule] if isinstance(rule, str) else rule))
            return f"{_shown(given)}, where {wanted} must be{_hint(given, rule, place)}"
        case "enum":
            known = _choices(rule)
            if not isinstance(given, str):
                return f"{_shown(given)}, where one of these must be: {', '.join(known)}"
            return unknown_name(str(place[-1]).replace("_", " "), given, known)
        case "minItems" | "minProperties" | "minLength":
            return "is empty" if rule == 1 else f"must have {rule} entries at least"
        case "dependentRequired":
            return "`max_iter` needs `s`, the number of comparisons before it"
        case "minimum" | "exclusiveMinimum" | "maximum":
            return _out_of_range(given, error.schema)
        case "pattern" if rule == PRINTABLE:
            return f"{brief(given)} is no name here: any characters but line breaks and such"
        case "pattern":
            return f"{brief(given)} is no name of a variable: letters, digits and '_'"
        case _:
            return str(error.schema.get("description", error.message))


def _choices(rule: Iterable[Any]) -> list[str]:
    return [value for value in rule if isinstance(value, str) and value not in ELSEWHERE]


def _help(key: str, schemas: Mapping[str, Any]) -> str:
    """What follows the name of a key that is missing."""
    choices = _choices(schemas.get(key, {}).get("enum", ()))
    return _HELP.get(key) or (f": {', '.join(choices)}" if choices else "")


_HELP = {
    "method": ": grid, random or bayes",
    "name": ": of the metric, as the program logs it",
    "engine": ": leave out the block `scheduler`",
    "min": ", as there is a `max` or a distribution that needs it",
    "max": ", as there is a `min` or a distribution that needs it",
}


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "nothing (null)", True: "true", False: "false"}[value]
    kind = _OF[type(value)]
    return kind if isinstance(value, list | dict) else f"{kind}, {brief(value)}"


_OF = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "a table"}


def _hint(given: object, wanted: object, place: Place) -> str:
    if place == ("command",) and isinstance(given, str):
        return f": write {json.dumps(given.split())}"  # in quotes, as YAML has a use of its own for {
    if isinstance(given, str) and wanted in ("number", "integer"):
        try:
            float(given)
        except ValueError:
            return ""
        return ": take away the quotes"
    if wanted == "integer" and isinstance(given, float) and given.is_integer():
        return f": write {int(given)}"
    if wanted in ("string", ["string", "number"]) and isinstance(given, int | float):
        return ": write it in quotes"
    if wanted == "array":
        return f": write [{brief(given)}]" if isinstance(given, str | int | float) else ""
    if wanted == "object" and given is not None:
        return _as_table(given, place)
    return ""


def _is_parameter(place: Place) -> bool:
    return place[:1] == ("parameters",) and len(place) % 2 == 0


def _as_table(given: object, place: Place) -> str:
    """A table by the key that was meant, where that is plain: a parameter's value or values, a name, a type."""
    key = _MEANT.get(place) if isinstance(given, str) else None
    if _is_parameter(place):
        key = "values" if isinstance(given, list) else "value"
    goal = ", goal: maximize" if place == ("metric",) else ""  # left out it is to be minimized, as at W&B
    return f": write {{{key}: {brief(given)}{goal}}}" if key else ""


_MEANT: Mapping[Place, str] = {("metric",): "name", ("early_terminate",): "type"}


def _out_of_range(given: float, schema: dict[str, Any]) -> str:
    if given in (float("inf"), float("-inf")):
        return f"{given} is not finite: give a number"
    if "exclusiveMinimum" in schema:
        return f"{brief(given)} must be more than {short(schema['exclusiveMinimum'])}"
    low, high = schema.get("minimum"), schema.get("maximum")
    return f"{brief(given)} must be " + (f"from {low} to {high}" if high is not None else f"{low} or more")


def _no_such_key(key: str, known: Iterable[str]) -> str:
    """What is said of it; its place, which stands before, ends with its name."""
    return f"unknown key.{known_names(key, known)}"


def _unknown_key(key: str, place: Place, given: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    said = _no_such_key(key, known)
    if not place and key in OPTIONS["properties"]:
        return f"{said} Options of this program belong in the block `pipeline:`."
    if place[:1] != ("parameters",) or key not in PARAMETER_KEYS:
        return said
    owners = [name for name, (required, optional) in DISTRIBUTIONS.items() if key in {**required, **optional}]
    return f"does not belong to {kind_of(given)} ({', '.join(known)}), but to {', '.join(owners)}"
