"""Folders are removed whatever is in them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.engine.store.store import Scratch, remove_leftovers
from pipeline.files import plain_target, remove_tree


@pytest.fixture(autouse=True)
def nothing_deep_stays(tmp_path: Path) -> Iterator[None]:
    """What a failing test leaves would end every later run of pytest, which recurses to remove it."""
    yield
    for path in tmp_path.iterdir():
        remove_tree(path)


def nest(folder: Path, levels: int = 1_050) -> None:
    """Folders in one another, a file in each: deeper than Python recurses, and longer than a path may be."""
    folder.mkdir()
    at = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)


def test_a_deep_folder_goes(tmp_path: Path) -> None:
    nest(tmp_path / "deep")
    assert remove_tree(tmp_path / "deep") is None
    assert remove_tree(tmp_path / "deep") is None  # what is gone already is no problem
    assert not list(tmp_path.iterdir())


def test_folders_side_by_side_go_with_their_files_and_links_are_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    gone = tmp_path / "gone"
    for name in ("a/b/c", "a/d", "e/b"):
        (gone / name).mkdir(parents=True)
        (gone / name / "file").touch()
    (gone / "a" / "link").symlink_to(kept)
    assert remove_tree(gone) is None
    (tmp_path / "link").symlink_to(kept)
    assert remove_tree(tmp_path / "link") is None
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove everything")
def test_what_cannot_be_removed_stays_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "shut" / "inner").mkdir(parents=True)
    (tmp_path / "shut" / "inner" / "file").touch()
    (tmp_path / "shut" / "other").mkdir()
    (tmp_path / "shut" / "inner").chmod(0o500)
    problem = remove_tree(tmp_path / "shut")
    assert isinstance(problem, PermissionError)
    assert problem.filename == str(tmp_path / "shut")
    (path,) = (tmp_path / "shut").iterdir()
    path.chmod(0o700)
    assert remove_tree(tmp_path / "shut") is None


def test_what_a_run_that_is_gone_left_is_swept_however_deep(tmp_path: Path) -> None:
    (tmp_path / ".tmp").mkdir()
    nest(tmp_path / ".tmp" / "gone-1")
    mine = Scratch(tmp_path / ".tmp" / f"mine-{os.getpid()}")
    mine.open()
    remove_leftovers(tmp_path, mine.path)
    nest(mine.path / "output", 10)
    mine.close()
    assert not list((tmp_path / ".tmp").iterdir())


def test_a_file_that_a_user_names_replaces_nothing_but_a_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(OSError, match="there is something that is no plain file"):
            plain_target(tmp_path / name)
    (tmp_path / "link").symlink_to("real")
    assert plain_target(tmp_path / "link") == tmp_path.resolve() / "real"
    assert plain_target(tmp_path / "new") == tmp_path.resolve() / "new"
