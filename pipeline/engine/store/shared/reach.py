"""Whether a shared store can be reached: asked again for as long as is worth it, and told of once."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from threading import Event, Lock
from typing import TypeVar

from pipeline.engine.store.shared.answers import Timeouts
from pipeline.engine.store.shared.claims import moment
from pipeline.engine.store.shared.objects import Objects, RefusedError, UnreachableError, keeps_first

log = logging.getLogger("pipeline")

_NEWS_S = 60.0
"""For how long it is said that the store is reached again."""
_T = TypeVar("_T")


class Reach:
    """What is known of the way to a shared store. Safe for several threads.

    Attributes:
        away: Why it cannot be reached, or "".
        trouble: Why something could not be sent when that was tried last, or "".
        heard_s: When it gave a sign last.
    """

    def __init__(
        self,
        objects: Objects,
        pace: Timeouts,
        closing: Event,
        away: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            objects: What is asked.
            pace: What is waited for.
            closing: Set when nothing is to be asked again.
            away: Why it cannot be reached yet, or "".
            clock: Monotonic seconds.
        """
        self.away = self.trouble = away
        self.heard_s = clock()
        self._why, self._since, self._back = away, time.time(), 0.0
        self._objects, self._pace, self._closing, self._clock = objects, pace, closing, clock
        self._is_proven = not away
        self._is_told = False
        self._lock = Lock()

    def patiently(self, ask: Callable[[], _T], patience_s: float | None) -> _T:
        """Ask, and ask again for as long as it cannot be reached; None for as long as the run goes on.

        Raises:
            UnreachableError: It could not be asked in that time, or refuses it, which no waiting changes.
        """
        until_s = None if patience_s is None else self._clock() + patience_s
        wait_s = self._pace.backoff_s
        while True:
            try:
                self._prove()
                answer = ask()
            except UnreachableError as error:
                if patience_s is None:
                    self._not_sent(error)
                elif isinstance(error, RefusedError):
                    raise
                left_s = math.inf if until_s is None else until_s - self._clock()
                if left_s <= 0 or self._closing.wait(min(wait_s, left_s)):  # the last time is when it is over
                    raise
                wait_s = min(2 * wait_s, self._pace.longest_s)
            else:
                self.heard()
                return answer

    def heard(self) -> None:
        """It has given a sign."""
        with self._lock:
            self.heard_s = self._clock()
            if self.away:
                self.away, self._back = "", time.time()
                log.info("the shared store is reached again")

    def lost(self, error: UnreachableError) -> None:
        """It was asked in vain."""
        with self._lock:
            if not self.away and not self._closing.is_set():
                level, self._is_told = logging.INFO if self._is_told else logging.WARNING, True
                log.log(level, "the shared store cannot be reached (%s): the run goes on with what is here", error)
            if not self.away:
                self._why, self._since = str(error), time.time()
            self.away = str(error)

    def notice(self) -> str:
        """That it is away, or was until a moment ago, in a line for a screen; else ""."""
        with self._lock:
            if self.away:
                since = moment(self._since)
                return (
                    f"the shared store cannot be reached since {since} ({self._why}): going on with what is here"
                )
            if time.time() - self._back < _NEWS_S:
                return f"the shared store is reached again since {moment(self._back)}"
            return ""

    def look_again(self) -> None:
        """Ask something that costs nothing.

        Raises:
            UnreachableError: It still cannot be reached.
        """
        self._prove()
        self._objects.names("probes/")
        self.heard()

    def _prove(self) -> None:
        """See once that the store keeps what was made first, on which everything rests."""
        if not self._is_proven:
            if not keeps_first(self._objects):
                raise UnreachableError("it replaces what it was asked to make only where nothing is")
            self._is_proven = True

    def _not_sent(self, error: UnreachableError) -> None:
        self.trouble = str(error)
        if self._clock() - self.heard_s >= self._pace.asked_s:
            self.lost(error)
