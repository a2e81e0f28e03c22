"""Take a trained model away: ``python -m pipeline export NAME [CHAIN] --to DIR``.

    policy          DIR   the model as transformers loads it, tokenizer, usage.json, README.md
    value model     DIR   the value model, tokenizer, guidance.json, usage.json, README.md
                    DIR/reference   the policy that it guides; one that came from the hub is named instead
    reward model    DIR   a sequence classifier of transformers, tokenizer, README.md; with --reward-model

A value model without its reference is of no use, so the two stay together. Everything is copied, as the store must
not change, and appears under its name when it is whole. Adapters are merged into the weights that they belong to.
"""

import os
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pipeline.commands.report import refuse_records
from pipeline.commands.request import Request, prepare
from pipeline.commands.run import leased, logged_to, notes_of
from pipeline.commands.sharing import bring_model
from pipeline.commands.typed import OUTPUTS, Experiment, OutputDir, Stamp, examples
from pipeline.config.plain import to_plain
from pipeline.config.schema import Backend, SystemConfig
from pipeline.engine.keeper import tell_needs
from pipeline.engine.run_folder import STAMP_FORMAT, RunFolder
from pipeline.engine.run_jobs import run_jobs
from pipeline.engine.scheduler.signals import StopSignals
from pipeline.engine.store.store import REMOVED, Scratch, Store
from pipeline.errors import ConfigError, PipelineError, StoreError
from pipeline.files import json_text
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.learning.algos.base import REFERENCE
from pipeline.learning.algos.policy_config import starts_of
from pipeline.learning.datasets.chat import CLOCK, DATE, asks_clock, dated
from pipeline.learning.datasets.from_files import template_fields
from pipeline.outputs import formats
from pipeline.plan.graph import Plan, missing_jobs
from pipeline.plan.models import is_local, model_files
from pipeline.runs.loaded import LoadedRun, choose_run, load_planned
from pipeline.runs.record import METRICS_STAGE, ResultRow, place_of
from pipeline.runs.report.format import count, shown_path
from pipeline.runs.report.model_card import Card, FittedReward, card_text, command_for_all, settings_for_all
from pipeline.runs.trained import Trained, find_trained
from pipeline.terminal.console import make_console, say

app = typer.Typer()

# -- remake ------------------------------------------------------------------------------------------------------
# A trained model while somebody takes it away: held so that no run removes it, and made again where one has.
# What is made again stays until a run of the experiment removes it anew.


AGAIN = "again"
"""Folder of a run with what became of jobs that were run to make its weights again."""


@contextmanager
def held_model(
    run: LoadedRun, chain: str | None, number: int | None, console: Console, *, rewards: bool = False
) -> Iterator[Trained]:
    """Hold a model that a run has trained, with its weights, inside the block.

    Args:
        run: The run.
        chain: Which of its chains, as `find_trained` takes it.
        number: After which round; None for the last.
        console: Told what has to be made again.
        rewards: The reward models of the chain instead.

    Raises:
        PipelineError: There is no such model, or it cannot be made again.
    """
    store = run.store
    scratch = Scratch(store.scratch(f"export-{secrets.token_hex(4)}-{os.getpid()}"))
    with ExitStack() as stack:
        stack.callback(scratch.close)
        with suppress(OSError, StoreError):  # a store that may only be read: nobody removes anything there
            scratch.open()
        found = find_trained(
            run,
            chain,
            number,
            rewards=rewards,
            also_gone=True,
            bring=lambda model: bring_model(model, scratch.path, console),
        )
        with suppress(OSError, StoreError):
            tell_needs(store, scratch.path, [found.job.key])
        if store.problem(found.job.key, checksums=False) is not None:
            stack.enter_context(_made_again(found, scratch.path, console))
        yield found


