"""A sweep file: what it may say, and what is said of one that is wrong."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.sweeps.online.wandb_file import wandb_config
from pipeline.sweeps.reading.command import MACROS, trial_command
from pipeline.sweeps.reading.file import DEFAULT_COMMAND, read_sweep, sweep_of
from pipeline.sweeps.reading.parameters import DEPRECATED, RESERVED, SPLIT
from pipeline.sweeps.reading.schema import DISTRIBUTIONS, METHODS, SCHEMA
from pipeline.sweeps.reading.yaml_file import Document, read_yaml
from pipeline.sweeps.searching.searches import make_search, most_trials
from pipeline.sweeps.space import Choice, Constant, LogUniform, Quantized, Uniform, WholeUniform
from pipeline.sweeps.spec import Goal, Hyperband, Impute, Launcher, Method, Metric, Options, Sweep
from pipeline.sweeps.trials import Trial, TrialState

LEAST = "program: train.py\nmethod: random\nparameters:\n"
WITH = "program: train.py\nmethod: random\nparameters: {a: {value: 1}}\n"

Read = Callable[..., Sweep]
Refused = Callable[..., str]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def _read(text: str | bytes, **options) -> Sweep:
        path = tmp_path / "lr.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_sweep(path, **options)

    return _read


@pytest.fixture
def refused(read: Read, tmp_path: Path) -> Refused:
    """What is said of a file, without its name, which every message begins with."""

    def _refused(text: str | bytes, **options) -> str:
        with pytest.raises(ConfigError) as raised:
            read(text, **options)
        path, _, said = str(raised.value).partition(": ")
        assert path == str(tmp_path / "lr.yaml")
        return said

    return _refused


# -- what it says ------------------------------------------------------------------------------------------------


def test_a_file_becomes_a_sweep(read: Read) -> None:
    sweep = read("""
program: train.py
method: bayes
metric: {name: val/loss, goal: maximize, target: 0.9, impute: latest, impute_while_running: best}
parameters:
  lr: {min: 1.0e-5, max: 1.0e-2, distribution: log_uniform_values}
  num_gpus: {values: [1, 2]}
  optimizer:
    parameters:
      betas.0: {value: 0.9}
early_terminate: {type: hyperband, s: 2, eta: 3, max_iter: 27, strict: false}
run_cap: 20
command: [python, "${program}", 3]
pipeline:
  num_gpus: 2
  launcher: none
  distributed_program: ddp.py
  max_attempts: 5
  max_failures: 4
  seed: 7
  prepare: "make 'the data'"
  environment: {A: 1}
