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
from pipeline.engine.store.store import Scratch, Store
from pipeline.errors import ConfigError, PipelineError, StoreError
from pipeline.files import at_home, json_text
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.learning.algos.base import REFERENCE
from pipeline.learning.algos.policy_config import starts_of
from pipeline.learning.datasets.chat import CLOCK, DATE, asks_clock, dated
from pipeline.learning.datasets.from_files import template_fields
from pipeline.outputs import formats
from pipeline.outputs.manifest import REMOVED
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
"""Folder of a run for later runs of its jobs that make its weights again."""


@contextmanager
def held_model(
    run: LoadedRun, chain: str | None, number: int | None, console: Console, *, rewards: bool = False
) -> Iterator[Trained]:
    """Hold a model that a run has trained, with its weights, inside the block.

    Args:
        run: The run.
        chain: Chain of the run, as for `find_trained`.
        number: Round after which it was taken; None for the last.
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
        model = find_trained(
            run,
            chain,
            number,
            rewards=rewards,
            also_gone=True,
            bring=lambda model: bring_model(model, scratch.path, console),
        )
        with suppress(OSError, StoreError):
            tell_needs(store, scratch.path, [model.job.key])
        if store.problem(model.job.key, checksums=False) is not None:
            stack.enter_context(_made_again(model, scratch.path, console))
        yield model


@contextmanager
def _made_again(model: Trained, scratch: Path, console: Console) -> Iterator[None]:
    store, key = model.run.store, model.job.key
    request = _request_of(model)
    target = next((job for job in request.plan.jobs.values() if job.key == key), None)
    if target is None:
        changed = "its weights are gone, and its run would make others now (`python -m pipeline why`)"
        raise ConfigError(f"{model.job.id}: {changed}. Run the experiment again")
    plan = request.plan.up_to([target.id])
    with store.in_use(model.run.folder.path.parent.parent), notes_of(request) as verified:
        problem = verified.problem
        whole, enough = (lambda key: problem(key) is None), (lambda key: problem(key) in (None, REMOVED))
        missing = missing_jobs(plan, whole, enough, whole=[target.id])
        again = [job for job_id in missing if (job := plan.jobs[job_id]).weights]
        tell_needs(store, scratch, {job.key for job in again})
        _run(request, plan, missing, model, console)
        yield


def _request_of(model: Trained) -> Request:
    config, run = model.config, model.run
    config.output_dir, config.execution.store = str(run.folder.path.parent.parent), str(run.store.root)
    # A few jobs for who looks from here; in workers also where the run had none: their arithmetic is the same.
    config.execution.backend, config.system.use_parallel_execution = Backend.local, True
    return prepare(config)


def _run(request: Request, plan: Plan, missing: list[str], model: Trained, console: Console) -> None:
    folder = RunFolder(model.run.folder.path / AGAIN / f"{datetime.now():{STAMP_FORMAT}}_{secrets.token_hex(4)}")
    folder.path.mkdir(parents=True)
    text = f"{model.job.id}: its weights are gone; running {count(len(missing), 'job')} to make them again. Log:"
    say(console, text, copy=shown_path(folder.log))
    with leased(request.config, console) as lease, logged_to(folder.log), StopSignals() as signals:
        how = {**request.how, "missing": missing, "signals": signals}
        outcome = run_jobs(plan, request.store, lease.devices, folder.path, **how)
    problem = outcome.halted or (f"interrupted by {outcome.interrupted}" if outcome.interrupted else "")
    if problem := problem or next((f"{job_id}: {reason}" for job_id, reason in outcome.failures()), ""):
        raise StoreError(f"{model.job.id}: its weights were not made again: {problem}. Log: {folder.log}")


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
    to = at_home(to)
    _check_free(to)
    if fold is not None and not reward_model:
        raise ConfigError(f"--fold {fold}: only reward models have folds; add --reward-model")
    loaded, console = load_planned(choose_run(output_dir, name, run)), make_console()
    refuse_records("--to", to, [loaded])
    with held_model(loaded, chain, number, console, rewards=reward_model) as model:
        _check_fold(model, fold)
        _check_whole(loaded.store, model)
        _write(model, to, fold or 0)
    kind = "value model with its reference" if model.is_value else "policy"
    if reward_model:
        folds = len(model.reward_models)
        kind = f"reward model of fold {fold or 0} of {folds}" if folds > 1 else "reward model"
    say(console, f"{kind}: {model.job.chain}, round {model.job.round}: {to}")


def _check_free(to: Path) -> None:
    """Refuse a place where something is."""
    if to.is_dir() and not any(to.iterdir()):
        return
    if to.exists() or to.is_symlink():
        raise ConfigError(f"--to {to}: there is something already; name a new folder, or an empty one")


def _check_fold(model: Trained, fold: int | None) -> None:
    if fold is not None and fold >= (count := len(model.reward_models)):
        there = f"must be 0 to {count - 1}" if count > 1 else "there is one reward model; leave --fold out"
        raise ConfigError(f"--fold {fold}: {there}")


def _check_whole(store: Store, model: Trained) -> None:
    """Refuse weights that are not what was stored: every byte of them is read."""
    for output in {model.folder, model.reference}:
        if (problem := store.problem(output.name)) is not None:
            again = "The run's command makes it again"
            raise StoreError(f"{model.job.chain}: {output} cannot be exported: {problem}. {again}")
    weights = model.reference_weights if formats.adapter_folders(model.weights) else model.weights
    if model.reward_models:
        weights = model.reward_models[0]
    if not (weights / "config.json").is_file():
        raise StoreError(f"{model.job.chain}: {weights} holds no model that transformers loads")


def _write(model: Trained, to: Path, fold: int) -> None:
    target = to.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as scratch:
            folder = Path(scratch) / "model"
            _fill(model, folder, fold)
            folder.replace(target)
    except OSError as error:
        _check_free(to)  # somebody may have put something there meanwhile
        raise PipelineError(f"cannot write {to}: {error.strerror or error}. Nothing was left there") from error


def _fill(model: Trained, folder: Path, fold: int) -> None:
    usage, guidance, fit = model.usage, None, None
    if model.reward_models:
        fit = _classifier(model, folder, fold)
    elif model.is_value:
        _copy(model.folder, folder)
        shutil.copyfile(model.folder / HEAD_SETTINGS, folder / HEAD_SETTINGS)
        usage = replace(usage, reference=_reference(model, folder))
        # Its reference is here; the key means nothing outside of the store.
        guidance = replace(model.guidance, reference=None)
        (folder / formats.GUIDANCE).write_text(json_text(asdict(guidance), indent=1) + "\n")
    else:
        _copy(model.weights, folder)
        if formats.adapter_folders(model.weights):
            _merge(model, folder)
        _use_alone(model, folder)
    if fit is None:
        set_fields = {name: value for name, value in asdict(usage).items() if value is not None}
        (folder / formats.USAGE).write_text(json_text(set_fields, indent=1) + "\n")
    # Names and settings may hold halves of characters, which no file has.
    (folder / README).write_bytes(card_text(_card(model, usage, guidance, fit)).encode(errors="backslashreplace"))


def _classifier(model: Trained, folder: Path, fold: int) -> FittedReward:
    """Write a reward model as a sequence classifier that reads texts as its run did; tell how it was fitted."""
    from pipeline.learning.generation.policy import for_generate
    from pipeline.learning.models import classifier
    from pipeline.learning.models.load import load_tokenizer, load_value, without_progress_bars

    usage, source = model.usage, model.reward_models[fold]
    tokenizer = load_tokenizer(source, trust_remote_code=model.model.trusts_code)
    settings = _generation_settings(model.reference_weights, model)
    ends = for_generate(settings, tokenizer, usage.drawing).eos_token_id or ()
    classifier.pad_apart(tokenizer, ends)
    classifier.end_texts(tokenizer, ends, is_chat=usage.prompting.chat)
    with without_progress_bars():
        value = load_value(source, SystemConfig(), "cpu")
        left_out = value.head.bias.item()
        whole = classifier.as_classifier(value, tokenizer)
        whole.config._name_or_path = ""
        whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if usage.prompting.chat and asks_clock(tokenizer):
        _stop_clock(folder, usage.prompting.date or DATE)
    return FittedReward(fold=fold, folds=len(model.reward_models), left_out=left_out, fit=_fit(model, fold))


def _fit(model: Trained, fold: int) -> formats.ScoresOf:
    """Return the fit of a reward model, as its stage tells."""
    with suppress(FileNotFoundError):
        try:
            return formats.read_reward_fit(model.folder / formats.REWARD).fits[fold]
        except (ForeignDataError, LookupError) as error:
            raise StoreError(f"cannot read {model.folder / formats.REWARD}: {error}") from error
    return formats.ScoresOf()


def _copy(source: Path, target: Path) -> None:
    """Copy the files that a loaded model depends on."""
    target.mkdir()
    for file in model_files(source):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, copy)  # what a link leads to, as snapshots of the hub have links


def _merge(model: Trained, folder: Path) -> None:
    """Write a policy of which adapters are stored as one that needs nothing else, in float32."""
    from pipeline.learning.models.load import load_policy, without_progress_bars

    with without_progress_bars():
        whole = load_policy(
            model.weights,
            SystemConfig(),
            "cpu",
            base=model.reference_weights,
            trust_remote_code=model.model.trusts_code,
        )
        whole.config._name_or_path = ""
        whole.save_pretrained(folder)


def _use_alone(model: Trained, folder: Path, source: Path | None = None) -> None:
    """Store settings by which `generate`, a harness or a server uses a policy as its run did.

    Args:
        model: What is exported.
        folder: Folder with the tokenizer.
        source: Folder of the policy; None for the same one.
    """
    usage = model.usage
    from pipeline.learning.generation.policy import for_generate
    from pipeline.learning.models.load import load_tokenizer

    tokenizer = load_tokenizer(folder, trust_remote_code=model.model.trusts_code)
    settings = _generation_settings(source or folder, model)
    for_generate(settings, tokenizer, usage.drawing).save_pretrained(folder)
    if usage.prompting.chat and asks_clock(tokenizer):
        _stop_clock(folder, usage.prompting.date or DATE)


def _generation_settings(folder: Path, model: Trained) -> Any:
    """Return a model's generation settings, or those that transformers makes of its configuration."""
    from transformers import AutoConfig, GenerationConfig

    try:
        return GenerationConfig.from_pretrained(folder)
    except OSError:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=model.model.trusts_code)
        return GenerationConfig.from_model_config(config)


