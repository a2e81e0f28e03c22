"""What joins the values of a sweep file, and so no schema can say."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config.values import brief
from pipeline.engine.devices.worker_env import is_of_launcher
from pipeline.errors import unknown_name
from pipeline.sweeps.reading.command import MACROS, macro_of
from pipeline.sweeps.reading.malformed import fits
from pipeline.sweeps.reading.parameters import DEPRECATED, Entry, entries_of, own_faults, parameter_faults
from pipeline.sweeps.reading.schema import BANDS, LISTABLE, METHODS, is_whole, kind_of
from pipeline.sweeps.reading.yaml_file import Fault
from pipeline.sweeps.reporting import VARIABLE
from pipeline.sweeps.searching.hyperband import bands_of

Given = Mapping[str, Any]


def sweep_faults(data: Given) -> Iterator[Fault]:
    """What is wrong with a sweep file, each with its place, besides what the schema has against it.

    Args:
        data: The file. What is wrong with it by the schema is passed over here.
    """
    yield from _elsewhere(data)
    yield from _what_runs(data)
    yield from _environment(data)
    yield from _early(data)
    if "parameters" not in data:
        yield (), "`parameters` is missing: a table of what trials differ in"
        return
    entries = list(entries_of(_table(data, "parameters")))
    for entry in entries:
        yield from parameter_faults(entry)
        yield from own_faults(data, entry)
    yield from _together(data, entries)


def _table(data: Given, key: str) -> Given:
    """A table of the file; an empty one where there is none, or something else."""
    found = data.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(data: Given, key: str) -> list[Any]:
    found = data.get(key)
    return found if isinstance(found, list) else []


def _elsewhere(data: Given) -> Iterator[Fault]:
    """What W&B has others do, with code of the user's own."""
    methods = ", ".join(METHODS)
    if data.get("method") == "custom":
        yield ("method",), f"custom has a scheduler of your own choose, which W&B alone runs: use one of {methods}"
    scheduler = _table(data, "scheduler")
    engine = scheduler.get("engine")
    if engine in ("optuna", "ax") or (engine == "wandb" and len(scheduler) > 1):
        yield (
            ("scheduler",),
            f"a scheduler of your own ({engine}) is run by W&B alone: leave the block out and say "
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
    if "program" not in data and (command is None or "${program}" in _list(data, "command")):
        launched = " (`job` and `image_uri` are of W&B Launch, which is not run here)"
        yield (
            (),
            f"`program` is missing: what a trial runs{launched if {'job', 'image_uri'} & data.keys() else ''}",
        )
    options = _table(data, "pipeline")
    prepare = _list(options, "prepare")
    if isinstance(line := options.get("prepare"), str):
        try:
            prepare = shlex.split(line)
        except ValueError as error:
            yield ("pipeline", "prepare"), f"{brief(line)} cannot be taken apart as a shell does: {error}"
    first = next((str(word) for word in _list(data, "command") if word != "${env}"), "")
    if first.startswith("${args"):
        yield (
            ("command",),
            f"{first} stands where the program is to be: put ${{interpreter}} and ${{program}} before it",
        )
    for place, words in ((("command",), _list(data, "command")), (("pipeline", "prepare"), prepare)):
        for number, word in enumerate(words):
            macro = macro_of(str(word))
            if macro is not None and macro not in MACROS:
                yield (*place, number), unknown_name("macro", macro, [*MACROS, "envvar:NAME"])


def _environment(data: Given) -> Iterator[Fault]:
    for name in _table(_table(data, "pipeline"), "environment"):
        if name in _OF_TRIALS or is_of_launcher(name):
            yield (
                ("pipeline", "environment", name),
                "each trial has one of its own, by its devices, its ranks and its folder: leave it out",
            )


_OF_TRIALS = ("CUDA_VISIBLE_DEVICES", "WANDB_DIR", VARIABLE)


def _early(data: Given) -> Iterator[Fault]:
    if "metric" not in data and data.get("method") == "bayes":
        yield (
            (),
            "`metric` is missing: bayes searches by it. Give it a `name`, as the program logs it, and a `goal`",
        )
    if "early_terminate" not in data:
        return
    if "metric" not in data:
        yield (), "`metric` is missing: `early_terminate` stops trials by it"
    rule = _table(data, "early_terminate")
    numbers = {key: rule[key] for key, schema in BANDS.items() if key in rule and fits(rule[key], schema)}
    if {"max_iter", "s"} <= numbers.keys() and ("eta" in numbers or "eta" not in rule) and not bands_of(numbers):
        yield (
            ("early_terminate", "max_iter"),
            f"{rule['max_iter']} is so small that no trial would ever be stopped: the first comparison is at "
            f"max_iter / eta = {rule['max_iter'] / rule.get('eta', 3):.3g} logged values, and 1 is the least",
        )


def _together(data: Given, entries: list[Entry]) -> Iterator[Fault]:
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            yield entry.place, f"two parameters have the dotted name {entry.name}: rename one"
        seen.add(entry.name)
        if data.get("method") == "grid" and entry.certain and entry.kind not in LISTABLE:
            yield (
                entry.place,
                (
                    "a grid has no end of values here: give `values`, a range of whole numbers, or q_uniform, "
                    "whose steps are gone through; or say `method: random`"
                ),
            )
        if entry.name == "num_gpus" and entry.certain:
            yield from ((entry.place, said) for said in _num_gpus(entry))
    if entries and data.get("method") == "bayes" and all(entry.kind == "constant" for entry in entries):
        yield ("parameters",), "every parameter has one value, so there is nothing to search: say `method: grid`"


def _num_gpus(entry: Entry) -> Iterator[str]:
    """Its values say how many devices a trial gets."""
    match entry.kind:
        case "int_uniform":
            values = [entry.right["min"]] if "min" in entry.right else []
        case "constant":
            values = [entry.right["value"]] if "value" in entry.right else []
        case "categorical" | "categorical_w_probabilities":
            values = entry.right.get("values", [])
        case _:
            yield "the devices of a trial: give `value`, `values`, or `min` and `max` as whole numbers"
            return
    wrong = [value for value in values if not is_whole(value) or value < 1]
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
        elif (bare := str(word).strip("${}")) in MACROS and str(word) not in (bare, f"${{{bare}}}"):
            yield f"command: {brief(word)} stays as it is: a macro is written ${{{bare}}}"
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
