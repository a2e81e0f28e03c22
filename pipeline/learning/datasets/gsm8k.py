"""GSM8K: ``question``, and ``answer`` which works it out and ends with ``#### 42``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.config.bases import DatasetConfig
from pipeline.config.fields import BY_CONTENT, file_or_folder, model_text, number
from pipeline.errors import DataError
from pipeline.learning.datasets.columns import needed
from pipeline.learning.datasets.from_files import STEP_BY_STEP, FilesConfig, FilesDataset


@dataclass(kw_only=True)
class GSM8KConfig(FilesConfig):
    """Grade-school mathematics (arXiv 2110.14168)."""

    reward: str = "gsm8k"
    path: str | None = file_or_folder("openai/gsm8k", affects_result=False, keyed=BY_CONTENT)
    subset: str | None = "main"
    test_size: int = number(1319, at_least=1, at_most=1_000_000_000)
    prompt_template: str | None = model_text(STEP_BY_STEP)


class GSM8K(FilesDataset):
    """Column ``solution`` is the final number alone; the worked answer is the completion."""

    config_class: ClassVar[type[DatasetConfig]] = GSM8KConfig
    note: ClassVar[str] = "gsm8k: evaluated on the official test split; validation is cut from train."

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """The question, the worked answer, and the number after ``####``."""
        question, answer = needed(data, place, "question", "answer")
        _, mark, final = str(answer).rpartition("####")
        if not mark or not final.strip():
            raise DataError(f"{place}: the answer must end with '#### NUMBER', as GSM8K's do.")
        return {"prompt": question, "completion": answer, "solution": final.strip().replace(",", "")}