def _stop_clock(folder: Path, date: str) -> None:
    """Have the chat templates of a folder tell the date that they told in the run, on any day."""
    for file in folder.glob("*.jinja"):
        if CLOCK in (text := file.read_text()):
            file.write_text(dated(text, date))
    file = folder / _TOKENIZER
    settings = read_json_file(file, dict[str, Any], follow=True, infinite=True)
    templates = settings.get("chat_template")
    if isinstance(templates, str):
        settings["chat_template"] = dated(templates, date)
    elif isinstance(templates, list):
        settings["chat_template"] = [{**entry, "template": dated(entry["template"], date)} for entry in templates]
    if templates:
        file.write_text(json_text(settings, indent=1) + "\n")


def _reference(model: Trained, folder: Path) -> formats.Pointer:
    """Put the reference beside a value model, or name it where everybody can have it from the hub."""
    with suppress(FileNotFoundError):
        try:
            pointer = formats.read_pointer(model.reference / formats.POINTER)
        except ForeignDataError as error:
            raise StoreError(f"cannot read {model.reference / formats.POINTER}: {error}") from error
        if pointer.hub is not None:
            _use_alone(model, folder, model.reference_weights)
            return formats.Pointer(hub=pointer.hub, commit=pointer.commit)
    _copy(model.reference_weights, folder / REFERENCE_FOLDER)
    _use_alone(model, folder / REFERENCE_FOLDER)
    return formats.Pointer(path=REFERENCE_FOLDER)


