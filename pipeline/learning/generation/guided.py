"""A trained model that completes prompts: a reference guided by a value model, or a policy.

It decodes as the evaluation of its run did, with `TextPolicy`. Programs that call `generate` of transformers
themselves can use the same guidance as a `LogitsProcessor`.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase

from pipeline.config import meaning, schema
from pipeline.errors import ConfigError, unknown_name
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.datasets import base, chat, from_files, prepared
from pipeline.learning.generation import decode, row_models, sampling
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.models import batch_size, load
from pipeline.learning.models.value import ValueModel
from pipeline.learning.training.value import expected_labels, token_values
from pipeline.outputs.formats import Drawing, GuidanceSettings, Prompting, Sampling

# -- slow guide --------------------------------------------------------------------------------------------------
# Reference implementation of guided decoding: a `LogitsProcessor` without a cache, one full forward pass per
# candidate. The papers' code works like this, and it is easy to check by eye. Tests prove the fast decoder equal
# to it, and `benchmarks/generation.py` compares their speed. With it, `model.generate` of transformers can be
# guided.


class GuidedLogitsProcessor(LogitsProcessor):
    """Replaces the reference's logits by the log-probabilities of the guided policy."""

    def __init__(
        self,
        model: ValueModel,
        tilt: sampling.Tilt,
        pad_id: int | None = None,
        begins_with_pad: bool = False,
        sampling: Sampling | None = None,
    ) -> None:
        """Guide by a value model.

        Args:
            model: The value model.
            tilt: Settings of guidance.
            pad_id: Leading tokens with this id are padding; None if nothing is padded.
            begins_with_pad: Whether the last one of them is not padding, but the first token of every prompt.
            sampling: Distribution of the reference, before guidance; None for its own.
        """
        self.model = model
        self.tilt = tilt
        self.pad_id = pad_id
        self.begins_with_pad = begins_with_pad
        self.sampling = sampling or Sampling()
        self._takes_padding = row_models.reading(model) not in (row_models.Way.anew, row_models.Way.states)

    @torch.inference_mode()
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Guide one step.

        Args:
            input_ids: Prompt and completion so far, shape [B, T].
            scores: The reference's logits, shape [B, V].

        Returns:
            Log-probabilities of the guided policy, shape [B, V].
        """
        own_scores = scores[:, : self.model.vocabulary]
        whole = sampling.policy_logprobs(own_scores, self.sampling.temperature)
        logprobs = sampling.cut(whole, self.sampling)
        candidates = sampling.find_candidates(logprobs, self.tilt)
        values = self._values(input_ids, candidates.ids)
        guided = sampling.full_row(
            logprobs, candidates, sampling.guided_logprobs(candidates, values, self.tilt), self.tilt
        )
        return F.pad(guided, (0, scores.shape[1] - own_scores.shape[1]), value=-math.inf)

    def _values(self, prefix: Tensor, candidates: Tensor) -> Tensor:
        if self.model.config.head == HeadType.q.name:
            return row_models.candidate_values(self._forward(prefix)[:, -1], candidates)
        columns = [
            self._forward(torch.cat([prefix, candidates[:, [k]]], -1))[:, -1] for k in range(candidates.shape[1])
        ]
        return torch.stack(columns, 1)

    def _forward(self, ids: Tensor) -> Tensor:
        mask = torch.ones_like(ids)
        if self.pad_id is not None:
            begun = (ids != self.pad_id).cumsum(-1) > 0
            if self.begins_with_pad:
                begun = F.pad(begun[:, 1:], (0, 1), value=True)
            mask = begun.long()
        if not self._takes_padding and not mask.all():
            return self._apart(ids, mask.sum(-1))
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        values: Tensor = self.model(ids, attention_mask=mask, position_ids=positions)
        return values

    def _apart(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the values after the last tokens of texts, read without their padding, shape [B, 1, ...]."""
        groups = [(lengths == length).nonzero().squeeze(-1) for length in lengths.unique()]
        values = [self.model(ids[rows, -int(lengths[rows[0]]) :])[:, -1:] for rows in groups]
        return torch.cat(values)[torch.cat(groups).argsort()]


