"""What users call in Python says in one message which argument is of a wrong type."""

from collections.abc import Callable
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.commands.python import check_types
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: pipeline.load_run(None), "name=None: must be str; it is of type NoneType"),
        (lambda: pipeline.run(3), "settings are a list of texts"),
        (lambda: pipeline.guided(None), "model=None: must be str or Path"),
        (lambda: pipeline.guided("x", round=1.5), r"round=1\.5: must be Integral or NoneType"),
    ],
)
def test_an_argument_of_another_type_is_told_by_its_name(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        call()


@pytest.mark.parametrize(("kind", "value"), [(Integral, np.int64(2)), (Real, np.float32(0.5)), (Path, Path())])
def test_numbers_are_numbers_wherever_they_come_from(kind: Any, value: object) -> None:
    check_types(kind, given=value)
    with pytest.raises(ConfigError):
        check_types(kind, given=True)
