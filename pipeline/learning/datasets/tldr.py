"""TL;DR as TRL ships it: posts with a summary (``trl-lib/tldr``) or with two (``trl-lib/tldr-preference``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.config.bases import DatasetConfig
from pipeline.config.fields import BY_CONTENT, file_or_folder
from pipeline.learning.datasets.columns import needed
from pipeline.learning.datasets.from_files import FilesConfig, FilesDataset


@dataclass(kw_only=True)
class TLDRConfig(FilesConfig):
    """Posts to be summarised, as TRL ships them: with a summary, or with a preferred and another one."""

    reward: str = "model"
    path: str | None = file_or_folder("trl-lib/tldr", affects_result=False, keyed=BY_CONTENT)


class TLDR(FilesDataset):
    """The prompt ends with ``TL;DR:``; answers begin with a space."""

    config_class: ClassVar[type[DatasetConfig]] = TLDRConfig

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """The columns as they are, once it is clear which of the two forms they have."""
        pair = "chosen" in data or "rejected" in data
        needed(data, place, "prompt", *(("chosen", "rejected") if pair else ("completion",)))
        return data
