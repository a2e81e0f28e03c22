"""Sweeps on disk: which there are, what one has recorded, and whether its agents still live."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.engine.journal import JournalReader
from pipeline.errors import ConfigError, PipelineError, known_names
from pipeline.files import open_plain
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.locks import lock
from pipeline.sweeps.events import read_sweep_event
from pipeline.sweeps.folder import SweepFolder, sweep_folder
from pipeline.sweeps.logged import latest_values
from pipeline.sweeps.spec import Sweep
from pipeline.sweeps.trials import SweepView, TrialState


def sweeps_in(output_dir: Path) -> list[str]:
    """Names of the sweeps that have begun.

    Raises:
        ConfigError: There is no such folder.
    """
    if not output_dir.is_dir():
        raise ConfigError(f"there is no folder {output_dir}. Give the output_dir of your sweeps as --output-dir.")
    return sorted(path.parent.parent.name for path in output_dir.glob("*/sweep/journal.jsonl") if path.is_file())


def choose_sweep(output_dir: Path, name: str) -> SweepFolder:
    """The folder of a sweep that has begun.

    Raises:
        ConfigError: There is none of that name.
    """
    known = sweeps_in(output_dir)
    if name in known:
        return sweep_folder(output_dir, name)
    if not known:
        raise ConfigError(f"there are no sweeps in {output_dir}. `python -m pipeline sweep run FILE` begins one.")
    raise ConfigError(f"no sweep '{name}' in {output_dir}.{known_names(name, known)}")


class RecordedSweep:
    """One sweep: its journal so far, and its agents.

    Attributes:
        folder: Where it is.
        view: What the journal told up to the last `refresh`. Trials of agents that are gone are lost in it, also
            where nobody has written so yet.
    """

    def __init__(self, folder: SweepFolder) -> None:
        """Read what there is.

        Raises:
            StoreError: The journal cannot be read.
        """
        self.folder, self.view = folder, SweepView()
        self._journal = JournalReader(folder.journal, read_sweep_event)
        self.refresh()

    @property
    def name(self) -> str:
        """Its name."""
        return self.folder.name

    @property
    def unreadable(self) -> int:
        """How many lines of the journal are no events of a sweep."""
        return self._journal.unreadable

    @cached_property
    def best(self) -> dict[str, Any]:
        """What was written of the best trial; empty where nothing was."""
        try:
            return read_json_file(self.folder.best, dict[str, Any], follow=True)
        except (OSError, ForeignDataError):
            return {}

    @cached_property
    def asked(self) -> Sweep | None:
        """What its file asks for; None where that cannot be read any more."""
        # Not with the other imports: what reads the file takes time to load, which not everybody needs.
        from pipeline.sweeps.reading.file import read_sweep

        try:
            return read_sweep(self.folder.file, name=self.name, overrides=self.view.overrides)
        except (PipelineError, OSError):
            return None

    @property
    def most(self) -> int | None:
        """How many trials it has at most; None where nobody knows."""
        from pipeline.sweeps.searching.searches import most_trials

        bounds = [self.view.count, most_trials(self.asked) if self.asked is not None else None]
        return min((bound for bound in bounds if bound is not None), default=None)

    def refresh(self) -> None:
        """Take what the journal has got since the last time, and see whose agents are gone.

        Raises:
            StoreError: The journal cannot be read.
        """
        self._take()
        gone = [agent for agent in self.agents() if self.agent_lives(agent) is False]
        if gone:
            self._take()  # what an agent has written before it left
            self.view.lose(gone)

    def _take(self) -> None:
        self.view.feed(self._journal.new_events())

    def so_far(self) -> dict[int, float | None]:
        """Number of each running trial -> what it has logged of the metric last."""
        running, metric = self.view.having(TrialState.running), self.view.metric
        if not metric:
            return {}
        paths = {trial.number: self.folder.trial(trial.number).metrics(trial.attempts) for trial in running}
        return {number: latest_values(path).get(metric) for number, path in paths.items()}

    def agent_lives(self, agent: str) -> bool | None:
        """Whether an agent is still there; None where nobody can tell.

        An agent holds a lock on its file, which the kernel gives back when the process ends, however it ends.
        """
        try:
            with open_plain(self.folder.agents / agent) as file:
                return not lock(file.fileno(), shared=True, wait=False)
        except FileNotFoundError:
            return False
        except OSError:  # no locks among them
            return None

    def agents(self) -> list[str]:
        """Agents that have joined and not left, and those whose trials run, whatever else the journal says."""
        running = (trial.agent for trial in self.view.having(TrialState.running))
        return list(dict.fromkeys([*self.view.agents, *running]))

    def living_agents(self) -> list[str]:
        """Those of `agents` that may still be there."""
        return [agent for agent in self.agents() if self.agent_lives(agent) is not False]

    def state(self) -> str:
        """The sweep in one word.

        ``finished``, ``cancelled``, ``stopped`` and ``paused`` as it was told; ``stopping`` while trials of a
        stopped one still run; ``running`` as long as an agent is there; else ``idle``.
        """
        living = self.living_agents()
        running = [trial for trial in self.view.having(TrialState.running) if trial.agent in living]
        if self.view.halted == "stopped" and running:
            return "stopping"
        return self.view.halted or ("running" if living else "idle")
