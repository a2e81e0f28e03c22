"""Tables of what plain functions say: decided here on every machine alike, whatever its arithmetic."""

import dataclasses
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np


def tables(scratch: Path) -> dict[str, tuple[Any, str]]:
    """Name -> what was said, and the name in `pipeline.plan.contents` of the version that covers it."""
    made: dict[str, tuple[Callable[[], Any], str]] = {
        "preferences": (_preferences, "GRADING"),
        "scores": (_scores, "GRADING"),
        "existing pairs": (_existing_pairs, "GRADING"),
        "metrics of samples": (_samples, "STATISTICS"),
        "front": (_front, "STATISTICS"),
        "majorities": (_majorities, "DECODING"),
        "splits": (_splits, "PREPARATION"),
        "files": (lambda: _files(scratch), "PREPARATION"),
        "rows of files": (_rows_of_files, "PREPARATION"),
    }
    return {name: (make(), version) for name, (make, version) in made.items()}


def _scored() -> Iterator[tuple[float, bool | None, str | None]]:
    yield from product((0.0, 0.5, 2.0, float("nan")), (True, False, None), (None,))
    yield (0.0, False, "error")
    yield (float("nan"), True, "timeout")


def _preferences() -> Any:
    from pipeline.learning.rewards.preference import Preference, PreferenceRule, PreferenceSource, Ties, decide
    from pipeline.learning.rewards.scoring import Scored

    pairs = list(product(_scored(), _scored()))
    draws = (np.arange(len(pairs)) * 0.618 + 0.1) % 1
    sides = []
    for side in zip(*pairs, strict=True):
        values, correct, faults = zip(*side, strict=True)
        sides.append(Scored(np.array(values), {}, correct, [None] * len(side), faults))
    return {
        f"{source.name} {preference.name} {beta} {ties.name}": decide(
            sides[0], sides[1], draws, PreferenceRule(source=source, preference=preference, beta=beta, ties=ties)
        ).tolist()
        for source, preference, beta, ties in product(PreferenceSource, Preference, (0.5, 3.0), Ties)
    }


def _scores() -> Any:
    """Weighted sums, correctness, votes and faults, of functions in this process."""
    from pipeline.config.schema import DatasetConfig, GradingConfig
    from pipeline.learning.datasets.base import Row
    from pipeline.learning.rewards.registry import load_rewards
    from pipeline.learning.rewards.scoring import Graded, Scorer, _combine
    from pipeline.learning.rewards.traits import CORRECT

    config = DatasetConfig(
        kind="x",
        rewards={"gsm8k": 2.0, "length": -0.5, "half": 0.25},
        grading=GradingConfig(isolated=False, options={"half": {"use": "exact_match"}, "length": {"per": 3}}),
    )
    answers = ("so 1\n#### 7", "7", "#### 8", "none", "")
    rows = [Row(at, "q", {"solution": gold}) for at, gold in enumerate(("7", "#### 7", "8.0", "no number", "7"))]
    with Scorer(config) as scorer:
        found = scorer.score(rows, answers, [[1] * (at + 1) for at in range(len(rows))])
    graded = [
        Graded(1.0, "a"), Graded(0.6, "b"), Graded(0.0, None), Graded(None, "c"), Graded(fault="error"),
        Graded(fault="timeout"), Graded(fault="crash"),
    ]  # fmt: skip
    rewards = load_rewards(config, "cpu")
    by_name = {reward.name: [*graded[at:], *graded[:at]] for at, reward in enumerate(rewards)}
    combined = [_combine(rewards, by_name, judge, len(graded)) for judge in (*rewards, None)]
    return [CORRECT, *([_plain(one.values), list(one.correct), list(one.answers), list(one.faults)]
                       for one in (found, *combined))]  # fmt: skip


def _existing_pairs() -> Any:
    from pipeline.learning.datasets.base import Row
    from pipeline.learning.rewards.preference import existing_pairs

    user, system = {"role": "user", "content": "q"}, {"role": "system", "content": "s"}
    good, bad = ({"role": "assistant", "content": text} for text in ("good", "bad"))
    given = [
        ("q: ", "q: yes", "q: no"),
        ("q: ", "yes", "q: no"),
        ("q: ", "q: yes", "q: yes"),
        ("", "yes", "no"),
        ([user], [good], [bad]),
        ("", [system, user, good], [system, user, bad]),
        ("", [user, good, user, good], [user, bad, user, bad]),
    ]
    rows = [Row(at, prompt, {"chosen": one, "rejected": two}) for at, (prompt, one, two) in enumerate(given)]
    return [dataclasses.asdict(pair) for pair in existing_pairs(rows)]


