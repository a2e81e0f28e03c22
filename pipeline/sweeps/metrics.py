"""Read what a trial has logged: here, ``{"step": 1, "values": {"loss": 0.5}, "time": 1.7e9}`` a line, or to W&B.

Whoever writes it may be killed in the middle of a line, and is a program of the user's own: what is no such
line costs itself alone.
"""

import netrc
import os
import re
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from pipeline.engine.journal import JournalReader, whole_lines
from pipeline.errors import PipelineError, describe_exit, known_names
from pipeline.files import json_text, open_plain, write_whole
from pipeline.foreign import ForeignDataError, parse_json, read_json
from pipeline.outputs.formats import LARGEST
from pipeline.sweeps.file import Metric
from pipeline.sweeps.reporting import whole_step
from pipeline.sweeps.storage import End, TrialFolder

# -- the file of a run of W&B ------------------------------------------------------------------------------------
#
#     7 bytes, then blocks of 32 KiB as in LevelDB's logs; a record is a message of Protocol Buffers:
#     Record { 2: history { 1: item }   3: summary { 1: update  2: remove }   5: config   17: run { 4: config } }
#     config { 1: update  2: remove }
#     item   { 1: key   2: nested_key ...   16: value as JSON }
#
# Wandb writes it on this machine, offline or online. Nothing of wandb is imported: it takes seconds, and may be
# installed for the program alone. A file that is cut off, as of a program that was killed or still runs, is read
# up to there, and on from there the next time.

_PRINTED_BYTES = 1 << 18
_PRINTED = re.compile(rb"saved locally in (.+run-[0-9]{8}_[0-9]{6}-[^\s/]+)")
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
_BLOCK, _HEADER = 1 << 15, 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_UNREADABLE = (ValueError, IndexError, TypeError, AttributeError, OverflowError)
"""Errors from bytes that are no such record."""
Row = Mapping[str, float | None]


class WandbRun:
    """Log of one run of W&B, read as it comes.

    Attributes:
        summary: Name, dotted if nested -> value of the run so far, mostly the last; None if not finite.
        config: Its settings so far, name -> plain data.
    """

    def __init__(self, path: Path) -> None:
        self.summary: dict[str, float | None] = {}
        self.config: dict[str, Any] = {}
        self._path, self._at, self._parts = path, _HEADER, list[bytes]()

    def rows(self) -> Iterator[dict[str, float | None]]:
        """Yield the rows of further ``log`` calls, named as in `summary`, as far as they are written and readable.

        Raises:
            OSError: The file cannot be read.
        """
        with open_plain(self._path) as file:
            file.seek(self._at)
            data = file.read()
        for record in self._records(data):
            with suppress(*_UNREADABLE):  # what came before, and what follows, stands
                yield from self._take(record)

    def _records(self, data: bytes) -> Iterator[bytes]:
        """Whole records in the bytes after those that were read; one that ends beyond them waits for the rest."""
        start = self._at
        while (at := self._at - start) + _HEADER <= len(data):
            room = _BLOCK - self._at % _BLOCK
            if room < _HEADER:
                self._at += room
                continue
            _, length, kind = struct.unpack_from("<IHB", data, at)
            piece = data[at + _HEADER : at + _HEADER + length]
            if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or len(piece) < length or length > room - _HEADER:
                return
            self._at += _HEADER + length
            if kind in (_WHOLE, _FIRST):
                self._parts = []
            elif not self._parts:
                continue
            self._parts.append(piece)
            if kind in (_WHOLE, _LAST):
                record, self._parts = b"".join(self._parts), []
                yield record

    def _take(self, data: bytes) -> Iterator[dict[str, float | None]]:
        """Yield the row in a record, if it has one, and apply other records."""
        record = _fields(data)
        for history in record.get(2, ()):
            yield dict(_numbers(_fields(history).get(1, ())))
        for summary in map(_fields, record.get(3, ())):
            self.summary.update(_numbers(summary.get(1, ())))
            for name, _ in _items(summary.get(2, ())):
                self.summary.pop(name, None)
        begun = (config for run in record.get(17, ()) for config in _fields(run).get(4, ()))
        for config in map(_fields, (*record.get(5, ()), *begun)):
            for name, text in _items(config.get(1, ())):
                with suppress(ForeignDataError):
                    self.config[name] = parse_json(text, infinite=True)
            for name, _ in _items(config.get(2, ())):
                self.config.pop(name, None)


