"""The completions on a page: as many as there is room for, whole prompts, and it says how many there are."""

from collections import Counter

from pipeline.runs.report.page.samples import LONGEST, Shown, samples_of


def shown(prompt: int, algo: str = "PITA", text: str = "x" * 60, **fields: object) -> Shown:
    given = {
        "place": "d · m",
        "chain": "seed 0",
        "round": 1,
        "reward": 1.0,
        "correct": None,
        "solution": None,
        **fields,
    }
    return Shown(row=str(prompt), prompt=f"prompt {prompt}", algo=algo, text=text, **given)  # type: ignore[arg-type]


def test_all_are_there_while_there_is_room() -> None:
    found = samples_of([shown(at, algo) for algo in ("reference", "PITA") for at in range(5)], there=10)
    assert found.about == "All 10 completions that were evaluated, to 5 prompts."
    assert found.prompts == [f"prompt {at}" for at in range(5)]
    assert [found.algos[at] for at in found.algo[:2]] == ["reference", "PITA"]  # those to a prompt stand together


def test_every_policy_has_its_completions_to_the_prompts_that_are_kept() -> None:
    algos = ["reference", "PITA", "QSharp"]
    every = [shown(at, algo) for algo in algos for at in range(100) for _ in range(16)]
    found = samples_of(every, there=9000, most=30_000)
    cells = Counter(zip(found.prompt, found.algo, strict=True))
    assert set(cells.values()) == {8}  # no more of one policy, however many there are
    assert len(cells) == 3 * len(found.prompts)
    assert sum(map(len, found.text)) <= 30_000
    assert found.about.startswith(f"{len(found.text):,} of the 9,000 completions")


def test_where_room_is_short_more_prompts_go_before_more_completions() -> None:
    found = samples_of([shown(at) for at in range(40) for _ in range(8)], there=320, most=2500)
    assert len(found.prompts) >= 10
    assert len(found.text) < 4 * len(found.prompts)


def test_places_take_turns() -> None:
    every = [shown(at, place=place) for place in ("a · m", "b · m") for at in range(50)]
    found = samples_of(every, there=100, most=2000)
    numbers = Counter(found.prompt_place)
    assert abs(numbers[0] - numbers[1]) <= 1


def test_a_text_without_end_is_cut_and_that_is_said() -> None:
    found = samples_of([shown(0, text="y" * 1_000_000)], there=1)
    assert found.text[0].startswith("y" * LONGEST)
    assert found.text[0].endswith("(the first 4,000 of 1,000,000 characters)")
    assert "Texts end after 4,000 characters." in found.about


def test_the_right_answer_of_a_prompt_is_there_once() -> None:
    told = [shown(0, solution="42"), shown(0, "DPO"), shown(1)]
    assert samples_of(told, there=3).prompt_solution == ["42", None]
