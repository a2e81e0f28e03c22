"""``pipeline.run`` and ``pipeline.load_run``: the main command, and what a run left, for scripts and notebooks.

Workers are programs of their own, so a script needs no main guard. The process is left as it was found: its signal
handlers, environment, standard streams, and the state of Hydra where it uses that too.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar
from warnings import catch_warnings, filterwarnings

from safetensors import SafetensorError

from pipeline import arithmetic
from pipeline.commands.multirun import FLAGS, for_hydra, read_flags
from pipeline.commands.run import run_experiment
from pipeline.config.load import load_config
from pipeline.config.schema import Attention, DType, SystemConfig
from pipeline.errors import ConfigError, DeviceError
from pipeline.files import at_home
from pipeline.foreign import ForeignDataError
from pipeline.learning.datasets.files import is_hub_id
from pipeline.learning.models.source import snapshot
from pipeline.outputs import formats
from pipeline.outputs.formats import Pointer, problem_in_words
from pipeline.runs.loaded import LoadedRun, choose_run, load, load_planned
from pipeline.runs.notebook import Run
from pipeline.runs.trained import Trained, find_trained
from pipeline.terminal import streams
from pipeline.terminal.console import make_console

if TYPE_CHECKING:
    from pipeline.learning.generation.guided import Guided
    from pipeline.learning.generation.sampling import Offset

_UNDER_WAY = Lock()
_OTHERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


def run(settings: Sequence[str]) -> Run:
    """Carry out a request, as ``python -m pipeline run`` does; what is stored is not computed again.

    What the command prints is printed: a live view on a terminal, plain lines in a notebook.

    Args:
        settings: Words behind the command, as ``["experiment.name=first", "algos=[PITA]"]``; also
            ``--num-gpus 2``, ``--gpu-ids 0 2`` and ``--device cpu``, a word each.

    Returns:
        The run. Its `exit_code` is 0 where every job is done, 1 where some failed, 3 where its budget was spent.

    Raises:
        ConfigError: The request is wrong; nothing was started.
        PipelineError: It cannot be carried out.
        KeyboardInterrupt: It was interrupted. The run has ended in order, and the same request goes on from there.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name.partition(".")[0] == __name__.partition(".")[0]:
        raise ConfigError("a run imports what calls pipeline.run: call it under `if __name__ == '__main__'`")
    words = _settings(settings)
    folders: list[Path] = []
    with _alone(), streams.installed(), _own_environment():
        arithmetic.pin("numpy")  # where it is not imported yet, as every command does
        config = load_config(words)
        if config.dry_run:
            raise ConfigError("dry_run=true leaves no run that could be returned: type it on the command line")
        command = ["python", "-m", "pipeline", "run", *words]
        code = run_experiment(config, make_console(), given=words, command=command, on_begin=folders.append)
    result = Run(load(folders[-1]), code)
    _pass_on(result.loaded.view.interrupted)
    return result


def load_run(name: str, run: str | None = None, output_dir: str | Path = "outputs") -> Run:
    """Load what a run left; it may be over, still going on, or killed.

    Args:
        name: The experiment.
        run: Timestamp of one of its runs, or how it begins; the newest if left out.
        output_dir: Folder of all runs.

    Raises:
        ConfigError: There is no such run.
    """
    return Run(load(choose_run(Path(output_dir), name, run)))


def _settings(settings: Sequence[str]) -> list[str]:
    """Return the settings of a request, with device flags converted to settings.

    Raises:
        ConfigError: They are no list of texts, or have other flags.
    """
    is_list = isinstance(settings, Iterable) and not isinstance(settings, str)
    if not is_list or not all(isinstance(word, str) for word in settings):
        raise ConfigError(f'settings are a list of texts, as ["experiment.name=x"], not {settings!r}')
    parsed = read_flags(settings)
    if flags := for_hydra(parsed, ()):
        raise ConfigError(f"{flags[0]} is for the command line: here are KEY=VALUE and {', '.join(FLAGS)}")
    return list(parsed.overrides)


@contextmanager
def _alone() -> Iterator[None]:
    """Streams, signals and Hydra's state belong to the whole process, so it has one run at a time.

    Raises:
        ConfigError: Another thread has a run under way.
    """
    if not _UNDER_WAY.acquire(blocking=False):
        raise ConfigError("another pipeline.run is under way in this process: wait, or start another process")
    try:
        yield
    finally:
        _UNDER_WAY.release()


@contextmanager
def _own_environment() -> Iterator[None]:
    # not patch.dict, which empties it for a moment, in which other threads may start programs
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


