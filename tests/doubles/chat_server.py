"""An OpenAI-compatible server on this machine, which answers as a test says."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any


@dataclass
class Answer:
    """What comes back: the text of a reply, or something else in its place."""

    text: str = "Rating: [[7]]"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    breaks_off: bool = False
    model: str = "the-model-2026"


@dataclass
class ChatServer:
    """A server that runs.

    Attributes:
        url: For clients.
        answer: From the prompt, and how often it was asked before, to what comes back.
        bodies: Of requests, in their order.
        keys: Their headers of authorization.
    """

    url: str = ""
    answer: Callable[[str, int], Answer] = lambda _, __: Answer()
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    lock: Lock = field(default_factory=Lock)

    @property
    def prompts(self) -> list[str]:
        return [body["messages"][-1]["content"] for body in self.bodies]


@contextmanager
def chat_server(answer: Callable[[str, int], Answer] = lambda _, __: Answer()) -> Iterator[ChatServer]:
    """Serve until the test is over."""
    state = ChatServer(answer=answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = body["messages"][-1]["content"]
            with state.lock:
                before = state.prompts.count(prompt)
                state.bodies.append(body)
                state.keys.append(self.headers.get("Authorization"))
                state.at_once += 1
                state.most_at_once = max(state.most_at_once, state.at_once)
            try:
                assert self.path == "/v1/chat/completions"
                self.give(state.answer(prompt, before))
            finally:
                with state.lock:
                    state.at_once -= 1

        def give(self, answer: Answer) -> None:
            reply = {
                "model": answer.model,
                "choices": [{"message": {"role": "assistant", "content": answer.text}}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10},
            }
            data = json.dumps(reply).encode() if answer.raw is None else answer.raw
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data) + answer.breaks_off))
            self.end_headers()
            with suppress(ConnectionError):  # who asks has had enough
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
