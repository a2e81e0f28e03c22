"""The Hugging Face hub: asked once whether it can be reached, as its libraries try for minutes before they say so.

While it cannot be reached all is as with `HF_HUB_OFFLINE=1`: what the cache has is used, what it lacks is refused.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

PATIENCE_S = 5.0
"""Seconds that the hub may take to answer a question of one line."""

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_NOT_SEEN = {"RepositoryNotFoundError", "GatedRepoError", "DatasetNotFoundError"}
_NOT_SEEN_STATUS = {401, 403, 404}


def is_hub_id(path: str) -> bool:
    """Whether a path may be an id of the hub: ``name`` or ``owner/name``."""
    return _ID.fullmatch(path) is not None


def in_cache(repo: str, file: str, revision: str | None = None) -> Path | None:
    """A file of a model on the hub that is on this machine already; the hub is not asked."""
    if not is_hub_id(repo):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, file, revision=revision)
    return Path(found) if isinstance(found, str) else None


def offline() -> bool:
    """Whether the hub may not be asked at all."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def folder_called_nearly(repo: str) -> Path | None:
    """The folder of a model that may have been meant by what is taken for an id of the hub; or None."""
    around = Path(repo).parent
    near = get_close_matches(Path(repo).name, [path.parent.name for path in around.glob("*/config.json")], n=1)
    return around / near[0] if near else None


@contextmanager
def reaching(kind: Literal["models", "datasets"], repo: str) -> Iterator[str]:
    """Have the libraries of the hub use nothing but the cache while it cannot be reached.

    Args:
        kind: What is wanted.
        repo: Its id.

    Yields:
        Why the hub cannot be reached, or "".
    """
    trouble = _trouble(kind, repo)
    if not trouble:
        yield ""
        return
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        if kind == "models":
            yield trouble
            return
        import datasets

        known, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, True
        try:
            yield trouble
        finally:
            datasets.config.HF_HUB_OFFLINE = known
    finally:
        constants.HF_HUB_OFFLINE = before


def why_not(error: BaseException, trouble: str) -> tuple[str, BaseException | None]:
    """Say why the hub did not give something.

    Args:
        error: What its library raised.
        trouble: Why it cannot be reached, or "".

    Returns:
        The reason, and what to raise it from: None where trying again would not help.
    """
    if trouble:
        return f"{trouble}, and the cache of this machine does not have it", None
    for one in _chain(error):
        status = getattr(getattr(one, "response", None), "status_code", None)
        if type(one).__name__ == "RevisionNotFoundError":
            return "it has no such revision", None
        if type(one).__name__ == "RemoteEntryNotFoundError":
            return "it lacks a file that all of its kind have", None
        if type(one).__name__ in _NOT_SEEN or status in _NOT_SEEN_STATUS:
            return (
                f"there is none of this name, or it is private or gated{f' ({status})' if status else ''}. Check "
                "the spelling; to get at one that is not public, accept its terms on its page and log in with "
                "`hf auth login` or HF_TOKEN",
                None,
            )
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__, error


def _trouble(kind: str, repo: str) -> str:
    if offline():
        return "HF_HUB_OFFLINE is set"
    from huggingface_hub import constants, get_session

    said: list[str] = []

    def ask() -> None:
        try:
            get_session().head(f"{constants.ENDPOINT}/api/{kind}/{repo}", timeout=PATIENCE_S)
            said.append("")
        except Exception as error:
            # Errors of the HTTP client, whichever it is: they have no common base but this.
            said.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200] or 'no answer'}")

    # Apart, since looking up a name has no timeout: the resolver may try its servers for half a minute.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(2 * PATIENCE_S)
    why = said[0] if said else f"no answer within {2 * PATIENCE_S:g} s"
    return f"{constants.ENDPOINT} (HF_ENDPOINT) cannot be reached ({why})" if why else ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__