def _fields(message: bytes) -> dict[int, list[Any]]:
    """Parse protobuf fields: number -> values (bytes, or the bits of a number). Raises `_UNREADABLE` otherwise."""
    fields: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = 0
        for position in range(10):
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                return value
        raise ValueError

    while at < len(message):
        tag = varint()
        value: Any = varint() if tag & 7 in (0, 2) else 0
        if tag & 7:
            length = {1: 8, 2: value, 5: 4}.get(tag & 7, len(message) + 1)
            value, at = message[at : at + length], at + length
            if at > len(message):
                raise ValueError
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _items(items: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """Dotted name and JSON of each item."""
    for item in map(_fields, items):
        names = [name.decode(errors="replace") for name in (*item.get(1, ()), *item.get(2, ()))]
        yield ".".join(names), item.get(16, (b"",))[-1].decode(errors="replace")


def _numbers(items: Iterable[bytes]) -> Iterator[tuple[str, float | None]]:
    for name, text in _items(items):
        with suppress(ForeignDataError):
            yield from _leaves(name, parse_json(text, infinite=True))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, float | None]]:
    if isinstance(value, Mapping):
        for inside, inner in value.items():
            yield from _leaves(f"{name}.{inside}", inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value) if abs(value) <= LARGEST else None


# -- the runs of a trial -----------------------------------------------------------------------------------------


def run_folders(folder: TrialFolder, attempt: int, start: Path) -> list[Path]:
    """Return the folders of W&B's runs in an attempt at a trial.

    Args:
        folder: Folder of the trial, which the program had as WANDB_DIR.
        attempt: Number of the attempt.
        start: The folder in which the program was started. What it gave as ``dir`` wandb has printed.
    """
    if folders := list(folder.path.glob("wandb/*run-*")):
        return folders
    with suppress(OSError), open_plain(folder.log(attempt)) as file:
        printed = file.read(_PRINTED_BYTES)
        file.seek(max(file.tell(), file.seek(0, 2) - _PRINTED_BYTES))
        paths = _PRINTED.findall(_COLOURS.sub(b"", printed + file.read(_PRINTED_BYTES)))
        return list(dict.fromkeys(start / os.fsdecode(path) for path in paths))
    return []


def _other(values: Mapping[str, Any], config: Mapping[str, Any], outer: str = "") -> Iterator[str]:
    for name, value in values.items():
        other = config.get(name, value)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _other(value, other, f"{outer}{name}.")
        elif not (isinstance(value, list | Mapping) or isinstance(other, list | Mapping) or _same(value, other)):
            yield f"{outer}{name}={other} where the sweep gave {value}"


def _same(value: Any, other: Any) -> bool:
    """Return whether two values are equal, possibly with one written as text."""
    with suppress(TypeError, ValueError, OverflowError):
        return str(value) == str(other) or (not isinstance(value, bool) and float(value) == float(other))
    return False


# -- what a trial finds ------------------------------------------------------------------------------------------
# Its parameters in ``wandb.config``, and no need of an account. WANDB_SWEEP_PARAM_PATH says where they are, as
# under W&B's agent: ``wandb.init`` has them take the place of what the program gives as ``config``. WANDB_SWEEP_ID
# and WANDB_RUN_ID are not set: they are of a sweep at W&B, which this one is not.

WANDB_DIR, WANDB_MODE, SWEEP_PARAM_PATH = "WANDB_DIR", "WANDB_MODE", "WANDB_SWEEP_PARAM_PATH"


def write_parameters_for_wandb(folder: TrialFolder, parameters: Mapping[str, Any]) -> None:
    """Write parameters, in tables as the file has them, as W&B's agent does.

    Raises:
        OSError: They cannot be written.
    """
    blocks = {str(name): {"value": value} for name, value in parameters.items()}
    write_whole(folder.for_wandb, yaml.safe_dump({"wandb_version": 1, **blocks}, sort_keys=False))


