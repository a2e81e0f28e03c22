"""The options of `launch`."""

import pytest

from pipeline.commands.launch import parse_ids
from pipeline.errors import ConfigError


def test_ids() -> None:
    assert parse_ids("4, 5,6") == [4, 5, 6]
    for wrong in ("a", "0,,1", "0-3", ""):
        with pytest.raises(ConfigError, match=r"is no id\. Give numbers with commas"):
            parse_ids(wrong)