def _pass_on(interrupted: str) -> None:
    """Let a signal that has ended a run do what it does in this program: it was held while the run ended."""
    if interrupted == "SIGINT":
        raise KeyboardInterrupt
    for number in _OTHERS:
        if interrupted == number.name:
            signal.raise_signal(number)


# -- guided ------------------------------------------------------------------------------------------------------
# `pipeline.guided`: a trained model by the name of its run, its folder or its id on the hub, ready to use.


_T = TypeVar("_T")
_Choice = TypeVar("_Choice", bound=Enum)


def guided(
    model: str | Path | Run | LoadedRun,
    chain: str | None = None,
    *,
    round: int | None = None,  # noqa: A002 - it is what a run calls it
    eta: float | None = None,
    device: str | None = None,
    dtype: str | None = None,
    attention: str | None = None,
    reference: str | Path | None = None,
    offset: Callable[[float], Offset] | None = None,
    trust_remote_code: bool = False,
    output_dir: str | Path = "outputs",
) -> Guided:
    """Load a trained model so that it completes prompts as it did in the evaluation of its run.

    A value model is loaded with the reference that it guides, and with strength, candidates and settings of its
    run. A policy whose weights were trained (DPO, GRPO, ...) completes prompts in the same way, without `eta`.

    Args:
        model: Name of an experiment, whose newest run is taken; or a run, as `pipeline.run` and
            `pipeline.load_run` give one; or the folder of an exported model, or its id on the hub, as
            ``owner/name``. Where a folder is called like an experiment, ``./name`` is the folder.
        chain: Chain of a run, as ``addition/tiny/s0/PITA``; its end (``PITA``), a part of it, or a pattern with
            ``*`` will do. Not needed where only one trains.
        round: Round after which it was taken; None for the last one.
        eta: Strength of guidance, the smaller the stronger; `math.inf` is the reference as it is. None takes what
            was chosen by `evaluation.etas`, or else the method's own.
        device: ``cpu`` or ``cuda``; None takes a GPU where there is one.
        dtype: ``float32``, ``bfloat16`` or ``float16``; None as in the run.
        attention: ``sdpa``, ``eager`` or ``flash_attention_2``; None as in the run.
        reference: Folder or hub id; None takes the one that the model was trained for. Of a policy only adapters
            need it.
        offset: From a strength to the offset of values, for a method with a rule of its own and without its run.
        trust_remote_code: Run Python code that comes with the model; of a run as it says itself.
        output_dir: Folder of all runs.

    Raises:
        ConfigError: There is no such model, or more than one; says which there are.
        DeviceError: There is no such device.
        StoreError: The model is not trained yet.
    """
    trained = _model_named(model.loaded if isinstance(model, Run) else model, chain, round, Path(output_dir))
    if reference is not None:
        name = str(reference)
        is_place = Path(name).is_dir() or not is_hub_id(name)
        trained = replace(trained, reference=lambda: name if is_place else snapshot(name, None))
    trained = replace(trained, trusts_code=trust_remote_code or trained.trusts_code)
    drawing = trained.usage.drawing
    chosen = _chosen(Attention, "attention", attention or drawing.attention)
    system = SystemConfig(dtype=_chosen(DType, "dtype", dtype or drawing.dtype), attn_impl=chosen)
    return _loaded(trained, eta, device, system, offset)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A model that was found.

    Attributes:
        weights: Folder of the policy, or of the value model.
        reference: Says where the reference is: what a value model guides, or what adapters belong to.
    """

    weights: Path
    usage: formats.Usage
    reference: Callable[[], str]
    guidance: formats.GuidanceSettings | None = None
    offset: Callable[[float], Offset] | None = None
    trusts_code: bool = False


def _model_named(model: str | Path | LoadedRun, chain: str | None, number: int | None, output_dir: Path) -> _Found:
    if isinstance(model, LoadedRun):
        return _of_run(find_trained(model, chain, number))
    name, folder = str(model), at_home(model)
    is_name = isinstance(model, str) and "/" not in name and (output_dir / name / "latest").is_dir()
    if is_name or (not folder.is_dir() and ("/" not in name or (output_dir / name).exists())):
        return _of_run(find_trained(load_planned(choose_run(output_dir, name)), chain, number))
    if chain is not None or number is not None:
        raise ConfigError(f"{name} is the folder of one model, so it has no chain and no round to choose from")
    if not folder.is_dir():
        if not is_hub_id(name):
            raise ConfigError(f"{name}: there is no such folder, experiment or id of the hub")
        folder = Path(snapshot(name, None))
    return _of_folder(folder.resolve())


def _of_run(trained: Trained) -> _Found:
    return _Found(
        weights=trained.folder if trained.is_value else trained.weights,
        usage=trained.usage,
        guidance=trained.guidance if trained.is_value else None,
        reference=lambda: str(trained.reference_weights),
        offset=trained.offset if trained.is_value else None,
        trusts_code=trained.model.trusts_code,
    )


def _of_folder(folder: Path) -> _Found:
    """Return an exported model."""
    usage = _read(folder / formats.USAGE, formats.read_usage)
    if usage is None:
        other = "give an experiment, a run by pipeline.load_run, or what `pipeline export` has written"
        raise ConfigError(f"{folder} has no {formats.USAGE}, so it is no exported model: {other}")
    guidance = _read(folder / formats.GUIDANCE, formats.read_guidance) if usage.kind == "value" else None
    if usage.kind == "value" and guidance is None:
        raise ConfigError(f"{folder} holds a value model, and no {formats.GUIDANCE} that says how it guides")
    return _Found(
        weights=folder,
        usage=usage,
        guidance=guidance,
        reference=lambda: _reference_of(folder, usage.reference),
    )


def _reference_of(folder: Path, exported: Pointer | None) -> str:
    """Return the path of an exported model's reference."""
    if exported is not None and exported.path is not None:
        target = (folder / exported.path).resolve()
        if target.is_relative_to(folder) and target.is_dir():  # anyone may have written where it is
            return str(target)
    if exported is not None and exported.hub is not None:
        return snapshot(exported.hub, exported.commit)
    raise ConfigError(f"{folder}: its reference is not there any more; give the one that it had: reference=FOLDER")


