"""How often a job is tried: settings of `execution.retry`."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config.fields import LONGEST_S, number


@dataclass(kw_only=True)
class RetryConfig:
    """Attempts that a job is given, counted apart for each kind of failure. A bug in its code is never retried."""

    worker_lost: int = number(3, at_least=1, at_most=1_000_000, affects_result=False)
    """Its worker died. A job that has ended this many workers is set aside as the likely cause."""
    hang: int = number(2, at_least=1, at_most=1_000_000, affects_result=False)
    """Its worker was killed because it gave no sign of life, made no progress or took too long."""
    out_of_memory: int = number(2, at_least=1, at_most=1_000_000, affects_result=False)
    """It ran out of memory even with the smallest batches; the next attempt gets a fresh process."""
    device: int = number(3, at_least=1, at_most=1_000_000, affects_result=False)
    """Its device reported an error, after which a process cannot go on; the next attempt gets a fresh one."""
    transient: int = number(5, at_least=1, at_most=1_000_000, affects_result=False)
    """A connection or a file system failed for the moment."""
    wait_s: float = number(1.0, at_least=0, at_most=LONGEST_S, affects_result=False)
    """Seconds before another attempt after a transient failure; doubles each time."""
    max_wait_s: float = number(60.0, at_least=0, at_most=LONGEST_S, affects_result=False)
    """Seconds that such a wait may reach by doubling."""
    device_failures: int = number(3, at_least=1, at_most=1_000_000, affects_result=False)
    """Different jobs in a row that a device must fail to be given no more; the last device is always kept."""
