"""TL;DR as TRL ships it: posts with a summary (``trl-lib/tldr``) or with two (``trl-lib/tldr-preference``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.learning.datasets.columns import needed
from pipeline.learning.datasets.from_files import FilesDataset


class TLDR(FilesDataset):
    """The prompt ends with ``TL;DR:``; answers begin with a space."""

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """The columns as they are, once it is clear which of the two forms they have."""
        pair = "chosen" in data or "rejected" in data
        needed(data, place, "prompt", *(("chosen", "rejected") if pair else ("completion",)))
        return data
