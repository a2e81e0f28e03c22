"""The benchmarks that ship: rows in the form of each one's repository are read, and answers judged as by hand."""

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.checks import config_problems
from pipeline.errors import DataError
from pipeline.learning.datasets.base import Row, load_dataset
from pipeline.learning.datasets.from_files import FilesConfig
from pipeline.learning.datasets.prepared import PreparedDataset, prepare
from pipeline.learning.datasets.rows import look_at
from pipeline.learning.datasets.shipped import MultipleChoice, MultipleChoiceConfig
from pipeline.learning.rewards.registry import load_functions
from tests.doubles.composing import quick_config

DATA = Path(__file__).parents[3] / "data" / "benchmarks"

Rows = list[dict[str, Any]]


def as_lines(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def as_csv(path: Path, rows: Rows) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def as_parquet(path: Path, rows: Rows) -> None:
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    inferred = pa.Table.from_pylist(rows).schema
    fields = [each.with_type(image) if each.name.startswith("image_") else each for each in inferred]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(fields)), path)


@dataclass(frozen=True)
class Repository:
    """What a dataset's repository looks like: a file of rows, and a card that names its split."""

    repo: str
    file: str
    write: Callable[[Path, Rows], None]
    split: str
    subset: str = "default"
    others: Mapping[str, str] = field(default_factory=dict)

    def shared(self, rows: Rows) -> dict[str, Rows]:
        """The rows of each file: of several the last one has a row."""
        last = len(rows) - len(self.others)
        return {self.file: rows[:last], **dict.fromkeys(self.others.values(), rows[last:])}

    def make(self, folder: Path, rows: Rows) -> None:
        """Write it."""
        for file in (self.file, *self.others.values()):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            self.write(folder / file, self.shared(rows)[file])
        named = {self.split: self.file} if self.subset == "default" else {}
        files = [{"split": split, "path": path} for split, path in {**named, **self.others}.items()]
        configs: Any = [{"config_name": self.subset, "data_files": files or self.file}]
        if self.subset != "default":
            configs.append({"config_name": "of_another_kind", "data_files": "another.csv"})
        (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")


REPOSITORIES = {
    "math500": Repository("HuggingFaceH4/MATH-500", "test.jsonl", as_lines, "test"),
    "aime24": Repository("HuggingFaceH4/aime_2024", "data/train-00000-of-00001.parquet", as_parquet, "train"),
    "aime25": Repository("math-ai/aime25", "test.jsonl", as_lines, "test"),
    "amc23": Repository("math-ai/amc23", "test-00000-of-00001.parquet", as_parquet, "test"),
    "minerva_math": Repository("math-ai/minervamath", "test.jsonl", as_lines, "test"),
    "olympiadbench": Repository(
        "Hothan/OlympiadBench",
        "OlympiadBench/OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet",
        as_parquet,
        "train",
        subset="OE_TO_maths_en_COMP",
    ),
    "gpqa_diamond": Repository("Idavidrein/gpqa", "gpqa_diamond.csv", as_csv, "train", subset="gpqa_diamond"),
    "mmlu_pro": Repository(
        "TIGER-Lab/MMLU-Pro",
        "data/test-00000-of-00001.parquet",
        as_parquet,
        "test",
        others={"validation": "data/validation-00000-of-00001.parquet"},
    ),
}


def cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


def settings(name: str, *more: str) -> FilesConfig:
    config = quick_config(["experiment.name=t", f"dataset={name}", "stage=prepare", *more]).datasets[name]
    assert isinstance(config, FilesConfig)
    return config


def rows_in(folder: Path, split: str = "test") -> list[Row]:
    dataset = PreparedDataset(folder)
    return [dataset.row(each) for each in sorted(dataset.ids(split).tolist())]


@pytest.fixture(params=REPOSITORIES)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, list[Row]]:
    """The rows that a benchmark is prepared as, of a folder in the form of its repository."""
    name: str = request.param
    REPOSITORIES[name].make(tmp_path / "repository", [each["row"] for each in cases(name)])
    config = settings(name, f"datasets.{name}.path={tmp_path / 'repository'}")
    about = prepare(load_dataset(config), tmp_path / "out")
    apart = len(REPOSITORIES[name].others)
    assert about["rows"] == {"train": 0, "validation": apart, "test": 10 - apart}
    return name, rows_in(tmp_path / "out") + rows_in(tmp_path / "out", "validation")


