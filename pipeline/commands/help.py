"""What ``--help`` says of the main command: what it is for, what is typed most, and where the rest is."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.config.install import conf_dir

_TEXT = """\
Train and compare methods of language-model post-training, round by round.
Settings become a plan of jobs, workers on the GPUs or CPU cores of this machine
carry them out, and a table compares what came of them.

    {command} experiment.name=NAME [KEY=VALUE ...] [FLAG ...]

That alone trains a tiny model on sums, which takes a minute or so on two cores.
Further words, any of them together:
    dry_run=true                        the plan, and what of it is stored
    'algos=[PITA,DPO,GRPO]'             choices of a group
    'experiment.seeds=[0,1,2]'          three chains for each algorithm
    rounds_of_training=3 algos.PITA.eta=0.5          any key
    dataset=jsonl datasets.jsonl.path=FILE           data of your own
    model=hf models.hf.path=FOLDER_OR_HUB_ID         another model
    profile=a100_80gb                   values for a GPU
    --num-gpus 2                        two GPUs, the idlest
    --multirun algos.PITA.eta=0.5,1.0   a run for each value
    --cfg job                           print the configuration and stop
The same command again goes on from where it was, and computes nothing twice.

Groups (GROUP=CHOICE; algos, dataset and model also 'GROUP=[CHOICE,CHOICE]'):
{groups}

Flags:
    --num-gpus N             so many GPUs, the idlest
    --gpu-ids 0 2 3          these GPUs; `{other} gpus` lists them
    --device cpu             no GPU
    --multirun, -m           a run for each combination of values with commas
    --cfg job                the configuration; `-p algos` a part of it
    --config-dir, -cd DIR    a folder of groups of your own
    --hydra-help             further flags, which are Hydra's
    --version, --help

What a key means, its type, range, unit and default; also of a group of keys:
    {other} help KEY
Looking at runs, GPUs and the store:
    {other} --help
"""


def usage() -> str:
    """The text, with the command as it was typed."""
    command = typed_command()
    groups = [folder for folder in sorted(conf_dir().iterdir()) if any(folder.glob("*.yaml"))]
    return _TEXT.format(
        command=command,
        groups="\n".join(_group(folder) for folder in groups),
        other="pipeline" if command.startswith("pipeline") else "python -m pipeline",
    )


def typed_command() -> str:
    """How the main command was called: by its script, by the package or by the installed program."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return "python -m pipeline run"
    return f"python {program.name}" if program.suffix == ".py" else f"{program.name} run"


def _group(folder: Path) -> str:
    names = sorted((file.stem for file in folder.glob("*.yaml")), key=str.lower)
    lines = [""]
    for name in names:
        if len(lines[-1] + name) > _WIDTH:
            lines.append("")
        lines[-1] += name if name == names[-1] else f"{name}, "
    return "\n".join(
        f"    {folder.name if number == 0 else '':<12}{line.rstrip()}" for number, line in enumerate(lines)
    )


_WIDTH = 62
