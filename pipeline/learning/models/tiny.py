"""The embedded reference: a GPT-2 of some 76,000 parameters, trained in the run on a dataset's demonstrations."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerFast

from pipeline.config.schema import Schedule, SystemConfig, TrainingConfig
from pipeline.errors import JobError
from pipeline.learning.datasets.base import Dataset
from pipeline.learning.models import flops, kinds
from pipeline.learning.training import distributed, loop
from pipeline.learning.training.checkpoint import Checkpoints

_INITIAL = 0.8
"""Standard deviation of initial weights times the root of the width. GPT-2's own 0.02 is 0.55 at its width of 768
but 0.16 at 64, where attention is then so even that some seeds never find out which digits belong together."""


def make_tokenizer(dataset: Dataset) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token per match of the dataset's `symbol_pattern`.

    Texts begin with its BOS token.
    """
    vocabulary = {token: index for index, token in enumerate(dataset.vocabulary)}
    bos = dataset.bos_token
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=bos))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(dataset.symbol_pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, vocabulary[bos])]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, pad_token=bos)


def make_model(config: kinds.TinyModelConfig, dataset: Dataset) -> GPT2LMHeadModel:
    """Make an untrained model, initialised from the model's own seed."""
    shape = GPT2Config(
        vocab_size=len(dataset.vocabulary),
        n_embd=config.n_embd,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_inner=config.n_inner,
        n_positions=config.n_positions,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own in one operation instead of eight
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        initializer_range=_INITIAL / math.sqrt(config.n_embd),
        bos_token_id=dataset.vocabulary.index(dataset.bos_token),
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.references[0])
        return GPT2LMHeadModel(shape)


class Encoder:
    """Tokenizes demonstrations as the tokenizer does, without its overhead on every step."""

    def __init__(self, dataset: Dataset) -> None:
        """Take the vocabulary of a dataset."""
        self._ids = {token: index for index, token in enumerate(dataset.vocabulary)}
        self._bos = self._ids[dataset.bos_token]
        self._symbols = re.compile(dataset.symbol_pattern).findall

    def __call__(self, shown: Sequence[tuple[str, str]]) -> tuple[torch.Tensor, int]:
        """Return the token ids of prompts with completions, and the number of tokens before a completion.

        Args:
            shown: Prompts and completions; all prompts have equally many tokens, and so have all completions.

        Returns:
            Shape [B, T], int64, BOS first; and the number of tokens before a completion.

        Raises:
            JobError: The lengths differ, or tokens are not in the vocabulary.
        """
        try:
            ids = torch.tensor([[self._bos, *map(self._ids.__getitem__, self._symbols(p + c))] for p, c in shown])
        except (KeyError, ValueError) as error:
            raise JobError(
                f"demonstrations need tokens of the dataset's vocabulary, as many in each ({error}): {shown[0]}"
            ) from error
        return ids, ids.shape[1] - len(self._symbols(shown[0][1]))