def _samples() -> Any:
    from pipeline.learning.evaluation.metrics import majority_at_k, pass_at_k

    totals, correct = (
        np.array(column) for column in zip(*((n, c) for n in range(9) for c in range(n + 1)), strict=True)
    )
    votes = ["aab", "abc", "aabb", ["a", None, "b", "b"], [None, None], "abbcccc", "a", "aabbcc"]
    right = [[vote == "a" or (vote == "c" and at % 2) for at, vote in enumerate(group)] for group in votes]
    return [
        *(_plain(pass_at_k(totals, correct, k)) for k in range(1, 9)),
        *(_plain(row) for row in majority_at_k(votes, right, range(1, 8))),
    ]


def _front() -> Any:
    from pipeline.learning.evaluation.metrics import FrontPoint, reward_kl_front

    nan = float("nan")
    points = [
        (0.0, 0.1),
        (0.5, 0.1),
        (0.5, 0.4),
        (0.5, 0.4),
        (0.7, 0.4),
        (0.9, 0.3),
        (1.0, 0.8),
        (nan, 1),
        (2, nan),
    ]
    return [
        [point.label for point in reward_kl_front(FrontPoint(kl, reward, str(at)) for at, (kl, reward) in listed)]
        for listed in (list(enumerate(points)), list(enumerate(reversed(points))))
    ]


def _majorities() -> Any:
    from pipeline.learning.generation.policy import by_majority

    groups = ["aabb", "baab", "abcc", "ab b", "    ", "abcd", "bbba"]
    letters = [[ord(letter)] for group in groups for letter in group]
    pick = by_majority(lambda ids: chr(ids[0]).strip() or None)
    return pick([[0]] * len(letters), letters, 4).tolist()


def _splits() -> Any:
    from pipeline.learning.datasets.rows import deal

    def rows(count: int, different: int) -> list[bytes]:
        return [str(at % different).encode() for at in range(count)]

    sources: list[dict[str, list[bytes]]] = [
        {"train": rows(30, 30)},
        {"train": rows(30, 12)},
        {"train": rows(30, 25), "test": rows(9, 5)},
        {"train": rows(40, 40), "test": rows(6, 6), "validation": rows(12, 9)},
        {"train": rows(30, 30), "validation": rows(12, 12)},
    ]
    found = []
    for source, size, seed in product(sources, (3, 10), (0, 1)):
        dealt = deal(source, {"test": size, "validation": size // 2}, seed)
        found.append(
            [{name: ids.tolist() for name, ids in dealt.splits.items()}, sorted(dealt.cut), dealt.warnings]
        )
    return found


def _files(scratch: Path) -> Any:
    import gzip

    from pipeline.learning.datasets.files import read_records

    written = {
        "a.csv": 'prompt,solution\n"one, two","said ""so"""\n"two\nlines",4\n',
        "b.tsv": 'prompt\tsolution\none, two\t"a\tb"\n\nthree\t\n',
        "c.json": '[{"prompt": "one"}, {"prompt": "t\\u00e9"}]',
        "d.jsonl": '{"prompt": "one", "n": 1}\n\n{"prompt": null, "n": [1.5, {"a": true}]}\n',
    }
    folder = scratch / "files"
    folder.mkdir()
    for name, text in written.items():
        (folder / name).write_text(f"\ufeff{text}" if name == "a.csv" else text, encoding="utf-8")
    with gzip.open(folder / "e.jsonl.gz", "wt") as file:
        file.write(written["d.jsonl"])
    return {path.name: [dict(record.data) for record in read_records(path)] for path in sorted(folder.iterdir())}


def _rows_of_files() -> Any:
    from pipeline.learning.datasets.from_files import FilesConfig, make_row, renamed

    user, answer = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}
    given: list[dict[str, Any]] = [
        {"prompt": " one ", "completion": "two", "n": 3},
        {"chosen": "what is it? a cat", "rejected": "what is it? a cow"},
        {"chosen": "say: yes", "rejected": "say: no", "prompt": None},
        {"prompt": "p", "chosen": "yes", "rejected": "no", "n": 1},
    ]
    turns: list[dict[str, Any]] = [
        {"messages": [user, answer]},
        {"messages": [user, answer, user]},
        {"prompt": [{"role": "system", "content": "old"}, user], "completion": [answer]},
        {"chosen": [user, answer], "rejected": [user, {"role": "assistant", "content": "go"}]},
    ]
    configs = [
        FilesConfig(kind="jsonl"),
        FilesConfig(kind="jsonl", chat=True, system_prompt="be kind", further_columns=["n"]),
        FilesConfig(kind="jsonl", prompt_template=" Q: {n}\n"),
    ]
    cases = [*product(given, configs[:2]), *product(turns, configs[:1]), *product(turns[:3], configs[1:2])]
    cases += [(row, configs[2]) for row in given if "n" in row]
    rows = [dataclasses.asdict(make_row(7, row, "here", config)) for row, config in cases]
    return [*rows, renamed({"a": 1, "b": 2}, {"prompt": "a"}, "here")]


def _plain(values: Any) -> list[float | None]:
    """Numbers without the digits in which processors differ; None for what is no number."""
    return [None if value != value else round(float(value), 9) for value in np.asarray(values)]
