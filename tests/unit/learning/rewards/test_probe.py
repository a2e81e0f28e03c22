"""Rewards are tried on one row before anything is generated."""

import json
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.bases import DatasetConfig, GradingConfig
from pipeline.errors import ConfigError, DataError
from pipeline.learning.datasets import rows as look
from pipeline.learning.datasets.base import Row, load_dataset
from pipeline.learning.datasets.columns import MissingColumns
from pipeline.learning.datasets.from_files import FilesConfig
from pipeline.learning.datasets.made import AdditionConfig
from pipeline.learning.datasets.prepared import prepare
from pipeline.learning.rewards import early
from pipeline.learning.rewards.probe import advice_on, check_rewards
from pipeline.plan.rewards import as_plain, try_rewards
from tests.doubles import own_rewards
from tests.doubles.composing import quick_config
from tests.doubles.machine import is_living
from tests.doubles.prepared import checked

FILE = str(own_rewards.__file__)
OVERLONG = (
    "datasets.addition.grading.options={get_soft_overlong_punishment:{max_completion_len:4,soft_punish_cache:2}}"
)
VADER = "datasets.addition.reward=vader"


def tried(reward: str | dict[str, float], row: Row | None = None, **grading: Any) -> list[str]:
    """What becomes of own rewards on a row of a dataset that makes its rows."""
    weights = {reward: 1.0} if isinstance(reward, str) else reward
    rewards = {
        f"{own_rewards.__name__}.{name}" if hasattr(own_rewards, name) else name: w for name, w in weights.items()
    }
    config = AdditionConfig(kind="addition", rewards=rewards, grading=GradingConfig(**grading))
    row = row or Row(0, "1+1=", {"solution": "2"})
    return check_rewards("sums", config, load_dataset(config), row, row.columns)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what is tried while planning tried here: where it is of interest what is said, and not who says it."""

    def ask(
        datasets: Mapping[str, DatasetConfig], to_read: Sequence[str], templates: Mapping[str, str], _: object
    ) -> Any:
        return json.loads(json.dumps(early.answer(json.loads(json.dumps(as_plain(datasets))), to_read, templates)))

    monkeypatch.setattr("pipeline.plan.rewards._ask", ask)


def prepared(tmp_path: Path, config: FilesConfig, *rows: dict[str, Any]) -> None:
    """Carry out the stage that reads the rows."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    checked(config, tmp_path)


def jsonl(tmp_path: Path, **settings: Any) -> FilesConfig:
    return FilesConfig(kind="jsonl", path=str(tmp_path / "a.jsonl"), test_size=1, validation_size=1, **settings)


@pytest.mark.parametrize(
    ("rows", "columns", "there", "mapping"),
    [
        ({"answer": "2"}, {}, "prompt, answer", "{solution: answer}"),
        ({"completion": "2"}, {}, "prompt, completion", "{solution: completion}"),
        ({"gold": "2", "source": "x", "answer": "2"}, {}, "prompt, answer, gold, source", "{solution: answer}"),
        ({"solutions": "2", "id": 1}, {}, "prompt, id, solutions", "{solution: solutions}"),
        ({"a": "2", "b": 1}, {}, "prompt, a, b", "{solution: NAME}"),
        (
            {"question": "q", "answer": "2"},
            {"prompt": "question"},
            "prompt, answer",
            "{prompt: question, solution: answer}",
        ),
    ],
)
def test_a_column_that_is_missing_is_told_with_the_mapping_to_write(
    tmp_path: Path, rows: dict[str, Any], columns: dict[str, str], there: str, mapping: str
) -> None:
    made = [
        {**({} if columns else {"prompt": f"{n}"}), **rows, **({"question": f"{n}"} if columns else {})}
        for n in range(9)
    ]
    with pytest.raises(ConfigError) as caught:
        prepared(tmp_path, jsonl(tmp_path, columns=columns), *made)
    assert str(caught.value) == (
        f"datasets.mine: reward 'exact_match' needs a column `solution`; this dataset has: {there}; "
        f"write 'datasets.mine.columns={mapping}'"
    )


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


def test_a_column_whose_name_is_taken_is_told_with_the_setting_that_renames_it(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "answer": "1", "completions": ["1"]} for n in range(9)]
    with pytest.raises(DataError) as caught:
        prepared(tmp_path, jsonl(tmp_path, columns={"solution": "answer"}), *rows)
    setting = "datasets.mine.columns={solution: answer, dataset_completions: completions}"
    assert str(caught.value).endswith(
        "rewards are given something else as 'completions'. "
        f"Rename it by '{setting}', or list those to keep in datasets.mine.further_columns."
    )
    prepared(
        tmp_path, jsonl(tmp_path, columns={"solution": "answer", "dataset_completions": "completions"}), *rows
    )


