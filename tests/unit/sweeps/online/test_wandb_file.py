"""What W&B is given of a sweep file."""

from pathlib import Path

import pytest
import yaml

from pipeline.sweeps.online.wandb_file import wandb_config
from pipeline.sweeps.reading.file import read_sweep
from pipeline.sweeps.reading.parameters import read_parameters

FILE = """
program: train.py
method: bayes
metric: {name: loss, impute_while_running: false}
parameters:
  lr: {min: 1e-5, max: 1}
  n: {min: 1, max: 5}
  old: {distribution: q_log_uniform, min: 0, max: 3, q: 2}
  model: {parameters: {scale: {distribution: inv_log_uniform, min: 1, max: 2}}}
pipeline: {num_gpus: 4}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(FILE)
    return path


def test_wandb_is_given_what_it_reads_as_it_was_meant(file: Path) -> None:
    sweep = read_sweep(file, name="mine", overrides=["tag=a"])
    given = wandb_config(sweep)
    assert given["name"] == "mine"
    assert "pipeline" not in given
    assert given["metric"] == {"name": "loss", "impute_while_running": "false"}
    parameters = given["parameters"]
    assert parameters["lr"] == {"min": 1e-5, "max": 1, "distribution": "uniform"}
    assert parameters["n"] == {"min": 1, "max": 5, "distribution": "int_uniform"}
    assert parameters["tag"] == {"value": "a"}
    assert parameters["old"]["distribution"] == "q_log_uniform_values"
    assert parameters["model"]["parameters"]["scale"]["distribution"] == "inv_log_uniform_values"
    assert {each.name: each.distribution for each in read_parameters(parameters)} == {
        name: each.distribution for name, each in sweep.parameters.items()
    }


def test_its_numbers_are_numbers_for_pyyaml_too(file: Path) -> None:
    """In which W&B writes and reads sweeps: it would read 1e-05 as a text."""
    given = wandb_config(read_sweep(file))
    assert yaml.safe_load(yaml.safe_dump(given)) == given
