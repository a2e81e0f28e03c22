"""Digests of what every stage writes in a small run, and the versions that cover it.

    python -m tests.golden            what changed against tests/data/golden.json
    python -m tests.golden --write    keep today's digests

Writing is refused where bytes changed and no version was raised. Float rounding depends on the versions of
libraries and, where arithmetic is not portable, on the processor. What stages write is therefore compared, and
written, only where the kind of machine and the versions are those of the file; all x86-64 processors with AVX2 are
one kind. Rows, rewards and tables of plain functions are compared everywhere; a reward that needs a package, where
its version is that of the file. To begin anew with other versions, remove the file first.

Curves of trainings are entries of their own, apart from the rest of what their stages write, and have a version
that no key covers: people look at them and no stage reads them, so what they tell may change, while stored outputs
go on serving with the curves that they have, or none.
"""

import hashlib
import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GOLDEN = HERE / "data" / "golden.json"
LIBRARIES = ("numpy", "peft", "safetensors", "tokenizers", "torch", "transformers", "trl")
NOTES_A_PATH = ("stage jsonl reference r0/train",)
"""Stages that write where a model lies, which is another folder in every run."""
CURVES_VERSION = 2
"""Of what `metrics.jsonl` tells of a training; raise it with that. Outputs that are stored keep what they have."""
EXACT = ("rows ", "reward ", "table ")
"""Entries that are made without floats of torch, so they are the same on every machine."""
Entry = dict[str, Any]
"""``digest`` of bytes, the ``versions`` that cover the code which made them, the entries that it ``reads``, and
the versions of the ``packages`` that it depends on."""
Measured = dict[str, Any]
"""The ``arithmetic`` of a machine, and ``entries`` by name."""


UNCOVERED = "wrote other bytes under the same versions, so stored outputs of the old code would answer for the new"


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


def incomparable(before: Measured, after: Measured) -> set[str]:
    """Names of entries whose bytes may differ for no change of ours."""
    same_arithmetic = before["arithmetic"] == after["arithmetic"]
    one, other = before["entries"], after["entries"]
    return {
        name
        for name in one.keys() & other.keys()
        if _other_packages(one[name], other[name]) or not (same_arithmetic or name.startswith(EXACT))
    }


def _other_packages(one: Entry, other: Entry) -> bool:
    """Whether a package that both name has another version; which ones are named is ours to change."""
    before, after = (each.get("packages", {}) for each in (one, other))
    return any(before[name] != after[name] for name in before.keys() & after.keys())


def compare(before: Measured, after: Measured) -> dict[str, str]:
    """What must be done, as of `differences`, about entries that can be compared: name -> words."""
    unsure = incomparable(before, after)
    found = differences(before["entries"], after["entries"])
    return {name: words for name, words in found.items() if name not in unsure or not words.startswith(UNCOVERED)}


def measure_here(scratch: Path) -> Measured:
    """Today's digests, made in this process, whose arithmetic is pinned.

    Args:
        scratch: An empty folder.
    """
    from pipeline.machine.memory import imported_for_good
    from tests.golden_runs import addition_run, packed_run, texts_run

    (scratch / "models").mkdir()
    with imported_for_good():
        texts = texts_run(scratch / "models")
    entries = {
        **_stages(addition_run(), scratch / "addition"),
        **_stages(texts, scratch / "texts"),
        **_stages(packed_run(texts), scratch / "texts"),
        **_tokens(),
        **_rows(scratch),
        **_scores(),
        **_tables(scratch),
    }
    return {"arithmetic": _arithmetic(), "entries": entries}


