"""How long jobs took, by their kind and size, and what that says of jobs of another size. Pure.

The size of a job is what it was estimated to take before anything was timed (`estimates`): its tokens or samples
times what one of them costs. So a measurement tells how wrong that estimate is for a kind of job, and one of a
small job tells little else than what beginning with it takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median_low
from typing import Annotated

from msgspec import Meta

LONGEST_S = 1e7
_OVERHEAD_S = 0.5
"""What a job that took longer than its size spent on beginning and ending, at most, and else whatever its size."""
_TELLING_S = 5.0
"""Size of a job that tells as much of what work costs as is thought of it before."""
_FASTEST = 0.01
"""Least pace that is believed: a job may have found nothing to do."""
_SMALLEST_S = 1e-6
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]


@dataclass(frozen=True)
class Timed:
    """What jobs of about one size took.

    Attributes:
        size_s: Their size, see above.
        took_s: Seconds, without loading.
    """

    size_s: Seconds
    took_s: Seconds

    @property
    def size_class(self) -> int:
        """Equal for sizes that are told as one: within a factor of two."""
        return math.floor(math.log2(max(self.size_s, _SMALLEST_S)))

    def expected_s(self, size_s: float) -> float:
        """What a job of the same kind and another size takes.

        Work beyond what was measured costs what that cost, or the less was measured, what it was estimated to cost
        before. Work that is missing saves its part, of all but the overhead.
        """
        overhead_s = min(max(0.0, self.took_s - self.size_s), _OVERHEAD_S)
        if size_s < self.size_s:
            return overhead_s + (self.took_s - overhead_s) * size_s / self.size_s
        measured = max(_FASTEST, (self.took_s - overhead_s) / max(self.size_s, _SMALLEST_S))
        pace = measured ** (self.size_s / (self.size_s + _TELLING_S))
        return float(self.took_s + pace * (size_s - self.size_s))


@dataclass(frozen=True)
class Durations:
    """What earlier runs measured.

    Attributes:
        jobs: Kind of job -> what jobs took, one entry for each class of sizes.
        seconds: Seconds by name, of loading. Earlier versions remembered jobs here as well, by kind: per sample,
            or per job where it has none.
    """

    jobs: Mapping[str, Sequence[Timed]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def knows(self, kind: str) -> bool:
        """Whether a job of that kind was timed."""
        return kind in self.jobs or kind in self.seconds

    def expected_s(self, kind: str, size_s: float, samples: int) -> float:
        """What a job takes, by the measurement that is the nearest in size; its size where nothing was measured.

        Args:
            kind: Of the job.
            size_s: Its size.
            samples: Of the job; 0 where it has none.
        """
        if timed := self.jobs.get(kind):
            return min(timed, key=lambda each: _apart(each.size_s, size_s)).expected_s(size_s)
        measured = self.seconds.get(kind)
        return size_s if measured is None else measured * max(1, samples)

    def updated(self, newer: Durations) -> Durations:
        """These, with newer ones in the place of those of the same name and, of jobs, the same class of sizes."""
        jobs = {kind: together([*self.jobs.get(kind, ()), *timed]) for kind, timed in newer.jobs.items()}
        seconds = {name: value for name, value in self.seconds.items() if name not in jobs}
        return Durations({**self.jobs, **jobs}, {**seconds, **newer.seconds})


def together(timed: Iterable[Timed]) -> list[Timed]:
    """One entry for each class of sizes, the last that is given, by size."""
    return sorted({each.size_class: each for each in timed}.values(), key=lambda each: each.size_s)


def averaged(timed: Iterable[Timed]) -> list[Timed]:
    """One entry for each class of sizes, by size: the median, since the first job of a kind takes longer."""
    classes: dict[int, list[Timed]] = {}
    for each in timed:
        classes.setdefault(each.size_class, []).append(each)
    means = (
        Timed(fmean(each.size_s for each in own), median_low([each.took_s for each in own]))
        for own in classes.values()
    )
    return sorted(means, key=lambda each: each.size_s)


def _apart(one_s: float, other_s: float) -> float:
    """How far apart two sizes are: the logarithm of their ratio."""
    return abs(math.log(max(one_s, _SMALLEST_S) / max(other_s, _SMALLEST_S)))
