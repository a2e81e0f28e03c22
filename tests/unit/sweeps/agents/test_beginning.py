"""Going on with a sweep: the file must be the one that it was begun with."""

from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.sweeps.agents.beginning import begin_sweep
from pipeline.sweeps.reading.file import read_sweep

FILE = """
program: p.py
method: grid
metric: {name: loss, goal: minimize}
parameters: {a: {values: VALUES}, b: {value: .inf}}
"""


def begin(folder: Path, values: str) -> None:
    file = folder / "lr.yaml"
    file.write_text(FILE.replace("VALUES", values))
    begin_sweep(read_sweep(file, name="lr"), file, folder / "outputs")


@pytest.mark.parametrize("values", ["[true, 2]", '["1", 2]', "[1, 2, 3]"])
def test_a_file_with_other_values_is_another_sweep(values: str, tmp_path: Path) -> None:
    """As a grid tells values apart: 1.0 is 1, true and "1" are not."""
    (tmp_path / "p.py").touch()
    begin(tmp_path, "[1, 2]")
    begin(tmp_path, "[1.0, 2]")
    with pytest.raises(ConfigError, match="begun with other parameters"):
        begin(tmp_path, values)
