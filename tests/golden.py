"""Digests of what every stage writes in a small run, and the versions that cover it.

    python -m tests.golden            what changed against tests/data/golden.json
    python -m tests.golden --write    keep today's digests; refused where bytes changed and no version was raised

Float rounding depends on the processor's instruction set and on the versions of libraries. The run therefore asks
for the plainest instructions that every x86-64 processor has, and digests are compared only where a probe of the
arithmetic and the versions are those of the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GOLDEN = HERE / "data" / "golden.json"
PLAIN_ARITHMETIC = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "OMP_NUM_THREADS": "1",
}
LIBRARIES = ("numpy", "peft", "safetensors", "tokenizers", "torch", "transformers", "trl")
RUN = (
    "experiment.name=golden",
    "device=cpu",
    "system.use_parallel_execution=false",
    "algos=[BestOfN,CD,DPO,GRPO,GRPO-HF,PITA,QSharp,QSharp-HF,SFT]",
    # The paths that the defaults do not take.
    "algos.Candidates.class_path=pipeline.algos.pita.PITA",
    "algos.Candidates.head=v",
    "algos.Candidates.truncate=false",
    "algos.Adapters.class_path=pipeline.algos.grpo.GRPO",
    "algos.Adapters.lora.rank=2",
    "algos.CD.atoms=3",
    "algos.DPO.sft_weight=0.1",
    "algos.DPO.aggregate=false",
    "generation.top_p=0.95",
    "evaluation.etas=[0.5]",
    "models.tiny.n_embd=32",
    "models.tiny.n_inner=64",
    "models.tiny.steps=100",
    "datasets.addition.digits=1",
    "datasets.addition.test_size=30",
    "datasets.addition.validation_size=10",
    "training.warmup_steps=1",
    "data_collection.prompts_per_round=30",
    "evaluation.num_prompts=30",
    "evaluation.bootstrap_samples=50",
    "execution.shard_size=20",
    *(
        f"algos.{name}.batch_size=16"
        for name in ("BestOfN", "CD", "DPO", "GRPO", "GRPO-HF", "PITA", "QSharp", "QSharp-HF", "SFT")
    ),
)
Entry = dict[str, Any]
"""``digest`` of bytes, the ``versions`` that cover the code which made them, and the entries that it ``reads``."""


def differences(before: dict[str, Entry], after: dict[str, Entry]) -> dict[str, str]:
    """What must be done about entries that are not as they were: name -> words.

    A stage that reads what another wrote is covered by the versions of that one too, as its key is.
    """
    names = before.keys() & after.keys()
    raised = {name for name in names if before[name]["versions"] != after[name]["versions"]}
    other = {name for name in names if before[name]["digest"] != after[name]["digest"]}
    found = dict.fromkeys(after.keys() - names, "is new") | dict.fromkeys(before.keys() - names, "is gone")
    found |= dict.fromkeys(raised, "has other versions")
    for name in other - raised:
        upstream = _upstream(after, name)
        if not upstream & raised:
            reads = upstream & other
            cause = f"as did {', '.join(sorted(reads))}, which it reads" if reads else "raise one of"
            found[name] = f"{UNCOVERED}: {cause} {'' if reads else ', '.join(after[name]['versions'])}".rstrip()
    return dict(sorted(found.items()))


def _upstream(entries: dict[str, Entry], name: str) -> set[str]:
    found: set[str] = set()
    pending = [name]
    while pending:
        for reads in entries.get(pending.pop(), {}).get("reads", ()):
            if reads not in found and reads != name:
                found.add(reads)
                pending.append(reads)
    return found


UNCOVERED = "wrote other bytes under the same versions, so stored outputs of the old code would answer for the new"


def measure() -> dict[str, Any]:
    """Today's digests, made in a process with plain arithmetic."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        done = subprocess.run(
            [sys.executable, "-m", "tests.golden", "--into", str(result), "--scratch", folder],
            cwd=HERE.parent,
            env={**os.environ, **PLAIN_ARITHMETIC},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        measured: dict[str, Any] = json.loads(result.read_text())
        return measured


def _measure_here(scratch: Path) -> dict[str, Any]:
    return {"arithmetic": _arithmetic(), "entries": {**_stages(scratch), **_rows(scratch), **_scores()}}


def _stages(scratch: Path) -> dict[str, Entry]:
    from rich.console import Console

    from pipeline.config.load import load_config
    from pipeline.experiment import run_experiment

    output = scratch / "outputs"
    assert run_experiment(load_config([*RUN, f"output_dir={output}"]), Console(quiet=True)) == 0
    plan = json.loads((output / "golden" / "latest" / "plan.json").read_text())
    found: dict[str, Entry] = {}
    name_of = {job["key"]: f"stage {job['algo']} r{job['round']}/{job['stage']}" for job in plan["jobs"]}
    for job in plan["jobs"]:
        known = job["determined_by"]
        manifest = json.loads((output / ".store" / job["key"][:2] / job["key"] / "manifest.json").read_text())
        entry = found.setdefault(name_of[job["key"]], {"digest": [], "versions": {}, "reads": set()})
        entry["digest"].append([job["id"], manifest["files"]])
        entry["reads"] |= {name_of[key] for keys in job["inputs"].values() for key in keys}
        entry["versions"] |= {
            f"{job['algo']}.version": known["version"],
            **plan["sections"][known["config"]].get("version", {}),
        }
    return {
        name: {**entry, "digest": _digest(entry["digest"]), "reads": sorted(entry["reads"] - {name})}
        for name, entry in found.items()
    }


