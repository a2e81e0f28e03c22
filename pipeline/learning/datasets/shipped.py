"""Datasets that ship and are read: one for each format of files, `hf` for all of them and the hub, named ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.config.schema import BY_CONTENT, DatasetConfig, file_or_folder, model_text, number
from pipeline.errors import DataError
from pipeline.learning.datasets.files import CSV, JSON, PARQUET, TABLES, TEXT
from pipeline.learning.datasets.from_files import STEP_BY_STEP, FilesConfig, FilesDataset, needed
from pipeline.learning.rewards.answers import last_boxed


class JsonLines(FilesDataset):
    """One object per line; a ``.json`` file may be a list of objects as well."""

    formats: ClassVar[tuple[str, ...]] = JSON
    hub: ClassVar[bool] = False


class CsvFiles(FilesDataset):
    """Comma or tab separated, with a header; every value is text."""

    formats: ClassVar[tuple[str, ...]] = CSV
    hub: ClassVar[bool] = False


class ParquetFiles(FilesDataset):
    """Parquet."""

    formats: ClassVar[tuple[str, ...]] = PARQUET
    hub: ClassVar[bool] = False


class HuggingFace(FilesDataset):
    """A hub id, or local files of any format: also what `Dataset.save_to_disk` wrote."""


# -- gsm8k -------------------------------------------------------------------------------------------------------
# GSM8K: ``question``, and ``answer`` which works it out and ends with ``#### 42``.


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


# -- competition math --------------------------------------------------------------------------------------------
# MATH and MATH-500: ``problem``, ``solution`` with the final answer in ``\boxed{}``, ``level`` and subject.


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


# -- imdb sentiment ----------------------------------------------------------------------------------------------
# IMDB: film reviews to be continued from their first words; rewards judge the mood of what is written.


@dataclass(kw_only=True)
class IMDBConfig(FilesConfig):
    """Film reviews (Maas et al., 2011), to be continued from their first words."""

    reward: str = "vader"
    path: str | None = file_or_folder("stanfordnlp/imdb", affects_result=False, keyed=BY_CONTENT)
    test_size: int = number(5000, at_least=1, at_most=1_000_000_000)
    prompt_words: int = number(60, at_least=1, at_most=1_000_000)
    """Words of the review that make the prompt."""


_LABELS = {"0": 0, "neg": 0, "negative": 0, "1": 1, "pos": 1, "positive": 1}
_BREAK = re.compile(r"<br\s*/?>")


class IMDBSentiment(FilesDataset):
    """Column ``label`` is 1 for a review that praises, 0 for one that does not. Reads ``aclImdb`` folders too."""

    config_class: ClassVar[type[DatasetConfig]] = IMDBConfig
    formats: ClassVar[tuple[str, ...]] = (*TABLES, *TEXT)
    note: ClassVar[str] = "imdb_sentiment: evaluated on prompts of the official test split."

    def __init__(self, config: IMDBConfig) -> None:
        super().__init__(config)
        self.prompt_words = config.prompt_words

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any] | None:
        """The first words of a review and its label; texts without one (``unsup``) are left out."""
        if "folder" in data:  # of a text file: aclImdb/train/pos/0_9.txt
            if data["folder"] not in _LABELS:
                return None
            data = {"text": data["text"], "label": data["folder"]}
        text, label = needed(data, place, "text", "label")
        if str(label).lower() not in _LABELS:
            raise DataError(f"{place}: label {label!r} is none of {', '.join(_LABELS)}.")
        words = _BREAK.sub(" ", str(text)).split()
        return {"prompt": " ".join(words[: self.prompt_words]), "label": _LABELS[str(label).lower()]}


# -- tldr --------------------------------------------------------------------------------------------------------
# TL;DR as TRL ships it: posts with a summary (``trl-lib/tldr``) or with two (``trl-lib/tldr-preference``).


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
