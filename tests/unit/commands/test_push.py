"""Pushing to the hub, of which there is a stand-in on loopback: what arrives there, and how a refusal is told."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.export import check_repository, push
from pipeline.errors import ConfigError, PipelineError

TOKEN = "hf_stand_in"


class Hub(ThreadingHTTPServer):
    """What the hub answers to a push, of one repository."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.refusal: int | None = None
        self.made: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(404, {"error": "Repository not found"})

    def do_GET(self) -> None:
        self._answer(404, {"error": "Entry not found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, {"error": "Invalid username or password."})
        elif self.server.refusal is not None:
            self._answer(self.server.refusal, {"error": "You don't have the rights"})
        elif self.path == "/api/repos/create":
            self.server.made.append(json.loads(body))
            self._answer(200, {"url": f"{self.server.url}/me/mine"})
        elif self.path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif self.path.endswith("/preupload/main"):
            asked = json.loads(body)["files"]
            modes = [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in asked]
            self._answer(200, {"files": modes})
        elif self.path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            done = {"commitUrl": f"{self.server.url}/me/mine/commit/1", "commitOid": "1", "hookOutput": ""}
            self._answer(200, done)
        else:
            self._answer(404, {"error": f"the stand-in knows nothing of {self.path}"})

    def _answer(self, status: int, said: object) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    from huggingface_hub import constants

    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    (made / "reference").mkdir(parents=True)
    (made / "README.md").write_text("---\nlicense: other\n---\n\n# Mine\n")
    (made / "model.safetensors").write_bytes(b"weights" * 100)
    (made / "reference" / "config.json").write_text("{}")
    return made


def test_a_push_brings_every_file_to_a_private_repository(hub: Hub, folder: Path) -> None:
    assert push(folder, "me/mine") == f"{hub.url}/me/mine"
    [made] = hub.made
    assert (made["organization"], made["name"]) == ("me", "mine")
    assert made.get("private", made.get("visibility") == "private")
    assert hub.files == {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(
    ("token", "refusal", "said"),
    [
        (None, None, ".*Log in with `hf auth login`, or set HF_TOKEN"),
        ("hf_other", None, ".*401"),
        (TOKEN, 403, ".*403"),
        (TOKEN, 500, ".*500"),
    ],
    ids=["no token", "another token", "not allowed", "broken hub"],
)
def test_a_refusal_is_one_message_and_the_folder_stays(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch, token: str | None, refusal: int | None, said: str
) -> None:
    hub.refusal = refusal
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
    else:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(
        PipelineError, match=rf"cannot push to me/mine: {said}.*`hf upload me/mine .*` pushes it later"
    ):
        push(folder, "me/mine")
    assert folder.is_dir()
    assert not hub.files


def test_a_hub_that_is_not_there_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(PipelineError, match=r"127\.0\.0\.1:9 \(HF_ENDPOINT\) cannot be reached .*The model is in"):
        push(folder, "me/mine")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PipelineError, match="HF_HUB_OFFLINE is set"):
        push(folder, "me/mine")


@pytest.mark.parametrize("repository", ["", "a/b/c", "-x", "a b", "../x"])
def test_what_is_no_repository_is_refused_before_anything_is_copied(repository: str) -> None:
    with pytest.raises(ConfigError, match=r"--push .*OWNER/NAME"):
        check_repository(repository)