def _rows(scratch: Path) -> dict[str, Entry]:
    from pipeline.config.schema import (
        AdditionConfig,
        GSM8KConfig,
        IMDBConfig,
        MathConfig,
        StarGraphConfig,
        TLDRConfig,
    )
    from pipeline.datasets.base import SPLITS
    from pipeline.datasets.prepared import prepare
    from pipeline.datasets.registry import load_dataset
    from pipeline.plan.versions import PREPARATION

    data = HERE / "data"
    configs = [
        AdditionConfig(kind="addition", test_size=10, validation_size=10),
        GSM8KConfig(kind="gsm8k", path=str(data / "gsm8k")),
        IMDBConfig(kind="imdb_sentiment", path=str(data / "aclImdb"), prompt_words=3),
        MathConfig(kind="math", path=str(data / "math"), test_path=str(data / "math_500")),
        StarGraphConfig(kind="star_graph", train_size=50, test_size=10, validation_size=10),
        TLDRConfig(kind="tldr", path=str(data / "tldr")),
    ]
    found = {}
    for config in configs:
        dataset = load_dataset(config)
        kind = type(dataset)
        if kind.prepared:
            folder = scratch / config.kind
            prepare(config, folder)
            dataset = load_dataset(config, folder)
        rows = {split: [asdict(dataset.row(int(i))) for i in dataset.ids(split)[:20]] for split in SPLITS}
        shown = [dataset.demonstration(i, 0.3) for i in range(5)] if not kind.prepared else []
        found[f"rows {config.kind}"] = {
            "digest": _digest([rows, shown]),
            "versions": {f"{kind.__name__}.version": kind.version, "PREPARATION": PREPARATION},
        }
    return found


_ANSWERS = (
    ("1 + 1 = 2\n#### 2", "2"),
    ("so it is \\boxed{\\frac{1}{2}}", "0.5"),
    ("The answer is $1,250.50.", "1250.5"),
    ("2,7,4", "2,7,4"),
    ("42", "42"),
    ("a wonderful, moving film!", "42"),
    ("dull. I hated every minute of it", "42"),
    ("", ""),
)


def _scores() -> dict[str, Entry]:
    from pipeline.rewards.registry import REWARDS, load_reward
    from pipeline.rewards.traits import traits_of

    found = {}
    for name in sorted(REWARDS):
        function = load_reward(name)
        completions = [text for text, _ in _ANSWERS]
        scores = function(
            prompts=["2,7|7,4|2,9/2,4="] * len(completions),
            completions=completions,
            completion_ids=[[1, 2]] * len(completions),
            solution=[answer for _, answer in _ANSWERS],
        )
        found[f"reward {name}"] = {
            "digest": _digest(list(scores)),
            "versions": {f"RewardTraits.version of {name}": traits_of(function).version},
        }
    return found


def _arithmetic() -> dict[str, str]:
    """What digests of floats depend on besides our code: libraries, and a training of some common layers."""
    import numpy as np
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Embedding(50, 48),
        torch.nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, activation="gelu", batch_first=True),
        torch.nn.LayerNorm(48),
        torch.nn.Linear(48, 50),
    )
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-2)
    for step in range(20):
        ids = (torch.arange(7 * (8 + step)).view(7, -1) * (step + 3)) % 50
        loss = torch.nn.functional.cross_entropy(layers(ids).flatten(0, 1), ids.roll(1, 1).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = b"".join(weight.detach().numpy().tobytes() for weight in layers.parameters())
    curve = np.exp(np.linspace(-5, 5, 1001)).cumsum()
    return {
        "machine": platform.machine(),
        "probe": hashlib.sha256(weights + curve.tobytes() + np.log(curve).sum().tobytes()).hexdigest()[:16],
        **{name: version(name) for name in LIBRARIES},
    }


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def main(arguments: list[str]) -> int:
    """Compare, or write."""
    if "--into" in arguments:
        target, scratch = (Path(arguments[arguments.index(name) + 1]) for name in ("--into", "--scratch"))
        target.write_text(json.dumps(_measure_here(scratch)))
        return 0
    before = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"arithmetic": {}, "entries": {}}
    after = measure()
    same_arithmetic = before["arithmetic"] == after["arithmetic"]
    found = differences(before["entries"], after["entries"])
    for name, words in found.items():
        print(f"{name} {words}")
    uncovered = [name for name, words in found.items() if words.startswith(UNCOVERED)]
    if not same_arithmetic:
        print("the arithmetic is another one: floats may differ for no change of ours")
    elif uncovered:
        return 1
    if "--write" in arguments:
        GOLDEN.write_text(json.dumps(after, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
