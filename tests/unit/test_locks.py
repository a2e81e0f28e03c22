"""A claim that has ended holds nobody up, even where its name could not be taken away at once."""

import os
from pathlib import Path

import pytest

from pipeline.locks import claim


def test_a_name_that_failed_to_go_is_taken_away_at_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = claim("a", tmp_path / "a")
    assert first is not None
    second = first.also("b", tmp_path / "b")
    assert second is not None

    def refused(path: str) -> None:
        raise OSError(5, "Input/output error", path)

    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", refused)
        second.release()
    assert claim("b", tmp_path / "b") is None, "its name is still one of the locked file"
    third = first.also("c", tmp_path / "c")
    assert third is not None
    others = claim("b", tmp_path / "b")
    assert others is not None
    others.release()
    first.release()
    assert not (tmp_path / "b").exists()


def test_a_name_that_failed_to_go_can_be_claimed_again_by_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = claim("a", tmp_path / "a")
    assert first is not None
    second = first.also("b", tmp_path / "b")
    assert second is not None
    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", lambda _path: (_ for _ in ()).throw(OSError(5, "x")))
        second.release()
    again = first.also("b", tmp_path / "b")
    assert again is not None
    assert first.also("c", tmp_path / "c") is not None
    assert claim("b", tmp_path / "b") is None, "it is claimed again, so its name stays"
    again.release()
    assert not (tmp_path / "b").exists()