def _stages(run: tuple[str, ...], output: Path) -> dict[str, Entry]:
    from rich.console import Console

    from pipeline.commands.run import run_experiment
    from pipeline.config.load import load_config
    from pipeline.outputs.formats import CURVES, GUIDANCE

    config = load_config([*run, f"output_dir={output}"])
    assert run_experiment(config, Console(stderr=True)) == 0
    plan = json.loads((output / config.experiment.name / "latest" / "plan.json").read_text())
    found: dict[str, Entry] = {}
    name_of = {
        job["key"]: f"stage {job['dataset']} {job['algo']} r{job['round']}/{job['stage']}" for job in plan["jobs"]
    }
    for job in plan["jobs"]:
        known = job["determined_by"]
        manifest = json.loads((output / ".store" / job["key"][:2] / job["key"] / "manifest.json").read_text())
        entry = found.setdefault(name_of[job["key"]], {"digest": [], "versions": {}, "reads": set()})
        files = manifest["files"]
        curve = files.pop(CURVES, None)
        _put_whole(files, job, output / ".store", config.models[job["model"]])
        files.pop(GUIDANCE, None)  # settings that the key covers; tests hold it, and no stage reads it
        entry["digest"].append([job["id"], files])
        entry["reads"] |= {name_of[key] for keys in job["inputs"].values() for key in keys}
        entry["versions"] |= {
            f"{job['algo']}.version": known["version"],
            **plan["sections"][known["config"]].get("version", {}),
        }
        if curve:
            empty = {"digest": [], "versions": {"CURVES_VERSION": CURVES_VERSION}, "reads": {name_of[job["key"]]}}
            of_curve = found.setdefault(name_of[job["key"]].replace("stage", "curve", 1), empty)
            of_curve["digest"].append([job["id"], curve])
    return {
        name: {**entry, "digest": _digest(entry["digest"]), "reads": sorted(entry["reads"] - {name})}
        for name, entry in found.items()
        if name not in NOTES_A_PATH
    }


def _put_whole(files: dict[str, Any], job: dict[str, Any], store: Path, model: Any) -> None:
    """In place of adapters have the policy that they make: an earlier version stored that under the same key."""
    from pipeline.config.schema import SystemConfig
    from pipeline.files import file_sha256
    from pipeline.learning.models.load import load_policy
    from pipeline.learning.models.source import reference_folder
    from pipeline.outputs.formats import ADAPTERS, FOLDER

    if files.pop(ADAPTERS, None) is None:
        return
    for name in [name for name in files if name.startswith(f"{FOLDER}/")]:
        del files[name]
    (reference,) = job["inputs"]["reference.train"]
    base = reference_folder(store / reference[:2] / reference, model)
    whole = load_policy(store / job["key"][:2] / job["key"], SystemConfig(), "cpu", base=base)
    whole.config._name_or_path = ""
    with tempfile.TemporaryDirectory() as folder:
        whole.save_pretrained(folder)
        for file in Path(folder).iterdir():
            files[file.name] = {"size": file.stat().st_size, "sha256": file_sha256(file)}


def _tokens() -> dict[str, Entry]:
    """What DPO trains on of pairs that a dataset has, where prompts are texts and where they are conversations."""
    from pipeline.learning.algos.dpo import DPO, Encoding, existing_sequences
    from pipeline.learning.datasets.base import Row
    from pipeline.learning.datasets.prepared import encode_prompts
    from pipeline.plan.contents import PREPARATION
    from tests.golden_runs import texts_tokenizer

    tokenizer = texts_tokenizer()
    turn = {"role": "user", "content": "what is 1 plus 2?"}
    begun = {"role": "assistant", "content": "it is"}
    answers = {"chosen": "it is 3.", "rejected": "a bad 4"}
    turns = {name: [{"role": "assistant", "content": text}] for name, text in answers.items()}
    said = [
        [column.tolist() for column in (pairs.ids, pairs.starts)]
        for rows in ([Row(0, "what is 1 plus 2? ", {}, **answers)], [Row(0, [turn], {}, **turns)])
        for pairs, *_ in [existing_sequences(rows, Encoding(tokenizer))]
    ]
    prompts = [encode_prompts(tokenizer, some) for some in (["it is"], [[turn], [turn, begun]])]
    contents = {"DPO.version": DPO.version, "PREPARATION": PREPARATION}
    return {"tokens of texts": {"digest": _digest([said, prompts]), "versions": contents}}


def _tables(scratch: Path) -> dict[str, Entry]:
    from pipeline.plan import contents
    from tests.golden_tables import tables

    return {
        f"table {name}": {"digest": _digest(said), "versions": {part: getattr(contents, part)}}
        for name, (said, part) in tables(scratch).items()
    }


