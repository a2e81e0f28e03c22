"""What joins the values of a sweep file, and so no schema can say."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config.values import brief
from pipeline.errors import unknown_name
from pipeline.sweeps.reading.command import MACROS, macro_of
from pipeline.sweeps.reading.parameters import DEPRECATED, parameter_faults, read_parameters
from pipeline.sweeps.reading.schema import METHODS, kind_of
from pipeline.sweeps.reading.yaml_file import Fault, Place
from pipeline.sweeps.searching.grid import allowed_in_grids
from pipeline.sweeps.searching.hyperband import bands_of
from pipeline.sweeps.space import Choice, Constant, Parameter, WholeUniform

Given = Mapping[str, Any]


def sweep_faults(data: Given) -> Iterator[Fault]:
    """What is wrong with a sweep file, each with its place.

    Args:
        data: The file, without faults by the schema.
    """
    yield from _elsewhere(data)
    yield from _what_runs(data)
    yield from _early(data)
    if "parameters" not in data:
        yield (), "`parameters` is missing: a table of what trials differ in"
        return
    singly = list(parameter_faults(data["parameters"]))
    yield from singly
    if not singly:
        yield from _together(data, list(read_parameters(data["parameters"])))


def _elsewhere(data: Given) -> Iterator[Fault]:
    """What W&B has others do, with code of the user's own."""
    methods = ", ".join(METHODS)
    if data["method"] == "custom":
        yield ("method",), f"custom has a scheduler of your own choose, which W&B alone runs: use one of {methods}"
    scheduler = data.get("scheduler")
    if scheduler is not None and (scheduler["engine"] != "wandb" or len(scheduler) > 1):
        yield (
            ("scheduler",),
            f"a scheduler of your own ({scheduler['engine']}) is run by W&B alone: leave the block out and say "
            "`method: bayes`, Optuna's TPE",
        )
    if "metrics" in data:
        yield (
            ("metrics",),
            "several metrics need a scheduler of your own at W&B: judge by one `metric`, and log the others, "
            "which the report of the sweep shows too",
        )


def _what_runs(data: Given) -> Iterator[Fault]:
    command = data.get("command")
    if "program" not in data and (command is None or "${program}" in command):
        launched = " (`job` and `image_uri` are of W&B Launch, which is not run here)"
        yield (
            (),
            f"`program` is missing: what a trial runs{launched if {'job', 'image_uri'} & data.keys() else ''}",
        )
    options = data.get("pipeline", {})
    prepare = options.get("prepare", ())
    if isinstance(prepare, str):
        try:
            prepare = shlex.split(prepare)
        except ValueError as error:
            yield ("pipeline", "prepare"), f"{brief(prepare)} cannot be taken apart as a shell does: {error}"
            prepare = ()
    for place, words in ((("command",), command or ()), (("pipeline", "prepare"), prepare)):
        for number, word in enumerate(words):
            macro = macro_of(str(word))
            if macro is not None and macro not in MACROS:
                yield (*place, number), unknown_name("macro", macro, [*MACROS, "envvar:NAME"])


def _early(data: Given) -> Iterator[Fault]:
    if "metric" not in data and data["method"] == "bayes":
        yield (
            (),
            "`metric` is missing: bayes searches by it. Give it a `name`, as the program logs it, and a `goal`",
        )
    rule = data.get("early_terminate")
    if rule is None:
        return
    if "metric" not in data:
        yield (), "`metric` is missing: `early_terminate` stops trials by it"
    if not bands_of(rule):
        yield (
            ("early_terminate", "max_iter"),
            f"{rule['max_iter']} is so small that no trial would ever be stopped: the first comparison is at "
            f"max_iter / eta = {rule['max_iter'] / rule.get('eta', 3):.3g} logged values, and 1 is the least",
        )


def _together(data: Given, parameters: list[Parameter]) -> Iterator[Fault]:
    for name, times in Counter(parameter.name for parameter in parameters).items():
        if times > 1:
            yield ("parameters", name), f"two parameters have the dotted name {name}: rename one"
    for parameter in parameters:
        place = place_of(parameter)
        if data["method"] == "grid" and not allowed_in_grids(parameter):
            yield (
                place,
                (
                    "a grid has no end of values here: give `values`, a range of whole numbers, or q_uniform, "
                    "whose steps are gone through; or say `method: random`"
                ),
            )
        if parameter.name == "num_gpus":
            yield from ((place, said) for said in _num_gpus(parameter))
    if data["method"] == "bayes" and all(isinstance(each.distribution, Constant) for each in parameters):
        yield ("parameters",), "every parameter has one value, so there is nothing to search: say `method: grid`"


def place_of(parameter: Parameter) -> Place:
    """Where a parameter stands in its file."""
    return tuple(part for name in parameter.path for part in ("parameters", name))


def _num_gpus(parameter: Parameter) -> Iterator[str]:
    """Its values say how many devices a trial gets."""
    match parameter.distribution:
        case WholeUniform(min=least):
            values: tuple[Any, ...] = (least,)
        case Constant(value=value):
            values = (value,)
        case Choice(values=several):
            values = several
        case _:
            yield "the devices of a trial: give `value`, `values`, or `min` and `max` as whole numbers"
            return
    wrong = [value for value in values if type(value) is not int or value < 1]
    if wrong:
        yield f"{brief(wrong[0])} is no number of devices: 1, 2, 4 ..."


def sweep_notes(data: Given) -> Iterator[str]:
    """What is no mistake and yet may surprise, a line each.

    Args:
        data: A file without faults.
    """
    for word in data.get("command", ()):
        if macro_of(str(word)) is None and (inside := [name for name in MACROS if f"${{{name}}}" in str(word)]):
            yield f"command: ${{{inside[0]}}} stays as it is in {brief(word)}: a macro is an item of the list"
    yield from _exponents(data["parameters"], "")


def _exponents(block: Given, prefix: str) -> Iterator[str]:
    for name, given in block.items():
        kind = kind_of(given)
        if kind == "parameters":
            yield from _exponents(given["parameters"], f"{prefix}{name}.")
        elif kind in DEPRECATED:
            sign = -1 if kind.startswith("inv") else 1
            low, high = sorted(math.exp(sign * given[bound]) for bound in ("min", "max"))
            yield (
                f"{prefix}{name}: {kind} takes its bounds as exponents of e, so its values are from {low:.6g} to "
                f"{high:.6g}; {DEPRECATED[kind]} takes values"
            )