@contextmanager
def _made_again(found: Trained, scratch: Path, console: Console) -> Iterator[None]:
    store, key = found.run.store, found.job.key
    request = _request_of(found)
    target = next((job for job in request.plan.jobs.values() if job.key == key), None)
    if target is None:
        said = "its weights are gone, and its run would make others now (`python -m pipeline why`)"
        raise ConfigError(f"{found.job.id}: {said}. Run the experiment again")
    plan = request.plan.up_to([target.id])
    with store.in_use(found.run.folder.path.parent.parent), notes_of(request) as verified:
        problem = verified.problem
        whole, enough = (lambda key: problem(key) is None), (lambda key: problem(key) in (None, REMOVED))
        missing = missing_jobs(plan, whole, enough, whole=[target.id])
        again = [job for job_id in missing if (job := plan.jobs[job_id]).weights]
        tell_needs(store, scratch, {job.key for job in again})
        _run(request, plan, missing, found, console)
        yield


def _request_of(found: Trained) -> Request:
    config, run = found.config, found.run
    config.output_dir, config.execution.store = str(run.folder.path.parent.parent), str(run.store.root)
    config.execution.backend = Backend.local  # a few jobs for who looks from here
    return prepare(config)


def _run(request: Request, plan: Plan, missing: list[str], found: Trained, console: Console) -> None:
    folder = RunFolder(found.run.folder.path / AGAIN / f"{datetime.now():{STAMP_FORMAT}}_{secrets.token_hex(4)}")
    folder.path.mkdir(parents=True)
    text = f"{found.job.id}: its weights are gone; running {count(len(missing), 'job')} to make them again. Log:"
    say(console, text, copy=shown_path(folder.log))
    config = request.config
    with leased(config, console) as lease, logged_to(folder.log), StopSignals() as signals:
        outcome = run_jobs(
            plan,
            request.store,
            lease.devices,
            folder.path,
            execution=config.execution,  # in workers also where the run had none: their arithmetic is the same
            threads=config.system.cpu_threads,
            portable=config.system.portable,
            missing=missing,
            signals=signals,
        )
    problem = outcome.halted or (f"interrupted by {outcome.interrupted}" if outcome.interrupted else "")
    if problem := problem or next((f"{job_id}: {reason}" for job_id, reason in outcome.failures()), ""):
        raise StoreError(f"{found.job.id}: its weights were not made again: {problem}. Log: {folder.log}")


# -- the folder -------------------------------------------------------------------------------------------------


HEAD_SETTINGS = "value_head.json"
REFERENCE_FOLDER = "reference"
README = "README.md"
_TOKENIZER = "tokenizer_config.json"
_QUESTION = "What is 12 plus 30?"
_SECTIONS = ("training", "data_collection", "generation", "evaluation", "system")


