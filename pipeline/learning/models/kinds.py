"""Kinds of models and their settings: one that is read (`source`), and one that is made here (`tiny`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pipeline.config.schema import (
    BY_CONTENT,
    LARGEST_RATE,
    LARGEST_SEED,
    Config,
    ModelConfig,
    hint,
    number,
    one_of,
)
from pipeline.config.values import brief

BITS = {"8bit": "a byte for each weight of linear layers", "4bit": "half of that (NF4)"}


@dataclass(kw_only=True)
class HFModelConfig(ModelConfig):
    """A causal language model of the Hugging Face ecosystem; docs/models.md has examples."""

    revision: str | None = hint(None, keyed=BY_CONTENT)
    """Commit, tag or branch of `path` on the hub; null takes the newest."""
    value_revision: str | None = hint(None, keyed=BY_CONTENT)
    """The same for `value_path`."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Only for models whose code you have read."""
    quantization: str | None = one_of(None, BITS, affects_result=False, keyed="where it is given")
    """Bits of a weight while the frozen reference draws and scores, by bitsandbytes (docs/models.md); null keeps
    weights in `system.dtype`. Part of the keys of what is drawn so, and of the model's name in results."""

    @property
    def in_bits(self) -> int | None:
        """As the user says."""
        return None if self.quantization is None else int(self.quantization.removesuffix("bit"))

    @property
    def trusts_code(self) -> bool:
        """As the user says."""
        return self.trust_remote_code

    @property
    def revisions(self) -> Mapping[str, str | None]:
        """As the user says."""
        return {"reference": self.revision, "value": self.value_revision}

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """No place to read it from."""
        if not self.path:
            yield f"{key}.path is missing: a model of kind 'hf' needs a folder or hub id"


@dataclass(kw_only=True)
class TinyModelConfig(ModelConfig):
    """A GPT-2 of some 76,000 parameters, trained in the run on the dataset's demonstrations."""

    is_trained: ClassVar[bool] = True

    seed: int | None = number(None, at_least=0, at_most=LARGEST_SEED)
    """Of initialisation and training, of one reference that all seeds of the experiment share; null is 0."""
    seeds: list[int] | None = number(
        None, at_least=0, at_most=LARGEST_SEED, affects_result=False, keyed="as each is a reference of its own"
    )
    """Several references instead of the one of `seed`, each with chains of its own for every seed of the
    experiment. A stage sees the `seed` of its own reference alone."""
    n_embd: int = number(64, at_least=1, at_most=2048)
    """Width; the heads share it, so n_head must divide it."""
    n_layer: int = number(2, at_least=1, at_most=48)
    """Layers."""
    n_head: int = number(4, at_least=1, at_most=128)
    """Heads of attention in each layer."""
    n_inner: int = number(128, at_least=1, at_most=8192)
    """Width inside of each layer's MLP."""
    n_positions: int = number(128, at_least=1, at_most=16_384)
    """Tokens of a prompt and its completion at most."""
    steps: int = number(1000, at_least=0, at_most=1_000_000_000)
    """Optimizer steps of its training; 0 leaves it random."""
    batch_size: int = number(128, at_least=1, at_most=1_000_000)
    """Demonstrations per optimizer step."""
    learning_rate: float = number(3e-3, above=0, at_most=LARGEST_RATE)
    """Of AdamW, at its highest."""
    warmup_steps: int = number(100, at_least=0, at_most=1_000_000_000)
    """Steps over which the learning rate rises to its full value."""

    @property
    def weights(self) -> int:
        """Those of its layers and positions; a vocabulary of symbols adds few."""
        return self.n_embd * (self.n_layer * (4 * self.n_embd + 2 * self.n_inner) + self.n_positions)

    @property
    def demonstrations(self) -> int:
        """Of all steps."""
        return self.steps * self.batch_size

    @property
    def references(self) -> Sequence[int]:
        """Seeds of the references, in the order of their chains."""
        return [self.seed or 0] if self.seeds is None else self.seeds

    def with_reference(self, reference: int | None) -> TinyModelConfig:
        """The model with one reference alone."""
        return replace(self, seed=reference, seeds=None)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """References that are named twice or not at all, and a width that heads cannot share."""
        if self.seeds is not None and self.seed is not None:
            yield (
                f"{key}.seed={self.seed} and {key}.seeds={brief(self.seeds)} both say which references there are: "
                f"give one of them. {key}.seeds=[{self.seed}] is the same as {key}.seed={self.seed}"
            )
        if self.seeds == []:
            yield f"{key}.seeds is empty: give at least one, for example {key}.seeds=[0]"
        if self.n_embd % self.n_head:
            yield (
                f"{key}.n_embd={self.n_embd}: must be a multiple of {key}.n_head={self.n_head}, which share it, "
                f"for example {max(1, self.n_embd // self.n_head) * self.n_head}"
            )

    def idle(self, setting: str) -> str:
        """A place to read it from."""
        return (
            ""
            if setting != "path"
            else (
                "a model of kind tiny is trained in the run and reads no files; for one that is read use model=hf "
                "models.hf.path=FOLDER_OR_HUB_ID"
            )
        )
