"""Who computes a key now, of machines that share nothing but the store: claims that end by themselves.

    claims/<key>/000001   made only where there is none: its maker has the claim, and renews it by writing it again
    claims/<key>/000002   the next: made once the first was released, or has not changed for the time of a lease

The number is the fence. It only rises until the output is there, so a holder that slept too long finds a higher
one and knows that it has lost. Should it not look, no harm is done: the entry of an output is made once
(`outputs.py`).

No clocks are compared. Who waits for a claim looks by its own clock how long that stays as it is.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from threading import Thread
from typing import Annotated

from msgspec import Meta

from pipeline.engine.store.shared.objects import Objects, UnreachableError
from pipeline.foreign import ForeignDataError, read_json

LEASE_S = 60.0
"""Seconds without a change after which a claim is nobody's."""
_LIMIT = 4096
_TRIES = 5
_NAME = re.compile(r"\d{6,12}")


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who claims.

    Attributes:
        run: A name that no other run has.
        store: A name of its local store, in which it has the claim of the key meanwhile. So a claim of the same
            store is of a run that is gone.
        host: Its machine, for people.
    """

    run: str
    store: str
    host: str


@dataclass(frozen=True, kw_only=True)
class _Claim(Holder):
    turn: int = 0
    released: bool = False
    since: Annotated[float, Meta(ge=0, le=1e11)] = 0.0


@dataclass(kw_only=True)
class Lease:
    """The right to compute a key, for as long as it is renewed.

    Attributes:
        key: The key.
        number: The fence.
        since: When it was made, in seconds since 1970 by the clock of its maker; for people alone.
        turn: How often it was renewed.
    """

    key: str
    number: int
    since: float
    turn: int = 0


@dataclass(frozen=True)
class Held:
    """Someone else has the claim.

    Attributes:
        host: The machine, as it calls itself.
        since: When it claimed, by its own clock; 0 where it does not say.
    """

    host: str
    since: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        """As in ``node7, since 15:02``."""
        return f"{self.host}, since {moment(self.since)}" if self.since else self.host


class Claims:
    """The claims of one run in a shared store."""

    def __init__(
        self,
        objects: Objects,
        me: Holder,
        *,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._me = me
        self._lease_s = lease_s
        self._clock = clock
        self._seen: dict[str, tuple[int, bytes, float]] = {}

    def take(self, key: str) -> Lease | Held:
        """Claim a key whose claim in the local store this run has. See after that whether the output is there.

        Raises:
            UnreachableError: It could not be asked.
        """
        number, now = 1, float(int(time.time()))
        for _ in range(_TRIES):
            mine = Lease(key=key, number=number, since=now)
            if self._objects.create(_name(key, number), self._text(mine)):
                self._seen.pop(key, None)
                return mine
            number, data = self._highest(key)
            if data is None:
                number += 1  # it was removed just now; what follows is made only where it is not there
                continue
            claim = _read(data)
            if claim and claim.run == self._me.run and not claim.released:
                return Lease(key=key, number=number, since=claim.since, turn=claim.turn)
            if not (claim and (claim.released or claim.store == self._me.store)) and not self._is_over(
                key, number, data
            ):
                return _held(claim)
            number += 1
        raise UnreachableError("others took the claim again and again")

    def renew(self, lease: Lease) -> bool:
        """Say that the work goes on; False where the claim is another's by now.

        Raises:
            UnreachableError: It could not be asked.
        """
        if not self._is_mine(lease):
            return False
        lease.turn += 1
        self._objects.write(_name(lease.key, lease.number), self._text(lease))
        return True

    def release(self, lease: Lease) -> None:
        """Let others compute the key at once.

        Raises:
            UnreachableError: It could not be asked. Then the claim ends by itself.
        """
        if self._is_mine(lease):
            self._objects.write(_name(lease.key, lease.number), self._text(lease, released=True))

    def release_all(self, leases: Sequence[Lease], within_s: float, hurries: Callable[[], bool]) -> None:
        """The same for several, and not waited for long: a server that does not answer holds up no end.

        Args:
            leases: What is released.
            within_s: Seconds. What is not released then ends by itself.
            hurries: Whether it is not to be waited for any more.
        """

        def release() -> None:
            with suppress(UnreachableError):
                for lease in leases:
                    self.release(lease)

        thread = Thread(target=release, name="releases", daemon=True)
        thread.start()
        until_s = self._clock() + within_s
        while thread.is_alive() and not hurries() and self._clock() < until_s:
            thread.join(0.1)

    def forget(self, key: str) -> None:
        """Remove all claims of a key whose output is there, which needs none any more.

        Raises:
            UnreachableError: It could not be asked. What is left of them harms nobody.
        """
        for number in self._numbers(key):
            self._objects.delete(_name(key, number))

    def _is_mine(self, lease: Lease) -> bool:
        number, data = self._highest(lease.key)
        claim = _read(data) if data is not None else None
        return number == lease.number and claim is not None and claim.run == self._me.run

    def _is_over(self, key: str, number: int, data: bytes) -> bool:
        now, seen = self._clock(), self._seen.get(key)
        if seen is None or seen[:2] != (number, data):
            self._seen[key] = seen = (number, data, now)
        return now - seen[2] >= self._lease_s

    def _highest(self, key: str) -> tuple[int, bytes | None]:
        numbers = self._numbers(key)
        if not numbers:
            return 0, None
        data = self._objects.read(_name(key, numbers[-1]), _LIMIT)
        return numbers[-1], data

    def _numbers(self, key: str) -> list[int]:
        names = (name.rpartition("/")[2] for name in self._objects.names(f"claims/{key}/"))
        return sorted(int(name) for name in names if _NAME.fullmatch(name))

    def _text(self, lease: Lease, *, released: bool = False) -> bytes:
        claim = _Claim(**asdict(self._me), turn=lease.turn, released=released, since=lease.since)
        return json.dumps(asdict(claim)).encode()


def holder(store: str, host: str) -> Holder:
    """A run that is about to claim."""
    return Holder(run=secrets.token_hex(16), store=store, host=host)


def moment(seconds: float) -> str:
    """A time of today as ``15:02``, another with its day, by the clock of this machine."""
    then = datetime.fromtimestamp(seconds).astimezone()
    return f"{then:%H:%M}" if then.date() == datetime.now().astimezone().date() else f"{then:%Y-%m-%d %H:%M}"


def _held(claim: _Claim | None) -> Held:
    if claim is None:
        return Held("?")
    return Held("".join(c if c.isprintable() else "?" for c in claim.host)[:60], claim.since)


def _name(key: str, number: int) -> str:
    return f"claims/{key}/{number:06d}"


def _read(data: bytes) -> _Claim | None:
    try:
        return read_json(data, _Claim)
    except ForeignDataError:
        return None
