"""Groups of completions of one prompt: draw, score, compare and select them. Used in workers only.

sequences.safetensors   prompts and completions as they were drawn, for the stage that scores them
drawn.safetensors       their texts, and what else is known of them when they are drawn
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, zip_longest
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from pipeline.config.schema import DType
from pipeline.learning.algos import base, opening, policy_config
from pipeline.learning.datasets.base import Dataset, Row
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import LIKELIEST, Keys, sample_keys, uniforms
from pipeline.learning.rewards import preference, scoring
from pipeline.learning.training import distributed, grpo, loop, sequences
from pipeline.outputs.formats import GENERATION, Tally, read_generation, read_input

_T = TypeVar("_T")

Judge = Callable[[Sequence[list[int]], Sequence[list[int]], NDArray[np.int64]], scoring.Scored]
"""Function from prompts, completions and row ids, one of each per completion, to scores."""
FILE, PAIRS = "drawn.safetensors", "pairs.safetensors"


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The completions of one shard, grouped by prompt; not scored yet.

    Attributes:
        size: Completions per group.
        prompts: Token ids, one list for each completion.
        tokens: Token ids of each completion.
        texts: The text of each completion, as rewards see it.
        ids: Row ids of the groups, shape [groups]. A row has one group, except for value-guided methods: there
            each of its roll-ins has one.
        cuts: Number of first tokens of a group's completions that are context and not trained on, shape [groups].
        truncated: Whether a completion was cut off at the limit, shape [N].
        logprobs: Log-probabilities of its tokens under the policy that drew them; None if no loss needs them.
        sampled: The same as a backend drew them; None by our own decoder. For training that draws, not stored.
        generated: Number of tokens generated for all of it.
    """

    size: int
    prompts: list[list[int]]
    tokens: list[list[int]]
    texts: list[str]
    ids: NDArray[np.int64]
    cuts: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    logprobs: list[NDArray[np.float32]] | None = None
    sampled: list[NDArray[np.float32]] | None = None
    generated: int

    def sequences(self, places: Sequence[int], labels: Sequence[float]) -> sequences.Sequences:
        """Return some of the completions with prompts and labels; tokens before a cut are context only."""
        return sequences.Sequences.of(
            [self.prompts[place] + self.tokens[place] for place in places],
            [len(self.prompts[place]) + int(self.cuts[place // self.size]) for place in places],
            labels,
            self.rows_of(places),
        )

    def rows_of(self, places: Sequence[int]) -> list[int]:
        """Return the row ids of some completions."""
        return [int(self.ids[place // self.size]) for place in places]

    def uncut(self) -> Self:
        """Return the same completions without cuts, so that they are trained on from the first token."""
        return replace(self, cuts=np.zeros_like(self.cuts))

    def save(self, folder: Path) -> None:
        """Write the completions and their counts to a folder."""
        every, texts = range(len(self.tokens)), [text.encode() for text in self.texts]
        self.uncut().sequences(every, [0.0] * len(every)).save(folder)
        arrays = {
            "size": np.array([self.size]),
            "texts": np.frombuffer(b"".join(texts), np.int8),
            "ends": np.cumsum([0, *map(len, texts)]),
            "ids": self.ids,
            "cuts": self.cuts,
            "truncated": self.truncated,
        }
        if self.logprobs is not None:
            arrays["logprobs"] = grpo.padded(self.logprobs)
        save_file(arrays, folder / FILE)
        self.note(folder)

    def note(self, folder: Path, tally: Tally | None = None) -> None:
        """Write the counts, and if given the tally of what became of the completions."""
        base.write_generation(folder, len(set(self.ids.tolist())), len(self.tokens), self.generated, tally)

    @staticmethod
    def load(folder: Path) -> Drawn:
        """Read completions from folders.

        Raises:
            JobError: A file is missing or invalid; the message says which job wrote it.
        """
        whole, found = sequences.Sequences.load([folder]), read_input(folder, FILE, _read)
        every = list(zip(whole.ids.tolist(), whole.starts.tolist(), whole.lengths.tolist(), strict=True))
        logprobs, texts = found.pop("logprobs", None), found.pop("texts").tobytes()
        return Drawn(
            size=int(found.pop("size")[0]),
            prompts=[ids[:start] for ids, start, _ in every],
            tokens=[ids[start:end] for ids, start, end in every],
            texts=[texts[start:end].decode() for start, end in pairwise(found.pop("ends").tolist())],
            logprobs=logprobs
            if logprobs is None
            else [row[: end - start] for row, (_, start, end) in zip(logprobs, every, strict=True)],
            sampled=None,
            generated=read_input(folder, GENERATION, read_generation).tokens,
            **found,
        )


def _read(path: Path) -> dict[str, NDArray[Any]]:
    shapes = {"size": "iA", "texts": "iB", "ends": "iE", "ids": "iG", "cuts": "iG", "truncated": "bN"}
    return sequences.read_arrays(path, {**shapes, "logprobs": "fN,C"}, optional=("logprobs",))


@dataclass(frozen=True, kw_only=True)
class Groups(Drawn):
    """Drawn completions with their scores.

    Attributes:
        scored: Scores of each completion.
        keys: RNG keys of the groups for draws other than sampling, shape [groups].
    """

    scored: scoring.Scored
    keys: Keys

    @property
    def _table(self) -> NDArray[np.float64]:
        """Scores, shape [groups, size]."""
        return self.scored.values.reshape(-1, self.size)

    def pairs(self, settings: preference.PreferenceConfig) -> sequences.Sequences:
        """Return the preferred and the other completion of each pair in turn, labelled 1 and 0.

        See `pair_places`.
        """
        places = self.pair_places(settings)
        return self.sequences(places, [1.0, 0.0] * (len(places) // 2))

    def pair_places(self, settings: preference.PreferenceConfig) -> list[int]:
        """Return the indices of the preferred and the other completion of each pair in turn.

        For each prompt these are the first `pairs_per_prompt` pairs with a preference, in the order (0, 1), (0,
        2), ..., (1, 2), ..., or by descending difference of rewards. Completions with equal tokens form no pair.
        """
        sides = np.array(list(combinations(range(self.size), 2)), np.int64).reshape(-1, 2)
        count = len(self.keys)
        first, second = (np.arange(count)[:, None] * self.size + sides[:, side] for side in (0, 1))
        decided = preference.decide(
            self.scored.some(first.reshape(-1)),
            self.scored.some(second.reshape(-1)),
            uniforms(self.keys, len(sides)).reshape(-1),
            settings,
        ).reshape(count, -1)
        width = np.nan_to_num(np.abs(self.scored.values[first] - self.scored.values[second]))
        order = np.argsort(-width if settings.widest_first else np.zeros_like(width), axis=1, kind="stable")
        found: list[int] = []
        for prompt in range(count):
            pairs = [(first[prompt, at], second[prompt, at], decided[prompt, at]) for at in order[prompt]]
            known = [
                (one, other) if verdict == 1 else (other, one)
                for one, other, verdict in pairs
                if verdict != preference.UNDECIDED and self.tokens[one] != self.tokens[other]
            ]
            found += [int(place) for pair in known[: settings.pairs_per_prompt] for place in pair]
        return found

    def labels(self) -> list[bool | None]:
        """Return for each completion whether it is right, or else whether it scored above the mean of its prompt.

        It is None if neither is known: the reward failed or does not apply, or equals the mean.
        """
        table = self._table
        known = ~np.isnan(table)
        mean = np.nansum(table, 1, keepdims=True) / np.maximum(1, known.sum(1, keepdims=True))
        # Equal scores may differ from their mean by rounding.
        apart = known & (np.abs(table - mean) > 1e-9 * np.abs(np.nan_to_num(table)).max(1, keepdims=True))
        better = [bool(one) if told else None for one, told in zip((table > mean).flat, apart.flat, strict=True)]
        return [
            None if fault is not None else score if right is None else right
            for fault, right, score in zip(self.scored.faults, self.scored.correct, better, strict=True)
        ]

    def some(self, prompts: NDArray[np.bool_]) -> Groups:
        """Return the groups of the selected prompts (a mask, shape [prompts])."""
        places = np.flatnonzero(prompts.repeat(self.size))
        return replace(
            self,
            prompts=[self.prompts[place] for place in places],
            tokens=[self.tokens[place] for place in places],
            texts=[self.texts[place] for place in places],
            ids=self.ids[prompts],
            cuts=self.cuts[prompts],
            truncated=self.truncated[places],
            sampled=None if self.sampled is None else [self.sampled[place] for place in places],
            scored=self.scored.some(places),
            keys=self.keys[prompts],
        )

    def signal(self) -> NDArray[np.bool_]:
        """Return whether any two completions of a prompt have different scores, shape [prompts]."""
        low, high = (np.where(np.isnan(self._table), fill, self._table) for fill in (np.inf, -np.inf))
        return np.asarray(low.min(1) < high.max(1))

    def tally(self) -> Tally:
        """Count prompts whose completions have no score, all equal scores, or are all wrong."""
        unscored = np.isnan(self._table).all(1)
        judged = self._by_prompt(self.scored.correct)
        return Tally(
            "prompts",
            len(self.keys),
            unscored=int(unscored.sum()),
            equal=int((~self.signal() & ~unscored).sum()),
            wrong=sum(all(one is False for one in group) for group in judged),
            same=sum(len(set(map(tuple, group))) == 1 for group in self._by_prompt(self.tokens)),
        )

    def _by_prompt(self, listed: Sequence[_T]) -> list[Sequence[_T]]:
        return [listed[at : at + self.size] for at in range(0, len(listed), self.size)]

    def decided(self, rule: preference.PreferenceRule) -> NDArray[np.int8]:
        """Return the preference within groups of two, as from `decide`, shape [groups]."""
        first, second = (self.scored.some(np.arange(side, len(self.tokens), 2)) for side in (0, 1))
        return preference.decide(first, second, uniforms(self.keys, 1).reshape(-1), rule)

    def pair_tally(self, rule: preference.PreferenceRule) -> Tally:
        """Count groups of two without a preference, by whether a score or a difference is missing."""
        unscored = np.isnan(self.scored.values) | np.array([one is not None for one in self.scored.faults], bool)
        either = unscored.reshape(-1, 2).any(1)
        undecided = self.decided(rule) == preference.UNDECIDED
        counts = {"unscored": int((undecided & either).sum()), "equal": int((undecided & ~either).sum())}
        return Tally("pairs", len(undecided), **counts)

    def best(self) -> list[int]:
        """Return the index of the best completion of each prompt, the first of equals.

        Prompts without scores are left out.
        """
        table = self._table
        scored = np.flatnonzero(~np.isnan(table).all(1))
        picked = np.nan_to_num(table[scored], nan=-np.inf).argmax(1)
        return [int(place) for place in scored * self.size + picked]


def draw_groups(
    ctx: base.JobContext,
    dataset: Dataset,
    policy: TextPolicy,
    size: int,
    rows: Sequence[Row] | None = None,
    name: str | None = None,
) -> Drawn:
    """Draw completions of training prompts.

    Args:
        ctx: Context of the stage.
        dataset: The dataset of the chain.
        policy: Policy to sample from.
        size: Completions per prompt.
        rows: Rows of the prompts; None for those of this shard.
        name: RNG stream name; None for the draws of a round, which are the same for all methods.
    """
    rows = opening.round_rows(ctx, dataset) if rows is None else rows
    ids = opening.row_ids(rows)
    encoded = opening.encode(ctx, policy, rows)
    keys, total = sample_keys(ctx.seed, f"{name or ctx.round}/sample", ids, size), len(rows) * size
    # Ranks that each hold the whole policy split the prompts; tensor-parallel ranks decode every step together.
    ranks = distributed.ALONE if ctx.ranks.is_sharded or ctx.ranks.splits_tensors else ctx.ranks
    decoded = policy.complete(
        encoded[ranks.rank :: ranks.size],
        keys[ranks.rank :: ranks.size],
        samples=size,
        on_batch=lambda done, tokens: ctx.progress(done * ranks.size, total=total, tokens=tokens * ranks.size),
    )
    drawn = _in_order(ranks.all_of(decoded.tokens), size)
    sampled = None if decoded.logprobs is None else _in_order(ranks.all_of(decoded.logprobs), size)
    return Drawn(
        size=size,
        prompts=[prompt for prompt in encoded for _ in range(size)],
        tokens=drawn,
        texts=policy.text(drawn, [row for row in rows for _ in range(size)]),
        ids=ids,
        cuts=np.zeros(len(ids), np.int64),
        truncated=np.array([*map(policy.truncated, drawn)], np.bool_),
        sampled=sampled,
        generated=sum(map(len, drawn)),
    )


def exact_logprobs(
    ctx: base.JobContext, algo: policy_config.PolicyAlgoConfig, policy: TextPolicy, drawn: Drawn
) -> list[NDArray[np.float32]] | None:
    """Return log-probabilities of the drawn tokens under the policy that drew them, at the precision of training.

    In training the probability ratio must be 1 before the first update, but the decoder may use a lower precision.
    Return None if no loss needs them, or if training computes them anyway from the current policy, unless they are
    compared with those of a backend.
    """
    if not (algo.wants_logprobs or (algo.keeps_logprobs and algo.draws_to_train and drawn.sampled)):
        return None
    # online, the policy that draws is the one being trained
    if ctx.config.system.dtype is DType.float32 or algo.draws_to_train:
        return policy.logprobs(drawn.prompts, drawn.tokens)
    # Unquantised weights below adapters are those that drew: no second copy is needed.
    same = algo.lora.rank and ctx.config.model.in_bits is None
    exact = None if same else opening.loaded(ctx, algo, previous=True)
    with loop.computing_in(ctx.config.system.dtype, ctx.device):
        return policy.logprobs(drawn.prompts, drawn.tokens, exact)


def score_groups(
    ctx: base.JobContext, dataset: Dataset, drawn: Drawn, name: str | None = None, judge: Judge | None = None
) -> Groups:
    """Score drawn completions, all completions of a prompt together.

    Args:
        ctx: Context of the stage.
        dataset: The dataset of the chain.
        drawn: The completions.
        name: RNG stream name for further draws; None for those of a method in a round.
        judge: Scoring function; None for the rewards of the dataset.
    """
    rows = {row: dataset.row(row) for row in dict.fromkeys(drawn.ids.tolist())}
    if judge is None:
        repeated = [rows[row] for row in drawn.rows_of(range(len(drawn.tokens)))]
        size = ctx.config.data_collection.reward_batch_size
        scored = opening.score(ctx, repeated, drawn.texts, drawn.tokens, size)
    else:
        scored = judge(drawn.prompts, drawn.tokens, drawn.ids.repeat(drawn.size))
    each = max(1, len(drawn.ids) // max(1, len(rows)))
    keys = sample_keys(ctx.seed, f"{name or f'{ctx.algo}/{ctx.round}'}/preference", drawn.ids[::each], each)
    return Groups(**vars(drawn), scored=scored, keys=keys.reshape(-1))


def score_shard(ctx: base.JobContext) -> Groups:
    """Score the completions that the generate stage has drawn for this shard."""
    groups = score_groups(ctx, opening.open_dataset(ctx), Drawn.load(ctx.input("generate@shard")))
    ctx.progress(len(groups.tokens), total=len(groups.tokens))
    return groups


def _in_order(of_ranks: Sequence[list[_T]], size: int) -> list[_T]:
    """Return completions of prompts that ranks took in turn, in the order of the prompts; `size` per prompt."""
    if len(of_ranks) == 1:
        return of_ranks[0]
    groups = [[found[at : at + size] for at in range(0, len(found), size)] for found in of_ranks]
    taken = zip_longest(*groups)
    return [tokens for turn in taken for group in turn if group is not None for tokens in group]


# -- rollouts ----------------------------------------------------------------------------------------------------
# Roll-ins, cuts and roll-outs: how value-guided methods collect data. Used in workers only.


class Rollouts:
    """The roll-ins of one shard: `samples_per_example` per prompt.

    Attributes:
        rows: The row of each roll-in.
        prompts: Its prompt's token ids.
        tokens: The roll-in's token ids.
    """

    def __init__(self, ctx: base.JobContext, dataset: Dataset, policy: TextPolicy, *, finishes: int = 0) -> None:
        """Sample the roll-ins with the current policy.

        Args:
            ctx: Context of the stage.
            dataset: Dataset of the chain.
            policy: Policy to sample from.
            finishes: Number of calls of `finish` to come: progress counts the roll-ins once more for each.
        """
        self._ctx = ctx
        self._samples = ctx.config.data_collection.samples_per_example
        rows = opening.round_rows(ctx, dataset)
        self._ids = opening.row_ids(rows)
        self._total = len(rows) * self._samples * (1 + finishes)
        self._done = self._generated = 0
        encoded = opening.encode(ctx, policy, rows)
        self.tokens = self._complete(policy, encoded, self.keys("roll_in"), samples=self._samples)
        self.rows = [row for row in rows for _ in range(self._samples)]
        self.prompts = [prompt for prompt in encoded for _ in range(self._samples)]

    def keys(self, stream: str) -> Keys:
        """Return the RNG keys of a stream, shape [prompts, samples]; every round has its own."""
        name = f"{self._ctx.algo}/{self._ctx.round}/{stream}"
        return sample_keys(self._ctx.seed, name, self._ids, self._samples)

    def draws(self, stream: str) -> NDArray[np.float64]:
        """Return one random number per roll-in, shape [roll-ins]."""
        return uniforms(self.keys(stream), 1).reshape(-1)

    def cut(self) -> NDArray[np.int64]:
        """Draw a token of each roll-in uniformly; return its index, shape [roll-ins]."""
        lengths = np.array([len(tokens) for tokens in self.tokens])
        cuts: NDArray[np.int64] = np.minimum((self.draws("cut") * lengths).astype(np.int64), lengths - 1)
        return cuts

    def finish(self, policy: TextPolicy, prefixes: Sequence[Sequence[int]], stream: str | None) -> list[list[int]]:
        """Complete prefixes of the roll-ins.

        Args:
            policy: Policy that writes the rest.
            prefixes: Number of tokens to keep of each roll-in; a complete roll-in stays as it is.
            stream: RNG stream name; None for greedy decoding.

        Returns:
            Whole completions: prefix and rest.
        """
        (finished,) = self.finish_each(policy, prefixes, [stream])
        return finished

    def finish_each(
        self, policy: TextPolicy, prefixes: Sequence[Sequence[int]], streams: Sequence[str | None]
    ) -> list[list[list[int]]]:
        """Complete each prefix once per stream; equal prefixes are read only once.

        Args:
            policy: Policy that writes the rest. A guided policy reads prefixes again for each stream.
            prefixes: As for `finish`.
            streams: As for `finish`.

        Returns:
            Whole completions for each stream.
        """
        if policy.is_guided and len(streams) > 1:
            return [self.finish(policy, prefixes, stream) for stream in streams]
        limits = [0 if policy.ended(prefix) else policy.limit - len(prefix) for prefix in prefixes]
        alike: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for index, limit in enumerate(limits):
            if limit > 0:
                alike.setdefault((tuple(self.prompts[index]) + tuple(prefixes[index]), limit), []).append(index)
        self._done += sum(limit <= 0 for limit in limits) * len(streams)
        self._report(0, 0)
        finished = [[list(prefix) for prefix in prefixes] for _ in streams]
        keys = [None if stream is None else self.keys(stream).reshape(-1) for stream in streams]
        # All samples of a prompt are processed together.
        for size in sorted({len(places) for places in alike.values()}):
            some = {start: places for start, places in alike.items() if len(places) == size}
            places = np.array([*some.values()])
            # Greedy completions are the same for all roll-ins with the same text, so they are computed once.
            likeliest = np.full((len(places), 1), LIKELIEST)
            columns = np.concatenate([likeliest if one is None else one[places] for one in keys], 1)
            rests = self._complete(
                policy,
                [list(text) for text, _ in some],
                None if all(one is None for one in keys) else columns,
                samples=columns.shape[1],
                budgets=np.array([limit for _, limit in some], np.int64),
            )
            self._done += places.size * len(keys) - len(rests)
            self._report(0, 0)
            for row, several in enumerate(places.tolist()):
                of_text = iter(rests[row * columns.shape[1] :])
                for side, one in zip(finished, keys, strict=True):
                    shared = next(of_text) if one is None else None
                    for index in several:
                        side[index] += next(of_text) if shared is None else shared
        return finished

    def pairs(self, reference: TextPolicy, *, greedy_first: bool = False) -> Drawn:
        """Cut every roll-in, and complete the part before the cut twice.

        Args:
            reference: Policy that completes them.
            greedy_first: Whether the first completion is greedy instead of sampled.
        """
        cuts = self.cut()
        prefixes = [tokens[:cut] for tokens, cut in zip(self.tokens, cuts, strict=True)]
        streams = (None if greedy_first else "first", "second")
        return self.drawn(reference, self.finish_each(reference, prefixes, streams), cuts)

    def drawn(
        self, policy: TextPolicy, sides: Sequence[list[list[int]]], cuts: NDArray[np.int64] | None = None
    ) -> Drawn:
        """Return drawn completions for a stage that scores them: one group per roll-in.

        Args:
            policy: Policy that converts completions to text.
            sides: Completions of each roll-in, one list for each of several.
            cuts: Number of first tokens of a roll-in's completions that are context only; None for none, shape
                [roll-ins].
        """
        tokens = [one for of_roll_in in zip(*sides, strict=True) for one in of_roll_in]
        return Drawn(
            size=len(sides),
            prompts=[prompt for prompt in self.prompts for _ in sides],
            tokens=tokens,
            texts=policy.text(tokens, [row for row in self.rows for _ in sides]),
            ids=opening.row_ids(self.rows),
            cuts=np.zeros(len(self.rows), np.int64) if cuts is None else cuts,
            truncated=np.array([*map(policy.truncated, tokens)], np.bool_),
            generated=self._generated,
        )

    def _complete(
        self,
        policy: TextPolicy,
        starts: Sequence[Sequence[int]],
        keys: Keys | None,
        *,
        samples: int = 1,
        budgets: NDArray[np.int64] | None = None,
    ) -> list[list[int]]:
        decoded = policy.complete(starts, keys, samples=samples, budgets=budgets, on_batch=self._report)
        self._done += len(decoded.tokens)
        self._generated += sum(map(len, decoded.tokens))
        return decoded.tokens

    def _report(self, done: int, tokens: int) -> None:
        done = min(self._done + done, self._total)
        self._ctx.progress(done, total=self._total, tokens=self._generated + tokens)
