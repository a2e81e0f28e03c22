"""A sweep file: what it may say, and what is said of one that is wrong."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.sweeps.command import trial_command
from pipeline.sweeps.file import (
    DISTRIBUTIONS,
    KEYS,
    MACROS,
    RESERVED,
    Method,
    Metric,
    Options,
    Sweep,
    parse_yaml,
    read_sweep,
    sweep_of,
)
from pipeline.sweeps.online import wandb_config
from pipeline.sweeps.search import ask, most_trials

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "sweeps.md").read_text()
DATA = ROOT / "tests" / "data" / "sweeps"
GOOD = ["multi_gpu", "grid", "distributions", "deprecated"]
LEAST = "program: train.py\nmethod: random\nparameters:\n"
WITH = LEAST + "  a: {value: 1}\n"
Read = Callable[..., Sweep]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def _read(text: str | bytes, **options: Any) -> Sweep:
        path = tmp_path / "lr.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_sweep(path, **options)

    return _read


def refused(read: Read, text: str | bytes, **options: Any) -> str:
    """What is said of a file, without its name, which every message begins with."""
    with pytest.raises(ConfigError) as raised:
        read(text, **options)
    path, _, said = str(raised.value).partition(": ")
    assert path.endswith("/lr.yaml")
    return said


@cache
def _read(name: str) -> Any:
    return parse_yaml((DATA / f"{name}.yaml").read_text())


# -- what it says ------------------------------------------------------------------------------------------------


def test_a_file_becomes_a_sweep_and_what_is_left_out_is_as_at_wandb() -> None:
    sweep = read_sweep(DATA / "grid.yaml")
    assert (sweep.name, sweep.method, sweep.run_cap) == ("shapes", "grid", 50)
    assert sweep.metric == Metric(name="loss", target=1e-3, impute="best", impute_while_running="latest")
    assert sweep.command[3:] == ("${args_no_hyphens}", "7", "--home=${envvar:HOME}")
    assert (sweep.options.launcher, sweep.options.max_failures) == ("none", 5)
    assert sweep.environment == {"OMP_NUM_THREADS": "4", "TOKENIZERS_PARALLELISM": "false"}
    nested = sweep.parameters["optimizer.betas.second.moment"]
    assert (nested.path, nested.kind) == (("optimizer", "betas", "second.moment"), "categorical")
    assert "pipeline" not in sweep.given
    least = sweep_of({**_read("multi_gpu"), "early_terminate": {"min_iter": 2}}, Path("x.yaml"))
    assert least.metric == Metric(name="val/loss", goal="minimize", impute="worst", impute_while_running="false")
    assert least.early_terminate is not None
    assert (least.early_terminate.bands[:3], least.early_terminate.strict) == ((2, 6, 18), True)
    assert (least.name, least.options) == ("x", Options())


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        ("value: [1, 2]", "constant"),
        ("values: [a, ~, true, 1]", "categorical"),
        ("values: [a, b], probabilities: [0.25, 0.75]", "categorical_w_probabilities"),
        ("min: 1, max: 8", "int_uniform"),
        ("min: 1, max: 8.0", "uniform"),
        ("min: 0, max: 1, distribution: log_uniform", "log_uniform_values"),
    ],
)
def test_a_distribution_that_is_not_named_is_inferred(read: Read, block: str, kind: str) -> None:
    assert read(LEAST + f"  x: {{{block}}}").parameters["x"].kind == kind


def test_yaml_is_read_as_wandb_reads_it_but_for_numbers_and_dates(read: Read) -> None:
    """PyYAML takes 1e-5 for a text, and so does W&B."""
    values = "[1e-5, 3e4, 1.5e+3, -.5, 1_000, .inf, '1e-5', 2026-11-22, on, ~]"
    sweep = read(
        LEAST + f"  x: {{values: {values}}}\n  a: &range {{min: 1, max: 5}}\n  c: {{<<: *range, max: 9}}\n"
    )
    expected = [1e-5, 3e4, 1500.0, -0.5, 1000, math.inf, "1e-5", "2026-11-22", True, None]
    assert sweep.parameters["x"].given["values"] == expected
    assert sweep.parameters["c"].given == {"min": 1, "max": 9}


def test_settings_of_the_command_line_take_the_place_of_parameters(read: Read) -> None:
    text = LEAST + "  lr: {min: 0.1, max: 1.0}\n  model: {parameters: {size: {values: [1, 2]}}}\n"
    sweep = read(text, overrides=["lr=1e-3", "model.size=[3, a]", "model.depth=2", "tag=", "no=null"])
    assert {name: (each.path, each.given) for name, each in sweep.parameters.items()} == {
        "lr": (("lr",), {"value": 1e-3}),
        "model.size": (("model", "size"), {"value": [3, "a"]}),
        "model.depth": (("model", "depth"), {"value": 2}),
        "tag": (("tag",), {"value": ""}),
        "no": (("no",), {"value": None}),
    }
    assert sweep.given["parameters"]["lr"] == {"value": 1e-3}


@pytest.mark.parametrize(
    ("block", "asked", "name"),
    [
        ("", "", "lr"),
        ("name: My sweep / of lr\n", "", "My-sweep-of-lr"),
        ("name: My sweep\npipeline: {name: mine}\n", "", "mine"),
        ("name: My sweep\n", "other.run", "other.run"),
    ],
)
def test_a_sweep_has_the_name_asked_for_or_of_its_file(read: Read, block: str, asked: str, name: str) -> None:
    assert read(WITH + block, name=asked).name == name


@pytest.mark.parametrize("name", RESERVED)
def test_what_a_sweep_decides_is_no_parameter_of_runs_of_this_program(read: Read, name: str) -> None:
    block = f"  {json.dumps(name)}: {{value: 1}}"
    assert f"parameters.{name}: " in refused(read, LEAST.replace("train.py", "run_parallel.py") + block)
    assert read(LEAST + block).parameters[name]
    assert f"`{name}`" in PAGE


# -- what is said of it ------------------------------------------------------------------------------------------


def test_every_fault_is_told_at_once_with_its_place(read: Read) -> None:
    """Of keys, of values, of what joins values, of the command line: none waits until others are mended."""
    said = refused(
        read,
        """program: run_parallel.py
