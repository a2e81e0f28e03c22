"""A policy that completes prompts: a reference model with its tokenizer, plain or guided by a value model."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig as GenerateConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.config.schema import GenerationConfig, LongPrompts, TextBackend
from pipeline.errors import DataError
from pipeline.learning.datasets import base, chat, prepared
from pipeline.learning.generation import decode, sampling, vllm_engine
from pipeline.learning.generation.stops import StopStrings, as_tokens
from pipeline.learning.models import batch_size, load
from pipeline.learning.models.tensor_parallel import split_over
from pipeline.learning.training import grpo, scoring, sequences
from pipeline.outputs.formats import Drawing

# -- likelihood --------------------------------------------------------------------------------------------------
# Log-probabilities of drawn completions, from one pass over whole texts.


SCORING_LOGITS_AT_ONCE = 1 << 24
"""Tokens times vocabulary entries of texts scored at once: about 0.3 GB with copies."""


def completion_scores(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    settings: decode.DecodeSettings,
    sizes: batch_size.BatchSizes | None = None,
) -> list[NDArray[np.float32]]:
    """Return the log-probabilities of the tokens of completions, one array per completion.

    They are under the model at the sampling temperature, over the whole vocabulary: a nucleus is ignored, as in
    TRL.

    Args:
        model: The policy.
        prompts: Token ids, one list for each completion.
        completions: Token ids.
        settings: Batch size, temperature and device.
        sizes: Remembers batch sizes that fit; None remembers nothing.
    """
    data = whole_texts(prompts, completions)
    rows = settings.batch_size if _in_parts(model, data, settings) else rows_at_once(model, data, settings)
    scores = scoring.score_sequences(
        data,
        lambda batch: scoring.completion_logprobs(model, batch, settings.sampling.temperature),
        micro_batch_size=rows,
        device=settings.device,
        width=data.ids.shape[1],
        together=split_over(model) is not None,
        sizes=sizes,
    )
    scoring.note_scored(data, model)
    return grpo.supervised_columns(scores, data)


def whole_texts(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> sequences.Sequences:
    """Return prompts with their completions, which are supervised."""
    ids = [[*prompt, *rest] for prompt, rest in zip(prompts, completions, strict=True)]
    return sequences.Sequences.of(ids, [len(prompt) for prompt in prompts], [0.0] * len(ids))


def rows_at_once(model: PreTrainedModel, data: sequences.Sequences, settings: decode.DecodeSettings) -> int:
    """Return how many texts fit in a batch, with the logits of all of their tokens."""
    logits: int = max(1, data.ids.shape[1]) * int(model.config.get_text_config().vocab_size)
    return max(1, min(settings.batch_size, SCORING_LOGITS_AT_ONCE // logits))


def _in_parts(model: PreTrainedModel, data: sequences.Sequences, settings: decode.DecodeSettings) -> bool:
    """Return whether logits are computed in parts, so that they do not limit the batch size."""
    if not settings.device.startswith("cuda") or not len(data.ids):
        return False
    return scoring.is_plain(model, torch.as_tensor(data.ids[:1], device=settings.device))


class TextPolicy:
    """Completes prompts given as token ids.

    Attributes:
        is_greedy: Whether it decodes greedily.
        limit: Most new tokens per completion.
        eos_id: Main end token, or None.
        end_ids: All end tokens, `eos_id` first.
        stops: Stop strings; None without any.
        on_tokens: Called by our own decoder, as `DecodingWork.on_tokens`.
    """

    is_greedy = False
    on_tokens: Callable[[int, list[int]], None] | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        generation: GenerationConfig,
        dataset: base.Dataset,
        device: str,
        guidance: decode.Guidance | None = None,
        sizes: batch_size.BatchSizes | None = None,
        guide_context: int | None = None,
    ) -> None:
        """Prepare.

        Args:
            model: The reference, or a policy trained from it.
            tokenizer: Its tokenizer.
            generation: Settings of generation.
            dataset: Settings that give the length of completions.
            device: ``cpu`` or ``cuda``.
            guidance: Guides the model; None for none.
            sizes: Batch sizes that fit.
            guide_context: Context length of the value model that guides it, or will be trained on its completions;
                None for no limit.
        """
        self.limit = min(generation.max_new_tokens, dataset.completion_length or generation.max_new_tokens)
        as_token = as_tokens(tokenizer, generation.stop)
        self.end_ids = _all_ends(model.generation_config, tokenizer, generation.stop)
        texts = [text for text in generation.stop if text not in as_token]
        self.stops = StopStrings(tokenizer, texts) if texts else None
        self.eos_id = self.end_ids[0] if self.end_ids else None
        contexts = {"model": load.context_length(model), "value model": guide_context}
        self._contexts = {name: length for name, length in contexts.items() if length is not None}
        self._long_prompts = generation.long_prompts
        self._frame = {*self.end_ids, tokenizer.bos_token_id, tokenizer.pad_token_id}
        self._skips_special = generation.skip_special_tokens
        special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._lost = special - self._frame if self._skips_special else frozenset()
        self._fixed_length = dataset.fixed_length
        self._model = model
        self._tokenizer = tokenizer
        self._guidance = guidance
        self._sizes = batch_size.BatchSizes(None, device, model) if sizes is None else sizes
        self._settings = decode.DecodeSettings(
            batch_size=generation.batch_size,
            sampling=generation.sampling,
            eos_id=self.eos_id,
            further_end_ids=self.end_ids[1:],
            pad_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
            device=device,
            cuda_graphs=generation.cuda_graphs,
            stops=self.stops,
        )
        self._backend: vllm_engine.VLLMBackend | None = None
        if generation.backend is TextBackend.vllm:
            self._backend = vllm_engine.VLLMBackend(
                model, self._settings, self._sizes, generation.memory_mb, guidance
            )

    @property
    def is_guided(self) -> bool:
        """Whether a value model guides it."""
        return self._guidance is not None

    def encode(
        self, prompts: Sequence[base.Text], arguments: Sequence[Mapping[str, Any]] | None = None
    ) -> list[list[int]]:
        """Return the token ids of prompts; see `encode_prompts`.

        Raises:
            DataError: A prompt has no token.
        """
        encoded = prepared.encode_prompts(self._tokenizer, prompts, arguments)
        for prompt, ids in zip(prompts, encoded, strict=True):
            if not ids:
                raise DataError(
                    f"the prompt {prompt!r} has no tokens, so there is nothing that a model could go on from. "
                    "Leave such rows out, or begin prompts with a text (prompt_template)."
                )
        return encoded

    def fitted(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the prompts that leave room for a whole completion in the context of the model and of its guide.

        Raises:
            DataError: A prompt is too long, and `generation.long_prompts` says to refuse it.
        """
        if not self._contexts:
            return [list(prompt) for prompt in prompts]
        whose = min(self._contexts, key=self._contexts.__getitem__)
        context = self._contexts[whose]
        room = context - self.limit
        if room < 1:
            raise DataError(
                f"max_new_tokens={self.limit} leaves no room for a prompt in the {whose}'s context of "
                f"{context} tokens; ask for fewer"
            )
        for prompt in prompts:
            if len(prompt) > room and self._long_prompts is LongPrompts.refuse:
                start = str(self._tokenizer.decode(list(prompt[:20])))
                raise DataError(
                    f"a prompt of {len(prompt)} tokens ({start!r}...) does not fit: the {whose}'s context of "
                    f"{context} tokens has room for {room} beside the {self.limit} of a completion. Leave such "
                    "rows out, lower max_new_tokens, or set generation.long_prompts=truncate to keep "
                    "the last tokens."
                )
        return [list(prompt[-room:]) for prompt in prompts]

    def text(self, completions: Sequence[Sequence[int]], rows: Sequence[base.Row] | None = None) -> list[str]:
        r"""Texts of completions, without special tokens; or without begins, ends and padding alone.

        A final stop string is left out.

        Args:
            completions: Token ids.
            rows: Row of each completion. A beginning that the chat template prescribes, such as ``<think>\n``, is
                then part of the text, so that rewards see it.
        """
        begun = {} if rows is None else {id(row): row for row in rows}
        begins = {
            at: chat.begun_by_template(self._tokenizer, row.prompt, chat.template_arguments(row.columns))
            for at, row in begun.items()
        }
        before = [[]] * len(completions) if rows is None else [begins[id(row)] for row in rows]
        stopped = [False] * len(completions) if self.stops is None else self.stops.end(completions).tolist()
        return [
            self._text(first, rest, self.stops if ended else None)
            for first, rest, ended in zip(before, completions, stopped, strict=True)
        ]

    def _text(self, first: Sequence[int], rest: Sequence[int], stops: StopStrings | None) -> str:
        if stops is None:
            return self._shown([*first, *rest])
        return stops.text_before(rest, lambda kept: self._shown([*first, *kept]))

    def _shown(self, ids: Sequence[int]) -> str:
        if self._skips_special:
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
        return str(self._tokenizer.decode([token for token in ids if token not in self._frame]))

    def skipped(self, completion: Sequence[int]) -> int:
        """Return how many special tokens the text of a completion lacks, except begin, end and padding."""
        return sum(token in self._lost for token in completion)

    def truncated(self, completion: Sequence[int]) -> bool:
        """Return whether a completion was cut off at the limit rather than ended by the policy."""
        return not self._fixed_length and len(completion) >= self.limit and not self.ended(completion)

    def ended(self, completion: Sequence[int]) -> bool:
        """Return whether the policy itself ended a completion."""
        if not completion:
            return False
        return completion[-1] in self.end_ids or (self.stops is not None and bool(self.stops.end([completion])[0]))

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        keys: sampling.Keys | None,
        *,
        samples: int = 1,
        budgets: NDArray[np.int64] | None = None,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> decode.Decoded:
        """Complete prompts, shortest first; see `decode`.

        When memory runs out, finished samples are kept, and the others are started again with half as many rows.

        Args:
            prompts: Token ids.
            keys: RNG keys, shape [prompts, samples]; None decodes greedily.
            samples: Completions per prompt.
            budgets: Most new tokens for each prompt; None allows `limit`. A prompt with less than `limit` ends in
                as many tokens of its completions as are missing.
            on_batch: Called when prompts are finished, with samples done and tokens generated so far.

        Raises:
            OutOfMemory: Not even one row fits.
        """
        limits = self._limits(prompts, budgets)
        begun = np.minimum(self.limit - limits, [len(prompt) for prompt in prompts])
        return self._complete(decode.DecodingWork(prompts, limits, samples, begun, on_batch), keys)

    def _limits(self, prompts: Sequence[Sequence[int]], budgets: NDArray[np.int64] | None) -> NDArray[np.int64]:
        return np.full(len(prompts), self.limit) if budgets is None else np.asarray(budgets, np.int64)

    def _complete(self, work: decode.DecodingWork, keys: sampling.Keys | None) -> decode.Decoded:
        own_keys = None if self.is_greedy else keys
        work.on_tokens = self.on_tokens
        if self._backend is not None:
            self._backend.complete(work, own_keys)
        else:
            self._decode(work, own_keys)
        kl = self._divergence([prompt for prompt in work.prompts for _ in range(work.samples)], work.tokens)
        logprobs = None
        if self._backend is not None and self._guidance is None:
            logprobs = [work.logprobs.get(at, np.zeros(0, np.float32)) for at in range(len(work.tokens))]
        return decode.Decoded(work.tokens, work.kl if kl is None else kl, logprobs)

    def _decode(self, work: decode.DecodingWork, keys: sampling.Keys | None) -> None:
        batch = self._sizes.begin(
            "generate",
            min(self._settings.batch_size, max(1, len(work.tokens))),
            length=int((work.lengths + work.budgets).max(initial=1)),
            remedy="Try a lower max_new_tokens, fewer samples per prompt, or system.dtype=bfloat16.",
            together=True,
        )

        def rest() -> None:
            settings = replace(self._settings, batch_size=batch.size)
            decode.do(work, self._model, settings, keys=keys, guidance=self._guidance)

        batch.run(
            rest,
            undo=work.begin,
            used=lambda: int((~work.done).sum()) * work.samples,
            together=split_over(self._model) is not None,
        )

    def _divergence(
        self, prompts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> NDArray[np.float64] | None:
        """Return the KL divergence if it is not the one that decoding computes, shape [N]."""
        return None

    def _divergence_from(
        self, reference: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        data = whole_texts(prompts, tokens)
        scoring.note_scored(data, self._model, reference)
        settings = self._settings
        with torch.inference_mode():
            return scoring.score_sequences(
                data,
                lambda batch: scoring.sequence_divergence(self._model, reference, batch, settings.sampling),
                micro_batch_size=rows_at_once(reference, data, settings),
                device=settings.device,
                together=split_over(self._model) is not None,
                sizes=self._sizes,
                work="compare",
            )

    def logprobs(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        exact: PreTrainedModel | None = None,
    ) -> list[NDArray[np.float32]]:
        """Return log-probabilities of completions' tokens under an unguided policy; see `completion_scores`.

        Args:
            prompts: Token ids, one list for each completion.
            completions: Token ids.
            exact: The same model at another precision, to use instead.
        """
        model = self._model if exact is None else exact
        return completion_scores(model, prompts, completions, self._settings, self._sizes)


def for_generate(
    config: GenerateConfig | None, tokenizer: PreTrainedTokenizerBase, drawing: Drawing
) -> GenerateConfig:
    """Return defaults for `generate` of transformers that sample and end as `TextPolicy` does.

    Penalties and filters of the model's own settings are left out, as nothing here applies them. Stop strings that
    are no single token are left out too: with them `generate` needs a tokenizer, which evaluation harnesses do not
    pass.

    Args:
        config: The model's own settings, with its end tokens.
        tokenizer: Its tokenizer.
        drawing: Sampling settings.
    """
    pad = tokenizer.pad_token_id
    return GenerateConfig(
        bos_token_id=getattr(config, "bos_token_id", None),
        pad_token_id=getattr(config, "pad_token_id", None) if pad is None else pad,
        eos_token_id=list(_all_ends(config, tokenizer, drawing.stop)) or None,
        do_sample=True,
        **{"top_k": 0, **drawing.options()},  # without `top_k` transformers draws from 50 tokens
    )


def _all_ends(
    config: GenerateConfig | None, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]
) -> tuple[int, ...]:
    """Return the end tokens: those of the model, and stop strings that are a single token."""
    return tuple(dict.fromkeys((*load.end_ids(config, tokenizer), *as_tokens(tokenizer, stop).values())))


# -- greedy ------------------------------------------------------------------------------------------------------
# Greedy decoding as a policy.


class GreedyPolicy(TextPolicy):
    """A model at temperature 0.

    All of its probability is on one completion, so its KL divergence from the model is minus the log-probability
    of that completion, at the sampling temperature and over the whole vocabulary.
    """

    is_greedy = True

    def _divergence(
        self, prompts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> NDArray[np.float64] | None:
        taken = self.logprobs(prompts, tokens) if tokens else []
        return -np.array([logprobs.sum(dtype=np.float64) for logprobs in taken], np.float64)


# -- divergence --------------------------------------------------------------------------------------------------
# Trained policies: their KL divergence from the reference is measured on their own samples.


class TrainedPolicy(TextPolicy):
    """A policy with weights of its own.

    Its completions come with their KL divergence from the reference, exact at every step: from the sampled
    distribution, nucleus included, to the reference's whole distribution at the same temperature. (To the
    reference's nucleus it would be infinite, since two nuclei may share no token.)
    """

    reference: PreTrainedModel | None = None
    """Reference of the KL divergence; None measures nothing."""

    def _divergence(
        self, prompts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> NDArray[np.float64] | None:
        if self.reference is None:
            return super()._divergence(prompts, tokens)
        return self._divergence_from(self.reference, prompts, tokens)


class OutsidePolicy(TrainedPolicy):
    """A policy of another program, which reads prompts by a tokenizer and chat template of its own."""

    def _divergence(
        self, prompts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> NDArray[np.float64] | None:
        if self.reference is None:
            return np.full(len(tokens), np.nan)
        return super()._divergence(prompts, tokens)


# -- best of n ---------------------------------------------------------------------------------------------------
# Best of n as a policy: n completions of the reference for each one requested. It picks with a reward model or by
# majority, never with the reward of its evaluation.


Picker = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]], int], NDArray[np.int64]]
"""Function from prompts, completions and group size to the index of the picked completion in each group."""