""")
    assert sweep == Sweep(
        name="lr",
        method=Method.bayes,
        metric=Metric(
            name="val/loss",
            goal=Goal.maximize,
            target=0.9,
            impute=Impute.latest,
            impute_while_running=Impute.best,
        ),
        parameters=sweep.parameters,
        program="train.py",
        command=("python", "${program}", "3"),
        run_cap=20,
        early_terminate=Hyperband(bands=(3, 9), eta=3.0, strict=False),
        options=Options(
            num_gpus=2,
            launcher=Launcher.none,
            distributed_program="ddp.py",
            max_attempts=5,
            max_failures=4,
            seed=7,
            prepare=("make", "the data"),
            environment={"A": "1"},
        ),
        given=sweep.given,
        folder=Path.cwd(),
    )
    assert {name: each.path for name, each in sweep.parameters.items()} == {
        "lr": ("lr",),
        "num_gpus": ("num_gpus",),
        "optimizer.betas.0": ("optimizer", "betas.0"),
    }
    assert [each.distribution for each in sweep.parameters.values()] == [
        LogUniform(1e-5, 1e-2),
        Choice((1, 2)),
        Constant(0.9),
    ]
    assert "pipeline" not in sweep.given


def test_what_is_left_out_is_as_at_wandb(read: Read) -> None:
    sweep = read(WITH + "metric: {name: loss}\nearly_terminate: {type: hyperband, min_iter: 2}")
    assert sweep.metric == Metric(name="loss", goal=Goal.minimize, impute=Impute.worst)
    assert sweep.early_terminate is not None
    assert (sweep.early_terminate.bands[:3], sweep.early_terminate.eta) == ((2, 6, 18), 3.0)
    assert sweep.early_terminate.strict
    assert sweep.command == DEFAULT_COMMAND
    assert sweep.options == Options()


@pytest.mark.parametrize(
    ("given", "distribution"),
    [
        ("value: [1, 2]", Constant([1, 2])),
        ("values: [a, ~, true, 1]", Choice(("a", None, True, 1))),
        ("values: [a, b], probabilities: [0.25, 0.75]", Choice(("a", "b"), (0.25, 0.75))),
        ("min: 1, max: 8", WholeUniform(1, 8)),
        ("min: 1, max: 8.0", Uniform(1, 8.0)),
        ("min: 1, max: 8, distribution: uniform", Uniform(1, 8)),
        ("min: 1, max: 8, distribution: q_uniform", Quantized(Uniform(1, 8), 1.0)),
    ],
)
def test_a_distribution_that_is_not_named_is_inferred(read: Read, given: str, distribution: object) -> None:
    assert read(LEAST + f"  x: {{{given}}}").parameters["x"].distribution == distribution


def test_numbers_are_numbers_however_they_are_written(read: Read) -> None:
    """PyYAML takes 1e-5 for a text, and so does W&B."""
    sweep = read(
        LEAST + "  lr: {min: 1e-5, max: 1E-2}\n  x: {values: [1e-5, 3e4, 1.5e+3, -.5, 1_000, .inf, '1e-5']}"
    )
    assert sweep.parameters["lr"].distribution == Uniform(1e-5, 1e-2)
    assert sweep.parameters["x"].distribution == Choice((1e-5, 3e4, 1500.0, -0.5, 1000, math.inf, "1e-5"))
    assert sweep.given["parameters"]["lr"] == {"min": 1e-5, "max": 1e-2}


def test_what_looks_like_a_date_or_a_time_is_a_text(read: Read) -> None:
    sweep = read(LEAST + "  x: {values: [2026-11-22, 1:30, 12:30:45, =, <<, on, ~]}")
    assert sweep.parameters["x"].distribution == Choice(("2026-11-22", "1:30", "12:30:45", "=", "<<", True, None))


def test_anchors_and_merged_tables_are_as_in_any_yaml(read: Read) -> None:
    sweep = read(LEAST + "  a: &range {min: 1, max: 5}\n  b: *range\n  c: {<<: *range, max: 9}\n")
    assert [each.distribution for each in sweep.parameters.values()] == [
        WholeUniform(1, 5),
        WholeUniform(1, 5),
        WholeUniform(1, 9),
    ]


def test_settings_of_the_command_line_take_the_place_of_parameters(read: Read) -> None:
    text = LEAST + "  lr: {min: 0.1, max: 1.0}\n  model: {parameters: {size: {values: [1, 2]}}}\n"
    sweep = read(text, overrides=["lr=1e-3", "model.size=[3, a]", "model.depth=2", "tag=", "no=null"])
    assert {name: (each.path, each.distribution) for name, each in sweep.parameters.items()} == {
        "lr": (("lr",), Constant(1e-3)),
        "model.size": (("model", "size"), Constant([3, "a"])),
        "model.depth": (("model", "depth"), Constant(2)),
        "tag": (("tag",), Constant("")),
        "no": (("no",), Constant(None)),
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


def test_what_may_surprise_is_told(read: Read) -> None:
    sweep = read(
        WITH.replace("value: 1", "distribution: log_uniform, min: 0, max: 1")
        + "command: [bash, -c, 'train ${args}']\n"
    )
    assert sweep.notes == (
        "command: ${args} stays as it is in 'train ${args}': a macro is an item of the list",
        "a: log_uniform takes its bounds as exponents of e, so its values are from 1 to 2.71828; "
        "log_uniform_values takes values",
    )


@pytest.mark.parametrize("word", ["$program", "${program", "{program}"])
def test_what_is_almost_a_macro_is_told(read: Read, word: str) -> None:
    sweep = read(WITH + f"command: [python, '{word}', program, '${{program}}', $HOME]\n")
    assert sweep.notes == (f"command: '{word}' stays as it is: a macro is written ${{program}}",)


# -- what is said of it ------------------------------------------------------------------------------------------


def test_every_fault_is_told_at_once_with_its_place(refused: Refused) -> None:
    said = refused("""program: train.py
