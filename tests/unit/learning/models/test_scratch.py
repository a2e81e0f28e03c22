"""Whole models that are written only to be read back lie where a run cleans up."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.schema import SystemConfig
from pipeline.learning.models import load
from pipeline.learning.models.cache import scratch_folder, scratch_in


class Alone:
    """Ranks of one."""

    is_first = True

    def made_by_first(self, make: Any) -> Any:
        return make()

    def any_of(self, _: bool) -> bool:
        return False


class Model:
    name_or_path = ""

    def save_pretrained(self, place: str) -> None:
        self.saved = place


def test_merged_weights_are_written_beside_the_output_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def load_policy(source: Any, *_: Any, **__: Any) -> Model:
        read.append(Path(source))
        assert Path(source).parent == tmp_path
        return Model()

    monkeypatch.setattr(load, "load_policy", load_policy)
    with scratch_in(tmp_path):
        model = load._load_merged_parts(
            tmp_path / "adapters",
            "base",
            SystemConfig(),
            "cpu",
            Alone(),
            trust_remote_code=False,  # type: ignore[arg-type]
        )
    assert [place.name.partition("-")[0] for place in read] == ["adapters", "merged"]
    assert model.name_or_path == str(tmp_path / "adapters")
    assert list(tmp_path.iterdir()) == []
    assert scratch_folder() is None
