"""A shared store beside one run: asked, read and written in threads, so that the scheduler never waits for it.

    ask(job) --> wait ... the descriptor is readable --> ask(job) --> there: it was fetched into the local store
                                                                      mine:  it is not there, so this run makes it
    finished(key) --> uploaded in order, tried again for as long as it takes
    conclude()    --> waits for uploads

Where the store cannot be reached the run goes on with what is here: everything is `mine` then, and what was made
is uploaded when it can be reached again, or by the next run of the same.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from queue import SimpleQueue
from threading import Condition, Event, Thread
from typing import TypeVar

from pipeline.engine.store.shared.objects import Objects, UnreachableError
from pipeline.engine.store.shared.outputs import BadOutputError, SharedOutputs
from pipeline.engine.store.verified import Verified
from pipeline.errors import StoreError

log = logging.getLogger("pipeline")

_FETCHES, _UPLOADS = 4, 2
"""Threads of each kind."""
_T = TypeVar("_T")


class Answer(Enum):
    """What is known of a key."""

    wait = "it is being asked"
    mine = "this run is to make it"
    there = "it is in the local store by now"


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """How long things are waited for, in seconds.

    Attributes:
        asked_s: For how long a question is asked again that got no answer.
        fetched_s: Likewise, to fetch what was there.
        away_s: For how long nothing is asked of a store that was asked in vain.
        silent_s: At the end: after how long without success uploads are given up.
        backoff_s: Between the first two attempts; doubled each time, up to `longest_s`.
        longest_s: Between two attempts at most.
    """

    asked_s: float = 10.0
    fetched_s: float = 120.0
    away_s: float = 60.0
    silent_s: float = 60.0
    backoff_s: float = 0.25
    longest_s: float = 15.0


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a run has had from the shared store, and brought there.

    Attributes:
        fetched: Outputs that came, whole and good.
        fetched_bytes: Of their files.
        uploaded: Outputs that were sent.
        uploaded_bytes: Of their files.
        left: Outputs that are yet to be sent.
    """

    fetched: int = 0
    fetched_bytes: int = 0
    uploaded: int = 0
    uploaded_bytes: int = 0
    left: int = 0


