"""How a trained model is used: what is saved with it, so that nothing of it has to be remembered.

    guidance.json    beside a value model: by which rule, how strongly and over which tokens its values guide
    usage.json       in the folder of an exported model: how texts were drawn, how prompts were made, its reference

A value model is used together with the reference that it was trained for. In the store ``guidance.json`` names it
by its key; an exported folder holds it, or names it on the hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from pipeline.foreign import read_json_file
from pipeline.outputs.formats import LARGEST, Name, Number, Pointer, read_input

GUIDANCE = "guidance.json"
USAGE = "usage.json"
LARGEST_ATOMS = 10_000

Positive = Annotated[float, Meta(gt=0, le=LARGEST)]
AtLeastOne = Annotated[int, Meta(ge=1, le=2**53)]
_KEY = r"^[0-9a-f]{40}\Z"
Key = Annotated[str, Meta(pattern=_KEY)]
Rule = Literal["preference", "bernoulli", "atoms", "expected", "expected_atoms"]
"""How value logits become offsets, by the functions of `learning.generation.sampling`."""


@dataclass(frozen=True, kw_only=True)
class OffsetRule:
    """From value logits to what is added to the reference's log-probabilities, at any strength.

    Attributes:
        rule: Its name.
        rewards: What the head has a distribution over, lowest first; of no meaning for ``preference``.
    """

    rule: Rule
    rewards: Annotated[Sequence[Number], Meta(min_length=2, max_length=LARGEST_ATOMS)] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if list(self.rewards) != sorted(set(self.rewards)):
            raise ValueError(f"expected `rewards` from low to high, got {list(self.rewards)[:5]}")
        if self.rule in ("bernoulli", "expected") and len(self.rewards) != 2:
            raise ValueError(f"expected two `rewards` for {self.rule}, got {len(self.rewards)}")


@dataclass(frozen=True, kw_only=True)
class GuidanceSettings:
    """What ``guidance.json`` holds. The type of the head is in ``value_head.json``, with the head.

    Attributes:
        algo: The method, or what it was called in its run.
        eta: Strength: the tilt is exp(value / eta). None for no guidance, the reference as it is.
        offset: How values become offsets; None for a method with a rule of its own.
        top_k: Candidates at each step, the likeliest tokens of the reference.
        min_p: Tokens that the reference gives less than this are no candidates.
        others: What becomes of tokens that are no candidates.
        reference: Key of the stored output that is the reference, or says where it is.
    """

    algo: Name
    eta: Positive | None
    offset: OffsetRule | None
    top_k: AtLeastOne
    min_p: Annotated[float, Meta(ge=0, lt=1)]
    others: Annotated[str, Meta(pattern=r"^(kept|offset_zero|dropped)\Z")]
    reference: Key | None = None


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How texts are drawn.

    Attributes:
        max_new_tokens: Of a completion, at most.
        temperature: Of the policy, before guidance.
        top_p: Its nucleus; 1 keeps everything.
        stop: Texts that end a completion, besides the ends of the model.
        batch_size: Sequences at once, at most.
        skip_special_tokens: Leave special tokens out of texts; else begins, ends and padding alone.
        truncate_prompts: Keep the last tokens of a prompt that is too long, rather than refuse it.
        dtype: In which the models compute.
        attention: Its implementation, by its name in transformers.
    """

    max_new_tokens: AtLeastOne = 64
    temperature: Positive = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    stop: list[Annotated[str, Meta(min_length=1)]] = field(default_factory=list)
    batch_size: AtLeastOne = 256
    skip_special_tokens: bool = True
    truncate_prompts: bool = False
    dtype: Annotated[str, Meta(pattern=r"^(float32|bfloat16|float16)\Z")] = "float32"
    attention: Annotated[str, Meta(pattern=r"^(sdpa|eager|flash_attention_2)\Z")] = "sdpa"


@dataclass(frozen=True, kw_only=True)
class Prompting:
    """How a text becomes a prompt, as the dataset did it.

    Attributes:
        chat: It is the user's turn of a conversation, so that the model's chat template is applied.
        system_prompt: First message of the conversation.
        prompt_template: Text around it, with ``{prompt}`` in its place.
        chat_template_kwargs: Arguments of the chat template.
        date: That is told a template which asks the clock.
    """

    chat: bool = False
    system_prompt: str | None = None
    prompt_template: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    date: str | None = None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What ``usage.json`` holds.

    Attributes:
        kind: ``policy``, a language model by itself, or ``value``, which guides one.
        drawing: How texts were drawn where it was evaluated.
        prompting: How its prompts were made.
        reference: Where the reference of a value model is, a path within the folder or a commit on the hub; None
            of a policy.
        chain: Where it comes from.
        round: After which it was taken.
    """

    kind: Literal["policy", "value"]
    drawing: Drawing
    prompting: Prompting
    reference: Pointer | None = None
    chain: str = ""
    round: int = 0


def is_key(name: str) -> bool:
    """Whether a name is a key of the store, as that of the folder of a stored output is."""
    return re.fullmatch(_KEY, name) is not None


def read_guidance(path: Path) -> GuidanceSettings:
    """Read a ``guidance.json``; in what was fetched from the hub files are links.

    Raises:
        ForeignDataError: It holds something else.
        OSError: It is not there, or cannot be read.
    """
    return read_json_file(path, GuidanceSettings, follow=True)


def read_usage(path: Path) -> Usage:
    """Read a ``usage.json``; raises as `read_guidance` does."""
    return read_json_file(path, Usage, follow=True)


# -- adapters ----------------------------------------------------------------------------------------------------
# A policy of which only adapters are stored: they, and what they belong to, in the output of its training.
# policy_adapters.json the rounds whose adapters make it, and the reference adapters/1/adapter_config.json
# those of round 1, as peft saves and loads them adapters/1/adapter_model.safetensors adapters/2/... The
# policy is the reference with all of them merged into it, one after the other. Those of earlier rounds are
# copies, so that no round needs the output of another one.


ADAPTERS = "policy_adapters.json"
FOLDER = "adapters"


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """What ``policy_adapters.json`` holds.

    Attributes:
        rounds: Names of the folders of adapters, in the order in which they are merged.
        reference: Key of the stored output that is the reference, or says where it is.
    """

    rounds: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1, max_length=100_000)]
    reference: Key | None = None

    def __post_init__(self) -> None:
        if self.rounds != sorted(set(self.rounds)):
            raise ValueError(f"expected `rounds` in their order, got {self.rounds[:5]}")


def read_adapters(path: Path) -> Adapters:
    """Read a ``policy_adapters.json``.

    Raises:
        ForeignDataError: It holds something else.
        OSError: It is not there, or cannot be read.
    """
    return read_json_file(path, Adapters)


def adapter_folders(output: Path) -> list[Path]:
    """The folders of adapters that a policy is made of, in order; none of one that is stored whole.

    Raises:
        JobError: What says which these are cannot be read.
    """
    if not os.path.lexists(output / ADAPTERS):
        return []
    return [output / FOLDER / str(number) for number in read_input(output, ADAPTERS, read_adapters).rounds]
