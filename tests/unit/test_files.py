"""Folders are removed whatever is in them."""

import os
from pathlib import Path

import pytest

from pipeline.files import at_home, plain_target, remove_tree


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
    assert remove_tree(gone) is None  # what is gone already is no problem
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


def test_a_file_that_a_user_names_replaces_nothing_but_a_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(OSError, match="there is something that is no plain file"):
            plain_target(tmp_path / name)
    (tmp_path / "link").symlink_to("real")
    assert plain_target(tmp_path / "link") == tmp_path.resolve() / "real"
    assert plain_target(tmp_path / "new") == tmp_path.resolve() / "new"


def test_the_home_of_nobody_is_a_path_as_any_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert at_home("~/x.tar") == tmp_path / "x.tar"
    assert at_home(Path("~nobody here/x.tar")) == Path("~nobody here/x.tar")