class Demonstrations:
    """Chooses the rows and draws of each step: a function of the step, independent of earlier calls."""

    def __init__(self, config: kinds.TinyModelConfig, count: int) -> None:
        """Prepare to draw `config.batch_size` of `count` rows per step."""
        self._config = config
        self._count = count
        self._start()

    def at(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the rows and draws of a step, each of shape [batch]."""
        if step < self._step:
            self._start()
        # One generator serves all steps, so earlier draws are discarded: a millisecond for a hundred steps.
        while self._step <= step:
            self._drawn = (
                self._generator.integers(0, self._count, self._config.batch_size),
                self._generator.random(self._config.batch_size),
            )
            self._step += 1
        return self._drawn

    def _start(self) -> None:
        self._generator = np.random.Generator(np.random.Philox(key=[self._config.references[0], 2]))
        self._step = 0


def train_reference(
    config: kinds.TinyModelConfig,
    system: SystemConfig,
    dataset: Dataset,
    device: str,
    on_step: Callable[[int, int], None],
    *,
    checkpoint: Checkpoints | None = None,
    hints: Path | None = None,
    ranks: distributed.Ranks = distributed.ALONE,
    curve: loop.Curve | None = None,
) -> tuple[GPT2LMHeadModel, list[float]]:
    """Train on fresh demonstrations of training rows by next-token prediction.

    Args:
        config: Sizes and training settings.
        system: The kind of attention, and the type that forward passes compute in.
        dataset: Has demonstrations and a vocabulary.
        device: ``cpu`` or ``cuda``.
        on_step: Called after each step with the number of steps done and the tokens seen.
        checkpoint: Checkpoints to resume from and to save; None starts afresh and saves nothing.
        hints: Folder of batch sizes that fitted; None stores none.
        ranks: Ranks of this training.
        curve: Curve of the training to write; None writes none.

    Returns:
        The model, and the loss of every step in nats per token of the completion.
    """
    encode = Encoder(dataset)
    model = make_model(config, dataset).to(device)  # type: ignore[arg-type]
    model.set_attn_implementation(system.attn_impl.name)
    rows = dataset.ids("train")
    demonstrations = Demonstrations(config, len(rows))
    how = loop.Fitting(
        learning_rate=config.learning_rate,
        training=TrainingConfig(
            micro_batch_size=config.batch_size,
            optimizer=config.optimizer,
            adam_beta2=0.98,
            warmup_steps=config.warmup_steps,
            schedule=Schedule.cosine_from_start,
        ),
        batch_size=config.batch_size,
        device=device,
        checkpoint=checkpoint,
        hints=hints,
        ranks=ranks,
        curve=curve,
    )
    size = config.batch_size
    micro_batch = how.micro_batch(model, size, longest=config.n_positions, group=1, policy=False)

    def losses_of(step: int) -> Iterator[torch.Tensor]:
        picked, draws = demonstrations.at(step)
        shown = [dataset.demonstration(int(rows[p]), float(draw)) for p, draw in zip(picked, draws, strict=True)]
        ids, prompt = encode(shown)
        ids = ids.to(device)
        for places, weight in ranks.share(np.arange(len(ids)), micro_batch.size):
            part = ids[torch.from_numpy(places)]
            # The last token predicts nothing, so it is not read.
            with loop.computing_in(system.dtype, device, ranks):
                logits = model(part[:, :-1], use_cache=False).logits[:, prompt - 1 :]
            loss = F.cross_entropy(logits.float().flatten(0, 1), part[:, prompt:].flatten())
            yield loss * (weight * len(part) / len(ids))
        on_step(step + 1, (step + 1) * config.batch_size * length)

    picked, draws = demonstrations.at(0)  # all demonstrations are of one length
    ids, _ = encode([dataset.demonstration(int(rows[picked[0]]), float(draws[0]))])
    length, texts = ids.shape[1] - 1, config.batch_size * config.steps
    flops.spend("training", flops.model_cost(model).training(flops.whole_texts(np.array([length])) * texts))
    ranks.say_batch(config.batch_size, micro_batch.size)
    losses = loop.train(
        model,
        how,
        config.steps,
        losses_of,
        micro_batch=micro_batch,
        tokens_after=lambda step: step * size * length,
    )
    return model, losses


# -- imitation ---------------------------------------------------------------------------------------------------
# Whether a tiny reference has learnt to imitate its corpus, by its loss on held-out rows. Two losses that need no
# training give the scale: that of a guess, and that of a perfect imitator.


PROMPTS = 500
DRAWS = (10, 20, 40)
"""Demonstrations of a prompt, one from each part of equal size of what `Dataset.demonstration` draws from.

There are more of them where too many of the first are different."""
_ALONE = 0.2
"""Share of demonstrations drawn but once up to which they tell how open a prompt is (Good 1953)."""
_CLOSE = 0.05
"""Nats a token above a perfect imitator that are none to speak of, even where guessing is as good."""
_BATCH = 128
_DIGITS = 6
"""Digits of a loss after the point: processors differ in later ones."""


@dataclass(frozen=True, kw_only=True)
class Imitation:
    """Losses on demonstrations of held-out rows, in nats per token of the completion.

    Attributes:
        loss: Loss of the reference.
        guessing: Loss of the best guess without the prompt: each token by its frequency at its place.
        corpus: Loss of a perfect imitator: what the prompt leaves open.
    """

    loss: float
    guessing: float
    corpus: float

    @property
    def has_learnt(self) -> bool:
        """Whether the loss is that of a perfect imitator, or nearer to it than to that of guessing."""
        return self.loss - self.corpus < max(_CLOSE, self.guessing - self.loss)

    def problem(self, seed: int) -> str | None:
        """Describe that the reference has not learnt, as a caveat for results; None if it has.

        Args:
            seed: Seed of the reference.
        """
        if self.has_learnt:
            return None
        return (
            f"the reference of seed {seed} has not learnt: held-out loss {self.loss:.2f} nats a token, where "
            f"guessing by frequency gives {self.guessing:.2f} and imitating perfectly {self.corpus:.2f}"
        )


def measure_imitation(model: PreTrainedModel, dataset: Dataset) -> Imitation | None:
    """Measure a reference on rows of the validation split.

    Rows that can be completed in more ways than draws can tell are left out: what they leave open, and thus what a
    perfect imitator loses, is not known.

    Args:
        model: The reference.
        dataset: Its training data; has demonstrations and a vocabulary.

    Returns:
        The losses; None where all rows are left out.
    """
    rows = dataset.ids("validation")[:PROMPTS].tolist()
    shown = [answers for row in rows if (answers := _demonstrations(dataset, row))]
    if not shown:
        return None
    shares = np.array([times / answers.total() for answers in shown for times in answers.values()])
    ids, start = Encoder(dataset)([pair for answers in shown for pair in answers])
    length = ids.shape[1] - start
    surprise = _surprise(model, ids, start).numpy()
    return Imitation(
        loss=round(float(shares @ surprise) / len(shown) / length, _DIGITS),
        guessing=round(_guessing(ids[:, start:].numpy(), shares), _DIGITS),
        corpus=round(_entropy(shares) / len(shown) / length, _DIGITS),
    )


def _demonstrations(dataset: Dataset, row: int) -> Counter[tuple[str, str]] | None:
    """Demonstrations of a row, as often as they were drawn; None where these do not tell how likely each is."""
    for draws in DRAWS:
        shown = Counter(dataset.demonstration(row, (part + 0.5) / draws) for part in range(draws))
        if sum(times == 1 for times in shown.values()) <= _ALONE * draws:
            return shown
    return None


@torch.no_grad()
def _surprise(model: PreTrainedModel, ids: Tensor, start: int) -> Tensor:
    """Return the negative log-probability of each completion in nats, shape [B], float64."""
    flops.spend("scoring", flops.model_cost(model).forward(flops.whole_texts(np.full(len(ids), ids.shape[1]))))
    sums = []
    for part in ids.to(model.device).split(_BATCH):
        logits = model(part, use_cache=False).logits[:, start - 1 : -1]
        losses = F.cross_entropy(logits.flatten(0, 1).double(), part[:, start:].flatten(), reduction="none")
        sums.append(losses.view(len(part), -1).sum(1).cpu())
    return torch.cat(sums)


def _guessing(completions: NDArray[np.int64], shares: NDArray[np.float64]) -> float:
    """Return the entropy of the tokens at each place, ignoring the prompt; the mean over places, in nats."""
    entropies = []
    for tokens in completions.T:
        frequencies = np.bincount(tokens, weights=shares) / shares.sum()
        entropies.append(_entropy(frequencies[frequencies > 0]))
    return float(np.mean(entropies))


def _entropy(shares: NDArray[np.float64]) -> float:
    return max(0.0, -float(shares @ np.log(shares)))  # rather than -0.0
