"""Retention: which trained weights of a plan are kept by `execution.keep`, and which may go now.

Pure functions.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from pipeline.config.schema import Keep
from pipeline.learning.algos.base import METRICS
from pipeline.plan.graph import Job

Scores = Mapping[tuple[str, int], float | None]
"""Chain and round -> score of its evaluation, higher is better; None if it has no figure. Rounds that are not
evaluated yet have no entry."""
Place = tuple[str, int]


def place_of(job: Job) -> Place:
    """Return chain and round of a job."""
    return job.chain, job.round


def measures(job: Job) -> bool:
    """Return whether a job measures how well its chain evaluates after its round."""
    return job.stage == METRICS.name


def scores_of(jobs: Iterable[Job], score_of: Callable[[Job], float | None]) -> Scores:
    """Return the scores of chains after each round.

    Args:
        jobs: Finished jobs.
        score_of: Returns the score from a job that measures it.
    """
    return {place_of(job): score_of(job) for job in jobs if measures(job)}


def kept(jobs: Iterable[Job], keep: Keep, scores: Scores, gone: Collection[str] = ()) -> set[str]:
    """Return the ids of the jobs whose weights are kept when everything is done, as far as known yet.

    Args:
        jobs: All jobs of a plan.
        keep: The setting `execution.keep`.
        scores: Scores of evaluated rounds. If `keep` is `best`, the others are kept until they are evaluated, and
            of equal ones the last is kept.
        gone: Ids of jobs whose weights were removed and are not made again. The last or best is chosen among the
            others, so that a run with another value than the one before does not remove all of them.
    """
    trained = [job for job in jobs if job.weights and job.id not in gone]
    if keep is Keep.results:
        return set()
    if keep is Keep.all:
        return {job.id for job in trained}
    if keep is Keep.last:
        last: dict[str, int] = {}
        for job in trained:
            last[job.chain] = max(job.round, last.get(job.chain, 0))
        return {job.id for job in trained if last[job.chain] == job.round}
    best: dict[str, tuple[bool, float, int]] = {}
    for job in trained:
        if place_of(job) in scores:
            best[job.chain] = max(_rank(job, scores), best.get(job.chain, (False, 0.0, -1)))
    return {job.id for job in trained if place_of(job) not in scores or _rank(job, scores) == best[job.chain]}


def free(
    jobs: Mapping[str, Job],
    readers: Callable[[str], Iterable[str]],
    there: Collection[str],
    stay: Collection[str],
    among: Iterable[str] | None = None,
) -> list[str]:
    """Return the ids of the jobs whose weights can go: made, read by all readers, and not to be kept.

    Args:
        jobs: All jobs of a plan.
        readers: Job id -> jobs that read its output.
        there: Ids of the jobs that are done, or need not run.
        stay: Result of `kept`.
        among: Ids of the jobs to consider; None for all.
    """
    return [
        job_id
        for job_id in (jobs if among is None else among)
        if jobs[job_id].weights and job_id in there and job_id not in stay
        if all(reader in there for reader in readers(job_id))
    ]


def _rank(job: Job, scores: Scores) -> tuple[bool, float, int]:
    score = scores[place_of(job)]
    return score is not None, score or 0.0, job.round