@pytest.mark.parametrize(
    ("columns", "row", "mapping"),
    [
        ({}, {"question": "q", "answer": "2"}, "{prompt: question, solution: answer}"),
        ({}, {"question": "q", "solution": "2"}, "{prompt: question}"),
        ({"solution": "gold"}, {"a": "q", "gold": "2", "b": 1}, "{solution: gold, prompt: NAME}"),
    ],
)
def test_a_missing_prompt_is_told_with_all_columns_to_map(
    tmp_path: Path, columns: dict[str, str], row: dict[str, Any], mapping: str
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    config = jsonl(tmp_path, columns=columns)
    with pytest.raises(MissingColumns) as caught:
        prepare(load_dataset(config), tmp_path / "out")
    advice = f"If they are called otherwise, write 'datasets.mine.columns={mapping}'."
    assert advice_on(caught.value, "mine", config) == advice


def test_what_only_a_warning_is_stands_in_the_log_of_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = jsonl(tmp_path, reward=f"{own_rewards.__name__}.expects_json")
    with caplog.at_level(logging.WARNING, "pipeline"):
        prepared(tmp_path, config, *({"prompt": f"{n}", "solution": "a"} for n in range(9)))
    assert "datasets.mine: for the completion 'a' of row" in caplog.text
    assert "gives no score: json.decoder.JSONDecodeError: Expecting value" in caplog.text
    assert (tmp_path / "out" / "dataset.json").exists()


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("needs_level", "needs a column `level`; this dataset has: prompt, solution; choose another reward by"),
        ("reads_prompt", "needs `prompt`, but is given `prompts`, `completions` and further columns"),
        ("returns_nothing", "returned None, but must return a list with one number, or None, for each completion"),
        ("one_number", "returned 1.0, but must return a list with one number"),
        ("too_many", "returned 3 scores for 2 completions"),
        ("words", "returned 'good' as a score, which is no number"),
        ("undefined", rf"fails: NameError: name 'misspelt' is not defined \({FILE}:\d+\)$"),
        ("imports_what_is_not_there", r"fails: ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("a_set", "returned a set, but must return a list with one number"),
        ("digits", "returned '1.0' as a score, which is no number"),
        ("in_the_worker", rf"fails: NameError: name 'misspelt' is not defined \({FILE}:\d+\)$"),
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
        ("reads_fields", rf"KeyError: 'Answer' ({FILE}:"),
        ("reads_last_line", "UnboundLocalError: cannot access local variable 'answer' where it is not"),
        ("runs_code", "NameError: name 'number_2' is not defined"),
        ("imports_what_it_is_told", "ModuleNotFoundError: No module named 'part_2'"),
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
    assert tried("right") == []
    assert tried("awaited_object") == []
    assert tried("hands_on") == []
    assert tried({"right": 1.0, "not_a_number": 0.5}, correct_by="nothing") == []  # another one gives a score
    assert tried({"exact_match": 1.0, "length": 0.1}) == []


def test_a_row_that_no_process_can_be_sent_hinders_only_rewards_that_need_one() -> None:
    row = Row(0, "1+1=", {"solution": "2", "image": object()})
    assert tried("exact_match", row) == []
    assert tried("right", row, isolated=False) == []


# -- while a run is planned ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        ('{"question": "1+1="}', [], r"jsonl:1: no prompt\..* write 'datasets.jsonl.columns={prompt: question,"),
        (
            '{"prompt": "1+1=", "answer": "2"}',
            [],
            r"needs a column `solution`; this dataset has: prompt, answer; write '.*{solution: answer}'",
        ),
        (
            '{"prompt": "1+1=", "solution": "2"}\n{"prompt": "", "solution": "3"}',
            [],
            r"datasets\.jsonl: .*rows\.jsonl:2: the prompt is empty",
        ),
        (
            '{"prompt": "1+1=", "solution": "2"}',
            ["datasets.jsonl.prompt_template='{q}'"],
            r"uses '\{q\}': unknown column 'q'\. Known: prompt, solution",
        ),
        ('{"prompt": "1+1=", "solution": "2"}', ["datasets.jsonl.train_split=tain"], r"split 'tain'"),
    ],
    ids=["prompt", "reward", "second row", "template", "split"],
)
@pytest.mark.usefixtures("in_this_process")
def test_what_is_wrong_with_rows_of_files_is_told_before_they_are_read(
    tmp_path: Path, rows: str, settings: list[str], said: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(rows.replace("1+1", f"1+{number}") + "\n" for number in range(1, 5)))
    asked = ["experiment.name=x", "algos=[PITA]", "dataset=jsonl", f"datasets.jsonl.path={file}", *settings]
    assert try_rewards(quick_config(asked)) == ()  # they have been read
    with pytest.raises(ConfigError, match=said):
        try_rewards(quick_config(asked), ["jsonl"])


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("nulls", "said"),
    [
        (
            [2],
            r"`solution`, .* reward 'exact_match' .* null or empty in 1 row \(first .*rows\.jsonl:3\)\. Write",
        ),
        ([1, 3], r"is null or empty in 2 rows \(first .*rows\.jsonl:2\)\. .* unless they are to have no score$"),
    ],
)
def test_rows_that_are_null_where_a_reward_compares_are_told(tmp_path: Path, nulls: list[int], said: str) -> None:
    rows = [{"prompt": f"1+{at}=", "solution": str(1 + at), "remark": None} for at in range(5)]
    file = tmp_path / "rows.jsonl"
    file.write_text(
        "".join(json.dumps(row | {"solution": None} if at in nulls else row) + "\n" for at, row in enumerate(rows))
    )
    sizes = ["datasets.jsonl.test_size=1", "datasets.jsonl.validation_size=1"]
    asked = ["experiment.name=x", "algos=[PITA]", "dataset=jsonl", f"datasets.jsonl.path={file}", *sizes]
    (warning,) = try_rewards(quick_config(asked), ["jsonl"])
    assert re.search(said, warning)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("row", "settings", "advice"),
    [
        # The last turn is no column, and `answer` is what such a column is called.
        ({"messages": None, "answer": "2"}, [], r"write 'datasets\.jsonl\.columns=\{solution: answer\}'$"),
        ({"prompt": "", "completion": "2", "answer": "2"}, [], r"columns=\{solution: answer\}'$"),
        (
            {"prompt": "", "answer": "2"},
            ["datasets.jsonl.columns={solution: answer}", "datasets.jsonl.reward=own_answer.same"],
            r"columns=\{solution: answer, answer: answer\}'$",
        ),
        (
            {"prompt": "", "reward_model": {"style": "rule", "ground_truth": "2"}},
            [],
            r"columns=\{solution: \"reward_model\.ground_truth\"\}'$",
        ),
    ],
    ids=["conversation", "completion", "two names", "inside of another"],
)
def test_advice_on_a_column_of_a_reward_works_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], settings: list[str], advice: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_answer.py").write_text("def same(completions, answer, **_): return [1.0] * len(answer)\n")
    file = tmp_path / "rows.jsonl"
    with file.open("w") as lines:
        for n in range(6):
            turns = [{"role": "user", "content": f"1+{n}="}, {"role": "assistant", "content": "2"}]
            own = {"prompt": f"1+{n}="} if "prompt" in row else {"messages": turns}
            lines.write(json.dumps({**row, **own}) + "\n")
    asked = ["experiment.name=x", "algos=[PITA]", "dataset=jsonl", f"datasets.jsonl.path={file}"]
    with pytest.raises(ConfigError, match=advice) as caught:
        try_rewards(quick_config([*asked, *settings]), ["jsonl"])
    if found := re.search(r"write '(.*)'$", str(caught.value)):
        try_rewards(quick_config([*asked, *settings[1:], found[1]]), ["jsonl"])


