"""The options of `launch`."""

import pytest

from pipeline.commands.launch import parse_ids
from pipeline.errors import ConfigError


def test_ids() -> None:
    assert parse_ids("4, 5,6", "--gpus") == [4, 5, 6]
    for wrong in ("a", "0,,1", "0-3", "", "²", "9" * 5000):
        with pytest.raises(ConfigError, match=r"^--gpu-list .* is no id\. Give numbers .*: --gpu-list 4,5,6,7$"):
            parse_ids(wrong, "--gpu-list")