methd: grid
num_gpus: 4
metric: {goal: min}
parameters:
  lr: {min: "1e-5", max: 1}
  model:
    parameters:
      size: {vlues: [1]}
""")
    head, *told = said.splitlines()
    assert head == "7 settings are wrong:"
    assert [line.removeprefix("  - ").partition(" Known")[0] for line in told] == [
        "`method` is missing: grid, random or bayes",
        "line 2: methd: unknown key. Did you mean 'method'?",
        "line 3: num_gpus: unknown key.",
        "line 4: metric.goal: unknown goal 'min'. Did you mean 'minimize'?",
        "line 4: metric: `name` is missing: of the metric, as the program logs it",
        "line 6: parameters.lr.min: a text, '1e-5', where a number must be: take away the quotes",
        "line 9: parameters.model.parameters.size.vlues: unknown key. Did you mean 'values'?",
    ]
    assert told[2].endswith("Options of this program belong in the block `pipeline:`.")


def test_faults_of_every_kind_are_told_together(refused: Refused) -> None:
    """Of YAML, of the schema, of what joins values, of the command line: none waits until others are mended."""
    said = refused(
        """program: run_parallel.py
method: grid
name: "..."
command: [python, "${prgram}"]
early_terminate: {type: hyperbnd, max_iter: 2, s: 3}
parameters:
  a: {distribution: log_uniform, min: 2000, max: 1000}
  b: {distribution: int_uniform, min: 3, max: 1, step: 2}
  c: {value: .nan}
  d: {values: [1, 2], probabilities: [1, 1, 1]}
  1: {value: 1}
  num_gpus: {values: [0]}
  e.f: {value: 1}
  e: {parameters: {f: {value: 1}}}
  device: {value: cpu}
  f: 3
