"""Evaluate a finished run, or checkpoints of any program, on further test sets.

Both are ordinary requests. For a run it is the run's own request with a longer section `evaluation`, so that only
missing results are computed; for checkpoints it is a request without algorithms.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from omegaconf import OmegaConf

from pipeline.commands import typed
from pipeline.commands.run import run_experiment
from pipeline.config.checks import checkpoint_problems
from pipeline.config.load import COMPOSITION_ERRORS, config_from_plain, explain, load_config, quoted
from pipeline.config.plain import brief, refuse_all
from pipeline.config.schema import Config
from pipeline.config.tables import choices_of, point_of
from pipeline.engine.run_folder import RunFolder
from pipeline.errors import ConfigError, unknown_name
from pipeline.learning.datasets.files import is_hub_id
from pipeline.runs.loaded import LoadedRun, load_planned, runs_of
from pipeline.runs.origin import read_origin
from pipeline.terminal.console import make_console, say

app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class _Extension:
    """What to evaluate besides what a run has.

    Attributes:
        on: Test sets.
        also: Further checkpoints, as NAME=PATH.
        chain: Algorithms to compute alone; None for all.
        samples: Completions per prompt, in all; None for as many as before.
        prompts: Prompts, in all; None likewise.
        settings: Further settings.
    """

    on: list[str]
    also: list[str]
    chain: list[str] | None
    samples: int | None
    prompts: int | None
    settings: list[str]

    def options(self) -> list[str]:
        """Return these as options of the command, without settings."""
        many = {"--on": [",".join(self.on)] if self.on else [], "--also": self.also, "--chain": self.chain or []}
        numbers = {"--samples": self.samples, "--prompts": self.prompts}
        said = [(option, one) for option, words in many.items() for one in words]
        said += [(option, str(number)) for option, number in numbers.items() if number]
        return [part for pair in said for part in pair]

    def has_section(self, name: str) -> bool:
        """Return whether its settings make a dataset of this name."""
        return any(each.startswith(f"datasets.{name}.") for each in self.settings)


_SETTING = re.compile(r"[A-Za-z_][\w.@-]*=.*", re.DOTALL)


@app.command(
    epilog=typed.examples(
        "pipeline evaluate first_run --on math,gsm8k",
        "pipeline evaluate first_run --samples 16            # draws the missing ones alone",
        "pipeline evaluate first_run --also sft=/models/sft --chain DPO",
        "pipeline evaluate /models/a owner/b --on gsm8k evaluation.num_samples=4",
    )
)
def evaluate(
    words: Annotated[
        list[str],
        typer.Argument(
            help="An experiment, or checkpoints (folders, GGUF files, hub ids); then any KEY=VALUE.",
            autocompletion=typed.experiments,
        ),
    ],
    on: Annotated[list[str] | None, typer.Option(help="Test sets: A,B or several --on.")] = None,
    also: Annotated[list[str] | None, typer.Option(help="Another checkpoint as a row: NAME=PATH.")] = None,
    chain: Annotated[list[str] | None, typer.Option(help="Compute for these algorithms of the run alone.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Completions per prompt, in all.")] = None,
    prompts: Annotated[int | None, typer.Option(min=1, help="Prompts, in all.")] = None,
    name: Annotated[
        str, typer.Option(help="Experiment that the evaluation of checkpoints is called.")
    ] = "evaluated",
    output_dir: typed.OutputDir = typed.OUTPUTS,
) -> int:
    """Evaluate a run that is done, or checkpoints, on further test sets; nothing is trained."""
    given: list[str] = []
    settings: list[str] = []
    for word in words:
        (settings if _SETTING.fullmatch(word) and not Path(word).exists() else given).append(word)
    asked = _Extension(
        on=[each for one in on or () for each in one.split(",") if each],
        also=also or [],
        chain=chain,
        samples=samples,
        prompts=prompts,
        settings=settings,
    )
    if not given:
        raise ConfigError("name an experiment or a checkpoint: pipeline evaluate NAME --on SET")
    runs = [word for word in given if (output_dir / word / "latest").exists() and not Path(word).exists()]
    if runs and len(given) > 1:
        other = next((word for word in given if word != runs[0]), runs[0])
        raise ConfigError(
            f"{runs[0]} is an experiment of {output_dir}, which is evaluated alone: '{other}' is too much. "
            f"Write --also NAME={other} for a checkpoint beside it, KEY=VALUE for a setting"
        )
    of_run = len(given) == 1 and (output_dir / given[0] / "latest").exists()
    if of_run:
        config = _of_run(output_dir, given[0], asked)
    else:
        _refuse_of_run(given, output_dir, asked)
        config = load_config(_of_checkpoints(name, output_dir, given, asked))
    named = ["--name", name] if name != "evaluated" else []
    command = ["python", "-m", "pipeline", "evaluate", *words, *asked.options(), *named]
    return run_experiment(
        config, make_console(), given=settings, command=command, only_evaluates=of_run, chains=chain
    )


def _of_run(output_dir: Path, experiment: str, asked: _Extension) -> Config:
    """Return the request of a run, extended by test sets, checkpoints, completions or prompts.

    Raises:
        ConfigError: The request of the run cannot be read, or an extension does not fit it.
    """
    plain: dict[str, Any] = load_planned(_extended(runs_of(output_dir, experiment))).read_config()
    before = [plain["evaluation"]["num_prompts"], plain["evaluation"]["num_samples"]]
    have = [*plain["datasets"], *choices_of("dataset")]  # of a shipped one loading says that nothing trains on it
    new = [f"datasets.{one}.trained_on=false" for one in asked.on if one not in have and asked.has_section(one)]
    try:
        merged: Any = OmegaConf.merge(OmegaConf.create(plain), OmegaConf.from_dotlist([*new, *asked.settings]))
        plain = cast("dict[str, Any]", OmegaConf.to_container(merged))
    except COMPOSITION_ERRORS as error:
        raise explain(error) from error
    plain |= {
        "output_dir": str(output_dir),
        "dry_run": any(word.startswith("dry_run=") for word in asked.settings) and plain["dry_run"],
    }
    plain["experiment"] = {**plain["experiment"], "race": None}  # what it has decided are settings of their own
    section, algos = plain["evaluation"], plain["algos"]
    if not isinstance(kept := section.get("on", []), list):
        raise ConfigError(f"evaluation.on={brief(kept)}: must be a list, as 'evaluation.on=[gsm8k]'")
    section["on"] = list(dict.fromkeys([*kept, *asked.on]))
    # A set that `evaluation.on=[...]` of the command leaves out is left out as a section, too.
    plain["datasets"] = {
        each: own
        for each, own in plain["datasets"].items()
        if each in section["on"] or own.get("trained_on", True) or asked.has_section(each)
    }
    section["also"] = {**section.get("also", {}), **_named(asked.also)}
    for gone in [each for each, place in section["also"].items() if place is None]:  # evaluation.also.NAME=null
        del section["also"][gone]
        algos.pop(gone, None)
    if asked.chain is not None:
        run = [algo for algo, own in algos.items() if own.get("enabled")]
        fronts = {point_of(algo)[0] for algo in run}
        for one in asked.chain:
            if one not in run and one not in fronts:
                raise ConfigError(f"--chain {one}: {unknown_name('algorithm of the run', one, run)}")
    set_, now = [section["num_prompts"], section["num_samples"]], [asked.prompts, asked.samples]
    sizes = [old if new is None else new for old, new in zip(set_, now, strict=True)]
    if all(isinstance(each, int) for each in sizes):  # of others the settings say what is wrong
        new_set = next((each for each in asked.on if each not in kept), "SET")
        fewer = (f"{section.get('split', 'test')}_size={{}}", "sampling={{num_samples: {}}}")
        for option, old, size, own in zip(("--prompts", "--samples"), before, sizes, fewer, strict=True):
            if size < old:
                raise ConfigError(
                    f"{option} {size}: the run has {old}, and an evaluation can only grow. For fewer of a new "
                    f"test set alone write 'datasets.{new_set}.{own.format(size)}'"
                )
    looks = [number for of in (plain["experiment"].get("looks") or {}).values() for number in of]
    if looks and (sizes != before or min(looks) < (asked.prompts or 0)):
        options = {"--prompts": asked.prompts, "--samples": asked.samples}
        named = " ".join(f"{option} {size}" for option, size in options.items() if size)
        raise ConfigError(
            f"{named}: what a race has evaluated cannot grow. Run what `pipeline command NAME` prints under "
            "another experiment.name, with these numbers, without experiment.looks: no policy is trained again"
        )
    if sizes != before:
        section["grown_from"] = [*section.get("grown_from", []), before]
        section["num_prompts"], section["num_samples"] = sizes
    return config_from_plain(plain)


def _extended(runs: list[RunFolder]) -> RunFolder:
    """Return the newest run, without evaluations that ended early: the settings of these may be at fault."""
    for run in reversed(runs):
        if not read_origin(run.path).only_evaluates or LoadedRun(run).state in ("done", "running"):
            if run != runs[-1]:
                left_out = f"the settings of the evaluation {runs[-1].stamp}, which ended early, are left out"
                say(make_console(), f"This extends the run {run.stamp}; {left_out}")
            return run
    return runs[-1]


def _refuse_of_run(given: list[str], output_dir: Path, asked: _Extension) -> None:
    """Reject words that name neither an experiment nor a checkpoint, and checkpoints without a test set."""
    for word in given:
        if not Path(word).exists() and not ("/" in word and is_hub_id(word.partition("@")[0])):
            known = [path.parent.name for path in output_dir.glob("*/latest")]
            said = unknown_name("experiment", word, known)
            raise ConfigError(f"{said} A checkpoint is a folder, a GGUF file or a hub id OWNER/NAME.")
    if not asked.on:
        raise ConfigError("say on which test sets: --on gsm8k; `python -m pipeline help dataset` lists them")
    if asked.chain is not None:
        raise ConfigError("--chain is for an experiment, and checkpoints have no chains")


def _of_checkpoints(name: str, output_dir: Path, given: list[str], asked: _Extension) -> list[str]:
    """Return settings that evaluate checkpoints; the first checkpoint takes the place of the reference."""
    first, revision = _place(given[0])
    shipped = choices_of("dataset")
    beside, sets = _named(asked.also), asked.on
    others = {**{_called(path): path for path in given[1:]}, **beside}
    if len(others) < len(given) - 1 + len(beside):
        raise ConfigError("several checkpoints have the same name: give them as --also NAME=PATH")
    found = [f"experiment.name={name}", f"output_dir={quoted(str(output_dir))}", "algos=[]", "model=hf"]
    found += [f"models.hf.path={quoted(first)}", *([f"models.hf.revision={quoted(revision)}"] if revision else [])]
    found += [f"dataset=[{sets[0] if sets[0] in shipped else ''}]", f"evaluation.on=[{','.join(sets)}]"]
    found += [f"datasets.{each}.trained_on=false" for each in sets[1:] if each not in shipped]
    # The first set takes the place of one that is trained on, but nothing is to be held out from its file either.
    key = f"datasets.{sets[0]}"
    settings = [word for word in asked.settings if word != f"{key}.trained_on=false"]
    own = dict(word.split("=", 1) for word in settings)
    if Path(own.get(f"{key}.path", "").strip("'\"") or ".").is_file() and f"{key}.test_path" not in own:
        found.append(f"{key}.evaluation_only=true")
    found += [f"evaluation.also={{{', '.join(f'{each}: {quoted(path)}' for each, path in others.items())}}}"]
    found += [] if asked.samples is None else [f"evaluation.num_samples={asked.samples}"]
    found += [] if asked.prompts is None else [f"evaluation.num_prompts={asked.prompts}"]
    return [*found, "rounds_of_training=1", *settings]


def _named(also: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in also:
        name, equals, path = word.partition("=")
        if not (equals and name and path):
            raise ConfigError(f"--also {word}: write NAME=PATH, as --also sft=/models/sft")
        refuse_all([*checkpoint_problems(f"--also {word}", name)])
        if name in found:
            raise ConfigError(f"--also {word}: {name} is {found[name]} already; give each checkpoint its own name")
        found[name] = path
    return found


def _place(word: str) -> tuple[str, str]:
    """Split a word into a path, or a hub id, and its revision."""
    if Path(word).exists():
        return str(Path(word).absolute()), ""
    path, _, revision = word.partition("@")
    return path, revision


def _called(path: str) -> str:
    """Derive a plain name for a checkpoint from the end of its path."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(_place(path)[0]).name).strip("-._") or "checkpoint"