def test_every_row_is_asked_and_judged_as_by_hand(made: tuple[str, list[Row]]) -> None:
    name, rows = made
    (reward,) = load_functions(settings(name))
    if reward.name == "math_verify":
        pytest.importorskip("math_verify")
    for case in cases(name):
        asked = next(case["row"][each] for each in ("problem", "question", "Question") if each in case["row"])
        (row,) = (each for each in rows if asked in str(each.prompt))
        letters = row.columns.get("letters", "AB")
        right = row.columns["solution"] if "letters" in row.columns else "?"
        wrong = next(each for each in reversed(letters) if each != right)
        for verdict, texts in ((1.0, case["right"]), (0.0, case["wrong"])):
            for text in texts:
                given = text.replace("<R>", right).replace("<W>", wrong).replace("<r>", right.lower())
                (judged,) = reward.function(completions=[given], solution=[row.columns["solution"]])
                assert judged == verdict, given


@pytest.mark.parametrize("name", REPOSITORIES)
def test_rows_of_the_hub_are_read_by_its_id(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    there, rows = REPOSITORIES[name], [each["row"] for each in cases(name)]
    named = {there.split: there.file, **there.others}
    asked: list[tuple[Any, ...]] = []

    def load(repo: str, *, name: str | None, revision: str | None) -> datasets.DatasetDict:
        asked.append((repo, name, revision))
        parts = there.shared(rows)
        return datasets.DatasetDict({split: datasets.Dataset.from_list(parts[at]) for split, at in named.items()})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets, "load_dataset", load)
    about = prepare(load_dataset(settings(name)), tmp_path / "out")
    assert asked == [(there.repo, None if there.subset == "default" else there.subset, None)]
    assert about["rows"] == {"train": 0, "validation": len(there.others), "test": 10 - len(there.others)}


@pytest.mark.parametrize("name", REPOSITORIES)
def test_a_benchmark_cannot_be_trained_on(name: str) -> None:
    (problem,) = config_problems(quick_config(["experiment.name=t", f"dataset={name}"]))
    assert f"datasets.{name} is for evaluation alone" in problem
    assert not config_problems(quick_config(["experiment.name=t", f"dataset={name}", "stage=prepare"]))


def test_any_rows_can_be_kept_for_evaluation(tmp_path: Path) -> None:
    for name in ("train", "test", "val", "mine"):
        (tmp_path / name).mkdir()
        as_lines(tmp_path / name / f"{name}.jsonl", [{"prompt": f"{n}?", "solution": str(n)} for n in range(4)])
        config = FilesConfig(kind="jsonl", path=str(tmp_path / name), evaluation_only=True, test_size=3)
        dataset = load_dataset(config)
        about = prepare(dataset, tmp_path / f"{name}-out")
        assert about["rows"] == {"train": 0, "validation": 0, "test": 3}
        assert about["warnings"] == []
        look = look_at(dataset)  # type: ignore[arg-type]
        assert (look.number, look.is_all, look.rows) == (4, True, {"test": 3})
        assert PreparedDataset(tmp_path / f"{name}-out").example().prompt.endswith("?")
    for name in ("train", "test"):
        as_lines(tmp_path / "mine" / f"{name}.jsonl", [{"prompt": f"{name} {n}?"} for n in range(2)])
    (tmp_path / "mine" / "mine.jsonl").unlink()
    config = FilesConfig(kind="jsonl", path=str(tmp_path / "mine"), evaluation_only=True)
    prepare(load_dataset(config), tmp_path / "both")
    assert {row.prompt for row in rows_in(tmp_path / "both")} == {"test 0?", "test 1?"}


def test_a_test_set_of_one_file_keeps_all_rows_unless_the_run_trains_on_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    as_lines(file, [{"prompt": f"{n}?", "solution": str(n)} for n in range(20)])

    def rows(*settings: str, path: Path = file) -> list[int]:
        own = [f"datasets.mine.{each}" for each in ("kind=jsonl", f"path={path}", *settings)]
        config = quick_config(["experiment.name=t", *own]).datasets["mine"]
        prepared = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        prepare(load_dataset(config), prepared)
        return PreparedDataset(prepared).ids("test").tolist()

    assert sorted(rows("trained_on=false")) == list(range(20))
    trained_on = rows()
    assert len(trained_on) < 20
    assert rows("trained_on=false", "evaluation_only=false") == trained_on
    # A folder may get further splits, and what the same run trains on must not be test.
    assert len(rows("trained_on=false", path=folder_of(file))) < 20
    also = ["datasets.too.kind=jsonl", f"datasets.too.path={file}"]
    both = quick_config(
        [
            "experiment.name=t",
            *also,
            *(each.replace("too", "mine") for each in also),
            "datasets.mine.trained_on=false",
        ]
    )
    assert not both.datasets["mine"].evaluation_only  # type: ignore[attr-defined]