@app.command(
    epilog=examples(
        "pipeline export first_run PITA --to models/pita",
        "pipeline export first_run s0/QSharp --round 1 --to models/qsharp",
        "pipeline export my_run GRPO-HF --reward-model --to models/reward",
    )
)
def export(
    name: Experiment,
    to: Annotated[Path, typer.Option(help="The folder to write: a new one, or an empty one.")],
    chain: Annotated[
        str | None,
        typer.Argument(help="Which chain, as PITA or s0/DPO; not needed where only one trains a model."),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--round", min=0, help="After another round than the last.")
    ] = None,
    reward_model: Annotated[
        bool, typer.Option("--reward-model", help="The reward model of the chain, as a sequence classifier.")
    ] = False,
    fold: Annotated[
        int | None,
        typer.Option(min=0, help="With --reward-model: which of several, each fitted to all folds but its own."),
    ] = None,
    run: Stamp = None,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Copy a trained model into a folder of its own."""
    _check_free(to)
    if fold is not None and not reward_model:
        raise ConfigError(f"--fold {fold}: only reward models have folds; add --reward-model")
    found_run, console = load_planned(choose_run(output_dir, name, run)), make_console()
    refuse_records("--to", to.expanduser(), [found_run])
    with held_model(found_run, chain, number, console, rewards=reward_model) as found:
        _check_fold(found, fold)
        _check_whole(found_run.store, found)
        _write(found, to, fold or 0)
    kind = "value model with its reference" if found.is_value else "policy"
    if reward_model:
        folds = len(found.reward_models)
        kind = f"reward model of fold {fold or 0} of {folds}" if folds > 1 else "reward model"
    say(console, f"{kind}: {found.job.chain}, round {found.job.round}: {to}")


def _check_free(to: Path) -> None:
    """Refuse a place where something is."""
    if to.is_dir() and not any(to.iterdir()):
        return
    if to.exists() or to.is_symlink():
        raise ConfigError(f"--to {to}: there is something already; name a new folder, or an empty one")


def _check_fold(found: Trained, fold: int | None) -> None:
    if fold is not None and fold >= (count := len(found.reward_models)):
        there = f"must be 0 to {count - 1}" if count > 1 else "there is one reward model; leave --fold out"
        raise ConfigError(f"--fold {fold}: {there}")


def _check_whole(store: Store, found: Trained) -> None:
    """Refuse weights that are not what was stored: every byte of them is read."""
    for output in {found.folder, found.reference}:
        if (problem := store.problem(output.name)) is not None:
            again = "The run's command makes it again"
            raise StoreError(f"{found.job.chain}: {output} cannot be exported: {problem}. {again}")
    weights = found.reference_weights if formats.adapter_folders(found.weights) else found.weights
    if found.reward_models:
        weights = found.reward_models[0]
    if not (weights / "config.json").is_file():
        raise StoreError(f"{found.job.chain}: {weights} holds no model that transformers loads")


def _write(found: Trained, to: Path, fold: int) -> None:
    target = to.expanduser().resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as scratch:
            folder = Path(scratch) / "model"
            _fill(found, folder, fold)
            folder.replace(target)
    except OSError as error:
        _check_free(to)  # somebody may have put something there meanwhile
        raise PipelineError(f"cannot write {to}: {error.strerror or error}. Nothing was left there") from error


def _fill(found: Trained, folder: Path, fold: int) -> None:
    usage, guidance, fit = found.usage, None, None
    if found.reward_models:
        fit = _classifier(found, folder, fold)
    elif found.is_value:
        _copy(found.folder, folder)
        shutil.copyfile(found.folder / HEAD_SETTINGS, folder / HEAD_SETTINGS)
        usage = replace(usage, reference=_reference(found, folder))
        # Its reference is here; the key means nothing outside of the store.
        guidance = replace(found.guidance, reference=None)
        (folder / formats.GUIDANCE).write_text(json_text(asdict(guidance), indent=1) + "\n")
    else:
        _copy(found.weights, folder)
        if formats.adapter_folders(found.weights):
            _merge(found, folder)
        _use_alone(found, folder)
    if fit is None:
        known = {name: value for name, value in asdict(usage).items() if value is not None}
        (folder / formats.USAGE).write_text(json_text(known, indent=1) + "\n")
    # Names and settings may hold halves of characters, which no file has.
    (folder / README).write_bytes(card_text(_card(found, usage, guidance, fit)).encode(errors="backslashreplace"))


def _classifier(found: Trained, folder: Path, fold: int) -> FittedReward:
    """Write a reward model as a sequence classifier that reads texts as its run did; tell how it was fitted."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        from pipeline.learning.generation.policy import for_generate
        from pipeline.learning.models import classifier
        from pipeline.learning.models.load import load_tokenizer, load_value, without_progress_bars
    usage, source = found.usage, found.reward_models[fold]
    tokenizer = load_tokenizer(source, trust_remote_code=found.model.trusts_code)
    settings = _generation_settings(found.reference_weights, found)
    ends = for_generate(settings, tokenizer, usage.drawing).eos_token_id or ()
    classifier.pad_apart(tokenizer, ends)
    classifier.end_texts(tokenizer, ends, is_chat=usage.prompting.chat)
    with without_progress_bars():
        model = load_value(source, SystemConfig(), "cpu")
        left_out = model.head.bias.item()
        whole = classifier.as_classifier(model, tokenizer)
        whole.config._name_or_path = ""
        whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if usage.prompting.chat and asks_clock(tokenizer):
        _stop_clock(folder, usage.prompting.date or DATE)
    return FittedReward(fold=fold, folds=len(found.reward_models), left_out=left_out, fit=_fit(found, fold))


def _fit(found: Trained, fold: int) -> formats.ScoresOf:
    """How a reward model was fitted, as its stage tells."""
    with suppress(FileNotFoundError):
        try:
            return formats.read_reward_fit(found.folder / formats.REWARD).fits[fold]
        except (ForeignDataError, LookupError) as error:
            raise StoreError(f"cannot read {found.folder / formats.REWARD}: {error}") from error
    return formats.ScoresOf()


def _copy(source: Path, target: Path) -> None:
    """Copy the files that a loaded model depends on."""
    target.mkdir()
    for file in model_files(source):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, copy)  # what a link leads to, as snapshots of the hub have links