pipeline: {prepare: "a 'b", seeds: 1}
""",
        overrides=["lr"],
    )
    assert [
        line.partition(": ")[0 if "line" not in line else 2][:60].strip() for line in said.splitlines()[1:]
    ] == [
        "- `metric` is missing",
        "- 'lr'",
        "name: '...' is no name for a sweep: it becomes a folder unde",
        "command[1]: unknown macro 'prgram'. Did you mean 'program'?",
        "early_terminate.type: unknown type 'hyperbnd'. Did you mean",
        "early_terminate.max_iter: 2 is so small that no trial would",
        "parameters.a: min 2000 is not below max 1000",
        "parameters.a: min 2000 and max 1000 are exponents of e with",
        "parameters.a: a grid has no end of values here: give `values",
        "parameters.b.step: unknown key. Known: distribution, max, mi",
        "parameters.b: min 3 is not below max 1",
        "parameters.c.value: .nan: not a number, and so no setting",
        "parameters.d: 2 values and 3 probabilities: there must be on",
        "parameters.d: the sum of the probabilities is 3, and must be",
        "parameters.d: a grid has no end of values here: give `values",
        "parameters.1: the key '1' is no text: write it in quotes",
        "parameters.num_gpus: 0 is no number of devices: 1, 2, 4 ...",
        "parameters.e.parameters.f: two parameters have the dotted na",
        "parameters.device: the sweep decides it for each of its runs",
        "parameters.f: a number, 3, where a table must be: write {val",
        "... and 2 more",
    ]


@pytest.mark.parametrize("kind", [kind for kind, (needed, _) in DISTRIBUTIONS.items() if "min" in needed])
def test_bounds_are_compared_whatever_else_is_wrong(refused: Refused, kind: str) -> None:
    said = refused(LEAST + f"  x: {{distribution: {kind}, min: 900, max: 800, nonsense: 1}}\n  y: {{}}\n")
    assert "x.nonsense: unknown key. Known:" in said
    assert "min 900 is not below max 800" in said
    assert "parameters.y: says nothing of its values" in said
    assert ("are exponents of e" in said) == (kind in DEPRECATED)


NAMES = [
    "optim/lr",
    "model size",
    "-a",
    "a=b",
    "../../x",
    "größe",
    "<b>",
    "[red]",
    "$(x)",
    "a\\b",
    "@A1",
    "x" * 300,
]


def test_names_are_those_that_wandb_takes(read: Read) -> None:
    """Its schema has letters, digits, `_`, `.` and `-`, and its service but warns of others."""
    block = "".join(f"  {json.dumps(name)}: {{value: {number}}}\n" for number, name in enumerate(NAMES))
    sweep = read(LEAST + block, overrides=["optim/lr=7", "model size=8", "a/new=9"])
    assert list(sweep.parameters) == [*NAMES, "a/new"]
    assert sweep.parameters["optim/lr"].distribution == Constant(7)
    assert sweep.parameters["model size"].distribution == Constant(8)


@pytest.mark.parametrize("name", ["a b", "optim/lr", "+algos.PITA.eta", "~dataset", "1a", "größe", "a=b"])
def test_names_that_are_no_settings_are_refused_for_runs_of_this_program(refused: Refused, name: str) -> None:
    own = LEAST.replace("train.py", "run_parallel.py") + f"  {json.dumps(name)}: {{value: 1}}"
    assert "is no setting of run_parallel.py, which is given its parameters as KEY=VALUE" in refused(own)


def test_numbers_for_a_setting_that_is_a_list_are_told_how_to_be_written(refused: Refused, read: Read) -> None:
    """Who writes them means one trial for each."""
    own = LEAST.replace("train.py", "run_parallel.py") + "  experiment.seeds: {values: %s}"
    said = refused(own % "[0, 1]")
    assert (
        "parameters.experiment.seeds.values: a trial is given one of these, and experiment.seeds is a list" in said
    )
    assert said.endswith("write `values: [[0], [1]]`")
    assert refused(own % "[null, 0]").endswith("write `values: [null, [0]]`")
    assert read(own % "[[0], [1]]").parameters["experiment.seeds"].distribution == Choice(([0], [1]))
    assert read(LEAST + "  experiment.seeds: {values: [0, 1]}").parameters


@pytest.mark.parametrize("name", [*RESERVED, SPLIT])
def test_what_a_sweep_decides_is_no_parameter_of_runs_of_this_program(
    refused: Refused, read: Read, name: str
) -> None:
    own = LEAST.replace("train.py", "run_parallel.py")
    said = refused(own + "  a: {value: 1}", overrides=[f"{name}=1"])
    assert f"parameters.{name}: " in said
    assert "Leave it out" in said
    assert f"`{name}`" in (Path(__file__).parents[4] / "docs" / "sweeps.md").read_text()
    assert read(LEAST + f"  {name}: {{value: 1}}").parameters[name]


PARAMETERS = {
    "min: 1, max: 1": "min 1 is not below max 1: for one value write `value: 1`",
    "min: 2, max: 1.0": "min 2 is not below max 1.0",
    "min: 1": "`max` is missing",
    "min: ~, max: 1": "min: nothing (null), where a number must be",
    "min: true, max: 3": "min: true, where a number must be",
    "min: -.inf, max: 3.0": "min: -inf is not finite",
    "min: 1.0, max: 3, distribution: int_uniform": "a number, 1.0, where a whole number must be: write 1",
    "min: -1.7e308, max: 1.7e308": "the range from -1.7e+308 to 1.7e+308 is too large",
    "min: 1, max: 3, q: 1": "q: does not belong to int_uniform (min, max, distribution), but to q_uniform, ",
    "value: 1, values: [1]": "value: does not belong to categorical (values, distribution), but to constant",
    "values: []": "values: is empty",
    "values: 3": "a number, 3, where a list must be: write [3]",
    "values: [a], probabilities: [0.5, 0.5]": "1 values and 2 probabilities",
    "values: [a, b], probabilities: [0.5, 0.4]": "the sum of the probabilities is 0.9, and must be 1",
    "values: [a, b], probabilities: [1.5, -0.5]": "probabilities[1]: -0.5 must be from 0 to 1",
    "probabilities: [1]": "`values` is missing",
    "distribution: norml": "unknown distribution 'norml'. Did you mean 'normal'?",
    "distribution: [normal]": "a list, where one of these must be: constant, ",
    "distribution: uniform": "`min` is missing",
    "distribution: constant": "`value` is missing",
    "distribution: normal, sigma: 0": "sigma: 0 must be more than 0",
    "distribution: normal, mu: 1e308, sigma: 1e308": "its values would be too large",
    "distribution: log_normal, sigma: 500": "its values would be too large",
    "distribution: beta, a: 0": "a: 0 must be more than 0",
    "distribution: q_beta, q: 2": "q 2 is larger than the range of the values, 1",
    "distribution: q_normal, q: 1e-320": "q 1e-320 is so small",
    "distribution: q_uniform, min: 0, max: 1, q: 5": "q 5 is larger than the range of the values, 1",
    "distribution: q_uniform, min: 0, max: 1, q: 0": "q: 0 must be more than 0",
    "distribution: q_log_uniform_values, min: 1e-4, max: 0.1": "q 1.0 is larger than the range",
    "distribution: log_uniform_values, min: 0, max: 1": "min: 0 must be more than 0",
    "distribution: log_uniform, min: -1000, max: 0": "for values themselves use log_uniform_values",
    "distribution: inv_log_uniform, min: 0, max: 1000": "for values themselves use inv_log_uniform_values",
    "": "says nothing of its values: give `value`, `values`, `min` and `max`, `parameters`",
    "parameters: {}": "parameters: is empty",
    "value: .nan": "value: .nan: not a number",
    "value: 1e400": "value: '1e400' is too large for a number",
    "value: 1e-400": "value: '1e-400' is too close to zero for a number",
    "value: !!int abc": "value: 'abc' is no !!int",
    "value: !!float ''": "value: '' is no !!float",
    "value: !!binary aGk=": "value: '!!binary' is nothing that settings are made of",
    "value: !!python/name:os.system x": "'!!python/name:os.system' is nothing that settings are made of",
    "1: 2": "the key '1' is no text: write it in quotes",
    "[a]: 2": "the key '[...]' is no text",
    "value: 1, value: 2": "parameters.x.value: is there twice, first in line 4",
}


@pytest.mark.parametrize(("given", "said"), PARAMETERS.items())
def test_a_parameter_that_is_wrong_is_told_with_its_place(refused: Refused, given: str, said: str) -> None:
    told = refused(LEAST + f"  x: {{{given}}}")
    assert said in told
    assert "line 4: parameters.x" in told


def test_a_step_may_be_as_large_as_the_range_of_a_beta_distribution_however_narrow_that_is(read: Read) -> None:
    distribution = read(LEAST + "  x: {distribution: q_beta, a: 3, b: 4}").parameters["x"].distribution
    assert [distribution.at(share) for share in (0.1, 0.9)] == [0.0, 1.0]


FILES = {
    "": "is empty: a sweep file has `method`, `parameters` and `program` at least",
    "# only this": "is empty",
    "- a": "holds no table",
    "a: 1\n---\nb: 2": "line 2: not valid YAML: expected a single document in the stream from line 1, but found",
    "a: [\n": "line 2: not valid YAML: while parsing a flow node, did not find expected node content",
    "a:\n    b: 1\n   c: 2": "line 3: not valid YAML: while parsing a block mapping from line 1, did not find",
    "b: 1\na: *b": "line 2: not valid YAML: found undefined alias",
    "a:\n\tb: 1": "that cannot start any token; a tab indents nothing in YAML: write spaces",
    "command: [python, ${args}]": "line 1: not valid YAML: while parsing a flow sequence, did not find expected "
    "',' or ']'; a macro in a list stands in quotes: \"${args}\"",
    b"\x00\x01": "not valid YAML",
    "é".encode("latin-1"): "this is no UTF-8 text",
    "b: &b [*b]": "what the anchor &b names holds itself",
    LEAST + "  a: {value: 1}\n  a: {value: 2}": "line 5: parameters.a: is there twice, first in line 4",
    LEAST + "  a: {<<: 3}": "expected a mapping or list of mappings for merging",
    LEAST + "  a: {value: " + "[" * 60 + "]" * 60 + "}": "inside each other more than 50 deep",
    "a: &a "
    + "[" * 40
    + "1"
    + "]" * 40
    + "\nb: "
    + "[" * 40
    + "*a"
    + "]" * 40: "inside each other more than 50 deep",
    LEAST + f"  a: {{values: [{'1,' * 50_000}]}}": "more than 50,000 values",
    LEAST + f"  a: {{value: {'1' * 400}}}": "a number of 400 digits",
    LEAST + "  a: 3": "line 4: parameters.a: a number, 3, where a table must be: write {value: 3}",
    LEAST
    + "  a: {lr: {value: 1}}": "a.lr: parameters inside of a parameter stand in a table `parameters`: write {par",
    LEAST + "  a:": "line 4: parameters.a: says nothing of its values: give `value`",
    LEAST + "  a: [1, 2]": "parameters.a: a list, where a table must be: write {values: [1, 2]}",
    LEAST + "  a: {parameters: {b: adam}}": "b: a text, 'adam', where a table must be: write {value: 'adam'}",
    LEAST + '  "": {value: 1}': "'' is no name here",
    LEAST + '  "a\\n": {value: 1}': "is no name here",
    LEAST + "  a.b: {value: 1}\n  a: {parameters: {b: {value: 2}}}": "two parameters have the dotted name a.b",
    LEAST: "line 3: parameters: nothing (null), where a table must be",
    "program: t\nmethod: grid": "`parameters` is missing",
    "program: t\nparameters: {a: {value: 1}}": "`method` is missing: grid, random or bayes",
    "method: grid\nparameters: {a: {value: 1}}": "`program` is missing: what a trial runs",
    "job: j\nmethod: grid\nparameters: {a: {value: 1}}": "are of W&B Launch, which is not run here",
    WITH.replace("random", "Grid"): "unknown method 'Grid'. Did you mean 'grid'? Known: bayes, grid, random.",
    WITH.replace(
        "random", "custom"
    ): "a scheduler of your own choose, which W&B alone runs: use one of grid, random",
    WITH + "scheduler: {engine: optuna, source: a.py}": "leave the block out and say `method: bayes`",
    WITH + "scheduler: {engine: ax}": "a scheduler of your own (ax) is run by W&B alone",
    WITH + "metrics: [{name: a}, {name: b}]": "judge by one `metric`, and log the others",
    WITH.replace("random", "bayes"): "`metric` is missing: bayes searches by it",
    WITH.replace("random", "bayes")
    + "metric: {name: l}": "every parameter has one value, so there is nothing to search",
    WITH + "metric: loss": "metric: a text, 'loss', where a table must be: write {name: 'loss', goal: maximize}",
    WITH + "metric: {name: l, target: low}": "metric.target: a text, 'low', where a number must be",
    WITH + "run_cap: 0": "run_cap: 0 must be 1 or more",
    WITH + "run_cap: 10.0": "run_cap: a number, 10.0, where a whole number must be: write 10",
    WITH + "run_cap: true": "run_cap: true, where a whole number must be",
    WITH
    + "early_terminate: {type: hyperband, min_iter: 3}": "`metric` is missing: `early_terminate` stops trials",
    WITH
    + "metric: {name: l}\nearly_terminate: {type: median, min_iter: 3}": "unknown type 'median'. Known: hyper",
    WITH + "metric: {name: l}\nearly_terminate: {type: hyperband}": "`min_iter` is missing, or `max_iter` and `s`",
    WITH + "metric: {name: l}\nearly_terminate: {type: hyperband, max_iter: 9}": "`max_iter` needs `s`",
    WITH
    + "metric: {name: l}\nearly_terminate: {type: hyperband, max_iter: 2, s: 3}": "no trial would ever be stopped",
    WITH
    + "metric: {name: l}\nearly_terminate: {type: hyperband, min_iter: 2, eta: 1}": "eta: 1 must be more than 1",
    WITH
    + "command: python t.py": 'command: a text, \'python t.py\', where a list must be: write ["python", "t.py"]',
    WITH + "command: python t.py ${args}": 'write ["python", "t.py", "${args}"]',
    WITH + "name: 12": "name: a number, 12, where a text must be: write it in quotes",
    WITH + "metric: {name: l}\nearly_terminate: {min_iter: 3}": "early_terminate: `type` is missing: hyperband",
    WITH + "controller: {}": "controller: `type` is missing: cloud, local",
    WITH + "command: ['${env}', '${prgram}']": "command[1]: unknown macro 'prgram'. Did you mean 'program'?",
    WITH + "command: ['${env}', '${args_no_equals}']": "${args_no_equals} stands where the program is to be",
    WITH + "command: ['${envvar:home}']": "command[0]: unknown macro 'envvar:home'. Did you mean 'envvar:NAME'?",
    WITH + "pipeline: {seeds: 1}": "pipeline.seeds: unknown key. Did you mean 'seed'?",
    WITH + "pipeline: {num_gpus: 0}": "pipeline.num_gpus: 0 must be 1 or more",
    WITH + 'pipeline: {prepare: "a \'b"}': "cannot be taken apart as a shell does",
    WITH + "pipeline: {environment: {a-b: 1}}": "'a-b' is no name of a variable",
    WITH
    + "pipeline: {environment: {A: true}}": "environment.A: true, where a text or a number must be: write it in",
    WITH
    + "pipeline: {environment: {CUDA_VISIBLE_DEVICES: 0}}": "environment.CUDA_VISIBLE_DEVICES: each trial has",
    WITH + "pipeline: {environment: {MASTER_PORT: 1}}": "environment.MASTER_PORT: each trial has",
    WITH + "pipeline: {environment: {PIPELINE_TRIAL: x}}": "environment.PIPELINE_TRIAL: each trial has",
    WITH + "pipeline: {name: ...}": "'...' is no name for a sweep",
    LEAST + "  num_gpus: {values: [1, 0]}": "parameters.num_gpus: 0 is no number of devices",
    LEAST + '  a: {values: [1, "b\\0"]}': "line 4: parameters.a.values[1]: 'b\\x00' has a NUL character",
    LEAST + '  "a\\0": {value: 1}': "'a\\x00' has a NUL character",
    LEAST + "  num_gpus: {value: true}": "parameters.num_gpus: True is no number of devices",
    LEAST + "  num_gpus: {min: 0, max: 4}": "parameters.num_gpus: 0 is no number of devices",
    LEAST + "  num_gpus: {min: 1.0, max: 4}": "give `value`, `values`, or `min` and `max` as whole numbers",
    LEAST.replace("random", "grid") + "  a: {min: 0.1, max: 1}": "a grid has no end of values here",
    LEAST.replace("random", "grid") + "  a: {values: [1], probabilities: [1]}": "a grid has no end of values here",
}


@pytest.mark.parametrize(("text", "said"), FILES.items(), ids=FILES.values())
def test_a_file_that_is_wrong_is_told_so(refused: Refused, text: str | bytes, said: str) -> None:
    assert said in refused(text)


def test_a_bomb_of_aliases_is_refused_before_it_goes_off(refused: Refused) -> None:
    letters = "abcdefgh"
    lines = [f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in pairwise(letters)]
    assert "more than 50,000 values" in refused("\n".join(["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]", *lines]))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "no.yaml", "No such file"), (tmp_path, "no plain file")):
        with pytest.raises(ConfigError, match=said):
            read_sweep(path)


@pytest.mark.parametrize("override", ["lr", "=3", "+lr=3", "lr =3", "a=[", "a=.nan"])
def test_a_setting_that_cannot_be_read_is_named(read: Read, override: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(WITH, overrides=[override])
    assert override in str(raised.value)


def test_a_name_that_is_no_folder_is_refused(read: Read) -> None:
    with pytest.raises(ConfigError, match="is no name for a sweep"):
        read(WITH, name="a/b")


# -- files as people have them -----------------------------------------------------------------------------------

DATA = Path(__file__).parents[3] / "data" / "sweeps"


@pytest.mark.parametrize("name", ["multi_gpu", "grid", "distributions", "deprecated"])
def test_files_as_people_have_them_are_read(name: str) -> None:
    sweep = read_sweep(DATA / f"{name}.yaml")
    assert make_search(sweep).ask([]) is not None
    assert bool(sweep.notes) == (name == "deprecated")


def test_what_wandb_has_others_do_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError) as raised:
        read_sweep(DATA / "elsewhere.yaml")
    assert [line.partition(": ")[2].partition(": ")[0] for line in str(raised.value).splitlines()[1:]] == [
        "what a trial runs (`job` and `image_uri` are of W&B Launch, which is not run here)",
        "method",
        "metrics",
        "scheduler",
    ]


def test_the_files_have_every_key_that_a_file_may_have() -> None:
    """So that nothing is in the schema that was never read."""
    seen = {key for path in DATA.glob("*.yaml") for key in _keys_in(yaml.safe_load(path.read_text()))}
    assert set(_keys_of(SCHEMA)) - seen == set()
    named = {given["distribution"] for path in DATA.glob("*.yaml") for given in _parameters_in(path)}
    assert named == set(DISTRIBUTIONS)


def test_the_page_of_the_file_has_every_key() -> None:
    page = (Path(__file__).parents[4] / "docs" / "sweep-file.md").read_text()
    named = [*_keys_of(SCHEMA), *DISTRIBUTIONS, *METHODS]
    assert [name for name in named if f"`{name}`" not in page] == []
    assert [macro for macro in MACROS if f"`${{{macro}}}`" not in page] == []


def _keys_in(data: object) -> Iterator[str]:
    if isinstance(data, dict):
        yield from data
    for inside in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _keys_in(inside)


def _keys_of(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema["properties"] if isinstance(schema.get("properties"), dict) else ()
    for inside in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _keys_of(inside)


def _parameters_in(path: Path) -> Iterator[dict[str, str]]:
    given = yaml.safe_load(path.read_text())["parameters"]
    yield from (each for each in given.values() if "distribution" in each)


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
_KEYS_TO_SET = st.sampled_from(
    sorted({*_keys_of(SCHEMA), "num_gpus", "a.b", "lr", *(key for key in ("distribution", "nonsense", "1"))})
)


def _places(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(data, dict | list):
        yield place
        for key, inside in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _places(inside, (*place, key))


@pytest.mark.properties
@given(data=st.data(), name=st.sampled_from(["multi_gpu", "grid", "distributions", "deprecated", "elsewhere"]))
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
        sweep = sweep_of(Document(changed), Path("x.yaml"))
    except ConfigError:
        return
    trials: list[Trial] = []
    for number in range(2):
        parameters = make_search(sweep).ask(trials)
        if parameters is not None:
            assert trial_command(sweep, parameters, Path("p.json"))
            trials.append(Trial(number=number, parameters=parameters, state=TrialState.done, value=number))
    wandb_config(sweep)
    most_trials(sweep)


@cache
def _read(name: str) -> Any:
    return read_yaml(DATA / f"{name}.yaml").data