Prompt = str | Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""A text, the turns of a conversation, or the columns for the prompt template of the dataset."""
STREAM = "guided"

log = logging.getLogger("pipeline")


class StepOptions(TypedDict, total=False):
    """Options of one step; defaults are those of the run's evaluation."""

    eta: float
    temperature: float
    top_p: float


class Options(StepOptions, total=False):
    """Options of a call, likewise."""

    n: int
    max_new_tokens: int
    seed: int
    greedy: bool
    stop: list[str]
    batch_size: int


@dataclass(kw_only=True)
class _Asked(schema.GenerationConfig):
    """Options of a call, including generation settings."""

    eta: float = schema.number(math.inf, at_least=schema.SMALLEST_DIVISOR, infinite=True)
    n: int = schema.number(1, at_least=1, at_most=schema.LARGEST_SEED)
    seed: int = schema.number(0, at_least=0, at_most=schema.LARGEST_SEED)
    greedy: bool = False


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A completion and its data.

    Attributes:
        text: Without special tokens.
        token_ids: Token ids, with the end token.
        kl: KL divergence of the guided policy from its reference along the completion, summed over tokens, in
            nats; None for a policy, which has no reference here.
        ended: Whether the policy ended it; otherwise it was cut off.
        values: Prediction of the value model after each token, between 0 and 1; None if not requested.
    """

    text: str
    token_ids: list[int]
    kl: float | None
    ended: bool
    values: list[float] | None = None


@dataclass(frozen=True, kw_only=True)
class SavedGuide:
    """A value model with its saved settings of guidance.

    Attributes:
        model: The model, in evaluation mode, on the device of the reference.
        settings: Settings saved beside it.
        offset: Returns its offset at a strength, for a method with a rule of its own; None uses the saved rule.
    """

    model: ValueModel
    settings: GuidanceSettings
    offset: Callable[[float], sampling.Offset] | None = None

    def tilt(self, eta: float) -> sampling.Tilt:
        """Return the settings of guidance at a strength.

        Raises:
            ConfigError: The method has a rule of its own, which was not passed.
        """
        saved, offset = self.settings, self.offset
        if offset is None:
            if (rule := saved.offset) is None:
                raise ConfigError(
                    f"{saved.algo} makes offsets of values by a rule of its own, which is not saved with the "
                    "model. Give it: pipeline.guided(..., offset=lambda eta: ...), as offset() of the algorithm"
                )
            return sampling.Tilt(sampling.KnownOffset(rule, eta), saved.top_k, saved.min_p, Others[saved.others])
        return sampling.Tilt(offset(eta), saved.top_k, saved.min_p, Others[saved.others])


class Guided:
    """A trained model with its tokenizer, ready to complete prompts.

    Attributes:
        model: The language model: the reference, or a trained policy.
        tokenizer: Its tokenizer.
        value: The value model that guides it; None for a policy.
        eta: Default strength of guidance; `math.inf` is none. Smaller is stronger.
        drawing: Default sampling settings.
        prompting: How a text becomes a prompt.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        guide: SavedGuide | None = None,
        *,
        drawing: Drawing | None = None,
        prompting: Prompting | None = None,
        eta: float | None = None,
        device: str = "cpu",
    ) -> None:
        """Combine loaded parts; `pipeline.guided` loads them.

        Args:
            model: The reference, or a trained policy; in evaluation mode, on its device.
            tokenizer: Its tokenizer.
            guide: A value model; None for a plain policy.
            drawing: Sampling settings.
            prompting: How a text becomes a prompt.
            eta: Strength other than the saved one.
            device: ``cpu`` or ``cuda``.
        """
        self.model, self.tokenizer, self._guide, self._device = model, tokenizer, guide, device
        self.value = None if guide is None else guide.model
        self.drawing, self.prompting = drawing or Drawing(), prompting or Prompting()
        saved = math.inf if guide is None or guide.settings.eta is None else guide.settings.eta
        self.eta = saved
        self.eta = self._settings({} if eta is None else {"eta": eta}).eta
        self._warned = False
        self._sizes = batch_size.BatchSizes(None, device, model, *([] if guide is None else [guide.model]))

    def __repr__(self) -> str:
        """Return a description in one line."""
        kind = self.model.config.model_type
        if self._guide is None:
            return f"Guided(policy {kind}, device={self._device})"
        return f"Guided({kind} by {self._guide.settings.algo}, eta={self.eta:g}, device={self._device})"

    def generate(self, prompts: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> list[str]:
        """Complete prompts.

        The same call gives the same texts. A prompt's random draws depend on the seed and its index in the list,
        not on its batch.

        Args:
            prompts: One prompt or a list: texts, conversations (lists of ``{"role": ..., "content": ...}``), or
                dicts of columns. Texts are treated like the dataset's: its template, system prompt and the chat
                template are applied.
            options: ``eta`` strength of guidance, ``math.inf`` for the plain reference; ``n`` completions per
                prompt (1); ``max_new_tokens``, ``temperature``, ``top_p``; ``seed`` (0); ``greedy`` for greedy
                decoding; ``stop``, texts that end a completion; ``batch_size``.

        Returns:
            Texts of completions, the `n` of a prompt adjacent.

        Raises:
            ConfigError: An option is out of range, or guidance is requested for a plain policy.
            DataError: A prompt is invalid, or too long.
        """
        return [completion.text for completion in self.complete(prompts, **options)]

    def complete(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        values: bool = False,
        on_text: Callable[[str], None] | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]:
        """Complete prompts as `generate`, with token ids and KL divergences.

        Args:
            prompts: As in `generate`.
            values: Whether to return the value model's prediction after each token.
            on_text: Called with the text of a completion so far, as it grows.
            options: As in `generate`.
        """
        if values and self._guide is None:
            raise ConfigError(_NO_GUIDE.format("values"))
        settings = self._settings(options)
        several = _several(prompts)
        dataset = _Prompts(several, self.prompting)
        policy = self._policy(dataset, settings)
        if on_text is not None:
            policy.on_tokens = lambda _, tokens: on_text(policy.text([tokens])[0])
        rows = [dataset.row(index) for index in range(len(several))]
        encoded = policy.encode(
            [row.prompt for row in rows], [chat.template_arguments(row.columns) for row in rows]
        )
        if not self._warned and (note := prepared.unknown_pieces(self.tokenizer, encoded)):
            self._warned = True
            log.warning("%s", note)
        ids = policy.fitted(encoded)
        keys = sampling.sample_keys(settings.seed, STREAM, np.arange(len(ids)), settings.n)
        decoded = policy.complete(ids, None if settings.greedy else keys, samples=settings.n)
        texts = policy.text(decoded.tokens)
        repeated = [prompt for prompt in ids for _ in range(settings.n)]
        return [
            Completion(
                text=text,
                token_ids=tokens,
                kl=None if self._guide is None else float(kl),
                ended=policy.ended(tokens),
                values=self._values(prompt, tokens) if values else None,
            )
            for text, tokens, kl, prompt in zip(texts, decoded.tokens, decoded.kl, repeated, strict=True)
        ]

    def prompt_text(self, prompt: Prompt) -> str:
        """Return the text that the model reads for a prompt, with the templates that `generate` applies.

        Raises:
            DataError: The prompt is invalid.
        """
        row = _Prompts([prompt], self.prompting).row(0)
        if isinstance(row.prompt, str):
            return row.prompt
        return chat.prompt_text(self.tokenizer, row.prompt, chat.template_arguments(row.columns))

    def logits_processor(self, **options: Unpack[StepOptions]) -> GuidedLogitsProcessor:
        """Return the guidance for `generate` of transformers; slower than `generate` of this object.

            inputs = guided.tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
            guided.model.generate(
                **inputs, logits_processor=[guided.logits_processor()], do_sample=True, top_k=0, max_new_tokens=64
            )

        Temperature and nucleus apply to the reference, before guidance, so pass them here and not to `generate`,
        whose own top_k must be 0.

        Args:
            options: ``eta`` strength of guidance; ``temperature`` and ``top_p`` of the reference.

        Raises:
            ConfigError: This is a plain policy, or an option is out of range.
        """
        if self._guide is None:
            raise ConfigError(_NO_GUIDE.format("logits_processor"))
        settings = self._settings(options, StepOptions)
        pad = self.tokenizer.pad_token_id
        return GuidedLogitsProcessor(
            self._guide.model,
            self._guide.tilt(settings.eta),
            pad_id=pad,
            begins_with_pad=pad is not None and self.tokenizer("a")["input_ids"][:1] == [pad],
            sampling=settings.sampling,
        )

    def _policy(self, dataset: base.Dataset, settings: _Asked) -> TextPolicy:
        guidance, context = None, None
        if self._guide is not None and not math.isinf(settings.eta):
            guidance = decode.Guidance(self._guide.model, self._guide.tilt(settings.eta))
            context = load.context_length(self._guide.model.backbone)
        return TextPolicy(
            self.model,
            self.tokenizer,
            settings,
            dataset,
            self._device,
            guidance,
            sizes=self._sizes,
            guide_context=context,
        )

    def _settings(self, options: Mapping[str, Any], known: type = Options) -> _Asked:
        """Combine the options of a call with the defaults of the run's evaluation."""
        if unknown := set(options) - known.__annotations__.keys():
            raise ConfigError(unknown_name("option", min(unknown), known.__annotations__))
        own = asdict(self.drawing)
        usual = {name: own[name] for name in own.keys() & schema.GenerationConfig.__annotations__.keys()}
        usual["long_prompts"] = (
            schema.LongPrompts.truncate if own["truncate_prompts"] else schema.LongPrompts.refuse
        ).name
        settings: _Asked = meaning.settings_of(_Asked, {**usual, "eta": self.eta, **options})
        if self._guide is None and not math.isinf(settings.eta):
            raise ConfigError(_NO_GUIDE.format("eta"))
        return settings

    @torch.inference_mode()
    def _values(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
        assert self.value is not None
        ids = torch.tensor([[*prompt, *tokens]], device=self._device)
        expected = expected_labels(token_values(self.value, ids), self.value.config.atoms)
        values: list[float] = expected[0, len(prompt) :].tolist()
        return values


_NO_GUIDE = "{}: this is a policy whose weights were trained, and nothing guides it; leave it out"


class _Prompts(base.Dataset):
    """A user's prompts, converted for the model like the rows of the dataset."""

    def __init__(self, prompts: Sequence[Prompt], prompting: Prompting) -> None:
        super().__init__(schema.DatasetConfig(kind="asked"))
        self._prompts, self._prompting = prompts, prompting

    def row(self, row_id: int) -> base.Row:
        """Return the prompt at an index of the list."""
        prompt, made = self._prompts[row_id], self._prompting
        config = from_files.FilesConfig(
            kind="asked",
            chat=made.chat,
            system_prompt=made.system_prompt,
            chat_template_kwargs=made.chat_template_kwargs,
            date=made.date,
            prompt_template=made.prompt_template if isinstance(prompt, str | Mapping) else None,
        )
        columns = dict(prompt) if isinstance(prompt, Mapping) else {"prompt": prompt}
        return from_files.make_row(row_id, columns, f"prompt {row_id + 1}", config)


def _several(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Return a list of prompts; a list of turns is one conversation."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise ConfigError(f"prompts: expected a text or a list of texts, got {type(prompts).__name__}")
    is_turns = bool(prompts) and isinstance(prompts[0], Mapping) and prompts[0].keys() >= {"role", "content"}
    return [prompts] if is_turns else prompts  # type: ignore[list-item]
