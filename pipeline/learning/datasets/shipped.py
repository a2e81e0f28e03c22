"""Define the shipped datasets: one per file format, `hf` for all formats and the hub, named and made ones."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from string import ascii_uppercase
from typing import Any, ClassVar

import numpy as np

from pipeline.config.schema import BY_CONTENT, Config, DatasetConfig, file_or_folder, model_text, number, option
from pipeline.errors import DataError
from pipeline.learning.datasets.base import Dataset, Row
from pipeline.learning.datasets.files import CSV, JSON, PARQUET, TABLES, TEXT
from pipeline.learning.datasets.from_files import STEP_BY_STEP, FilesConfig, FilesDataset, needed
from pipeline.learning.rewards.answers import is_missing, last_boxed, list_in


class JsonLines(FilesDataset):
    """One object per line; a ``.json`` file may also be a list of objects."""

    formats: ClassVar[tuple[str, ...]] = JSON
    hub: ClassVar[bool] = False


class CsvFiles(FilesDataset):
    """Comma or tab separated, with a header; every value is text."""

    formats: ClassVar[tuple[str, ...]] = CSV
    hub: ClassVar[bool] = False


class ParquetFiles(FilesDataset):
    """Parquet files."""

    formats: ClassVar[tuple[str, ...]] = PARQUET
    hub: ClassVar[bool] = False


class HuggingFace(FilesDataset):
    """A hub id, or local files of any format, including the output of `Dataset.save_to_disk`."""


# -- gsm8k -------------------------------------------------------------------------------------------------------
# GSM8K: ``question``, and ``answer`` with the worked solution, which ends with ``#### 42``.


@dataclass(kw_only=True)
class GSM8KConfig(FilesConfig):
    """Grade-school mathematics (arXiv 2110.14168)."""

    reward: str = "gsm8k"
    path: str | None = file_or_folder("openai/gsm8k", affects_result=False, keyed=BY_CONTENT)
    subset: str | None = "main"
    test_size: int = number(1319, at_least=1, at_most=1_000_000_000)
    prompt_template: str | None = model_text(STEP_BY_STEP)


class GSM8K(FilesDataset):
    """Column ``solution`` is only the final number; the worked answer is the completion."""

    config_class: ClassVar[type[DatasetConfig]] = GSM8KConfig
    note: ClassVar[str] = "gsm8k: evaluated on the official test split; validation is cut from train."

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """Return the question, the worked answer, and the number after ``####``."""
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
    r"""Column ``solution`` is the worked solution, which TRL's rewards read.

    ``answer`` is the content of its box.
    """

    config_class: ClassVar[type[DatasetConfig]] = MathConfig
    note: ClassVar[str] = "math: trained on the 7,500 problems of MATH's train split, evaluated on MATH-500."

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """Return the problem and its solution; subject and level have one name for every form of the dataset."""
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


# -- olympiadbench -----------------------------------------------------------------------------------------------
# OlympiadBench: ``question``, sometimes ``context`` before it, and ``final_answer``, a list of LaTeX.


@dataclass(kw_only=True)
class OlympiadBenchConfig(FilesConfig):
    """Problems of olympiads with an answer and without figures (arXiv 2402.14008), English mathematics of them."""

    reward: str = "math_verify"
    path: str | None = file_or_folder("Hothan/OlympiadBench", affects_result=False, keyed=BY_CONTENT)
    subset: str | None = "OE_TO_maths_en_COMP"
    test_size: int = number(674, at_least=1, at_most=1_000_000_000)
    prompt_template: str | None = model_text(STEP_BY_STEP)
    evaluation_only: bool = option(True)


class OlympiadBench(FilesDataset):
    """Column ``solution`` is the answer, or all answers joined by commas.

    Figures and worked solutions are left out.
    """

    config_class: ClassVar[type[DatasetConfig]] = OlympiadBenchConfig

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """Return the question after its context, and all answers as one text."""
        question, answers = needed(data, place, "question", "final_answer")
        parts = answers if isinstance(answers, list) else [answers]
        about = ("id", "subfield", "answer_type", "is_multiple_answer", "unit", "error")
        return {
            "prompt": "\n".join(part for part in (data.get("context"), str(question)) if part),
            "solution": parts[0] if len(parts) == 1 else ", ".join(str(part).strip("$ ") for part in parts),
            **{name: data[name] for name in about if name in data},
        }


# -- multiple choice ---------------------------------------------------------------------------------------------
# Questions with choices under letters. MMLU-Pro: ``question``, ``options``, ``answer`` (a letter). GPQA:
# ``Question``, ``Correct Answer``, ``Incorrect Answer 1`` to ``3``; GPQA's choices have no order, so a hash of
# each row's texts orders them.


