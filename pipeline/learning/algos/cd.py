"""CD as the paper of Q# has it for a baseline: guidance by the expected reward.

It collects the same data and fits the same value model as Q#; only the tilt differs. Q# adds log E[exp(R / eta)],
which is optimal for the KL-regularised objective; CD adds E[R] / eta, which Jensen's inequality makes the smaller.

Of controlled decoding (Mudgal et al., arXiv 2310.17022) it is CD-FUDGE, but for cross-entropy and texts that the
guided policy rolls in. CD-Q bootstraps from the value of the next token, and the blockwise variant picks among
drawn blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pipeline.config.bases import AlgoConfig
from pipeline.learning.algos.qsharp import QSharp, QSharpConfig, atom_rewards
from pipeline.learning.algos.value_guided import ValueAlgoConfig

if TYPE_CHECKING:
    from pipeline.learning.generation.tilt import Offset


@dataclass(kw_only=True)
class CDConfig(QSharpConfig):
    """Guidance by the mean reward, the baseline of Q#'s paper (after arXiv 2310.17022)."""

    def inexact(self, key: str, etas: Sequence[float]) -> Iterator[str]:  # noqa: ARG002 - of the base
        """Nothing: any atoms express a mean."""
        yield from ()


class CD(QSharp):
    """Q# with the expectation in the place of the soft value: the baseline of Q#'s paper."""

    name: ClassVar[str] = "CD"
    config_class: ClassVar[type[AlgoConfig]] = CDConfig
    soft: ClassVar[bool] = False

    def offset(self, algo: ValueAlgoConfig) -> Offset:
        """The expected reward over eta."""
        from pipeline.learning.generation.tilt import expected_atoms_offset, expected_offset

        assert isinstance(algo, QSharpConfig)
        if algo.atoms > 1:
            return expected_atoms_offset(atom_rewards(algo), algo.eta)
        return expected_offset(algo.eta, algo.value_min, algo.value_max)
