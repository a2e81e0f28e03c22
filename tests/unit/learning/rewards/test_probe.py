"""Rewards are tried on one row before anything is generated."""

import datetime
import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.plain import with_schema
from pipeline.config.schema import DatasetConfig, GradingConfig
from pipeline.errors import ConfigError, DataError
from pipeline.learning.datasets.base import Row, load_dataset
from pipeline.learning.datasets.from_files import FilesConfig
from pipeline.learning.datasets.shipped import AdditionConfig
from pipeline.learning.rewards import probe
from pipeline.learning.rewards.answers import gold_texts
from pipeline.learning.rewards.probe import RowCheck, check_rewards
from pipeline.plan.rewards import try_rewards
from tests.doubles import own_rewards
from tests.doubles.composing import quick_config
from tests.doubles.machine import is_living
from tests.doubles.prepared import checked

FILE = str(own_rewards.__file__)
SUM = '{"prompt": "1+1=", "solution": "2"}'


def tried(reward: str | dict[str, float], row: Row | None = None, **grading: Any) -> list[str]:
    """What becomes of own rewards on a row of a dataset that makes its rows."""
    weights = {reward: 1.0} if isinstance(reward, str) else reward
    rewards = {
        f"{own_rewards.__name__}.{name}" if hasattr(own_rewards, name) else name: w for name, w in weights.items()
    }
    grading.setdefault("isolated", "ends_the_process" in weights)  # or else none has a process of its own
    config = AdditionConfig(kind="addition", rewards=rewards, grading=GradingConfig(**grading))
    row = row or Row(0, "1+1=", {"solution": "2"})
    return check_rewards("sums", config, load_dataset(config), row, row.columns)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what is tried while planning tried here: where it is of interest what is said, and not who says it."""

    def ask(
        datasets: Mapping[str, DatasetConfig], to_read: Sequence[str], templates: Mapping[str, str], _: object
    ) -> Any:
        plain = {name: with_schema(section) for name, section in datasets.items()}
        return json.loads(json.dumps(probe.answer(json.loads(json.dumps(plain)), to_read, templates)))

    monkeypatch.setattr("pipeline.plan.rewards._ask", ask)


def prepared(tmp_path: Path, config: FilesConfig, *rows: dict[str, Any]) -> None:
    """Carry out the stage that reads the rows."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    checked(config, tmp_path)


def jsonl(tmp_path: Path, **settings: Any) -> FilesConfig:
    return FilesConfig(kind="jsonl", path=str(tmp_path / "a.jsonl"), test_size=1, validation_size=1, **settings)


@pytest.mark.parametrize(("odd", "found"), [(["1"], "a list"), ({"a": 1}, "a dict"), (True, "true")])
def test_an_answer_that_cannot_be_compared_is_told_with_file_and_line_whichever_row_has_it(
    tmp_path: Path, odd: Any, found: str
) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"{n}", "solution": "1"} for n in range(9)]
    rows[2]["solution"], rows[6]["solution"] = 1, odd
    with pytest.raises(DataError) as caught:
        prepared(tmp_path, jsonl(tmp_path), *rows)
    assert str(caught.value) == (
        f"{tmp_path}/a.jsonl:7: the reward 'exact_match' compares completions with 'solution', which must be text "
        f"or a number, found {found}; write it as text, or choose another reward by datasets.mine.reward."
    )
    prepared(tmp_path, jsonl(tmp_path, reward="length"), *rows)


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("needs_level", "needs a column `level`; this dataset has: prompt, solution; choose another reward by"),
        ("reads_prompt", "needs `prompt`, but is given `prompts`, `completions` and further columns"),
        ("returns_nothing", "returned None, but must return a list with one number, or None, for each completion"),
        ("words", "returned 'good' as a score, which is no number"),
        ("undefined", rf"fails: NameError: name 'misspelt' is not defined \({FILE}:\d+\)$"),
        ("imports_what_is_not_there", r"fails: ModuleNotFoundError: No module named 'not_there_at_all'"),
    ],
)
def test_a_reward_that_cannot_work_is_refused(reward: str, said: str) -> None:
    name = f"{own_rewards.__name__}.{reward}"
    with pytest.raises(ConfigError, match=rf"^datasets.sums: reward '{name}' \({FILE}:\d+\) {said}"):
        tried(reward)


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("expects_json", "TypeError: 'int' object is not subscriptable"),  # the solution is read as a number
        ("not_a_number", "no reward gives a score, but None or nan"),
        ("reads_last_line", "UnboundLocalError: cannot access local variable 'answer' where it is not"),
        ("runs_code", "NameError: name 'number_2' is not defined"),
        ("looks_up_level", rf"KeyError: 'level' ({FILE}:"),
        ("ends_the_process", "the grading process ended with exit code 3"),
    ],
)
def test_what_may_be_due_to_the_completion_is_a_warning(reward: str, said: str) -> None:
    (warning,) = tried(reward)
    assert said in warning