def _merge(found: Trained, folder: Path) -> None:
    """Write a policy of which adapters are stored as one that needs nothing else, in float32."""
    with warnings.catch_warnings():
        # As in a notebook: tqdm, which draws nothing here, may miss what it draws with.
        warnings.filterwarnings("ignore", message="IProgress not found")
        from pipeline.learning.models.load import load_policy, without_progress_bars
    with without_progress_bars():
        whole = load_policy(
            found.weights,
            SystemConfig(),
            "cpu",
            base=found.reference_weights,
            trust_remote_code=found.model.trusts_code,
        )
        whole.config._name_or_path = ""
        whole.save_pretrained(folder)


def _use_alone(found: Trained, folder: Path) -> None:
    """Have a policy draw, end and be asked as in its run by whoever loads it: `generate`, a harness, a server."""
    usage = found.usage
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        from pipeline.learning.generation.policy import for_generate
        from pipeline.learning.models.load import load_tokenizer
    tokenizer = load_tokenizer(folder, trust_remote_code=found.model.trusts_code)
    for_generate(_generation_settings(folder, found), tokenizer, usage.drawing).save_pretrained(folder)
    if usage.prompting.chat and asks_clock(tokenizer):
        _stop_clock(folder, usage.prompting.date or DATE)


def _generation_settings(folder: Path, found: Trained) -> Any:
    """The settings of generation of a model; where it has none, what transformers takes of its configuration."""
    from transformers import AutoConfig, GenerationConfig

    try:
        return GenerationConfig.from_pretrained(folder)
    except OSError:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=found.model.trusts_code)
        return GenerationConfig.from_model_config(config)


def _stop_clock(folder: Path, date: str) -> None:
    """Have the chat templates of a folder tell the date that they told in the run, on any day."""
    for file in folder.glob("*.jinja"):
        if CLOCK in (text := file.read_text()):
            file.write_text(dated(text, date))
    file = folder / _TOKENIZER
    settings = read_json_file(file, dict[str, Any], follow=True, infinite=True)
    found = settings.get("chat_template")
    if isinstance(found, str):
        settings["chat_template"] = dated(found, date)
    elif isinstance(found, list):
        settings["chat_template"] = [{**one, "template": dated(one["template"], date)} for one in found]
    if found:
        file.write_text(json_text(settings, indent=1) + "\n")


def _reference(found: Trained, folder: Path) -> formats.Pointer:
    """Put the reference beside a value model, or name it where everybody can have it from the hub."""
    with suppress(FileNotFoundError):
        try:
            pointer = formats.read_pointer(found.reference / formats.POINTER)
        except ForeignDataError as error:
            raise StoreError(f"cannot read {found.reference / formats.POINTER}: {error}") from error
        if pointer.hub is not None:
            return formats.Pointer(hub=pointer.hub, commit=pointer.commit)
    _copy(found.reference_weights, folder / REFERENCE_FOLDER)
    _use_alone(found, folder / REFERENCE_FOLDER)
    return formats.Pointer(path=REFERENCE_FOLDER)


# -- the card --------------------------------------------------------------------------------------------------


def _card(
    found: Trained,
    usage: formats.Usage,
    guidance: formats.GuidanceSettings | None,
    reward: FittedReward | None,
) -> Card:
    run, job = found.run, found.job
    return Card(
        algo=job.algo,
        dataset=job.dataset,
        usage=usage,
        guidance=guidance,
        reward=reward,
        base=_base(found),
        source=_source(found),
        origin=_origin(found),
        settings=_settings(found),
        rows=_rows_of(found, job.algo, job.round),
        reference=[] if job.algo == REFERENCE else _rows_of(found, REFERENCE, 0),
        confidence=run.results.confidence,
        command=command_for_all(run.origin.command),
        versions=run.origin.versions,
        **_example(found, usage),
    )