def wandb_variables(folder: TrialFolder, group: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return W&B's environment variables of a trial.

    Args:
        folder: Folder of the trial, with its parameters in it.
        group: Name of the sweep, in which W&B shows its trials together.
        environment: The environment that it has otherwise: what a user says there stands.
    """
    # Its file is written every 15 s otherwise, and trials are compared by it while they run.
    wanted = {"WANDB_RUN_GROUP": group, "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "1"}
    if not has_key(environment):
        wanted[WANDB_MODE] = "offline"
    missing = {name: value for name, value in wanted.items() if name not in environment}
    return {SWEEP_PARAM_PATH: str(folder.for_wandb.absolute()), **missing}


def has_key(environment: Mapping[str, str]) -> bool:
    """Return whether ``wandb.init`` finds a login or its mode without asking the user."""
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    folder = Path(environment.get("WANDB_CONFIG_DIR") or "~/.config/wandb")
    with suppress(OSError, UnicodeDecodeError, RuntimeError):
        if re.search(r"(?m)^\s*(api_key|mode)\s*[=:]", (folder.expanduser() / "settings").read_text()):
            return True
    server = urlsplit(environment.get("WANDB_BASE_URL") or "https://api.wandb.ai").netloc
    for path in (environment.get("NETRC") or "~/.netrc", "~/_netrc"):
        with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError, RuntimeError):
            return netrc.netrc(Path(path).expanduser()).authenticators(server) is not None
    return False


# -- lines -------------------------------------------------------------------------------------------------------

_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line.

    Attributes:
        values: Name of a metric -> its value; None for one that is no finite number, or beyond all use.
        step: Step as the program counts; None where it does not.
    """

    values: dict[str, int | float | None]
    step: int | float | None = None


def read_line(line: bytes) -> Line:
    """Read one line.

    Raises:
        ForeignDataError: It is none.
    """
    row = read_json(line, Line, infinite=True)
    values = {
        name: float(value) if value is not None and abs(value) <= LARGEST else None
        for name, value in row.values.items()
    }
    return Line(values=values, step=None if row.step is None else whole_step(row.step))


def parsed(lines: Iterable[bytes]) -> Iterator[Line]:
    """Yield the parsed lines, without those that cannot be read."""
    for line in lines:
        with suppress(ForeignDataError):
            yield read_line(line)


def latest_values(path: Path) -> dict[str, float | None]:
    """Return the last logged value of each metric, as far as the end of the file has it."""
    with suppress(OSError), open_plain(path) as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
        return {name: value for line in parsed(whole_lines(file)) for name, value in line.values.items()}
    return {}


class Curve:
    """Log of an attempt at a trial so far, read as it comes: lines, or what it tells W&B instead.

    All runs of W&B of an attempt count, as with W&B's agent, where they are one run.

    Attributes:
        judged: Values of the metric, in order; None for what is no finite number.
        last: Name -> last value, of everything.
    """

    def __init__(self, folder: TrialFolder, attempt: int, metric: Metric | None) -> None:
        self.judged: list[float | None] = []
        self.last: dict[str, float | None] = {}
        self._folder, self._attempt, self._path = folder, attempt, folder.metrics(attempt)
        self._name, self._goal = (metric.name, metric.goal) if metric else ("", "minimize")
        self._lines = JournalReader(self._path, lambda line: read_line(line).values)
        self._runs, self._earlier, self._start = dict[Path, WandbRun](), frozenset[Path](), Path()
        self._taken = 0
        """Rows of W&B with the metric that were added to the lines."""

    def begin(self, start: Path) -> None:
        """Begin an attempt in this folder: W&B's runs that exist are from earlier attempts."""
        self._start = start
        self._earlier = frozenset(self._files())

    def refresh(self) -> list[float | None]:
        """Take what is new; all values of the metric."""
        with suppress(PipelineError):  # it cannot be read now, and is looked at again
            for line in self._lines.new_events():
                self.last.update(line)
                if self._name in line:
                    self.judged.append(line[self._name])
        return self.judged

    def finite(self) -> list[float]:
        """Return the finite values of the metric."""
        return [value for value in self.refresh() if value is not None]

    def best(self) -> float | None:
        """Return the best of them."""
        return (max if self._goal == "maximize" else min)(self.finite(), default=None)

    def follow(self, *, to_its_end: bool = False) -> None:
        """Take what is new; of a program that tells W&B instead, what it has told that."""
        with suppress(OSError):
            if to_its_end and (b"\n" + self._path.read_bytes())[-1:] != b"\n":
                with self._path.open("a") as file:  # its last line has no end, and gets none any more
                    file.write("\n")
        if len(self.refresh()) > self._taken:
            return  # it says something here itself
        for path in self._files():
            if path not in self._earlier:
                run = self._runs.pop(path, None) or WandbRun(path)
                self._runs[path] = run  # the last one is the one that was written to last
                with suppress(OSError):  # a file that was removed, or a full disk: then it has logged nothing
                    self._add(row for row in run.rows() if self._name in row)
        sums = [self._summed_up(run.summary) for run in self._runs.values()] if to_its_end else []
        summary = next((row for row in reversed(sums) if self._name in row), sums[-1] if sums else None)
        before = self.refresh()[-1:]
        if summary is not None and not (self._taken and [summary.get(self._name, *before)] == before):
            with suppress(OSError):
                self._add([summary])
        self.refresh()

    def _files(self) -> list[Path]:
        """Return the files of runs, by time of the last write."""
        files = set()
        for folder in run_folders(self._folder, self._attempt, self._start):
            for path in folder.glob("run-*.wandb"):
                with suppress(OSError):
                    files.add((path.stat().st_mtime, path))
        return [path for _, path in sorted(files)]

    def _summed_up(self, summary: Row) -> Row:
        """Return a summary with the metric's own value, even if ``define_metric`` chose its aggregate."""
        best, other = ("min", "max") if self._goal == "minimize" else ("max", "min")
        names = (f"{self._name}.{kind}" for kind in ("best", best, "last", "mean", other))
        chosen = [summary[name] for name in names if name in summary]
        own = self._name in summary or not self._taken or not chosen
        return summary if own else {**summary, self._name: chosen[0]}

    def _add(self, rows: Iterable[Row]) -> None:
        """Append rows like `reporting.log`; names that begin with an underscore are wandb's own."""
        lines = []
        for row in rows:
            self._taken += self._name in row
            values = {name: value for name, value in row.items() if not name.startswith("_")}
            step, now = row.get("_step"), row.get("_timestamp") or round(time.time(), 3)
            record = {"step": self._taken if step is None else int(step), "values": values, "time": now}
            lines.append(json_text(record, separators=(",", ":")) + "\n")
        if lines:
            with self._path.open("a") as file:
                file.write("".join(lines))

    @property
    def untold(self) -> Path | None:
        """The folder of runs that W&B was not told of; None where there are none."""
        return next((path.parents[1] for path in self._runs if path.parent.name.startswith("offline-")), None)

    def other_values(self, parameters: Mapping[str, Any]) -> list[str]:
        """Return messages on parameters for which W&B's runs have other values than the trial was given.

        Args:
            parameters: Parameters of the trial, in tables as in the file.
        """
        return list(dict.fromkeys(line for run in self._runs.values() for line in _other(parameters, run.config)))

    def end(self, exit_code: int | None, request: tuple[str, str] | None = None) -> End:
        """Return what the end of the attempt means.

        Args:
            exit_code: Exit code of its program; negative or above 128 for a signal, None if unknown.
            request: The state and the reason for which it was ended, if it was.
        """
        state, reason, value = "done", "", self.judged[-1] if self.judged else None
        if request is not None and not (exit_code == 0 and request[0] == "waiting"):
            (state, reason), value = request, value if request[0] == "stopped" else None
        elif exit_code != 0:
            signalled = exit_code is not None and 128 < exit_code < 160
            state, value = "failed", None
            reason = describe_exit(128 - exit_code if signalled and exit_code else exit_code)
        elif self._name and not self.judged:
            state, others = "failed", known_names(self._name, self.last) if self.last else ""
            problem = f"it ended well, but has told no value of {self._name}.{others}"
            reason = f"{problem} Set metric.name to what it logs, or call pipeline.sweeps.log"
        elif self._name and value is None:
            reason = f"{self._name} was no finite number at the end"
        values = dict(self.last)
        return End(state=state, value=value, best=self.best(), values=values, exit_code=exit_code, reason=reason)
