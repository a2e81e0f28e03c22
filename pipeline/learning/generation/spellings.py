"""In how many ways a policy may write a text: sequences of tokens, where it would be enough to know one."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping


def spellings(text: str, pieces: Mapping[int, str], ends: Collection[int], limit: int) -> Iterator[list[int]]:
    """All completions that are read as a text, white space around them aside, each once.

    A completion ends with one of the ends, or where it has as many tokens as it may have.

    Args:
        text: The text.
        pieces: Token id -> what it adds to a text, of all tokens that may be drawn; "" for one that is not shown.
        ends: Tokens that end a completion.
        limit: Tokens that a completion has at most.

    Yields:
        Token ids.
    """
    text = text.strip()
    inner = {token: piece for token, piece in pieces.items() if token not in ends}
    least = _least(text, inner.values())
    begun: list[tuple[list[int], str]] = [([], "")]
    while begun:
        ids, written = begun.pop()
        shown = written.strip()
        if shown == text:
            yield from ([*ids, end] for end in ends if len(ids) < limit)
        if len(ids) == limit:
            if shown == text:
                yield ids
            continue
        for token, piece in inner.items():
            more = (written + piece).lstrip()
            rest = least[len(more)] if text.startswith(more) else 0 if more.rstrip() == text else math.inf
            if len(ids) + 1 + rest <= limit:
                begun.append(([*ids, token], more))


def _least(text: str, pieces: Collection[str]) -> list[float]:
    """How many tokens the rest of a text takes at least, from each of its places on."""
    forms = ((piece, piece.lstrip(), piece.rstrip(), piece.strip()) for piece in pieces)
    told = {form for each in forms for form in each} - {""}
    least = [*([math.inf] * len(text)), 0.0]
    for at in range(len(text) - 1, -1, -1):
        ends = (at + len(piece) for piece in told if text.startswith(piece, at))
        least[at] = 1 + min((least[end] for end in ends), default=math.inf)
    return least
