r"""MATH and MATH-500: ``problem``, ``solution`` with the final answer in ``\boxed{}``, ``level`` and subject."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.config.bases import DatasetConfig
from pipeline.config.fields import BY_CONTENT, file_or_folder, model_text
from pipeline.errors import DataError
from pipeline.learning.datasets.columns import needed
from pipeline.learning.datasets.from_files import STEP_BY_STEP, FilesConfig, FilesDataset
from pipeline.learning.rewards.answers import last_boxed


@dataclass(kw_only=True)
class MathConfig(FilesConfig):
    """Competition mathematics (MATH, arXiv 2103.03874), tested on MATH-500 (arXiv 2305.20050)."""

    reward: str = "math_verify"
    path: str | None = file_or_folder("DigitalLearningGmbH/MATH-lighteval", affects_result=False, keyed=BY_CONTENT)
    test_path: str | None = file_or_folder("HuggingFaceH4/MATH-500", affects_result=False, keyed=BY_CONTENT)
    prompt_template: str | None = model_text(STEP_BY_STEP)


class CompetitionMath(FilesDataset):
    r"""Column ``solution`` is the worked solution, which TRL's rewards read, ``answer`` what is in its box."""

    config_class: ClassVar[type[DatasetConfig]] = MathConfig
    note: ClassVar[str] = "math: trained on the 7,500 problems of MATH's train split, evaluated on MATH-500."

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """The problem and its solution; subject and level under one name for every form of the dataset."""
        problem, solution = needed(data, place, "problem", "solution")
        answer = data.get("answer") or (last_boxed(str(solution)) or "").strip()
        if not answer:
            raise DataError(f"{place}: the solution has no final answer in \\boxed{{}}, and there is no 'answer'.")
        level = re.search(r"\d+", str(data.get("level", "")))
        return {
            "prompt": problem,
            "completion": solution,
            "solution": solution,
            "answer": answer,
            "level": int(level[0]) if level else None,
            "subject": data.get("subject", data.get("type")),
        }