@dataclass(kw_only=True)
class MultipleChoiceConfig(FilesConfig):
    """Questions with choices under letters, asked as openai/simple-evals and lighteval ask them."""

    reward: str = "choice"
    prompt_template: str | None = model_text(
        "Answer the following multiple choice question. The last line of your response should be of the following "
        "format: 'Answer: $LETTER' (without quotes) where LETTER is one of {letters}. Think step by step before "
        "answering.\n\n{prompt}"
    )


_GPQA = ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


class MultipleChoice(FilesDataset):
    """Column ``solution`` is the letter of the right choice; ``choices`` are texts, ``letters`` all letters."""

    config_class: ClassVar[type[DatasetConfig]] = MultipleChoiceConfig

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """Return the question with its choices below, and the letter of the right choice."""
        if "Correct Answer" in data:
            question, right, *wrong = (str(text).strip() for text in needed(data, place, *_GPQA))
            _check_choices([right, *wrong], place)
            if right in wrong:
                raise DataError(f"{place}: the right answer {right!r} is also a wrong one. Leave the row out.")
            choices = sorted(
                [right, *wrong], key=lambda text: hashlib.sha256(f"{question}\n{text}".encode()).digest()
            )
            return _asked(question, choices, choices.index(right)) | {"category": data.get("High-level domain")}
        question, options, answer = needed(data, place, "question", "options", "answer")
        listed = list_in(options) if isinstance(options, str) else options
        if not isinstance(listed, list) or not 2 <= len(listed) <= len(ascii_uppercase):
            raise DataError(f"{place}: options must be a list of 2 to {len(ascii_uppercase)} texts.")
        _check_choices(listed, place)
        choices = [str(each).strip() for each in listed]
        right_at = _place_of(answer, choices)
        if right_at is None:
            raise DataError(
                f"{place}: the answer {answer!r} is none of the {len(choices)} options: write its letter, of "
                f"{ascii_uppercase[: len(choices)]}, its text, which no other may have, or its place, from 0."
            )
        index = data.get("answer_index")
        if not is_missing(index) and str(index).strip() != str(right_at):
            raise DataError(
                f"{place}: the answer {answer!r} is option {right_at}, from 0, and answer_index is {index}."
            )
        further = {name: value for name, value in data.items() if name not in ("question", "options", "answer")}
        return further | _asked(str(question).strip(), choices, right_at)


def _check_choices(choices: Sequence[object], place: str) -> None:
    if any(map(is_missing, choices)):
        raise DataError(f"{place}: a choice is null or empty. Write it there, or leave the row out.")


def _place_of(answer: object, choices: Sequence[str]) -> int | None:
    """Return the place of the answer: by its letter, else, of text, by that, else by its place; None for none."""
    said = str(answer).strip()
    letters = dict(zip(ascii_uppercase, range(len(choices)), strict=False))
    if said.upper() in letters:
        return letters[said.upper()]
    if isinstance(answer, str) and said in choices:
        return choices.index(said) if choices.count(said) == 1 else None
    return next((at for at in range(len(choices)) if str(at) == said), None)


def _asked(question: str, choices: Sequence[str], right: int) -> dict[str, Any]:
    letters = ascii_uppercase[: len(choices)]
    listed = "\n".join(f"{letter}) {choice}" for letter, choice in zip(letters, choices, strict=True))
    return {
        "prompt": f"{question}\n\n{listed}",
        "choices": list(choices),
        "letters": letters,
        "solution": letters[right],
    }


# -- imdb sentiment ----------------------------------------------------------------------------------------------
# IMDB: film reviews to be continued from their first words; rewards judge the sentiment of the continuation.


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
    """Column ``label`` is 1 for a positive review, 0 for a negative one. Reads ``aclImdb`` folders too."""

    config_class: ClassVar[type[DatasetConfig]] = IMDBConfig
    formats: ClassVar[tuple[str, ...]] = (*TABLES, *TEXT)
    note: ClassVar[str] = "imdb_sentiment: evaluated on prompts of the official test split."

    def __init__(self, config: IMDBConfig) -> None:
        super().__init__(config)
        self.prompt_words = config.prompt_words

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any] | None:
        """Return the first words of a review and its label; None for texts without a label (``unsup``)."""
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
        """Return the columns unchanged, after checking which of the two forms they have."""
        pair = "chosen" in data or "rejected" in data
        needed(data, place, "prompt", *(("chosen", "rejected") if pair else ("completion",)))
        return data


