"""Completions at which rewards failed, counted over a job: what ``faults.json`` in its output says.

A job at whose completions no reward failed leaves no such file.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.files import json_text
from pipeline.outputs.formats import FAULTS

if TYPE_CHECKING:
    from pipeline.learning.rewards.scoring import Scored

_LONGEST = 300
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")


@dataclass
class RewardFailures:
    """What a job has scored so far.

    Attributes:
        completions: How many.
        failed: At how many of them a reward failed.
        first: What was said of the first of these.
    """

    completions: int = 0
    failed: int = 0
    first: str = ""

    def add(self, scored: Scored, out: Path) -> None:
        """Count what was scored, and write it to the output of the job once there is a failure."""
        self.completions += len(scored.faults)
        self.failed += sum(fault is not None for fault in scored.faults)
        # Addresses differ from process to process, and equal jobs leave equal bytes.
        self.first = self.first or _ADDRESS.sub("0x...", scored.first_fault)[:_LONGEST]
        self.write(out)

    def write(self, out: Path) -> None:
        """Write the counts to the output of the job, where there is a failure."""
        if self.failed:
            (out / FAULTS).write_text(json_text(asdict(self), indent=1) + "\n")
