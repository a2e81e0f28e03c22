"""A shared store beside one run: asked, read and written in threads, so that the scheduler never waits for it.

    ask(job) --> wait ... the descriptor is readable --> ask(job) --> there: it was fetched into the local store
                                                                      mine:  nobody makes it, so this run may
                                                                      held:  another machine makes it
    finished(key) --> uploaded in order, tried again for as long as it takes
    conclude()    --> waits for uploads, gives claims back

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
from dataclasses import replace
from functools import partial
from threading import Condition, Event, Thread
from typing import TypeVar

from pipeline.engine.store.shared.answers import Answer, Asked, Timeouts, Traffic, not_uploaded
from pipeline.engine.store.shared.claims import Claims, Held, Lease, holder
from pipeline.engine.store.shared.daemon_threads import DaemonThreads
from pipeline.engine.store.shared.objects import Objects, UnreachableError
from pipeline.engine.store.shared.outputs import BadOutputError, NotWholeError, SharedOutputs, Upload
from pipeline.engine.store.shared.reach import Reach
from pipeline.engine.store.verified import Verified
from pipeline.errors import StoreError

log = logging.getLogger("pipeline")

_THREADS = {"questions": 4, "fetches": 4, "uploads": 2}
_T = TypeVar("_T")


class Session:
    """One run's use of a shared store, until `conclude`. To be used from one thread."""

    def __init__(
        self,
        objects: Objects,
        verified: Verified,
        keys: Iterable[str],
        *,
        store_name: str,
        limit: int = 4,
        pace: Timeouts | None = None,
        away: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            objects: What the store is of.
            verified: The local store, and notes of what was found good there in this run.
            keys: What is there, as far as is known.
            store_name: Of the local store, see `Holder`.
            limit: Questions that may be open before `is_busy`.
            pace: What is waited for.
            away: Why the store cannot be reached yet, or "".
            clock: Monotonic seconds.
        """
        self.keys = set(keys)
        self._traffic = Traffic()
        self._pace = pace or Timeouts()
        self._outputs = SharedOutputs(objects)
        self._verified, self._store, self._scratch = verified, verified.store, verified.folder / "fetched"
        me = holder(store_name, os.uname().nodename)
        self._claims = Claims(objects, me, lease_s=self._pace.lease_s, clock=clock)
        self._limit, self._clock = max(1, limit), clock
        self._state = Condition()
        self._asked: dict[str, Asked] = {}
        self._leases: dict[str, Lease] = {}
        self._uploads: dict[str, str] = {}
        self._answered: list[str] = []
        self._broken = ""
        self._fetches_fail = False
        self._closing = Event()
        self._reach = Reach(objects, self._pace, self._closing, away, clock)
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._questions, self._fetches, self._sending = (
            DaemonThreads(name, number, self._closing) for name, number in _THREADS.items()
        )
        self._housekeeper = Thread(target=self._keep_house, name="leases", daemon=True)
        self._housekeeper.start()

    # -- what the run asks -------------------------------------------------------------------------------------

    def ask(self, job_id: str, key: str) -> tuple[Answer, str]:
        """What is known of a key, and which machine makes it since when; asks the store if nothing is.

        Raises:
            StoreError: The local store cannot be written to.
        """
        with self._state:
            if self._broken:
                raise StoreError(self._broken)
            asked = self._asked.get(key)
            if asked is None:
                if key in self._leases or self._reach.away:
                    return Answer.mine, ""
                self._asked[key] = Asked(job_id)
                self._questions.put(partial(self._settle, key, self._found))
                return Answer.wait, ""
            if asked.answer in (Answer.mine, Answer.there):
                del self._asked[key]
            return asked.answer, asked.host

    def expect(self, jobs: Mapping[str, str]) -> None:
        """Fetch what is there.

        Args:
            jobs: Ids of jobs and their keys. Each is among those `answered`, and `ask` says what came of it.
        """
        with self._state:
            for job_id, key in jobs.items():
                self._asked[key] = Asked(job_id, is_expected=True)
                self._fetches.put(partial(self._settle, key, self._expected))

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
        """Whether no more should be asked for now: what this run asks for, no other machine begins."""
        with self._state:
            waits = (one.answer is Answer.wait and not one.is_expected for one in self._asked.values())
            return sum(waits) >= self._limit

    @property
    def notice(self) -> str:
        """What whoever looks at the run should know of the way to the store, in a line, or ""."""
        return self._reach.notice()

    # -- what the run tells ------------------------------------------------------------------------------------

    def finished(self, key: str, name: str = "") -> None:
        """An output is in the local store, to be uploaded if it is not there.

        Args:
            key: Its key.
            name: Of its job, for people.
        """
        with self._state:
            if key in self.keys or key in self._uploads:
                return
            self._uploads[key] = name or key[:12]
            self._sending.put(partial(self._upload, Upload(self._outputs, self._store, key)))

    def give_up(self, key: str) -> None:
        """This run does not make an output now, if it is not there: another machine may."""
        with self._state:
            lease = None if key in self._uploads else self._leases.pop(key, None)
            if lease is not None:
                self._questions.put(partial(self._release, lease))

    def forget(self, key: str) -> None:
        """An answer was taken note of."""
        with self._state:
            self._asked.pop(key, None)

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
            What could not be done, or "".
        """
        if self._closing.is_set():
            return ""
        until_s, began_s = math.inf, self._clock()
        with self._state:
            silent_s = self._pace.asked_s if self._reach.away else self._pace.silent_s
            while self._uploads:
                now = self._clock()
                if stops():
                    until_s = min(until_s, now + grace_s)
                if hurries() or now >= until_s or now - max(began_s, self._reach.heard_s) >= silent_s:
                    break
                self._state.wait(0.1)
            left, why = list(self._uploads.values()), self._reach.away or self._reach.trouble
        self._close(hurries)
        return not_uploaded(left, why)

    def _close(self, hurries: Callable[[], bool]) -> None:
        self._closing.set()
        with self._state:
            leases = [] if self._reach.away else list(self._leases.values())
            self._state.notify_all()
        self._claims.release_all(leases, self._pace.released_s, hurries)
        for threads in (self._questions, self._fetches, self._sending):
            threads.dismiss()
        self._housekeeper.join(1.0)
        with self._state:
            self._asked.clear()
            read, write = self._wake
            self._wake = (-1, -1)
        os.close(read)
        os.close(write)

    # -- in threads: questions ---------------------------------------------------------------------------------

    def _settle(self, key: str, find_out: Callable[[str], tuple[Answer | None, str]]) -> None:
        answer: Answer | None = Answer.mine
        host = ""
        try:
            answer, host = find_out(key)
        except UnreachableError as error:
            self._reach.lost(error)
        except (StoreError, OSError) as error:
            with self._state:
                self._broken = str(error)
        except Exception:
            log.exception("the shared store: this is a fault of the program; please report it")
        self._tell(key, answer, host)

    def _tell(self, key: str, answer: Answer | None, host: str) -> None:
        with self._state:
            asked = self._asked.get(key)
            if asked is None or self._wake[1] < 0:
                return
            told = asked.answer
            if answer is None:
                del self._asked[key]
            else:
                asked.answer, asked.host, asked.again_s = answer, host, self._clock() + self._pace.poll_s
            if answer is not told:
                self._answered.append(asked.job_id)
                with suppress(BlockingIOError):
                    os.write(self._wake[1], b".")

    def _expected(self, key: str) -> tuple[Answer | None, str]:
        return (Answer.there if self._fetch(key, self._pace.fetched_s) else None), ""

    def _found(self, key: str) -> tuple[Answer, str]:
        took = self._reach.patiently(partial(self._claims.take, key), self._pace.asked_s)
        # Looked at after the claim: its last holder may have stored the output just before.
        if self._fetch(key, self._pace.asked_s if key not in self.keys else self._pace.fetched_s):
            if isinstance(took, Lease):
                with suppress(UnreachableError):
                    self._claims.forget(key)
            return Answer.there, ""
        if isinstance(took, Held):
            return Answer.held, str(took)
        with self._state:
            self._leases[key] = took
        return Answer.mine, ""

    def _release(self, lease: Lease) -> None:
        with self._state:
            if lease.key in self._asked or lease.key in self._leases:  # it is wanted again
                return
        with suppress(UnreachableError):
            self._claims.release(lease)

    def _fetch(self, key: str, patience_s: float) -> bool:
        """Have an output here that is there; False where it is not there, or bad and so set aside."""
        # Once one was waited for in vain, no other is until one has come: thousands would take days.
        if self._fetches_fail and (why := self._reach.away):
            raise UnreachableError(why)
        try:
            found = self._fetch_patiently(key, 0.0 if self._fetches_fail else patience_s)
        except UnreachableError:
            self._fetches_fail = True
            raise
        self._fetches_fail = False
        return found

    def _fetch_patiently(self, key: str, patience_s: float) -> bool:
        for is_last in (False, True):
            try:
                size = self._reach.patiently(partial(self._bring, key), patience_s)
                if size is None:
                    with self._state:
                        self.keys.discard(key)
                    return False
                self._verified.problem(key)  # read here, so that the engine's loop finds its note
                with self._state:
                    self.keys.add(key)
                    self._traffic = self._traffic.fetching(size)
                return True
            except BadOutputError as error:
                bad = error
                if is_last:
                    break
        log.warning("%s in the shared store cannot be used: %s. It is set aside there, and made again", key, bad)
        self._reach.patiently(partial(self._outputs.set_aside, key, bad.upload), patience_s)
        with self._state:
            self.keys.discard(key)
        return False

    def _bring(self, key: str) -> int | None:
        return self._outputs.fetch(key, self._store, self._scratch, self._reach.heard)

    # -- in threads: uploads -----------------------------------------------------------------------------------

    def _upload(self, upload: Upload) -> None:
        key = upload.key
        try:
            self._reach.patiently(partial(upload.go, self._reach.heard), None)
        except UnreachableError:  # the run has ended. What was sent stays, as its entry may have been made
            return
        except NotWholeError as error:
            log.warning("%s was not uploaded to the shared store: %s", key, error)
            with self._state:
                lease = self._leases.pop(key, None)
            if lease is not None:
                self._release(lease)
        except Exception:
            log.exception("the shared store: this is a fault of the program; please report it")
        else:
            if upload.lost_to:
                log.warning(
                    "%s: another machine had stored it first, of %s: machines whose arithmetic differs share "
                    "this store",
                    key,
                    upload.lost_to,
                )
            with self._state:
                self.keys.add(key)
                if upload.is_first:
                    self._traffic = self._traffic.uploading(upload.size)
            with suppress(UnreachableError):
                if self._leases.pop(key, None):
                    self._claims.forget(key)
        with self._state:
            self._uploads.pop(key, None)
            self._state.notify_all()

    # -- in threads: the rest ----------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        """Renew claims, look again after those of others, and see whether the store can be reached again."""
        quarter_s = self._pace.lease_s / 4
        due_s = self._clock() + quarter_s
        while not self._closing.wait(min(self._pace.poll_s, quarter_s) / 2):
            now = self._clock()
            with self._state:
                held = [k for k, one in self._asked.items() if one.answer is Answer.held and one.again_s <= now]
                for key in held:
                    self._asked[key].again_s = now + self._pace.lease_s
                    self._questions.put(partial(self._settle, key, self._found))
            if now >= due_s:
                due_s = now + quarter_s
                self._renew()

    def _renew(self) -> None:
        with self._state:
            leases = list(self._leases.values())
        try:
            if self._reach.away:
                self._reach.look_again()
            for lease in leases:
                if not self._claims.renew(lease) and self._leases.pop(lease.key, None) is not None:
                    log.warning(
                        "%s: its claim in the shared store is another machine's by now, as this one did not renew "
                        "it in time; whichever stores it first counts",
                        lease.key,
                    )
        except UnreachableError as error:
            self._reach.lost(error)