# -- the card --------------------------------------------------------------------------------------------------


def _card(
    model: Trained,
    usage: formats.Usage,
    guidance: formats.GuidanceSettings | None,
    reward: FittedReward | None,
) -> Card:
    run, job = model.run, model.job
    return Card(
        algo=job.algo,
        dataset=job.dataset,
        usage=usage,
        guidance=guidance,
        reward=reward,
        base=_base(model),
        source=_source(model),
        origin=_origin(model),
        settings=_settings(model),
        rows=_rows_of(model, job.algo, job.round),
        reference=[] if job.algo == REFERENCE else _rows_of(model, REFERENCE, 0),
        confidence=run.results.confidence,
        command=command_for_all(run.origin.command),
        versions=run.origin.versions,
        **_example(model, usage),
    )


def _rows_of(model: Trained, algo: str, number: int) -> list[ResultRow]:
    """Results of a method after a round, where all else is as for the model.

    The training of a reference has no seed of the experiment, but each evaluates it: the first one counts.
    """
    job = model.job
    method = (job.dataset, job.model, job.reference, algo, number)
    rows = [
        row
        for row in model.run.results.rows
        if (row.dataset, row.model, row.reference, row.algo, row.round) == method
    ]
    seed = min((row.seed for row in rows), default=0) if job.algo == REFERENCE else job.seed
    return [row for row in rows if row.seed == seed]


