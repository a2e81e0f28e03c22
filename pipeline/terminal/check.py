"""The outcome of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """How a check ended; the value is its style, which can be read on dark and on light."""

    PASS = "green"
    WARN = "black on yellow"
    FAIL = "bold red"


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
        name: What was checked.
        verdict: How it ended.
        detail: What was seen.
        remedy: What to do; empty where it passed.
    """

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def passed(name: str, detail: str) -> Check:
    """All is well."""
    return Check(name, Verdict.PASS, detail)


def warned(name: str, detail: str, remedy: str) -> Check:
    """It works, but not as it should, or not for everything."""
    return Check(name, Verdict.WARN, detail, remedy)


def failed(name: str, detail: str, remedy: str) -> Check:
    """Something does not work."""
    return Check(name, Verdict.FAIL, detail, remedy)