class Session:
    """One run's use of a shared store, until `conclude`. To be used from one thread."""

    def __init__(
        self,
        objects: Objects,
        verified: Verified,
        keys: Iterable[str],
        *,
        limit: int = 4,
        pace: Timeouts | None = None,
        away: str = "",
    ) -> None:
        """Begin.

        Args:
            objects: What the store is of.
            verified: The local store, and notes of what was found good there in this run.
            keys: What is there, as far as is known.
            limit: Questions that may be open before `is_busy`.
            pace: What is waited for.
            away: Why the store cannot be reached yet, or "".
        """
        self.keys, self._pace, self._limit = set(keys), pace or Timeouts(), max(1, limit)
        self._outputs, self._verified, self._store = SharedOutputs(objects), verified, verified.store
        self._state, self._closing = Condition(), Event()
        self._asked: dict[str, Answer] = {}
        self._questions: set[str] = set()
        self._uploads: dict[str, str] = {}
        self._answered: list[str] = []
        self._traffic, self._broken = Traffic(), ""
        self._away, self._why, self._failing_s = away, away, math.inf
        self._again_s = time.monotonic() + self._pace.away_s if away else 0.0
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._fetches: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._sending: SimpleQueue[Callable[[], None]] = SimpleQueue()
        for tasks in [self._fetches] * _FETCHES + [self._sending] * _UPLOADS:
            # One that waits for the network holds up no end.
            Thread(target=self._work, args=(tasks,), name="shared-store", daemon=True).start()

    # -- what the run asks -------------------------------------------------------------------------------------

    def ask(self, job_id: str, key: str) -> Answer:
        """What is known of a key; asks the store if nothing is.

        Raises:
            StoreError: The local store cannot be written to.
        """
        with self._state:
            if self._broken:
                raise StoreError(self._broken)
            if key not in self._asked:
                if self._is_away:
                    return Answer.mine
                self._questions.add(key)
                self.expect({job_id: key})
            answer = self._asked[key]
            if answer is not Answer.wait:
                del self._asked[key]
            return answer

    def expect(self, jobs: Mapping[str, str]) -> None:
        """Fetch what is there.

        Args:
            jobs: Ids of jobs and their keys. Each is among those `answered`, and `ask` says what came of it.
        """
        with self._state:
            for job_id, key in jobs.items():
                self._asked[key] = Answer.wait
                self._fetches.put(partial(self._settle, job_id, key))

    def answered(self) -> list[str]:
        """Ids of the jobs of which more is known than when this was called last."""
        with self._state:
            with suppress(BlockingIOError):
                while os.read(self._wake[0], 4096):
                    pass
            answered, self._answered = self._answered, []
        return answered

    def fileno(self) -> int:
        """A descriptor that is readable while somebody is `answered`."""
        return self._wake[0]

    @property
    def is_busy(self) -> bool:
        """Whether no more should be asked for now: an answer is to be new when its job begins."""
        with self._state:
            return len(self._questions) >= self._limit

    @property
    def notice(self) -> str:
        """That the store is away, in a line for a screen, or ""."""
        return (
            f"the shared store cannot be reached ({self._away}): going on with what is here" if self._away else ""
        )

    # -- what the run tells ------------------------------------------------------------------------------------

    def finished(self, key: str, name: str = "") -> None:
        """An output is in the local store, to be uploaded if it is not there.

        Args:
            key: Its key.
            name: Of its job, for people.
        """
        with self._state:
            if key not in self.keys and key not in self._uploads:
                self._uploads[key] = name or key[:12]
                self._sending.put(partial(self._upload, key))

    @property
    def traffic(self) -> Traffic:
        """What came and went so far."""
        with self._state:
            return replace(self._traffic, left=len(self._uploads))

    def is_uploading(self, key: str) -> bool:
        """Whether an output is yet to be uploaded, and so must stay whole here."""
        with self._state:
            return key in self._uploads

    def conclude(
        self,
        stops: Callable[[], bool] = lambda: False,
        grace_s: float = 0.0,
        hurries: Callable[[], bool] = lambda: False,
    ) -> str:
        """Wait for uploads, and end.

        Args:
            stops: Whether the run was asked to end; then it waits for no more than `grace_s`.
            grace_s: Seconds.
            hurries: Whether it was asked again; then it waits for nothing.

        Returns:
            What is not uploaded, and why; "" where all is.
        """
        if self._closing.is_set():
            return ""
        until_s, began_s = math.inf, time.monotonic()
        with self._state:
            silent_s = self._pace.asked_s if self._away else self._pace.silent_s
            while self._uploads:
                now = time.monotonic()
                if stops():
                    until_s = min(until_s, now + grace_s)
                if hurries() or now >= until_s or now - max(began_s, self._failing_s) >= silent_s:
                    break
                self._state.wait(0.1)
            self._closing.set()
            left = list(self._uploads.values())
            for end in self._wake:
                os.close(end)
            self._wake = (-1, -1)
        for tasks in [self._fetches] * _FETCHES + [self._sending] * _UPLOADS:
            tasks.put(lambda: None)
        if not left:
            return ""
        what = f"{left[0]} is" if len(left) == 1 else f"{len(left):,} outputs are"
        why = f" ({self._why})" if self._why else ""
        return f"{what} not in the shared store yet{why}. The next run of the same command goes on with it"

    # -- in threads --------------------------------------------------------------------------------------------

    def _work(self, tasks: SimpleQueue[Callable[[], None]]) -> None:
        while not self._closing.is_set():
            try:
                tasks.get()()
            except Exception:
                log.exception("the shared store: this is a fault of the program; please report it")

    @property
    def _is_away(self) -> bool:
        return bool(self._away) and time.monotonic() < self._again_s

    def _lost(self, error: UnreachableError) -> None:
        with self._state:
            if not self._away and not self._closing.is_set():
                log.warning("the shared store cannot be reached (%s): the run goes on with what is here", error)
            self._away, self._again_s = str(error), time.monotonic() + self._pace.away_s

    def _patiently(self, patience_s: float, ask: Callable[[], _T]) -> _T:
        """Ask, and ask again for as long as the store cannot be reached and the run goes on.

        Raises:
            UnreachableError: It could not be asked in that time.
        """
        began_s, wait_s = time.monotonic(), self._pace.backoff_s
        while True:
            try:
                answer = ask()
            except UnreachableError as error:
                now = time.monotonic()
                self._failing_s, self._why = min(self._failing_s, now), str(error)
                if patience_s == math.inf and now - self._failing_s >= self._pace.asked_s:
                    self._lost(error)
                left_s = began_s + patience_s - now
                if left_s <= 0 or self._closing.wait(min(wait_s, left_s)):
                    raise
                wait_s = min(2 * wait_s, self._pace.longest_s)
            else:
                self._away, self._why, self._failing_s = "", "", math.inf
                return answer

    def _settle(self, job_id: str, key: str) -> None:
        answer = Answer.mine
        try:
            # Once one was waited for in vain, no other is for a while: thousands would take days.
            if not self._is_away and self._fetch(key):
                answer = Answer.there
        except UnreachableError as error:
            self._lost(error)
        except (StoreError, OSError) as error:
            self._broken = str(error)
        finally:
            with self._state:
                self._questions.discard(key)
                self._asked[key] = answer
                self._answered.append(job_id)
                with suppress(OSError):
                    os.write(self._wake[1], b".")

    def _fetch(self, key: str) -> bool:
        """Have an output here that is there; False where it is not there, or bad and so set aside."""
        patience_s = self._pace.fetched_s if key in self.keys else self._pace.asked_s
        scratch = self._verified.folder / "fetched"
        size = None
        for tries_left in (1, 0):
            try:
                size = self._patiently(patience_s, partial(self._outputs.fetch, key, self._store, scratch))
                break
            except BadOutputError as error:
                if not tries_left:
                    log.warning(
                        "%s in the shared store cannot be used: %s. It is set aside there, and made again",
                        key,
                        error,
                    )
                    self._patiently(patience_s, partial(self._outputs.set_aside, key, error.upload))
        if size is not None:
            self._verified.problem(key)  # read here, so that the engine's loop finds its note
        with self._state:
            if size is None:
                self.keys.discard(key)
                return False
            self.keys.add(key)
            came = self._traffic
            self._traffic = replace(came, fetched=came.fetched + 1, fetched_bytes=came.fetched_bytes + size)
            return True

    def _upload(self, key: str) -> None:
        is_settled = True
        try:
            if problem := self._verified.problem(key):
                raise StoreError(problem)
            sent = self._outputs.upload(key, self._store, partial(self._patiently, math.inf))
            if sent.differs:
                log.warning(
                    "%s: another machine had stored it first, of other bytes: machines whose arithmetic differs "
                    "share this store",
                    key,
                )
            with self._state:
                self.keys.add(key)
                went = self._traffic
                if sent.is_first:
                    self._traffic = replace(
                        went, uploaded=went.uploaded + 1, uploaded_bytes=went.uploaded_bytes + sent.size
                    )
        except UnreachableError:  # the run has ended. What was sent stays, as its entry may have been made
            is_settled = False
        except (StoreError, OSError) as error:
            log.warning("%s was not uploaded to the shared store: %s", key, error)
        finally:
            with self._state:
                if is_settled:
                    del self._uploads[key]
                self._state.notify_all()