def _rows_of(found: Trained, algo: str, number: int) -> list[ResultRow]:
    """Results of a method after a round, where all else is as for the model.

    The training of a reference has no seed of the experiment, but each evaluates it: the first one counts.
    """
    job = found.job
    place = (job.dataset, job.model, job.reference, algo, number)
    rows = [
        row
        for row in found.run.results.rows
        if (row.dataset, row.model, row.reference, row.algo, row.round) == place
    ]
    seed = min((row.seed for row in rows), default=0) if job.algo == REFERENCE else job.seed
    return [row for row in rows if row.seed == seed]


def _base(found: Trained) -> str | None:
    path = found.model.path
    return path if path and not found.model.is_trained and not is_local(path) else None


def _origin(found: Trained) -> str:
    model, data = found.model, found.data
    path = getattr(data, "path", None)
    rows = f"Data: `{found.job.dataset}` (kind `{data.kind}`" + (f", `{_called(path)}`)." if path else ").")
    which = "It" if found.job.algo == REFERENCE else "The reference"
    if found.job.algo == REFERENCE and not model.is_trained:
        return f"{rows} It is a copy of `{_source(found)}`: nothing of it was trained."
    if model.is_trained:
        rows += f" {which} was trained in the run itself, on demonstrations of that data."
    began = [f"`{each}`" for each in (_source(found), *_before(found)) if each]
    return f"{rows} Training began with {', then '.join(began)}." if began else rows


def _before(found: Trained) -> list[str]:
    """Return the methods whose policies it started from, in order."""
    algos = found.config.algos
    return starts_of(algos[found.job.algo], algos)[::-1] if found.job.algo in algos else []


def _source(found: Trained) -> str:
    """Say what a model was made from if the run did not train that itself; "" otherwise."""
    return "" if found.model.is_trained else _called(found.model.path or "")


def _called(path: str) -> str:
    """Return the name of a local file or folder without its path, which means nothing elsewhere.

    A hub id unchanged.
    """
    return Path(path).name if Path(path).is_absolute() else path


def _settings(found: Trained) -> dict[str, Any]:
    """Return the sections of the configuration that affected it."""
    config = found.config
    sections: dict[str, Any] = {
        name: to_plain(getattr(config, name)) for name in _SECTIONS if name in found.sections
    }
    if found.job.algo in config.algos:
        every = [*_before(found), found.job.algo]
        sections["algos"] = {name: to_plain(config.algos[name]) for name in every}
    sections["datasets"] = {found.job.dataset: to_plain(found.data)}
    sections["models"] = {found.job.model: to_plain(found.model)}
    return {name: settings_for_all(section) for name, section in sections.items()}


def _example(found: Trained, usage: formats.Usage) -> dict[str, Any]:
    """Return a prompt of the evaluation if prompts are plain texts; else a plain question, in its template."""
    template = usage.prompting.prompt_template
    if template is None:
        prompt = _QUESTION if usage.prompting.chat else next(_prompts(found.run, found), _QUESTION)
        return {"prompt": prompt, "asked": prompt}
    columns = {name: _QUESTION if name == "prompt" else name for name in template_fields(template)}
    asked = _QUESTION if columns.keys() == {"prompt"} else columns
    return {"prompt": template.format_map(columns), "asked": asked}


def _prompts(run: LoadedRun, found: Trained) -> Iterator[str]:
    own = found.job
    for job in run.plan.jobs.values():
        same = place_of(replace(job, seed=own.seed)) == place_of(own)
        if job.stage == METRICS_STAGE and same and (own.algo == REFERENCE or job.seed == own.seed):
            try:
                samples = formats.read_shown_samples(run.store.path(job.key))
            except (OSError, ForeignDataError):
                return
            yield from (sample["prompt"] for sample in samples if isinstance(sample.get("prompt"), str))