class BestOfNPolicy(TextPolicy):
    """Draws n completions and returns the best of them.

    Attributes:
        count: Completions drawn for each one, n.
        pick: Picks one of them.
    """

    count: int = 1
    pick: Picker

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        keys: sampling.Keys | None,
        *,
        samples: int = 1,
        budgets: NDArray[np.int64] | None = None,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> decode.Decoded:
        """Complete prompts; see `TextPolicy.complete`.

        Its KL divergence from the reference is an upper bound, as the divergence has no closed form. Relative to
        the sampled distribution it is at most ``log n - (n - 1) / n`` per completion for any picker (Beirami et
        al., arXiv 2401.01879), since a set of completions is returned no more often than one of n draws is in it.
        With a nucleus, each token's probability is increased by a known factor; the summed logarithms of these
        factors along the returned completion are added.
        """
        if keys is None:
            raise ValueError("the likeliest completion is the same however often it is drawn")
        split = sampling.split_keys(keys, self.count).reshape(len(prompts), samples * self.count)
        drawn = super().complete(
            prompts,
            split,
            samples=samples * self.count,
            budgets=budgets,
            on_batch=None if on_batch is None else lambda done, tokens: on_batch(done // self.count, tokens),
        )
        repeated = [prompt for prompt in prompts for _ in range(samples * self.count)]
        picked = self.pick(repeated, drawn.tokens, self.count)
        places = np.arange(len(picked)) * self.count + picked
        bound = math.log(self.count) - (self.count - 1) / self.count
        return decode.Decoded([drawn.tokens[index] for index in places], drawn.kl[places] + bound)


def of_texts(
    score: Callable[..., NDArray[np.float64]],
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
) -> NDArray[np.float64]:
    """Return the scores of prompts with their completions, shape [N]."""
    with torch.inference_mode():
        return score(whole_texts(prompts, completions))


def by_score(score: Callable[..., NDArray[np.float64]]) -> Picker:
    """Return a picker of the highest score, the first of equals.

    Args:
        score: Function from sequences to their scores.
    """

    def pick(
        prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], count: int
    ) -> NDArray[np.int64]:
        picked: NDArray[np.int64] = of_texts(score, prompts, completions).reshape(-1, count).argmax(1)
        return picked

    return pick


def by_majority(answer: Callable[[Sequence[int]], str | None]) -> Picker:
    """Return a picker of the first completion with the most frequent answer.

    Of equally frequent answers the first.

    Args:
        answer: Returns a completion's answer; None for no vote.
    """

    def pick(
        prompts: Sequence[Sequence[int]],  # noqa: ARG001 - votes are of answers alone
        completions: Sequence[Sequence[int]],
        count: int,
    ) -> NDArray[np.int64]:
        picked = []
        for start in range(0, len(completions), count):
            votes = [answer(completion) for completion in completions[start : start + count]]
            counted = Counter(vote for vote in votes if vote is not None)
            # Ties stay in the order of first appearance.
            picked.append(votes.index(counted.most_common(1)[0][0]) if counted else 0)
        return np.array(picked, np.int64)

    return pick