def folder_of(file: Path) -> Path:
    folder = file.parent / "folder"
    folder.mkdir()
    (folder / file.name).write_bytes(file.read_bytes())
    return folder


# -- multiple choice ---------------------------------------------------------------------------------------------


def asked(**columns: Any) -> Mapping[str, Any]:
    found = MultipleChoice(MultipleChoiceConfig(kind="multiple_choice", path="x")).adapt(columns, "x.jsonl:1")
    assert found is not None
    return found


def test_choices_stand_under_letters_and_keep_their_places() -> None:
    one = asked(question=" Which? ", options=["no", " yes"], answer="b", src="x")
    assert one == {
        "prompt": "Which?\n\nA) no\nB) yes",
        "choices": ["no", "yes"],
        "letters": "AB",
        "solution": "B",
        "src": "x",
    }
    assert asked(question="Which?", options='["no", "yes"]', answer=1)["solution"] == "B"


@pytest.mark.parametrize(
    ("options", "answer", "right"),
    [
        (["1", "2", "3"], "2", "B"),
        (["1", "2", "3"], 2, "C"),
        (["no", "yes"], "yes", "B"),
        (["B", "A"], "A", "A"),
        (["no", "yes", "so"], "2", "C"),
    ],
)
def test_an_answer_is_a_letter_else_the_text_of_an_option_else_a_place(
    options: list[str], answer: Any, right: str
) -> None:
    assert asked(question="Which?", options=options, answer=answer)["solution"] == right


@pytest.mark.parametrize(
    "columns",
    [
        {"options": ["a", None, "b"], "answer": "A"},
        {"options": ["a", " ", "b"], "answer": "A"},
        {"options": ["2", "2", "3"], "answer": "2"},
        {"options": ["a", "b"], "answer": "B", "answer_index": 0},
    ],
)
def test_rows_without_some_choice_or_with_two_answers_are_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"x\.jsonl:1"):
        asked(question="Which?", **columns)


@pytest.mark.parametrize("choices", [("r", "r", "x", "y"), ("r", "x", "", "y"), (" ", "x", "y", "z")])
def test_rows_of_gpqa_need_four_choices_of_which_one_is_right(choices: tuple[str, ...]) -> None:
    names = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    with pytest.raises(DataError, match=r"x\.jsonl:1"):
        asked(Question="Which?", **dict(zip(names, choices, strict=True)))


def test_choices_without_places_have_the_same_order_whatever_that_of_the_file() -> None:
    wrong = ["one", "two", "three"]

    def of(question: str, *wrong: str) -> Mapping[str, Any]:
        names = {f"Incorrect Answer {n}": text for n, text in enumerate(wrong, 1)}
        return asked(**{"Question": question, "Correct Answer": "four", **names})

    assert of("Which?", *wrong) == of("Which?", *reversed(wrong))
    assert {of(f"Which of {n}?", *wrong)["solution"] for n in range(40)} == set("ABCD")
    found = of("Which?", *wrong)
    assert found["choices"][found["letters"].index(found["solution"])] == "four"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"question": "a", "options": ["x", "y"], "answer": "C"}, "the answer 'C' is none of the 2 options"),
        ({"question": "a", "options": "x or y", "answer": "A"}, "options must be a list of 2 to 26 texts"),
        ({"question": "a", "options": ["x"], "answer": "A"}, "options must be a list of 2 to 26 texts"),
        ({"prompt": "a", "options": ["x", "y"], "answer": "A"}, "no column 'question'; the columns are prompt"),
        ({"Question": "a", "Correct Answer": "x"}, "no column 'Incorrect Answer 1'"),
    ],
)
def test_choices_that_cannot_be_asked_are_refused(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        asked(**columns)
