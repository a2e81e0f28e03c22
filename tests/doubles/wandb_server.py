"""What the real package wandb asks of its server when it creates a sweep and runs an agent, answered on loopback.

Its GraphQL alone, and of that a sweep over a grid: a trial for each heartbeat of an agent that runs none, then the
order to end. Nothing that a run would upload is kept.
"""

import itertools
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

_OPERATION = re.compile(r"(?:query|mutation)\s+(\w+)")
ENTITY, PROJECT, SWEEP = "me", "sums", "abcd1234"
KEY = "0123456789" * 4
"""No key of anybody; W&B's have 40 characters."""


class Server:
    """The state of the stand-in.

    Attributes:
        url: For ``WANDB_BASE_URL``.
        config: Of the sweep that was created, as it was sent.
        asked: Operations, in the order in which they came.
        given: Parameters of the trials that were handed out.
        running: Trials that agents have said to run; they say so once they can pass a signal on.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.config: dict[str, Any] = {}
        self.asked: list[str] = []
        self.given: list[dict[str, Any]] = []
        self.running: set[str] = set()
        self._agents = itertools.count(1)
        self._lock = threading.Lock()

    def environment(self, folder: Path) -> dict[str, str]:
        """By which wandb asks this server, and keeps what it keeps in a folder."""
        folders = {f"WANDB_{kind}_DIR": str(folder / kind.lower()) for kind in ("CONFIG", "CACHE", "DATA")}
        return {
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": KEY,
            "WANDB_ERROR_REPORTING": "false",
            **folders,
        }

    def answer(self, operation: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The data of an answer."""
        with self._lock:
            self.asked.append(operation)
            known = getattr(self, f"_{operation}", None)
            return {} if known is None else known(variables)

    def _Viewer(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"viewer": {"id": "1", "entity": ENTITY, "username": ENTITY, "teams": {"edges": []}}}

    def _UpsertSweep(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        self.config = yaml.safe_load(variables["config"])
        project = {"id": "1", "name": PROJECT, "entity": {"id": "1", "name": ENTITY}}
        return {"upsertSweep": {"sweep": {"name": SWEEP, "project": project}, "configValidationWarnings": []}}

    def _SweepWithRuns(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"project": {"sweep": {"name": SWEEP, "config": json.dumps(self.config), "runs": {"edges": []}}}}

    def _CreateAgent(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"createAgent": {"agent": {"id": f"agent{next(self._agents)}"}}}

    def _Heartbeat(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        running = json.loads(variables["runState"])
        self.running |= set(running)
        commands = [] if running else [self._next()]
        return {"agentHeartbeat": {"agent": {"id": variables["id"]}, "commands": json.dumps(commands)}}

    def _next(self) -> dict[str, Any]:
        parameters = self.config["parameters"]
        names = sorted(parameters)
        points = itertools.product(
            *(parameters[name].get("values") or [parameters[name]["value"]] for name in names)
        )
        left = [dict(zip(names, point, strict=True)) for point in points][len(self.given) :]
        if not left:
            return {"type": "exit"}
        self.given.append(left[0])
        args = {name: {"value": value} for name, value in left[0].items()}
        run = f"run{len(self.given)}"
        return {"type": "run", "run_id": run, "program": self.config.get("program"), "args": args}


@contextmanager
def serving() -> Iterator[Server]:
    """Answer on a free port of the loopback interface."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            data = {}
            if self.path == "/graphql":
                asked = json.loads(body)
                name = _OPERATION.search(asked["query"])
                data = {"data": state.answer(name[1] if name else "", asked.get("variables") or {})}
            text = json.dumps(data).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Server(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
