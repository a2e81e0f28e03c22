"""Every reward that ships, on the ways in which answers are really written."""

from typing import Any

import pytest

from pipeline.errors import DataError
from pipeline.learning.rewards.boxed import boxed, boxed_answer, last_boxed
from pipeline.learning.rewards.exact_match import exact_match
from pipeline.learning.rewards.gsm8k import final_number, gsm8k, last_number
from pipeline.learning.rewards.length import length
from pipeline.learning.rewards.math_verify import math_verify, parsed_answer
from pipeline.learning.rewards.star_graph import star_graph
from pipeline.learning.rewards.vader import vader


def conversation(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so it is 42", "42"),
        ("$1,250.50.", "1250.5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("= -7", "-7"),
        ("pages 10-20", "20"),
        ("(5)-3", "3"),
        ("- 5 apples", "5"),
        ("1,2,3", "3"),
        ("1,234,567", "1234567"),
        ("007", "7"),
        ("3.50", "3.5"),
        ("4.0", "4"),
        ("-0", "0"),
        ("0.00", "0"),
        ("9" * 5000, "9" * 5000),
        ("5km, then 6km", "6"),
        ("no number", None),
        ("", None),
    ],
)
def test_the_last_number(text: str, number: str | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 + 4 = 7\n#### 7", "7"),
        ("first #### 1, later #### 2", "2"),
        ("#### 18\nQuestion: another 5", "18"),  # it goes on with a question of its own
        ("it is 12\n####", "12"),
        ("it is 12 #### none", "12"),
        ("it is $12.", "12"),
    ],
)
def test_the_final_number(text: str, number: str) -> None:
    assert final_number(text) == number
    assert final_number(conversation(text)) == number


def test_gsm8k() -> None:
    solution = "She sold 48/2 = 24.\n#### 1,072"
    given = ["#### 1072", "the answer is $1,072.00", "1073", "I do not know", "#### 1072 dollars"]
    assert gsm8k(completions=given, solution=[solution] * 5, prompts=given) == [1, 1, 0, 0, 1]
    assert gsm8k(completions=["5"], solution=["no number at all"]) == [None]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"so \boxed{5}", "5"),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a_{b_{c}}}", "a_{b_{c}}"),
        (r"\fbox{x}", None),
        (r"\fboxed{x}", "x"),
        (r"\boxed 7", "7"),
        (r"\boxed{1} then cut \boxed{2", "1"),
        ("nothing", None),
        (r"\boxed{", None),
        (r"\boxed{\boxed{3}}", "3"),
    ],
)
def test_the_last_box(text: str, inside: str | None) -> None:
    assert last_boxed(text) == inside


def test_boxed() -> None:
    given = [r"\boxed{\dfrac{1}{2}}", r"\boxed{ \frac{1}{2}. }", r"\boxed{0.5}", r"\frac{1}{2}"]
    for solution in (r"\frac{1}{2}", r"thus \boxed{\frac{1}{2}}"):
        assert boxed(completions=given, solution=[solution] * 4) == [1, 1, 0, 0]
    assert boxed(completions=[conversation(r"\boxed{3}")], solution=["3"]) == [1]
    assert boxed_answer(r"\boxed{}") is None


def test_math_is_compared_as_mathematics() -> None:
    pytest.importorskip("math_verify")
    given = [r"$\boxed{\frac{2}{4}}$", "it is 0.5", "1/2", "2", "no idea"]
    for solution in (r"\frac{1}{2}", r"$\frac{1}{2}$", "1/2"):
        assert math_verify(completions=given, solution=[solution] * 5) == [1, 1, 1, 0, 0]
    assert math_verify(completions=[r"$(x+1)^2$"], solution=["$x^2+2x+1$"]) == [1]
    assert math_verify(completions=["5"], solution=[""]) == [None]
    assert parsed_answer("1/2") == parsed_answer(r"$\frac{1}{2}$") == "1/2"
    assert parsed_answer("no idea") is None


GRAPH = "7,3|3,9|7,4|4,1|7,5|5,2/7,9="


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("7,3,9", 1),
        (" 7, 3, 9 \n", 1),
        ("7,4,1", 0),  # a path, but to another end
        ("7,9", 0),  # no such edge
        ("7,3", 0),
        ("3,9", 0),
        ("7,3,9,", 0),
        ("7,3,9 I think", 0),
        ("9,3,7", 0),
        ("", 0),
    ],
)
def test_star_graph(path: str, right: float) -> None:
    assert star_graph(prompts=[GRAPH], completions=[path], solution=["7,3,9"]) == [right]
    assert star_graph(prompts=[GRAPH], completions=[path]) == [right]


def test_a_valid_path_that_is_not_the_solution() -> None:
    two_ways = "1,2|2,4|1,3|3,4/1,4="
    given: dict[str, Any] = {"prompts": [two_ways], "completions": ["1,3,4"]}
    assert star_graph(**given) == [1]
    assert star_graph(**given, solution=["1,2,4"]) == [0]


@pytest.mark.parametrize("prompt", ["", "1,2", "1,2/3", "1,2|3/1,2=", "a,b/a,b="])
def test_a_prompt_that_is_no_graph_is_an_error(prompt: str) -> None:
    with pytest.raises(ValueError, match="not a star graph"):
        star_graph(prompts=[prompt], completions=["1,2"])


def test_sentiment() -> None:
    pytest.importorskip("vaderSentiment")
    given: dict[str, Any] = {
        "prompts": ["Awful. ", ""],
        "completions": ["It was wonderful!", "The table is brown."],
    }
    good, neutral = vader(**given)
    assert good is not None
    assert 0.5 < good <= 1
    assert neutral == 0
    assert vader(**given, unit=True) == [(good + 1) / 2, 0.5]
    whole = vader(**given, with_prompt=True)[0]
    assert whole is not None
    assert whole < good


def test_length() -> None:
    assert length(completion_ids=[[1] * 50, []], completions=["", ""]) == [-0.5, 0]
    assert length(completion_ids=[[1] * 50], per=10) == [-5]


def test_exact_match_of_a_conversation() -> None:
    assert exact_match(completions=[conversation(" 7 "), conversation("8")], solution=["7", "7"]) == [1, 0]


def test_exact_match_takes_a_number_as_it_is_written() -> None:
    assert exact_match(completions=["7", "7.0", "8"], solution=[7, 7, 7]) == [1, 0, 0]


@pytest.mark.parametrize(("odd", "found"), [(["7"], "a list"), ({"a": "7"}, "a dict"), (True, "true")])
def test_exact_match_compares_with_nothing_that_is_neither_text_nor_number(odd: Any, found: str) -> None:
    with pytest.raises(
        DataError, match=f"'exact_match' .*'solution', which must be text or a number, found {found};"
    ):
        exact_match(completions=["True", "7"], solution=[odd, "7"])


@pytest.mark.parametrize("verifier", [exact_match, gsm8k, boxed, math_verify], ids=lambda one: one.__name__)
def test_a_row_without_a_solution_is_not_judged(verifier: Any) -> None:
    for given in (r"\boxed{7}", "None", conversation("7")):
        assert verifier(prompts=[given] * 2, completions=[given] * 2, solution=[None, "8"]) == [None, 0]