def _base(model: Trained) -> str | None:
    path = model.model.path
    return path if path and not model.model.is_trained and not is_local(path) else None


def _origin(model: Trained) -> str:
    settings, data = model.model, model.data
    path = getattr(data, "path", None)
    rows = f"Data: `{model.job.dataset}` (kind `{data.kind}`" + (f", `{_called(path)}`)." if path else ").")
    which = "It" if model.job.algo == REFERENCE else "The reference"
    if model.job.algo == REFERENCE and not settings.is_trained:
        return f"{rows} It is a copy of `{_source(model)}`: nothing of it was trained."
    if settings.is_trained:
        rows += f" {which} was trained in the run itself, on demonstrations of that data."
    began = [f"`{name}`" for name in (_source(model), *_before(model)) if name]
    return f"{rows} Training began with {', then '.join(began)}." if began else rows


def _before(model: Trained) -> list[str]:
    """Return the methods whose policies it started from, in order."""
    algos = model.config.algos
    return starts_of(algos[model.job.algo], algos)[::-1] if model.job.algo in algos else []


def _source(model: Trained) -> str:
    """Say what a model was made from if the run did not train that itself; "" otherwise."""
    return "" if model.model.is_trained else _called(model.model.path or "")


def _called(path: str) -> str:
    """Return the name of a local file or folder without its path, which means nothing elsewhere.

    A hub id unchanged.
    """
    return Path(path).name if Path(path).is_absolute() else path


def _settings(model: Trained) -> dict[str, Any]:
    """Return the sections of the configuration that affected it."""
    config = model.config
    sections: dict[str, Any] = {
        name: to_plain(getattr(config, name)) for name in _SECTIONS if name in model.sections
    }
    if model.job.algo in config.algos:
        every = [*_before(model), model.job.algo]
        sections["algos"] = {name: to_plain(config.algos[name]) for name in every}
    sections["datasets"] = {model.job.dataset: to_plain(model.data)}
    sections["models"] = {model.job.model: to_plain(model.model)}
    return {name: settings_for_all(section) for name, section in sections.items()}


def _example(model: Trained, usage: formats.Usage) -> dict[str, Any]:
    """Return a prompt of the evaluation if prompts are plain texts; else a plain question, in its template."""
    template = usage.prompting.prompt_template
    if template is None:
        prompt = _QUESTION if usage.prompting.chat else next(_prompts(model.run, model), _QUESTION)
        return {"prompt": prompt, "asked": prompt}
    columns = {name: _QUESTION if name == "prompt" else name for name in template_fields(template)}
    question = _QUESTION if columns.keys() == {"prompt"} else columns
    return {"prompt": template.format_map(columns), "asked": question}


def _prompts(run: LoadedRun, model: Trained) -> Iterator[str]:
    own = model.job
    for job in run.plan.jobs.values():
        same = place_of(replace(job, seed=own.seed)) == place_of(own)
        if job.stage == METRICS_STAGE and same and (own.algo == REFERENCE or job.seed == own.seed):
            try:
                samples = formats.read_shown_samples(run.store.path(job.key))
            except (OSError, ForeignDataError):
                return
            yield from (sample["prompt"] for sample in samples if isinstance(sample.get("prompt"), str))