def test_a_reward_for_texts_that_would_mean_nothing_in_conversations_is_told() -> None:
    row = Row(0, [{"role": "user", "content": "1+1="}], {"solution": "2"})
    (warning,) = tried("holds", row)
    assert "completion[0]['content']" in warning
    (warning,) = tried("measures_length", row)
    assert "where it is given text" in warning
    assert tried("holds") == tried("holds_in_turns", row) == tried("right", row) == tried("of_messages", row) == []


def test_a_reward_that_fits_is_passed_over_in_silence() -> None:
    assert tried("right") == tried("awaited_object") == tried("hands_on") == []
    assert tried({"right": 1.0, "not_a_number": 0.5}, correct_by="nothing") == []  # another one gives a score
    assert tried({"exact_match": 1.0, "length": 0.1}) == []


# -- while a run is planned ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "setting", "said"),
    [
        (SUM + '\n{"prompt": "", "solution": "3"}', "", r"datasets\.jsonl: .*rows\.jsonl:2: the prompt is empty"),
        (SUM, "prompt_template='{q}'", r"uses '\{q\}': unknown column 'q'\. Known: prompt, solution"),
    ],
    ids=["second row", "template"],
)
@pytest.mark.usefixtures("in_this_process")
def test_what_is_wrong_with_rows_of_files_is_told_before_they_are_read(
    tmp_path: Path, rows: str, setting: str, said: str
) -> None:
    file = tmp_path / "rows.jsonl"
    settings = [f"datasets.jsonl.{setting}"] if setting else []
    file.write_text("".join(rows.replace("1+1", f"1+{number}") + "\n" for number in range(1, 5)))
    asked = ["experiment.name=x", "algos=[PITA]", "dataset=jsonl", f"datasets.jsonl.path={file}", *settings]
    assert try_rewards(quick_config(asked)) == ()  # they have been read
    with pytest.raises(ConfigError, match=said):
        try_rewards(quick_config(asked), ["jsonl"])


@pytest.mark.usefixtures("in_this_process")
def test_a_reward_is_tried_on_a_row_as_the_run_will_have_it(tmp_path: Path) -> None:
    days = [datetime.date(2026, 1, day) for day in (1, 2, 3)]
    rows = {"prompt": ["1", "2", "3"], "day": days, "price": [Decimal("1.5")] * 3}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    reward = f"{own_rewards.__name__}.begins_with_the_year"
    asked = [
        "dataset=parquet",
        f"datasets.parquet.path={tmp_path}/rows.parquet",
        f"datasets.parquet.reward={reward}",
    ]
    warnings = try_rewards(quick_config(["experiment.name=x", "algos=[PITA]", *asked]), ["parquet"])
    assert not any(reward in each for each in warnings)


@pytest.mark.usefixtures("in_this_process")
def test_conversations_of_files_are_refused_for_a_model_without_a_chat_template(tmp_path: Path) -> None:
    turns = [[{"role": "user", "content": f"1+{number}="}] for number in range(4)]
    file, model = tmp_path / "rows.jsonl", tmp_path / "model"
    file.write_text("".join(json.dumps({"prompt": turn, "solution": "2"}) + "\n" for turn in turns))
    model.mkdir()
    asked = ["experiment.name=x", "dataset=jsonl", f"datasets.jsonl.path={file}", "model=hf"]
    config = quick_config([*asked, f"models.hf.path={model}"])
    with pytest.raises(ConfigError, match=r"datasets.jsonl has .*, but models.hf.path=.* has no chat"):
        try_rewards(config, ["jsonl"])
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert not any("chat=true" in warning for warning in try_rewards(config, ["jsonl"]))
    file.write_text("".join(json.dumps({"prompt": f"1+{number}=", "solution": "2"}) + "\n" for number in range(4)))
    assert any("datasets.jsonl.chat=true" in warning for warning in try_rewards(config, ["jsonl"]))
    chat = quick_config([*asked, f"models.hf.path={model}", "datasets.jsonl.chat=true"])
    assert not any("chat=true" in warning for warning in try_rewards(chat, ["jsonl"]))
    # A model that the run trains has none, so no warning says what cannot be.
    beside = quick_config(["experiment.name=x", *asked[1:3], f"evaluation.also={{chats: {model}}}", "model=tiny"])
    (warning,) = [each for each in try_rewards(beside, ["jsonl"]) if "chats" in each]
    assert "chat=true" not in warning
    beside.datasets["jsonl"].chat = True
    with pytest.raises(ConfigError, match=r"models\.tiny has no chat"):
        try_rewards(beside, ["jsonl"])