methd: grid
metric: {goal: min}
command: [python, "${prgram}"]
early_terminate: {type: hyperbnd, max_iter: 2, s: 3}
parameters:
  lr: {min: "1e-5", max: 1}
  d: {values: [1, 2], probabilities: [1, 1, 1]}
  num_gpus: {values: [0]}
  e.f: {value: 1}
  e: {parameters: {f: {value: 1}}}
  f: 3
  model: {parameters: {size: {vlues: [1]}}}
pipeline: {prepare: "a b", seeds: 1}
""",
        overrides=["lr"],
    )
    head, *told = said.splitlines()
    places = [
        "'lr'",
        "methd: unknown key. Did you mean 'method'?",
        "`method` is missing",
        "metric.goal: unknown goal 'min'. Did you mean 'minimize'?",
        "metric: `name` is missing",
        "early_terminate.type: unknown type 'hyperbnd'. Did you mean 'hyperband'?",
        "pipeline.seeds: unknown key. Did you mean 'seed'?",
        "pipeline.prepare: 'a b': ",
        "command[1]: unknown macro 'prgram'. Did you mean 'program'?",
        "parameters.lr.min: '1e-5': expected `float`",
        "parameters.d: there must be one probability for each value",
        "parameters.d: the sum of the probabilities is 3",
        "parameters.num_gpus: ",
        "parameters.e.parameters.f: 'e.f' is another's dotted name",
        "parameters.f: 3, where a table",
        "parameters.model.parameters.size: ",
    ]
    assert head == f"{len(places)} settings are wrong:"
    assert [line for line in told if not any(line.startswith(f"  - {place}") for place in places)] == []
    assert all(any(line.startswith(f"  - {place}") for line in told) for place in places)


PARAMETERS = {
    "min: 1, max: 1": "min 1 is not below max 1",
    "min: 1.0, max: 3, distribution: int_uniform": "x.min: 1.0: ",
    "min: 0, max: 100000000000000000": "x.max: 100000000000000000: ",
    "values: []": "x.values: ",
    "distribution: norml": "unknown distribution 'norml'. Did you mean 'normal'?",
    "distribution: q_normal, q: 1e-320": "too large",
    "distribution: log_uniform_values, min: 0, max: 1": "x.min: 0",
    "distribution: log_uniform, min: -1000, max: 0": "log_uniform_values",
    "distribution: log_uniform, min: 1e-5, max: 0.01": "values go from 1.00001 to 1.01005; for",
    "distribution: q_log_uniform_values, min: 1e-5, max: 3e-3": "every value would be 0",
    "": "where a table",
    "value: .nan": "nothing that a setting may be",
    "value: !!binary aGk=": "nothing that a setting may be",
    'value: "b\\0"': "nothing that a setting may be",
    "1: 2": "write it in quotes",
    "value: " + "9" * 5000: "too many digits",
    "value: !!python/name:os.system x": "not valid YAML",
    "value: 1, value: 2": "there twice",
}


@pytest.mark.parametrize(("block", "said"), PARAMETERS.items())
def test_a_parameter_that_is_wrong_is_told_with_its_place(read: Read, block: str, said: str) -> None:
    told = refused(read, LEAST + f"  x: {{{block}}}")
    assert said in told
    assert "line 4: " in told or "parameters.x" in told


HYPERBAND = WITH + "metric: {name: l}\nearly_terminate: {type: hyperband, %s}"
BOMB = "\n".join(
    ["a: &a [1]", *(f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in pairwise("abcdefgh"))]
)
FILES = {
    "": "is a table",
    "command:\n - [python, ${args}]": "a macro in a list stands in quotes",
    WITH + 'command: [bash, -c, "python ${program} ${args}"]': "command[2]: ${program} is filled in",
    "a: b\n# é".encode("latin-1"): "line 2: it is not in UTF-8",
    "b: &b [*b]": "holds itself",
    BOMB: "more than 50,000 values",
    LEAST + '  "a\\n": {value: 1}': "or no name",
    LEAST: "parameters: ",
    "job: j\nmethod: grid\nparameters: {a: {value: 1}}": "`program` is missing",
    WITH + "scheduler: {engine: optuna, source: a.py}": "scheduler: unknown key",
    WITH.replace("random", "bayes"): "`metric` is missing: `bayes`",
    WITH.replace("random", "bayes") + "metric: {name: l}": "nothing to search",
    HYPERBAND % "max_iter: 2, s: 3": "give `min_iter`, or `max_iter` and `s`",
    WITH + "command: python t.py": "command: 'python t.py': ",
    WITH + "pipeline: {environment: {WANDB_SWEEP_ID: x}}": "environment.WANDB_SWEEP_ID: each trial has",
    WITH + "pipeline: {name: ...}": "'...' is no name for a sweep",
    LEAST.replace("random", "grid") + "  a: {min: 0.1, max: 1}": "parameters.a: a grid goes through",
}


@pytest.mark.parametrize(("text", "said"), FILES.items(), ids=range(len(FILES)))
def test_a_file_that_is_wrong_is_told_so(read: Read, text: str | bytes, said: str) -> None:
    assert said in refused(read, text)


@pytest.mark.parametrize("override", ["lr", "=3", "+lr=3", "a=[", "a=.nan"])
def test_a_setting_that_cannot_be_read_is_named(read: Read, override: str) -> None:
    assert override in refused(read, WITH, overrides=[override])


# -- files as people have them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOOD)
def test_files_as_people_have_them_are_read(name: str) -> None:
    sweep = read_sweep(DATA / f"{name}.yaml")
    assert ask(sweep, []) is not None
    # PyYAML, in which W&B writes and reads sweeps, would read 1e-05 as a text.
    given = wandb_config(sweep)
    assert yaml.safe_load(yaml.safe_dump(given)) == given
    again = sweep_of(given, Path("x.yaml")).parameters
    assert {name: each.distribution for name, each in again.items() if each.kind != "constant"} == {
        name: each.distribution for name, each in sweep.parameters.items() if each.kind != "constant"
    }


def test_the_page_of_the_file_has_every_key_and_the_files_every_distribution() -> None:
    assert [name for name in (*KEYS, *DISTRIBUTIONS, *get_args(Method)) if f"`{name}`" not in PAGE] == []
    assert [macro for macro in MACROS if f"`${{{macro}}}`" not in PAGE] == []
    blocks = (each for name in GOOD for each in _read(name)["parameters"].values())
    assert {each["distribution"] for each in blocks if "distribution" in each} == set(DISTRIBUTIONS)


# -- whatever it says --------------------------------------------------------------------------------------------

_JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 30),
    st.floats(allow_nan=False),
    st.sampled_from([10**299, -(10**299), 1e308, -1e308, 5e-324, math.inf, "1e-5", "", "grid", "loss", "${args}"]),
    st.sampled_from([[], {}, [1], ["a", True], {"value": 1}, {"values": [1, 1.0, True]}, {"min": 1, "max": 2}]),
    st.sampled_from([{"distribution": kind} for kind in DISTRIBUTIONS]),
).map(copy.deepcopy)
_KEYS_TO_SET = st.sampled_from(sorted({*KEYS, "num_gpus", "a.b", "lr", "distribution", "nonsense", "1", "q"}))


def _places(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(data, dict | list):
        yield place
        for key, inside in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _places(inside, (*place, key))


@pytest.mark.properties
@given(data=st.data(), name=st.sampled_from(GOOD))
def test_whatever_a_file_says_it_is_read_or_refused_in_words(data: st.DataObject, name: str) -> None:
    """Files that were changed in up to three places: nothing but a message, or trials."""
    changed = copy.deepcopy(_read(name))
    for _ in range(data.draw(st.integers(1, 3))):
        inside = changed
        for key in data.draw(st.sampled_from(list(_places(changed)))):
            inside = inside[key]
        if isinstance(inside, list):
            inside.append(data.draw(_JUNK))
        elif inside and data.draw(st.booleans()):
            inside[data.draw(st.sampled_from(list(inside)))] = data.draw(_JUNK)
        else:
            inside[data.draw(_KEYS_TO_SET)] = data.draw(_JUNK)
    try:
        sweep = sweep_of(changed, Path("x.yaml"))
    except ConfigError:
        return
    choice = ask(sweep, [])
    if choice is not None:
        assert trial_command(sweep, choice.parameters, Path("p.json"))
    wandb_config(sweep)
    most_trials(sweep)
