"""Push the folder of an exported model to the Hugging Face hub, by its own library."""

from __future__ import annotations

import shlex
from pathlib import Path

from pipeline.errors import ConfigError, PipelineError
from pipeline.learning.datasets.hub import is_hub_id, reaching

_LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"


def check_repository(repository: str) -> None:
    """Refuse what is no id of a repository, before anything is copied.

    Raises:
        ConfigError: It is none.
    """
    if not is_hub_id(repository):
        raise ConfigError(
            f"--push {shlex.quote(repository)}: must be the id of a repository of the hub, as OWNER/NAME"
        )


def push(folder: Path, repository: str) -> str:
    """Push a folder. A repository that is not there yet is made, and is private.

    Args:
        folder: Of the exported model.
        repository: Its id.

    Returns:
        Where it can be looked at.

    Raises:
        PipelineError: The hub cannot be reached, or refuses; says what to do.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    again = f"The model is in {folder}; `hf upload {repository} {folder}` pushes it later"
    if get_token() is None:
        raise PipelineError(f"cannot push to {repository}: there is no token; {_LOGIN}. {again}")
    with reaching("models", repository) as trouble:
        if trouble:
            raise PipelineError(f"cannot push to {repository}: {trouble}. {again}")
        api = HfApi()
        try:
            made = api.create_repo(repository, private=True, exist_ok=True)
            api.upload_folder(
                repo_id=made.repo_id, folder_path=folder, commit_message="Add a model of posttrain-pipeline"
            )
        except HfHubHTTPError as error:
            raise PipelineError(f"cannot push to {repository}: {_why(error)}. {again}") from error
        except (OSError, ValueError) as error:
            said = " ".join(str(error).split())[:300] or type(error).__name__
            raise PipelineError(f"cannot push to {repository}: {said}. {again}") from error
    return str(made)


def _why(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return f"the hub does not know this token (401); {_LOGIN}"
    if status == 403:
        return f"the hub refuses it (403): the token may not write there; {_LOGIN}"
    return " ".join(str(error).split())[:300] or type(error).__name__
