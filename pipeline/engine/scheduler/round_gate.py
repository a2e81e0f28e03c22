"""Jobs that wait for their round although all that they read is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class RoundGate:
    """Jobs that wait for their round: it is open at once, or where rounds are strict, after all earlier ones."""

    def __init__(self, rounds: Iterable[int], *, strict: bool) -> None:
        """Hold nothing yet.

        Args:
            rounds: Of every job.
            strict: Whether a round is open only when all jobs of earlier ones are settled.
        """
        self._strict = strict
        self._unsettled = Counter(rounds)
        self._held: dict[int, list[str]] = {}

    def settled(self, number: int, change: int) -> None:
        """So many more jobs of a round are settled, or fewer."""
        self._unsettled[number] -= change

    def hold(self, number: int, job_id: str) -> None:
        """Keep a job of a round."""
        self._held.setdefault(number, []).append(job_id)

    def let_go(self) -> list[str]:
        """Take out the jobs whose rounds are open, in the order of rounds."""
        if not self._held:
            return []
        opened = sorted(self._held)
        if self._strict:
            first = min((number for number, left in self._unsettled.items() if left), default=0)
            opened = [number for number in opened if number <= first]
        return [job_id for number in opened for job_id in self._held.pop(number)]
