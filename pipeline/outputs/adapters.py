"""A policy of which only adapters are stored: they, and what they belong to, in the output of its training.

    policy_adapters.json                     the rounds whose adapters make it, and the reference
    adapters/1/adapter_config.json           those of round 1, as peft saves and loads them
    adapters/1/adapter_model.safetensors
    adapters/2/...

The policy is the reference with all of them merged into it, one after the other. Those of earlier rounds are
copies, so that no round needs the output of another one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.foreign import read_json_file
from pipeline.outputs.guidance import Key
from pipeline.outputs.reading import read_input

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