# -- addition ----------------------------------------------------------------------------------------------------
# Addition of two numbers, every number written least significant digit first: ``321+654=9750`` is 123 + 456. The
# reference learns from demonstrations of mixed quality: some drop every carry. The reference imitates both kinds,
# so it is mediocre for a known reason, and selecting can improve on it.


@dataclass(kw_only=True)
class AdditionConfig(DatasetConfig):
    """Addition of two numbers, operands and sum written least significant digit first."""

    digits: int = number(3, at_least=1, at_most=4)
    """Digits of each of the two numbers."""
    carry_drop: float = number(0.6, at_least=0, at_most=1)
    """Share of the reference's demonstrations that ignore every carry."""

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Yield settings that leave nothing to train on."""
        total = 10 ** (2 * self.digits)
        if self.test_size + self.validation_size >= total:
            yield (
                f"{key}.digits={self.digits} makes {total:,} rows, and test_size={self.test_size} and "
                f"validation_size={self.validation_size} of {key} leave none besides; ask for fewer"
            )


class Addition(Dataset):
    """Rows are pairs (a, b) of numbers with `digits` digits each; row id = a * 10**digits + b."""

    vocabulary: Sequence[str] = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "<bos>", "+", "=")
    config_class: ClassVar[type[DatasetConfig]] = AdditionConfig
    bos_token: ClassVar[str] = "<bos>"  # noqa: S105 - a token of text
    fixed_length = True
    note: ClassVar[str] = (
        "addition: the reference imitates demonstrations of which a known share drops every carry. Methods select "
        "among what it already does; no new skill is taught."
    )

    def __init__(self, config: AdditionConfig) -> None:
        super().__init__(config)
        self.digits = config.digits
        self.carry_drop = config.carry_drop
        self.completion_length = config.digits + 1
        self.split_ids("addition", 10 ** (2 * config.digits))

    def row(self, row_id: int) -> Row:
        """Return a row with prompt ``321+654=`` and column ``solution`` ``9750``."""
        a, b = divmod(row_id, 10**self.digits)
        return Row(row_id, self._prompt(a, b), {"solution": _reversed(a + b, self.digits + 1)})

    def demonstration(self, row_id: int, draw: float) -> tuple[str, str]:
        """Return the sum, or with probability `carry_drop` the sum without any carry."""
        a, b = divmod(row_id, 10**self.digits)
        if draw >= self.carry_drop:
            return self._prompt(a, b), _reversed(a + b, self.digits + 1)
        pairs = zip(_reversed(a, self.digits), _reversed(b, self.digits), strict=True)
        return self._prompt(a, b), "".join(str((int(x) + int(y)) % 10) for x, y in pairs) + "0"

    def _prompt(self, a: int, b: int) -> str:
        return f"{_reversed(a, self.digits)}+{_reversed(b, self.digits)}="


def _reversed(number: int, digits: int) -> str:
    return f"{number:0{digits}d}"[::-1]


# -- star graph --------------------------------------------------------------------------------------------------
# Star graphs G(d, l): which of d arms leads to the goal? ``12,3|12,40|.../12,7=`` is answered ``12,40,...,7``. The
# testbed of arXiv 2403.06963: a model that learns to continue right paths learns to follow edges, but guesses the
# first step, since finding the end of an arm needs looking ahead. The model is right once in d times and improves
# no further.


@dataclass(kw_only=True)
class StarGraphConfig(DatasetConfig):
    """Paths in star graphs G(d, l) (arXiv 2403.06963), made from the seed and the row's id."""

    degree: int = number(2, at_least=2, at_most=10_000)
    """Arms of the graph, d."""
    path_length: int = number(5, at_least=2, at_most=10_000)
    """Nodes of an arm, the centre included, l."""
    labels: int = number(50, at_least=1, at_most=1_000_000)
    """Names that nodes may have: 0 up to labels - 1."""
    random_arm: float = number(0.0, at_least=0, at_most=1)
    """Share of the reference's demonstrations that walk down an arm drawn blindly; 0 shows right paths alone."""
    train_size: int = number(200_000, at_least=1, at_most=10_000_000)
    """Rows to train on, of which rounds draw."""

    @property
    def nodes(self) -> int:
        """Number of nodes of a graph."""
        return 1 + self.degree * (self.path_length - 1)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Report graphs with too few labels for their nodes, or too few different graphs."""
        graph = f"{key}: G({self.degree},{self.path_length})"
        if self.nodes > self.labels:
            yield (
                f"{graph} has {self.nodes} nodes, but labels={self.labels} names only {self.labels}; set "
                f"{key}.labels={self.nodes} or more"
            )
        # Splits and rounds draw many different graphs.
        elif self.nodes < 5 or self.labels < 8:
            yield (
                f"{graph} with {key}.labels={self.labels} has too few graphs to keep splits apart; take at least "
                "5 nodes and 8 labels"
            )


_GRAPHS = 3
"""Purpose of the random streams of graphs."""
_SHARES = 4
"""Ids and graphs are divided into four shares: one for test, one for validation, two for training."""


@dataclass(frozen=True)
class Graph:
    """A star of arms.

    Attributes:
        arms: Labels of each arm from the centre outward; all begin with the centre.
        goal: Index of the arm that ends in the goal.
        edges: Pairs of neighbours, the one nearer to the centre first, shuffled.
    """

    arms: tuple[tuple[int, ...], ...]
    goal: int
    edges: tuple[tuple[int, int], ...]

    @property
    def prompt(self) -> str:
        """``a,b|c,d|.../start,goal=``."""
        edges = "|".join(f"{near},{far}" for near, far in self.edges)
        return f"{edges}/{self.arms[0][0]},{self.arms[self.goal][-1]}="

    def path(self, arm: int) -> str:
        """Format an arm as in a completion."""
        return ",".join(map(str, self.arms[arm]))


class StarGraph(Dataset):
    """Rows are drawn from (seed, id), so any number of rows is available.

    The id decides the split: id modulo 4 is 0 for test, 1 for validation, else train. A graph belongs to a split
    by the hash of its edges, start and goal, and a row is drawn until its graph belongs to the row's split: no
    graph is ever in two splits, however its edges are shuffled.
    """

    version: ClassVar[int] = 2
    config_class: ClassVar[type[DatasetConfig]] = StarGraphConfig
    bos_token: ClassVar[str] = "<bos>"  # noqa: S105 - a token of text
    symbol_pattern: ClassVar[str] = r"\d+|."
    fixed_length = True
    note: ClassVar[str] = (
        "star_graph: the reference learns from right paths. Trained long enough it follows edges but guesses the "
        "first step, so it is right about once in `degree` times."
    )

    def __init__(self, config: StarGraphConfig) -> None:
        super().__init__(config)
        self.graph = config
        self.vocabulary: Sequence[str] = (*map(str, range(config.labels)), "<bos>", ",", "|", "/", "=")
        self.completion_length = 2 * config.path_length - 1
        train = np.arange(config.train_size)
        self._splits = {
            "test": np.arange(config.test_size) * _SHARES,
            "validation": np.arange(config.validation_size) * _SHARES + 1,
            "train": train // 2 * _SHARES + 2 + train % 2,
        }

    def row(self, row_id: int) -> Row:
        """Return a row with prompt ``12,3|12,40|.../12,7=``; ``solution`` and completion are its right path."""
        graph = self.draw(row_id)
        path = graph.path(graph.goal)
        return Row(row_id, graph.prompt, {"solution": path}, completion=path)

    def demonstration(self, row_id: int, draw: float) -> tuple[str, str]:
        """Return the right path, or with probability `random_arm` the path of a random arm."""
        graph, blind = self.draw(row_id), self.graph.random_arm
        arm = int(draw / blind * self.graph.degree) if draw < blind else graph.goal
        return graph.prompt, graph.path(arm)

    def draw(self, row_id: int) -> Graph:
        """Draw the graph of a row."""
        # The last counter word keeps these streams apart from permutations under the same key.
        stream = np.random.Philox(key=[self.config.seed, row_id], counter=[0, 0, 0, _GRAPHS])
        generator = np.random.Generator(stream)
        wanted = min(row_id % _SHARES, 2)
        while True:
            graph = self._draw(generator)
            if min(_share(graph), 2) == wanted:
                return graph

    def _draw(self, generator: np.random.Generator) -> Graph:
        degree, length = self.graph.degree, self.graph.path_length
        centre, *rest = generator.permutation(self.graph.labels)[: self.graph.nodes].tolist()
        arms = [(centre, *rest[at : at + length - 1]) for at in range(0, len(rest), length - 1)]
        edges = [pair for arm in arms for pair in pairwise(arm)]
        order = generator.permutation(len(edges))
        return Graph(tuple(arms), int(generator.integers(degree)), tuple(edges[place] for place in order))


def _share(graph: Graph) -> int:
    same = f"{sorted(graph.edges)}/{graph.arms[graph.goal][-1]}"
    return hashlib.sha256(same.encode()).digest()[0] % _SHARES
