"""A judge behind an OpenAI-compatible endpoint: concurrent requests, and replies that are stored at once.

Replies are stored by URL, model, prompt and sampling settings, so no job of a store pays twice for the same reply,
even after a kill. All workers of a store on one machine share a rate limit. The API key is only in the header of
requests: redirects are not followed, and the key is removed from all text of the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx2

from pipeline.errors import JobError, JobStopped
from pipeline.files import json_text, one_at_a_time
from pipeline.foreign import ForeignDataError, converted, read_json, read_plain
from pipeline.learning.rewards.calling import loop
from pipeline.learning.rewards.judge import Asking, JudgeSettings, Reply
from pipeline.outputs import formats

_LARGEST = 4 << 20
"""Bytes of a response that are read; replies are far shorter."""
_LARGEST_FILE = 4 << 30
_LONGEST_WAIT_S = 600.0
_MOST_WORKERS = 100
"""Most workers with earlier turns; a later turn comes from a clock that was set back, or a restart."""
_TOLD_S = 0.5
_TOLD_WAIT_S = 10.0
_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_OF_PROMPT = {400, 413, 422}
"""Status codes about one prompt, such as a prompt that is too long."""
_SHOWN = 200


class Endpoint:
    """A client of one server."""

    backoff_s = 1.0
    """Seconds before the second attempt; doubled for each further attempt."""

    def __init__(self, settings: JudgeSettings, key: str, folder: Path | None) -> None:
        """Prepare; no request is sent.

        Args:
            settings: Settings of the judge.
            key: API key; "" for none.
            folder: Folder for replies; None stores none.
        """
        path = "/chat/completions"
        self._url = settings.endpoint.rstrip("/").removesuffix(path) + path
        self._settings, self._key = settings, key
        # Judges that ask otherwise have nothing in common.
        self._folder = None if folder is None else folder / formats.REPLIES / self._id("")[:16]
        self._of, self._file = "", Path()
        self._seen: dict[str, int] = {}
        self._known: dict[str, Reply] = {}
        self._free_at = 0.0
        self._turns = asyncio.Lock()

    def ask(self, prompts: Sequence[str], asking: Asking) -> list[Reply]:
        """Return a reply to each prompt, in order; only prompts without a stored reply are sent.

        Raises:
            JobError: The server refuses the key or the model, or fails at all attempts.
            JobStopped: The run is about to end.
        """
        if self._folder is not None and asking.key != self._of:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._of, self._file = asking.key, self._folder / f"{asking.key}.{uuid.uuid4().hex}.jsonl"
        ids = [self._id(prompt) for prompt in prompts]
        if any(each not in self._known for each in ids):
            self._known |= dict(self._saved())
        new = {each: prompt for each, prompt in zip(ids, prompts, strict=True) if each not in self._known}
        found: dict[str, Reply] = {}
        if new:
            try:
                loop().run(self._ask_all(new, found, asking))
            except BaseExceptionGroup as group:  # all others were given up with the first
                raise group.exceptions[0] from group.exceptions[0].__cause__
        return [self._known.get(each) or found[each] for each in ids]

    def _body(self, prompt: str) -> dict[str, Any]:
        given = self._settings
        body = {
            "model": given.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": given.temperature,
            "top_p": given.top_p,
            "max_tokens": given.max_tokens,
            **given.body,
        }
        return {name: value for name, value in body.items() if value is not None}

    def _id(self, prompt: str) -> str:
        asked = json.dumps([self._url, self._body(prompt)], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()

    # -- replies ---------------------------------------------------------------------------------------------

    def _saved(self) -> Iterator[tuple[str, Reply]]:
        """Yield the stored replies of all workers; each has its own file, whose last line may be cut off."""
        for file in sorted(self._folder.glob("*.jsonl")) if self._folder and self._folder.is_dir() else ():
            lines: list[bytes] = []
            with suppress(OSError, ForeignDataError):
                size = file.stat().st_size
                if file != self._file and self._seen.get(file.name) != size:
                    lines, self._seen[file.name] = read_plain(file, _LARGEST_FILE).splitlines(), size
            for line in lines:
                with suppress(ForeignDataError, KeyError):
                    of = read_json(line, dict[str, Any])
                    yield str(of.pop("id")), converted(of, Reply)

    def _save(self, name: str, reply: Reply) -> None:
        self._known[name] = reply
        if self._folder is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json_text({"id": name, **asdict(reply)}) + "\n")

    # -- requests --------------------------------------------------------------------------------------------

    async def _ask_all(self, new: Mapping[str, str], found: dict[str, Reply], asking: Asking) -> None:
        waiting = iter(new.items())
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}

        async def work(client: httpx2.AsyncClient) -> None:
            for name, prompt in waiting:
                found[name] = await self._ask_one(client, self._body(prompt))
                if not found[name].problem:
                    self._save(name, found[name])

        async with (
            httpx2.AsyncClient(
                headers=headers, timeout=self._settings.timeout_s, follow_redirects=False
            ) as client,
            asyncio.TaskGroup() as group,
        ):
            tasks = {group.create_task(work(client)) for _ in range(min(self._settings.at_once, len(new)))}
            while tasks:
                _, tasks = await asyncio.wait(tasks, timeout=_TOLD_S)
                asking.told(len(found) / len(new))
                if asking.stopping():
                    deque(waiting, maxlen=0)  # replies to what is under way may still come, and are paid for
        if len(found) < len(new):
            raise JobStopped(f"after {len(found)} of {len(new)} replies, which are stored")

    async def _ask_one(self, client: httpx2.AsyncClient, body: Mapping[str, Any]) -> Reply:
        settings, why = self._settings, ""
        cause: Exception | None = None
        for attempt in range(settings.attempts):
            if attempt:
                await asyncio.sleep(min(_LONGEST_WAIT_S, self.backoff_s * 2 ** (attempt - 1)))
            await self._turn()
            try:
                async with asyncio.timeout(settings.timeout_s):
                    async with client.stream("POST", self._url, content=json_text(body)) as response:
                        content = await _content(response)
            except (httpx2.RequestError, TimeoutError) as error:
                why, cause = f"{type(error).__name__} {error}", error
                continue
            if response.status_code == httpx2.codes.OK:
                reply = self._read(content)
                if not reply.problem:
                    return reply
                why, cause = reply.problem, None
            elif response.status_code in _AGAIN:
                why = f"HTTP {response.status_code}"
                cause = httpx2.HTTPStatusError(why, request=response.request, response=response)
                self._wait(_wait_s(response.headers.get("retry-after")), why)
            elif response.status_code in _OF_PROMPT:
                return Reply(problem=f"HTTP {response.status_code}: {self._brief(content)}")
            else:
                raise JobError(self._refusal(response, content))
        if cause is None:
            return Reply(problem=why)
        raise JobError(
            f"{self._url} gives no answer, asked {attempt + 1} time{'s' * bool(attempt)}: {self._brief(why)}. "
            "What was answered is kept; run it again, or see at_once, per_minute, attempts and timeout_s"
        ) from cause

    async def _turn(self) -> None:
        """Wait until the limits allow the next request."""
        spacing_s = 60 / self._settings.per_minute if self._settings.per_minute else 0.0
        async with self._turns:  # one at a time, so that a worker that is killed leaves at most one turn unused
            begin = self._book(0.0, spacing_s)
            await asyncio.sleep(begin - time.monotonic())

    def _wait(self, wait_s: float, why: str) -> None:
        """Put off the next request of all workers by some seconds, and say a long wait in the job's log."""
        if time.monotonic() + wait_s > self._free_at + _TOLD_WAIT_S:
            print(f"{self._url} asks to wait {wait_s:.0f} s ({why})", flush=True)  # noqa: T201 - the job's log
        self._book(wait_s, 0.0)

    def _book(self, after_s: float, spacing_s: float) -> float:
        """Take the next free turn after some seconds, together with the other workers of the store.

        Returns:
            Its time on the monotonic clock, which the processes of a machine share. The turn after it is
            `spacing_s` later.
        """
        with one_at_a_time(self._folder) if self._folder else nullcontext():
            turn, now = self._folder / "turn" if self._folder else None, time.monotonic()
            with suppress(OSError, ValueError):
                self._free_at = float(turn.read_text()) if turn else self._free_at
            if self._free_at > now + _LONGEST_WAIT_S + _MOST_WORKERS * spacing_s:
                self._free_at = now
            begin = max(now + after_s, self._free_at)
            if turn and begin + spacing_s > max(now, self._free_at):
                turn.write_text(f"{begin + spacing_s}")
            self._free_at = begin + spacing_s
        return begin

    def _read(self, content: bytes) -> Reply:
        try:
            found = read_json(content, dict[str, Any])
            usage = found.get("usage") or {}
            plain = {
                "text": self._clean(found["choices"][0]["message"]["content"] or ""),
                "model": self._brief(found.get("model") or self._settings.model),
                "read": usage.get("prompt_tokens", 0),
                "written": usage.get("completion_tokens", 0),
            }
            return converted(plain, Reply)
        except (ForeignDataError, LookupError, TypeError, AttributeError):
            return Reply(problem=f"the response is no chat completion: {self._brief(content)}")

    def _refusal(self, response: httpx2.Response, content: bytes) -> str:
        said = f"{self._url} refuses to answer (HTTP {response.status_code})"
        if response.status_code in (401, 403):  # a server may repeat parts of the key
            return f"{said}: is the key right? Its variable is key_env={self._settings.key_env or 'null'}"
        if response.is_redirect:
            to = self._brief(response.headers.get("location", ""))
            return f"{said} but sends on to {to}, which is not followed. Set endpoint to the right one"
        return f"{said}: {self._brief(content)}"

    def _brief(self, text: str | bytes) -> str:
        """Return the start of a text of the server as one printable line."""
        text = self._clean(text if isinstance(text, str) else text.decode(errors="replace"))
        return "".join(each if each.isprintable() else " " for each in " ".join(text.split())[:_SHOWN])

    def _clean(self, text: str) -> str:
        """Remove the key from a text of the server."""
        return text.replace(self._key, "***") if self._key else text


async def _content(response: httpx2.Response) -> bytes:
    """Read the body of a response, cut off at the limit."""
    found = bytearray()
    async for part in response.aiter_bytes():
        found += part
        if len(found) > _LARGEST:
            break
    return bytes(found)


def _wait_s(header: str | None) -> float:
    """Return the seconds of a Retry-After header, given as seconds or a date; 0 if it cannot be parsed."""
    wait_s = 0.0
    with suppress(ValueError, TypeError, OverflowError):
        try:
            wait_s = float(header or 0)
        except ValueError:
            wait_s = parsedate_to_datetime(header or "").timestamp() - time.time()
    return min(_LONGEST_WAIT_S, max(0.0, wait_s)) if wait_s == wait_s else 0.0
