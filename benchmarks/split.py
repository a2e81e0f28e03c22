"""Which families of models several ranks can share: a random model of each, by two ranks on a CPU and by one.

    python -m benchmarks.split                 # all families
    python -m benchmarks.split llama gemma2

A family belongs into `SPLIT` of `pipeline/learning/models/kinds.py` where it says "same", and each rank holds
not much more than its share of the weights; norms and routers are whole on each, and so is what sees.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.engine.devices.inventory import held_port, rank_environment
from tests.doubles.families import FAMILIES
from tests.doubles.forked import Start, forked

RANKS = 2
PROMPTS = [[5, 9, 3, 7], [8, 2, 60, 3, 4, 9, 9], [100, 3]]
TOKENS = 12
_LONGEST_S = 300


def main(families: Sequence[str]) -> None:
    """Try families, each by ranks of its own: what fails in one leaves the others alone."""
    with forked("tests.doubles.wide") as start:
        for family in families or list(FAMILIES):
            print(f"{family}: {_tried(family, start)}", flush=True)


def _tried(family: str, start: Start) -> str:
    with tempfile.TemporaryDirectory() as folder, held_port(None) as port:
        started = []
        for rank in range(RANKS):
            environment = rank_environment(os.environ, [""] * RANKS, rank=rank, master_port=port)
            started.append(start(try_family, family, rank, dict(environment), Path(folder)))
        for process in started:
            process.join(_LONGEST_S)
            process.kill()
        said = Path(folder, "said.txt")
        return said.read_text() if said.exists() else "it failed"


def try_family(family: str, rank: int, environment: dict[str, str], folder: Path) -> None:
    """Write by this rank what the whole model writes; the first rank leaves a line on it."""
    os.environ |= environment
    from pipeline.learning.training.distributed import Spread, join

    with join(rank, RANKS, "cpu", Spread(by_tensors=True)) as ranks:
        line = "; ".join(_told(family, folder, ranks.rank))
        if ranks.is_first:
            (folder / "said.txt").write_text(line)


def _told(family: str, folder: Path, rank: int) -> Iterator[str]:
    import torch
    import torch.distributed as dist
    from transformers.distributed.configuration_utils import DistributedConfig

    from pipeline.learning.generation.decode import DecodeSettings, decode
    from pipeline.learning.models.load import without_progress_bars
    from tests.doubles.families import tiny_model

    whole = tiny_model(family)
    with without_progress_bars():
        if rank == 0:
            whole.save_pretrained(folder / "model")
        dist.barrier()
        try:
            options: Any = {"distributed_config": DistributedConfig(tp_size=RANKS)}
            part: Any = type(whole).from_pretrained(folder / "model", **options)
            part.eval().requires_grad_(False)
        except ValueError as error:  # there is no plan, as all ranks find
            yield str(error).partition(". ")[0]
            return
    settings = DecodeSettings(batch_size=4, eos_id=None)
    texts = [decode(model, PROMPTS, [TOKENS] * 3, settings, keys=None).tokens for model in (whole, part)]
    with torch.inference_mode():
        logits = [model(input_ids=torch.tensor([PROMPTS[1]])).logits for model in (whole, part)]
    sizes = [
        sum((one.to_local() if hasattr(one, "to_local") else one).numel() for one in model.parameters())
        for model in (part, whole)
    ]
    yield "same tokens" if texts[0] == texts[1] else "OTHER TOKENS"
    yield f"logits off by {float((logits[0] - logits[1]).abs().max()):.0e}"
    yield f"{sizes[0] / sizes[1]:.2f} of the weights on each of {RANKS}"


if __name__ == "__main__":
    main(sys.argv[1:])