def _rows(scratch: Path) -> dict[str, Entry]:
    from pipeline.learning.datasets.base import SPLITS, load_dataset
    from pipeline.learning.datasets.prepared import prepare
    from pipeline.learning.datasets.shipped import (
        AdditionConfig,
        GSM8KConfig,
        IMDBConfig,
        MathConfig,
        StarGraphConfig,
        TLDRConfig,
    )
    from pipeline.plan.contents import PREPARATION

    data = HERE / "data"
    configs = [
        AdditionConfig(kind="addition", test_size=10, validation_size=10),
        GSM8KConfig(kind="gsm8k", path=str(data / "gsm8k")),
        IMDBConfig(kind="imdb_sentiment", path=str(data / "aclImdb"), prompt_words=3),
        MathConfig(kind="math", path=str(data / "math"), test_path=str(data / "math_500")),
        StarGraphConfig(
            kind="star_graph", degree=5, random_arm=0.5, train_size=50, test_size=10, validation_size=10
        ),
        TLDRConfig(kind="tldr", path=str(data / "tldr")),
    ]
    found = {}
    for config in configs:
        dataset = load_dataset(config)
        kind = type(dataset)
        if kind.prepared:
            folder = scratch / config.kind
            prepare(load_dataset(config), folder)
            dataset = load_dataset(config, folder)
        rows = {split: [asdict(dataset.row(int(i))) for i in dataset.ids(split)[:20]] for split in SPLITS}
        shown = [dataset.demonstration(i, 0.3) for i in range(5)] if not kind.prepared else []
        rounds = [dataset.round_ids(3, number, 7).tolist() for number in (1, 2, 3, 10)]
        found[f"rows {config.kind}"] = {
            "digest": _digest([rows, rounds, shown]),
            "versions": {f"{kind.__name__}.version": kind.version, "PREPARATION": PREPARATION},
        }
    return found


_ANSWERS = (
    ("1 + 1 = 2\n#### 2", "2"),
    ("so it is \\boxed{\\frac{1}{2}}", "0.5"),
    ("\\boxed{\\tfrac12} or \\fbox{ \\tfrac{1}{2}. }", "\\boxed{\\frac{1}{2}}"),
    ("\\boxed 7, not $\\boxed{8", "7"),
    ("The answer is $1,250.50.", "1250.5"),
    ("#### 3 of 4\nor 5", "3"),
    ("it falls to -5", "5"),
    ("it falls to -$1,000", "#### -1000"),
    ("10-20", "20"),
    ("no number ####", "none"),
    ("$x^2 - 1 = (x-1)(x+1)$", "$(x+1)(x-1)$"),
    ("$\\{1, 2\\}$ and then $[0, 1)$", "[0,1)"),
    ("it is 50%", "0.5"),
    ("3 apples", "4"),
    ("2,7,4", "2,7,4"),
    (" 2 , 7,4", "2,7,4"),
    ("2,4", "2,4"),
    ("2,9", "2,7,4"),
    ("7,4", "2,7,4"),
    ("42", "42"),
    ("a wonderful, moving film!", "42"),
    ("dull. I hated every minute of it", "42"),
    ("", ""),
)


def _scores() -> dict[str, Entry]:
    from pipeline.config.tables import REWARDS
    from pipeline.learning.rewards.calling import traits_of
    from pipeline.learning.rewards.registry import load_reward, package_versions

    completions, solution = (list(column) for column in zip(*_ANSWERS, strict=True))
    settings: dict[str, dict[str, Any]] = {"length": {"per": 3}, "vader": {"unit": True, "with_prompt": True}}
    found = {}
    for name in sorted(REWARDS.keys() - {"ifeval"}):  # which lm_eval judges, by other columns
        function: Any = load_reward(name)
        traits = traits_of(function)
        given = {
            "prompts": ["2,7|7,4|2,9/2,4="] * len(completions),
            "completions": completions,
            "completion_ids": [[1] * (1 + at % 3) for at in range(len(completions))],
        }
        said = [
            function(**given, solution=solution),
            function(**given, solution=solution, **settings.get(name, {})),
        ]
        votes = [traits.vote(completion) for completion in completions]
        found[f"reward {name}"] = {
            "digest": _digest([*map(list, said), votes]),
            "versions": {f"RewardTraits.version of {name}": traits.version},
            "packages": package_versions(traits),
        }
    return found


def _arithmetic() -> dict[str, str]:
    """What digests of floats depend on besides our code."""
    return {"machine": platform.machine(), **{name: version(name) for name in LIBRARIES}}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def main(arguments: list[str]) -> int:
    """Compare, or write."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch
    before = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else None
    with tempfile.TemporaryDirectory() as folder:
        after = measure_here(Path(folder))
    found = compare(before or {"arithmetic": {}, "entries": {}}, after)
    for name, words in found.items():
        print(f"{name} {words}")
    if "--write" not in arguments:
        return 1 if found else 0
    if any(words.startswith(UNCOVERED) for words in found.values()) or (before and incomparable(before, after)):
        print("not written: raise a version first, or use the machine and packages that the file was made with")
        return 1
    GOLDEN.write_text(json.dumps(after, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
