"""Which completions a page carries: to as many prompts as there is room for, those of all policies. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from pipeline.runs.report.format import beginning
from pipeline.runs.report.page.model import Samples

MOST_TEXT = 6_000_000
"""Characters of all completions together."""
LONGEST = 4000
"""Characters of one, and of a prompt."""
MOST_EACH = 8
"""Completions of one policy to one prompt."""
ENOUGH_PROMPTS = 10
"""Prompts that are worth more than further completions to each of them."""
_OVERHEAD = 40
"""Characters that a completion takes besides its text."""


@dataclass(frozen=True)
class Shown:
    """One completion.

    Attributes:
        place: Dataset and model.
        row: Id of the dataset's row.
        prompt: Text.
        solution: The right answer, where one is known of the row.
        algo: The method.
        chain: Reference and seed in words.
        round: Of the chain.
        text: The completion.
        reward: None where there is none.
        correct: None where no reward can say so.
    """

    place: str
    row: str
    prompt: str
    solution: str | None
    algo: str
    chain: str
    round: int
    text: str
    reward: float | None
    correct: bool | None


Asked = tuple[str, str, str]
"""Place, row and prompt."""


def samples_of(found: Iterable[Shown], there: int | None, most: int = MOST_TEXT) -> Samples:
    """Choose completions, first those of the first prompts of each place.

    Args:
        found: In order; gone through once and not kept.
        there: Completions that were evaluated, which may be more; None where that is not known.
        most: Characters that they may have.
    """
    kept: dict[Asked, dict[tuple[str, str, int], list[Shown]]] = {}
    number = cut = 0
    for one in found:
        number += 1
        cut += len(one.text) > LONGEST or len(one.prompt) > LONGEST
        cells = kept.setdefault((one.place, one.row, one.prompt), {})
        own = cells.setdefault((one.algo, one.chain, one.round), [])
        if len(own) < MOST_EACH:
            own.append(one)
    each, prompts = _fitting(kept, most)
    chosen = list(_within((one for asked in prompts for one in _of_prompt(kept[asked], each)), most))
    return _columns(chosen, _said(len(chosen), there if there is None else max(number, there), len(prompts), cut))


def _fitting(kept: dict[Asked, dict[tuple[str, str, int], list[Shown]]], most: int) -> tuple[int, list[Asked]]:
    """How many completions of a policy to a prompt there is room for, and to which prompts."""
    order = _taking_turns(kept)
    each = MOST_EACH
    while True:
        sizes = (sum(map(_size, _of_prompt(kept[asked], each))) for asked in order)
        number, left = 0, most
        for size in sizes:
            left -= size
            if left < 0:
                break
            number += 1
        if number >= min(ENOUGH_PROMPTS, len(order)) or each == 1:
            return each, order[: max(1, number)]
        each //= 2


def _taking_turns(kept: Iterable[Asked]) -> list[Asked]:
    """The prompts so that places take turns."""
    by_place: dict[str, list[Asked]] = {}
    for asked in kept:
        by_place.setdefault(asked[0], []).append(asked)
    return [asked for turn in zip_longest(*by_place.values()) for asked in turn if asked is not None]


def _of_prompt(cells: dict[tuple[str, str, int], list[Shown]], each: int) -> Iterator[Shown]:
    for own in cells.values():
        yield from own[:each]


def _size(one: Shown) -> int:
    return min(len(one.text), LONGEST) + _OVERHEAD


def _within(chosen: Iterator[Shown], most: int) -> Iterator[Shown]:
    for one in chosen:
        most -= _size(one)
        if most < 0:
            return
        yield one


def _said(shown: int, there: int | None, prompts: int, cut: int) -> str:
    if shown == there:
        said = f"All {there:,} completions that were evaluated, to {prompts:,} prompts."
    else:
        number = f"{shown:,} of the completions" if there is None else f"{shown:,} of the {there:,} completions"
        said = f"{number} that were evaluated, to {prompts:,} prompts; all are in"
        said += " jobs/.../evaluate/.../output/samples.jsonl."
    return f"{said} Texts end after {LONGEST:,} characters." if cut else said


def _columns(chosen: list[Shown], about: str) -> Samples:
    samples = Samples(about=about)
    places, algos, chains = _Names(samples.places), _Names(samples.algos), _Names(samples.chains)
    prompts: dict[Asked, int] = {}
    for one in chosen:
        asked = (one.place, one.row, one.prompt)
        if asked not in prompts:
            prompts[asked] = len(prompts)
            samples.prompts.append(beginning(one.prompt, LONGEST))
            samples.prompt_place.append(places.index(one.place))
            samples.prompt_row.append(one.row)
            samples.prompt_solution.append(None)
        if one.solution is not None:
            samples.prompt_solution[prompts[asked]] = beginning(one.solution, LONGEST)
        samples.prompt.append(prompts[asked])
        samples.algo.append(algos.index(one.algo))
        samples.chain.append(chains.index(one.chain))
        samples.round.append(one.round)
        samples.text.append(beginning(one.text, LONGEST))
        samples.reward.append(one.reward)
        samples.correct.append(one.correct)
    return samples


class _Names:
    """Names by number, in the order in which they come first."""

    def __init__(self, names: list[str]) -> None:
        self._names, self._places = names, dict[str, int]()

    def index(self, name: str) -> int:
        if name not in self._places:
            self._places[name] = len(self._names)
            self._names.append(name)
        return self._places[name]
