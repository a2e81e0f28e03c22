"""A value-guided method of a user's own that notes nothing of what its data took to collect."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from examples.fudge import Fudge

if TYPE_CHECKING:
    from pipeline import Dataset, JobContext, Sequences, TextPolicy


class Silent(Fudge):
    """Collects data and notes nothing of what that took."""

    name: ClassVar[str] = "Silent"

    def collect(self, ctx: JobContext, dataset: Dataset, roll_in: TextPolicy, reference: TextPolicy) -> Sequences:
        """As its base does it."""
        data = super().collect(ctx, dataset, roll_in, reference)
        (ctx.out / "generation.json").unlink()
        return data
