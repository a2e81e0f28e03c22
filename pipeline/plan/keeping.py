"""Which trained weights of a plan stay, by `execution.keep`, and which may go now. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping

from pipeline.config.schema import Keep
from pipeline.learning.algos.base import METRICS
from pipeline.plan.graph import Job

Scores = Mapping[tuple[str, int], float | None]
"""Chain and round -> how well it evaluates, the more the better; None where it has no figure. It has no entry for
what is not evaluated yet."""
Place = tuple[str, int]


def place_of(job: Job) -> Place:
    """Chain and round of a job."""
    return job.chain, job.round


def measures(job: Job) -> bool:
    """Whether a job says how well its chain evaluates after its round."""
    return job.stage == METRICS.name


def scores_of(jobs: Iterable[Job], score_of: Callable[[Job], float | None]) -> Scores:
    """How well chains evaluate after each round.

    Args:
        jobs: Jobs whose outputs are there.
        score_of: Asked of those that measure.
    """
    return {place_of(job): score_of(job) for job in jobs if measures(job)}


def kept(jobs: Iterable[Job], keep: Keep, scores: Scores, gone: Collection[str] = ()) -> set[str]:
    """Ids of the jobs whose weights stay when everything is done, as far as that can be told yet.

    Args:
        jobs: All jobs of a plan.
        keep: What is asked for.
        scores: Of rounds that are evaluated. Where `keep` is `best`, the others stay until they are, and of equal
            ones the last.
        gone: Ids of jobs whose weights were removed and are not made again. The last or the best is then that of
            those that are left, so that a run with another value than the one before does not remove them all.
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
    """Ids of the jobs whose weights nothing needs any more: made, read by all that reads them, and not to stay.

    Args:
        jobs: All jobs of a plan.
        readers: Of a job, the jobs that read its output.
        there: Ids of the jobs whose outputs are there, or that need not run.
        stay: What `kept` gives.
        among: Ids of the jobs that are asked about; None for all.
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