def _read(path: Path, read: Callable[[Path], _T]) -> _T | None:
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except (OSError, ForeignDataError) as error:
        raise ConfigError(f"{path} cannot be used: {problem_in_words(error)}") from error


def _loaded(
    trained: _Found,
    eta: float | None,
    device: str | None,
    system: SystemConfig,
    offset: Callable[[float], Offset] | None,
) -> Guided:
    import torch

    with catch_warnings():
        # In a notebook without widgets tqdm says how to draw bars there, of which none are drawn.
        filterwarnings("ignore", message="IProgress not found")
        from pipeline.learning.generation.guided import Guided, SavedGuide
        from pipeline.learning.generation.policy import for_generate
        from pipeline.learning.models.load import load_policy, load_tokenizer, load_value, without_progress_bars

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if chosen != "cpu" and not (chosen.partition(":")[0] == "cuda" and torch.cuda.is_available()):
        raise DeviceError(f"device={chosen!r}: must be cpu, or cuda where this process sees a GPU")
    if system.attn_impl is Attention.flash_attention_2 and (chosen == "cpu" or find_spec("flash_attn") is None):
        system = replace(system, attn_impl=Attention.sdpa)  # computes the same
    source, guide, base = str(trained.weights), None, None
    if trained.guidance is not None:
        source = trained.reference()
        with _reading(trained.weights), without_progress_bars():
            value = load_value(trained.weights, system, chosen)
        guide = SavedGuide(model=value, settings=trained.guidance, offset=offset or trained.offset)
    elif formats.adapter_folders(trained.weights):
        base = trained.reference()
    with _reading(source), without_progress_bars():
        policy = load_policy(source, system, chosen, base=base, trust_remote_code=trained.trusts_code)
        tokenizer = load_tokenizer(source, trust_remote_code=trained.trusts_code)
    drawing = trained.usage.drawing
    # Where values guide, the processor has temperature and nucleus, before guidance; none comes after it.
    alone = drawing if guide is None else formats.Drawing(stop=drawing.stop)
    policy.generation_config = for_generate(policy.generation_config, tokenizer, alone)
    return Guided(
        policy, tokenizer, guide, drawing=drawing, prompting=trained.usage.prompting, eta=eta, device=chosen
    )


@contextmanager
def _reading(folder: str | Path) -> Iterator[None]:
    """Say of which folder it is that transformers cannot load."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(f"{folder} does not fit on the GPU; device=cpu needs none") from error
    except (OSError, ValueError, SafetensorError) as error:
        problem = " ".join(str(error).split())[:500] or type(error).__name__
        raise ConfigError(f"{folder} cannot be loaded: {problem}") from error


def _chosen(kind: type[_Choice], name: str, value: str) -> _Choice:
    if value not in kind.__members__:
        raise ConfigError(f"{name}={value!r}: must be one of {', '.join(kind.__members__)}")
    return kind[value]