@pytest.mark.usefixtures("in_this_process")
def test_rows_of_pairs_alone_are_not_told_to_name_a_column_that_is_not_there(tmp_path: Path) -> None:
    pairs = [{"prompt": f"{number}+1=", "chosen": "2", "rejected": "3"} for number in range(4)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    asked = ["experiment.name=x", "dataset=jsonl", f"datasets.jsonl.path={tmp_path}/pairs.jsonl", "algos=[RM]"]
    with pytest.raises(ConfigError, match=r"datasets\.jsonl\.reward: length") as caught:
        try_rewards(quick_config([*asked, "algos.RM.pairs=existing"]), ["jsonl"])
    assert "columns=" not in str(caught.value)
    try_rewards(quick_config([*asked, "algos.RM.pairs=existing", "datasets.jsonl.reward=length"]), ["jsonl"])


def test_code_of_ones_own_that_makes_no_row_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "riddles.py").write_text(
        "from pipeline import FilesDataset\n\nclass Riddles(FilesDataset):\n"
        "    def adapt(self, data, place):\n        return {'prompt': data['riddle']}\n"
    )
    (tmp_path / "rows.jsonl").write_text('{"prompt": "what?"}\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ["datasets.jsonl.class_path=riddles.Riddles", f"datasets.jsonl.path={tmp_path / 'rows.jsonl'}"]
    config = quick_config(["experiment.name=x", "algos=[PITA]", "dataset=jsonl", *own])
    with pytest.raises(ConfigError, match=r"datasets\.jsonl: its rows .*KeyError: 'riddle' \(.*riddles\.py:5\)"):
        try_rewards(config, ["jsonl"])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["dataset=imdb_sentiment"], "its reward 'vader'"),
        ([f"datasets.addition.reward={own_rewards.__name__}.declared_graded"], "own_rewards.declared_graded'"),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_a_graded_reward_is_refused_where_a_single_probability_would_have_to_express_it(
    overrides: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{said} has more than two values, .* Set algos.QSharp.atoms=11"):
        try_rewards(quick_config(["experiment.name=x", "algos=[QSharp]", *overrides]))


_VOTES = ["experiment.name=x", "algos=[BestOfN]", "algos.BestOfN.selection=majority"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["dataset=imdb_sentiment"],
        [f"datasets.addition.reward={own_rewards.__name__}.right"],
        [
            "dataset=[addition,imdb_sentiment]",
            "datasets.imdb_sentiment.trained_on=false",
            "evaluation.on=[imdb_sentiment]",
        ],
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_a_majority_of_answers_that_no_reward_reads_is_refused(overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"algos\.BestOfN\.selection=majority: no reward of datasets"):
        try_rewards(quick_config([*_VOTES, *overrides]))


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["datasets.addition.reward=tests.doubles.own_rewards.reads_answers"],
        ["dataset=imdb_sentiment", "algos.BestOfN.selection=reward_model"],
        ["dataset=imdb_sentiment", "algos.BestOfN.enabled=false", "algos.PITA.enabled=true"],
        ["dataset=[addition,imdb_sentiment]", "evaluation.on_own=false", "evaluation.on=[addition]"],
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_other_choices_and_answers_that_one_reads_are_not(overrides: list[str]) -> None:
    try_rewards(quick_config([*_VOTES, *overrides]))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise KeyboardInterrupt", r"cannot be imported: KeyboardInterrupt \(.*own_module.py:1\)"),
        (
            "import os, sys; print('oh', file=sys.stderr, flush=True); os._exit(9)",
            r"rewards of addition ended with exit code 9 and said: oh",
        ),
    ],
)
def test_a_module_that_ends_its_process_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    fits = "def fits(completions, **_): return [1.0] * len(completions)"
    (tmp_path / "own_module.py").write_text(f"{code}\n{fits}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = quick_config(["experiment.name=x", "datasets.addition.reward=own_module.fits"])
    with pytest.raises(ConfigError, match=said):
        try_rewards(config)


def test_what_a_module_has_started_ends_with_the_look_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = tmp_path / "pid"
    (tmp_path / "busy.py").write_text(
        "import subprocess, sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(3600,)).start()\n"
        "started = subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
        f"open({str(noted)!r}, 'w').write(str(started.pid))\n"
        "def fails(completions, **_): raise ValueError('x' * 5_000_000)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (warning,) = try_rewards(quick_config(["experiment.name=x", "datasets.addition.reward=busy.fails"]))
    assert not is_living(int(noted.read_text()))
    assert re.search(r"ValueError: x+ \[\.\.\.\] x+", warning)
    assert len(warning) < 5000


# -- test row check ----------------------------------------------------------------------------------------------
# What rewards say of rows as they are read: which none can judge, and where solutions are missing.


def told(reward: str, *cells: Any, column: str = "solution", kind: str = "jsonl") -> list[str]:
    check = RowCheck("mine", DatasetConfig(kind=kind, reward=reward))
    assert {check({column: each}, f"/data/a.jsonl:{at}") for at, each in enumerate(cells, 1)} == {""}
    return check.told()


def test_missing_solutions_are_counted() -> None:
    (said,) = told("exact_match", "1", None, math.nan, "", " ")
    assert "`solution`" in said
    assert "null or empty in 4 rows (first a.jsonl:2)" in said
    assert "1 row (first a.jsonl:1)" in told("exact_match", 1, column="other")[0]
    assert told("exact_match", "1", 2) == told("length", None) == []
    # An empty text is a text to rewards of one's own, except in CSV, where nothing else can be missing.
    own = f"{own_rewards.__name__}.needs_level"
    assert "1 row (first a.jsonl:2)" in told(own, "", None, column="level")[0]
    assert "1 row (first a.jsonl:2)" in told(own, "1", "", column="level", kind="csv")[0]


def test_whole_numbers_that_became_floats_before_they_became_text_are_told() -> None:
    missing, floats = told("exact_match", "2.0", "", "14.0")
    assert "(first a.jsonl:2)" in missing
    assert "as 2.0 (a.jsonl:1)" in floats
    assert told("exact_match", "2.0", "3.5") == told("exact_match", 2.0) == []
    assert told("gsm8k", "2.0") == []  # compares numbers


# -- test gold ---------------------------------------------------------------------------------------------------
# Rewards are tried on a dataset's own solutions when it is prepared.


def warned(folder: Path, reward: str, solutions: Sequence[str | None]) -> list[str]:
    """The warnings that are kept of a dataset with these solutions."""
    rows = [{"prompt": f"Question {at}?", "solution": each} for at, each in enumerate(solutions)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings: dict[str, Any] = {"path": str(folder / "a.jsonl"), "test_size": 1, "validation_size": 1}
    checked(FilesConfig(kind="jsonl", reward=reward, **settings), folder)
    found: list[str] = json.loads((folder / "out" / "dataset.json").read_bytes())["warnings"]
    return found


def test_solutions_as_completions_write_them() -> None:
    assert gold_texts("She has\n#### 1,000", "<{}>") == ["<1,000>"]
    assert gold_texts(r"so $\boxed{\frac{1}{2}}$.", "<{}>") == [r"<\frac{1}{2}>"]
    assert gold_texts("it is 4 and that is all", "<{}>") == ["it is 4 and that is all"]
    assert gold_texts(42.0, "<{}>") == ["<42>"]
    assert [gold_texts(each, "<{}>") for each in (None, " ", [1])] == [[], [], []]


@pytest.mark.parametrize(
    ("reward", "solutions"),
    [
        ("gsm8k", ["1,000", "so\n#### 7", r"\boxed{12}", "$5", None]),
        ("boxed", ["three blind mice that run", r"7\sqrt{5}", r"hence $\boxed{[0, 4)}$", "so\n\\boxed{B}"]),
    ],
)
def test_rewards_that_read_solutions_are_silent(tmp_path: Path, reward: str, solutions: list[str | None]) -> None:
    assert [each for each in warned(tmp_path, reward, solutions) if "solutions" in each] == []


def test_solutions_that_a_reward_does_not_read_are_counted_and_kept(tmp_path: Path) -> None:
    (said,) = [each for each in warned(tmp_path, "gsm8k", ["12", "ten", "1/2", "3.5"]) if "solutions" in each]
    assert all(each in said for each in ("2 rows", "of 4 tried", "row 1: '#### ten'", "row 2: "))
    assert "row 0:" not in said


def test_solutions_of_which_none_is_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"datasets\.mine: the reward 'boxed'.* 3 rows.* of 3.*columns.*reward"):
        warned(tmp_path, "boxed", ["She has 7.\n#### 7", "He has 8.\n#### 8", "Both.\n#### 15"])
