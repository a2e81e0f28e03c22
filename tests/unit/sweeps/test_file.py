"""A sweep file: what it may say, and what is said of one that is wrong."""

import math
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.sweeps.file import read_sweep
from pipeline.sweeps.space import Choice, Constant, LogUniform, Uniform, WholeUniform
from pipeline.sweeps.spec import Goal, Hyperband, Impute, Method, Metric, Options, Sweep

LEAST = "program: train.py\nmethod: random\nparameters:\n"


@pytest.fixture
def read(tmp_path: Path):
    def _read(text: str | bytes, **options) -> Sweep:
        path = tmp_path / "lr.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_sweep(path, **options)

    return _read


@pytest.fixture
def refused(read):
    def _refused(text: str | bytes, **options) -> str:
        with pytest.raises(ConfigError) as raised:
            read(text, **options)
        return str(raised.value)

    return _refused


def test_numbers_are_numbers_however_they_are_written(read) -> None:
    """PyYAML takes 1e-5 for a text, and so does W&B."""
    sweep = read(LEAST + "  lr: {min: 1e-5, max: 1E-2}\n  x: {values: [1e-5, 3e4, 1.5e+3, -.5, 1_000, .inf, '1e-5']}")
    assert sweep.parameters["lr"].distribution == Uniform(1e-5, 1e-2)
    assert sweep.parameters["x"].distribution == Choice((1e-5, 3e4, 1500.0, -0.5, 1000, math.inf, "1e-5"))
    assert sweep.given["parameters"]["lr"] == {"min": 1e-5, "max": 1e-2}


def test_what_looks_like_a_date_or_a_time_is_a_text(read) -> None:
    sweep = read(LEAST + "  x: {values: [2026-11-22, 1:30, 12:30:45, on, ~]}")
    assert sweep.parameters["x"].distribution == Choice(("2026-11-22", "1:30", "12:30:45", True, None))