@pytest.mark.usefixtures("in_this_process")
def test_conversations_of_files_are_refused_for_a_model_without_a_chat_template(tmp_path: Path) -> None:
    turns = [[{"role": "user", "content": f"1+{number}="}] for number in range(4)]
    file, model = tmp_path / "rows.jsonl", tmp_path / "model"
    file.write_text("".join(json.dumps({"prompt": turn, "solution": "2"}) + "\n" for turn in turns))
    model.mkdir()
    asked = ["experiment.name=x", "dataset=jsonl", f"datasets.jsonl.path={file}", "model=hf"]
    config = quick_config([*asked, f"models.hf.path={model}"])
    with pytest.raises(ConfigError, match=r"datasets.jsonl are conversations, but models.hf.path=.* has no chat"):
        try_rewards(config, ["jsonl"])
    (model / "chat_template.jinja").write_text("{{ messages }}")
    try_rewards(config, ["jsonl"])


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


@pytest.mark.usefixtures("in_this_process")
def test_rows_that_come_later_may_have_what_the_first_ones_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "LOOKED_AT", number := 1_000)
    file = tmp_path / "rows.jsonl"
    first = [json.dumps({"prompt": f"1+{at}="}) + "\n" for at in range(number)]
    late = json.dumps({"prompt": "1+1=", "solution": "2"}) + "\n"
    config = quick_config(["experiment.name=x", "algos=[PITA]", "dataset=jsonl", f"datasets.jsonl.path={file}"])
    file.write_text("".join(first) + late)
    (warning,) = try_rewards(config, ["jsonl"])
    assert "needs a column `solution`" in warning
    assert "as its first 1,000 rows tell" in warning
    file.write_text("".join(first[1:]) + late)
    assert "needs a column" not in "".join(try_rewards(config, ["jsonl"]))


