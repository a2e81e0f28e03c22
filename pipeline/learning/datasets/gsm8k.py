"""GSM8K: ``question``, and ``answer`` which works it out and ends with ``#### 42``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.errors import DataError
from pipeline.learning.datasets.columns import needed
from pipeline.learning.datasets.from_files import FilesDataset


class GSM8K(FilesDataset):
    """Column ``solution`` is the final number alone; the worked answer is the completion."""

    note: ClassVar[str] = "gsm8k: evaluated on the official test split; validation is cut from train."

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """The question, the worked answer, and the number after ``####``."""
        question, answer = needed(data, place, "question", "answer")
        _, mark, final = str(answer).rpartition("####")
        if not mark or not final.strip():
            raise DataError(f"{place}: the answer must end with '#### NUMBER', as GSM8K's do.")
        return {"prompt": question, "completion": answer, "solution": final.strip().replace(",", "")}
