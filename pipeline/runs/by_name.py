"""The job that a user means, or another thing whose name has parts: by its name, some of it, or a pattern."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from pipeline.errors import ConfigError
from pipeline.plan.graph import ANY

MAX_LISTED = 20


class NoSuchName(ConfigError):  # noqa: N818 - it names what was found
    """Nothing is called so, nor by a part of it."""


def find_job(job_ids: Iterable[str], given: str) -> str:
    """The job that a user means: by its id, a part of it, or a pattern with ``*``; also by its chain.

    Args:
        job_ids: Ids of all jobs.
        given: What the user wrote. Ids that end with it go before ids that contain it.

    Raises:
        ConfigError: No job fits, or several do; says which are near or which they are.
    """
    known = list(job_ids)
    # Ids of jobs that depend on no seed have no part for it; names of their chains do.
    without = "/".join(part for part in given.strip("/").split("/") if part != ANY)
    of_chain = without and not _fitting(known, given.strip("/")) and _fitting(known, without)
    return find_named(known, without if of_chain else given, "job")


def find_named(names: Iterable[str], given: str, what: str) -> str:
    """As `find_job`, of other names that are made alike.

    Args:
        names: All of them.
        given: What the user wrote.
        what: What they name, for messages: ``job``.

    Raises:
        ConfigError: None fits, or several do; says which are near or which they are.
    """
    known = list(names)
    wanted = given.strip("/")
    if wanted in known:
        return wanted
    fitting = _fitting(known, wanted)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ConfigError(f"'{given}' fits {len(fitting)} {what}s; give more of it:\n" + listed(fitting))
    if near := _near(known, wanted):
        raise NoSuchName(f"no {what} fits '{given}'. Nearest:\n{listed(near)}")
    if (part := _near_part(known, wanted)) and (fitting := _fitting(known, part)):
        fits = f"It fits {len(fitting)} {what}s" if len(fitting) > 1 else "That is"
        raise NoSuchName(f"no {what} fits '{given}'. Did you mean '{part}'? {fits}:\n{listed(fitting)}")
    there = f" There are:\n{listed(known)}" if known else ""
    raise NoSuchName(f"no {what} fits '{given}'.{there}")


def _fitting(known: list[str], wanted: str) -> list[str]:
    if any(sign in wanted for sign in "*?["):
        return [job_id for job_id in known if fnmatchcase(job_id, wanted) or fnmatchcase(job_id, f"*{wanted}")]
    ending = [job_id for job_id in known if f"/{job_id}".endswith(f"/{wanted}")]
    return ending or [job_id for job_id in known if wanted in job_id]


def _near(known: list[str], wanted: str) -> list[str]:
    # Compared with the ends of the ids that have as many parts: an id shortened at its front is what people write.
    parts = wanted.count("/") + 1
    by_end: dict[str, str] = {}
    for job_id in known:
        by_end.setdefault("/".join(job_id.split("/")[-parts:]), job_id)
    return [by_end[end] for end in get_close_matches(wanted, by_end, n=5, cutoff=0.5)]


def _near_part(known: list[str], wanted: str) -> str | None:
    """What stands anywhere in the names, as an algorithm in those of its jobs, and resembles what is wanted."""
    number = wanted.count("/") + 1
    split = [name.split("/") for name in known]
    parts = {"/".join(own[at : at + number]) for own in split for at in range(len(own) - number + 1)}
    by_lower = {part.lower(): part for part in sorted(parts)}
    near = get_close_matches(wanted.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


def listed(names: list[str]) -> str:
    """The first of some names, a line for each."""
    lines = [f"  {name}" for name in names[:MAX_LISTED]]
    if len(names) > MAX_LISTED:
        lines.append(f"  and {len(names) - MAX_LISTED} more")
    return "\n".join(lines)