def test_of_several_rewards_on_files_it_is_seen_while_planning_which_one_judges() -> None:
    rewards = ",".join(f"{own_rewards.__name__}.{name}:1" for name in ("right", "shares"))
    asked = [
        "experiment.name=x",
        "algos=[PITA]",
        "dataset=jsonl",
        "datasets.jsonl.path=not_read_yet",
        f"datasets.jsonl.rewards={{{rewards}}}",
    ]
    with pytest.raises(ConfigError, match=r"datasets.jsonl: of several rewards .*right, .*shares is known to"):
        try_rewards(quick_config(asked))
    assert try_rewards(quick_config([*asked, "datasets.jsonl.grading.correct_by=nothing"])) == ()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["dataset=imdb_sentiment"], "its reward 'vader'"),
        (["datasets.addition.rewards={exact_match:1,length:0.1}"], "the sum of its rewards exact_match, length"),
        (
            ["datasets.addition.reward=get_soft_overlong_punishment", OVERLONG],
            "reward 'get_soft_overlong_punishment'",
        ),
        ([f"datasets.addition.reward={own_rewards.__name__}.declared_graded"], "own_rewards.declared_graded'"),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_a_graded_reward_is_refused_where_a_single_probability_would_have_to_express_it(
    overrides: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{said} has more than two values, .* Set algos.QSharp.atoms=11"):
        try_rewards(quick_config(["experiment.name=x", "algos=[QSharp]", *overrides]))


def test_a_mean_is_all_that_controlled_decoding_asks_of_a_graded_reward() -> None:
    assert try_rewards(quick_config(["experiment.name=x", "algos=[CD]", "dataset=imdb_sentiment"])) == ()
    assert try_rewards(quick_config(["experiment.name=x", "algos=[QSharp]", "algos.QSharp.atoms=11", VADER])) == ()


def test_rewards_of_ones_own_are_tried_in_another_process() -> None:
    config = quick_config(["experiment.name=x", f"datasets.addition.reward={own_rewards.__name__}.undefined"])
    before = set(sys.modules)
    with pytest.raises(ConfigError, match=rf"NameError: name 'misspelt' is not defined \({FILE}:\d+\)$"):
        try_rewards(config)
    assert not {name for name in set(sys.modules) - before if name.startswith("pipeline.learning.rewards")}


def test_a_module_that_ends_its_process_or_prints_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loud.py").write_text(
        "print('hello')\ndef fits(completions, **_): return [1.0] * len(completions)\n"
    )
    (tmp_path / "deadly.py").write_text("import os, sys\nprint('oh', file=sys.stderr, flush=True)\nos._exit(9)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "halted.py").write_text(
        "raise KeyboardInterrupt\ndef fits(completions, **_): return [1.0] * len(completions)\n"
    )
    (tmp_path / "quiet.py").write_text(
        "import os\nos._exit(0)\ndef fits(completions, **_): return [1.0] * len(completions)\n"
    )
    assert try_rewards(quick_config(["experiment.name=x", "datasets.addition.reward=loud.fits"])) == ()
    with pytest.raises(ConfigError, match=r"cannot be imported: KeyboardInterrupt \(.*halted.py:1\)"):
        try_rewards(quick_config(["experiment.name=x", "datasets.addition.reward=halted.fits"]))
    with pytest.raises(ConfigError, match=r"exit code 0 and said: nothing. Importing quiet.fits, or what"):
        try_rewards(quick_config(["experiment.name=x", "datasets.addition.reward=quiet.fits"]))
    with pytest.raises(ConfigError, match=r"rewards of addition ended with exit code 9 and said: oh"):
        try_rewards(quick_config(["experiment.name=x", "datasets.addition.reward=deadly.fits"]))


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


def test_a_module_that_does_not_end_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stuck.py").write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("pipeline.plan.rewards._MARGIN_S", 0.0)
    monkeypatch.setattr("pipeline.plan.rewards._SOON_S", 0.1)
    told: list[str] = []
    limits = [f"datasets.addition.grading.{name}=0.5" for name in ("start_timeout_s", "timeout_s")]
    asked = ["experiment.name=x", "datasets.addition.reward=stuck.fits", *limits]
    with pytest.raises(ConfigError, match=r"took more than 1 s\. Does importing one, or making the row, hang"):
        try_rewards(quick_config(asked), tell=told.append)
    assert len(told) == 1  # before that
