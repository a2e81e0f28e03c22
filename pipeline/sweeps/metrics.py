"""What a trial has logged of its metrics, a line each: ``{"step": 1, "values": {"loss": 0.5}, "time": 1.7e9}``.

Whoever writes it may be killed in the middle of a line, and is a program of the user's own: what is no such
line costs itself alone.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.journal import JournalReader, whole_lines
from pipeline.errors import PipelineError, describe_exit, known_names
from pipeline.files import open_plain
from pipeline.foreign import ForeignDataError, read_json
from pipeline.outputs.formats import LARGEST
from pipeline.sweeps.file import Metric
from pipeline.sweeps.reporting import whole_step
from pipeline.sweeps.storage import End, TrialFolder
from pipeline.sweeps.wandb_run import WandbMetrics

_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One line.

    Attributes:
        values: Name of a metric -> its value; None for one that is no finite number, or beyond all use.
        step: As the program counts; None where it does not.
    """

    values: dict[str, float | None]
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Line:
    """As it is written, whatever numbers are in it."""

    values: dict[str, int | float | None]
    step: int | float | None = None


def read_line(line: bytes) -> Logged:
    """Read one line.

    Raises:
        ForeignDataError: It is none.
    """
    found = read_json(line, _Line, infinite=True)
    values = {
        name: float(value) if value is not None and abs(value) <= LARGEST else None
        for name, value in found.values.items()
    }
    return Logged(values=values, step=None if found.step is None else whole_step(found.step))


def parsed(lines: Iterable[bytes]) -> Iterator[Logged]:
    """What lines say, those left out that say nothing."""
    for line in lines:
        with suppress(ForeignDataError):
            yield read_line(line)


def latest_values(path: Path) -> dict[str, float | None]:
    """What was logged last of each metric, as far as the end of the file tells."""
    with suppress(OSError), open_plain(path) as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
        return {name: value for line in parsed(whole_lines(file)) for name, value in line.values.items()}
    return {}


class Curve:
    """What an attempt at a trial has logged so far, read as it comes.

    Attributes:
        judged: Values of the metric, in order; None for what is no finite number.
        last: Name -> last value, of everything.
    """

    def __init__(self, folder: TrialFolder, attempt: int, metric: Metric | None) -> None:
        self.judged: list[float | None] = []
        self.last: dict[str, float | None] = {}
        self._folder, self._attempt, self._by = folder, attempt, metric
        self._lines = JournalReader(folder.metrics(attempt), lambda line: read_line(line).values)

    def refresh(self) -> list[float | None]:
        """Take what is new; all values of the metric."""
        with suppress(PipelineError):  # it cannot be read now, and is looked at again
            for line in self._lines.new_events():
                self.last.update(line)
                if self._by and self._by.name in line:
                    self.judged.append(line[self._by.name])
        return self.judged

    def finite(self) -> list[float]:
        """Values of the metric that are numbers."""
        return [value for value in self.refresh() if value is not None]

    def best(self) -> float | None:
        """The best of them."""
        return (max if self._by and self._by.goal == "maximize" else min)(self.finite(), default=None)

    def follow(self, at_wandb: WandbMetrics, *, to_its_end: bool = False) -> None:
        """Take what is new; of a program that tells W&B instead, what it has told that."""
        if len(self.refresh()) <= at_wandb.taken:  # it says nothing here itself
            at_wandb.follow(to_its_end=to_its_end)
            self.refresh()

    def at_wandb(self, start: Path) -> WandbMetrics:
        """What the attempt, which begins now in the folder `start`, will tell W&B."""
        since = time.time()
        with suppress(OSError), tempfile.TemporaryFile(dir=self._folder.path) as file:
            since = os.fstat(file.fileno()).st_mtime  # its disk may be that of a machine with another clock
        return WandbMetrics(self._folder, self._attempt, self._by, since, start)

    def end(self, exit_code: int | None, asked: tuple[str, str] | None = None) -> End:
        """What the end of the attempt means.

        Args:
            exit_code: Of its program; negative or above 128 for a signal, None where that is not known.
            asked: The state and the reason for which it was ended, if it was.
        """
        value, values, best = self.judged[-1] if self.judged else None, dict(self.last), self.best()
        if asked is not None and not (exit_code == 0 and asked[0] == "waiting"):
            state, reason, value = asked[0], asked[1], value if asked[0] == "stopped" else None
        elif exit_code != 0:
            signalled = exit_code is not None and 128 < exit_code < 160
            state, value = "failed", None
            reason = describe_exit(128 - exit_code if signalled and exit_code else exit_code)
        elif self._by is not None and not self.judged:
            state, name = "failed", self._by.name
            near = known_names(name, values) if values else " Nothing that it logged was found."
            reason = (
                f"it ended well, but has told no value of {name}.{near} Set metric.name to what it logs, "
                f'or call pipeline.sweeps.log({{"{name}": ...}})'
            )
        else:
            no_number = self._by is not None and value is None
            state, reason = (
                "done",
                f"{self._by.name} was no finite number at the end" if self._by and no_number else "",
            )
        return End(state=state, value=value, best=best, values=values, exit_code=exit_code, reason=reason)
