"""``pipeline.run`` and ``pipeline.load_run``: the main command, and what a run left, for scripts and notebooks.

Workers are programs of their own, so a script needs no main guard. The process is left as it was found: its signal
handlers, environment, standard streams, and the state of Hydra where it uses that too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from threading import Lock

from pipeline import arithmetic
from pipeline.commands.device_flags import FLAGS, as_overrides
from pipeline.commands.run import run_experiment
from pipeline.config.load import load_config
from pipeline.config.values import brief
from pipeline.errors import ConfigError
from pipeline.runs.index import choose_run
from pipeline.runs.loaded import LoadedRun, load
from pipeline.runs.notebook import Run
from pipeline.terminal import streams
from pipeline.terminal.console import make_console

# -- arguments ---------------------------------------------------------------------------------------------------
# Arguments of what users call in Python: one of another type is refused by its name, before anything is done.


_KINDS: dict[type | None, tuple[type, str]] = {
    str: (str, "a text"),
    Path: (Path, "a path"),
    int: (Integral, "a whole number"),  # that of numpy too
    float: (Real, "a number"),
    Run: (Run, "a run"),
    LoadedRun: (LoadedRun, "a run"),
    None: (type(None), "None"),
}


def check_types(*kinds: type | None, **given: object) -> None:
    """Refuse arguments that are of none of some types.

    Args:
        kinds: The types; None for None.
        given: The arguments by their names.

    Raises:
        ConfigError: One is of another type; says which it may be.
    """
    for name, value in given.items():
        # Python takes True for 1.
        if isinstance(value, bool) or not isinstance(value, tuple(_KINDS[kind][0] for kind in kinds)):
            words = list(dict.fromkeys(_KINDS[kind][1] for kind in kinds))
            allowed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
            raise ConfigError(f"{name}={brief(value)}: must be {allowed}; it is of type {type(value).__name__}")


_UNDER_WAY = Lock()
_OTHERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


def run(settings: Sequence[str]) -> Run:
    """Carry out a request, as ``python -m pipeline run`` does; what is stored is not computed again.

    What the command prints is printed: a live view on a terminal, plain lines in a notebook.

    Args:
        settings: What one types behind the command, as ``["experiment.name=first", "algos=[PITA]"]``; also
            ``--num-gpus 2``, ``--gpu-ids 0 2`` and ``--device cpu``, a word each.

    Returns:
        The run. Its `exit_code` is 0 where every job is done, and 1 where some failed.

    Raises:
        ConfigError: The request is wrong; nothing was started.
        PipelineError: It cannot be carried out.
        KeyboardInterrupt: It was interrupted. The run has ended in order, and the same request goes on from there.
    """
    given = _settings(settings)
    folders: list[Path] = []
    with _alone(), streams.installed(), _own_environment():
        arithmetic.pin("numpy")  # where it is not imported yet, as every command does
        config = load_config(given)
        if config.dry_run:
            raise ConfigError("dry_run=true leaves no run that could be returned: type it on the command line")
        command = ["python", "-m", "pipeline", "run", *given]
        code = run_experiment(config, make_console(), given=given, command=command, on_begin=folders.append)
    found = Run(load(folders[-1]), code)
    _pass_on(found.loaded.view.interrupted)
    return found


def load_run(name: str, run: str | None = None, output_dir: str | Path = "outputs") -> Run:
    """Load what a run left; it may be over, still going on, or killed.

    Args:
        name: The experiment.
        run: Timestamp of one of its runs, or how it begins; the newest if left out.
        output_dir: Folder of all runs.

    Raises:
        ConfigError: There is no such run.
    """
    check_types(str, name=name)
    check_types(str, None, run=run)
    check_types(str, Path, output_dir=output_dir)
    return Run(load(choose_run(Path(output_dir), name, run)))


def _settings(settings: Sequence[str]) -> list[str]:
    """The settings of a request, flags of devices turned into settings.

    Raises:
        ConfigError: They are no list of texts, or have other flags.
    """
    is_list = isinstance(settings, Iterable) and not isinstance(settings, str)
    if not is_list or not all(isinstance(word, str) for word in settings):
        raise ConfigError(
            'settings are a list of texts, as in pipeline.run(["experiment.name=x", "algos=[PITA]"]), not '
            f"{settings!r}"
        )
    given = as_overrides(settings)
    if flags := [word for word in given if word.startswith("-")]:
        raise ConfigError(
            f"{flags[0]} is for the command line. pipeline.run takes KEY=VALUE, and {', '.join(FLAGS)}; for "
            "several runs call it in a loop"
        )
    return given


@contextmanager
def _alone() -> Iterator[None]:
    """Streams, signals and Hydra's state belong to the whole process, so it has one run at a time.

    Raises:
        ConfigError: Another thread has a run under way.
    """
    if not _UNDER_WAY.acquire(blocking=False):
        raise ConfigError(
            "another pipeline.run is under way in this process: wait for it, or start another process. One "
            "request may have several algorithms, datasets, models and seeds, which run at the same time"
        )
    try:
        yield
    finally:
        _UNDER_WAY.release()


@contextmanager
def _own_environment() -> Iterator[None]:
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
