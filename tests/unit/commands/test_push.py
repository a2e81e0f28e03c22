"""Pushing to the hub, whose library is a stand-in: what it is asked for, and how a refusal is told."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants

from pipeline.commands.export import check_repository, push_folder
from pipeline.errors import ConfigError, PipelineError


class Api:
    """In the place of `HfApi`."""

    asked: dict[str, Any]
    refusal: Exception | None = None

    def create_repo(self, repository: str, **how: object) -> SimpleNamespace:
        if self.refusal is not None:
            raise self.refusal
        Api.asked = {"repository": repository, **how}
        return SimpleNamespace(repo_id=repository, __str__=lambda _: "x")

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
        Api.asked |= {"repo_id": repo_id, "folder": folder_path}


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr(Api, "refusal", None)


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.learning.datasets.files._trouble", lambda *_: "")


@pytest.mark.usefixtures("reached")
def test_a_folder_goes_to_a_private_repository(tmp_path: Path) -> None:
    push_folder(tmp_path, "me/mine")
    assert Api.asked == {
        "repository": "me/mine",
        "private": True,
        "exist_ok": True,
        "repo_id": "me/mine",
        "folder": tmp_path,
    }


@pytest.mark.usefixtures("reached")
@pytest.mark.parametrize("refusal", [OSError("401 Client Error\nInvalid token"), ValueError("no token")])
def test_a_refusal_is_one_message_and_the_folder_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    monkeypatch.setattr(Api, "refusal", refusal)
    said = (
        rf"cannot push to me/mine: .*{str(refusal).split()[-1]}.*`hf auth login`.*`hf upload me/mine {tmp_path}`"
    )
    with pytest.raises(PipelineError, match=said) as told:
        push_folder(tmp_path, "me/mine")
    assert "\n" not in str(told.value)


def test_where_the_hub_may_not_be_asked_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PipelineError, match="HF_HUB_OFFLINE is set"):
        push_folder(tmp_path, "me/mine")


@pytest.mark.parametrize("repository", ["", "a/b/c", "-x", "a b", "../x"])
def test_what_is_no_repository_is_refused_before_anything_is_copied(repository: str) -> None:
    with pytest.raises(ConfigError, match=r"--push .*OWNER/NAME"):
        check_repository(repository)
