"""The options of `launch`."""

from typing import Any

import pytest

from pipeline.commands.launch import parse_ids, requested
from pipeline.errors import ConfigError


def test_ids() -> None:
    assert parse_ids("4, 5,6", "--gpus") == [4, 5, 6]
    for wrong in ("a", "0,,1", "0-3", "", "²", "9" * 5000):
        with pytest.raises(ConfigError, match=r"^--gpu-list .* is no id\. Give numbers .*: --gpu-list 4,5,6,7$"):
            parse_ids(wrong, "--gpu-list")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"device": "cpu"}, "--nproc N"),
        ({"nproc": 2}, "use --num-gpus N"),
        ({"device": "cpu", "nproc": 2, "gpus": "0"}, "--device cpu uses no GPU"),
        ({"device": "cpu", "nproc": 2, "num_gpus": 1}, "--device cpu uses no GPU"),
        ({"device": "tpu"}, "--device tpu"),
    ],
)
def test_options_that_contradict_each_other(given: dict[str, Any], says: str) -> None:
    nothing = {"program": ["x.py"], "gpus": None, "num_gpus": None, "device": None, "nproc": None, "grace": 8}
    with pytest.raises(ConfigError, match=says):
        requested(**{**nothing, **given})
