"""What a program has logged to W&B, read from the file that wandb writes on this machine, offline or online.

    7 bytes, then blocks of 32 KiB as in LevelDB's logs; a record is a message of Protocol Buffers:
    Record { 2: history { 1: item }   3: summary { 1: update  2: remove }   5: config   17: run { 4: config }
             18: exit { 1: exit_code } }
    config { 1: update  2: remove }
    item   { 1: key   2: nested_key ...   16: value as JSON }

Nothing of wandb is imported: it takes seconds, and may be installed for the program alone. A file that is cut off,
as of a program that was killed or still runs, is read up to there, and on from there the next time.
"""

from __future__ import annotations

import configparser
import math
import netrc
import os
import re
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from pipeline.files import json_text, open_plain, write_whole
from pipeline.foreign import ForeignDataError, parse_json
from pipeline.sweeps.file import Metric
from pipeline.sweeps.space import fingerprint
from pipeline.sweeps.storage import TrialFolder

PART = 8 << 20
"""Bytes of a file that are read at a time."""
PRINTED = 1 << 18
_PRINTED = re.compile(rb"saved locally in (.+run-[0-9]{8}_[0-9]{6}-[^\s/]+)")
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
_BLOCK, _HEADER = 1 << 15, 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _SUMMARY, _CONFIG, _RUN, _EXIT = 2, 3, 5, 17, 18
_CONFIG_OF_RUN, _CODE_OF_EXIT = 4, 1
_UPDATE, _REMOVE = 1, 2
_KEY, _NESTED, _JSON = 1, 2, 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def run_files(folders: Iterable[Path], since: float = 0.0) -> list[Path]:
    """The files of runs, in the order in which they were last written to.

    Args:
        folders: Those of runs.
        since: Seconds since 1970; files that were last written before do not count.
    """
    found = set()
    for path in (path for folder in folders for path in folder.glob("run-*.wandb")):
        try:
            written = path.stat().st_mtime
        except OSError:
            continue
        if written >= since:
            found.add((written, path))
    return [path for _, path in sorted(found)]


def run_folders(wandb_dir: Path) -> list[Path]:
    """The folders of the runs of a program.

    Args:
        wandb_dir: What WANDB_DIR was for it.
    """
    return list(wandb_dir.glob("wandb/*run-*"))


def printed_folders(log: Path, start: Path) -> list[Path]:
    """The folders of runs that a program has printed, as wandb does when one begins; it may say where by ``dir``.

    Args:
        log: What it has printed; its first and last `PRINTED` bytes are looked at.
        start: The folder in which it was started.

    Raises:
        OSError: The log cannot be read.
    """
    with open_plain(log) as file:
        said = file.read(PRINTED)
        file.seek(max(file.tell(), file.seek(0, 2) - PRINTED))
        said += file.read(PRINTED)
    found = _PRINTED.findall(_COLOURS.sub(b"", said))
    return list(dict.fromkeys(start / os.fsdecode(path) for path in found))


class WandbRun:
    """What one run has logged, read as it comes.

    Attributes:
        summary: What stands for the run as a whole so far: mostly the last values. By name; what is nested by
            dotted name. None for what is not finite.
        config: Its settings so far, name -> plain data.
        exit_code: With which it ended; 0 also where it has not, or was killed.
    """

    def __init__(self, path: Path) -> None:
        self.summary: dict[str, float | None] = {}
        self.config: dict[str, Any] = {}
        self.exit_code = 0
        self._path, self._at, self._parts = path, _HEADER, list[bytes]()

    def rows(self) -> Iterator[dict[str, float | None]]:
        """What further calls of ``log`` had, by name as `summary`, as far as it was written and can be understood.

        Raises:
            OSError: The file cannot be read.
        """
        before = 0
        while before != self._at:
            before = self._at
            with open_plain(self._path) as file:
                file.seek(before)
                data = file.read(PART)
            for record in self._records(data):
                with suppress(_UnreadableError):  # what came before, and what follows, stands
                    yield from self._row(record)

    def _records(self, data: bytes) -> Iterator[bytes]:
        """Whole records in the bytes after those that were read; one that ends beyond them waits for the rest."""
        start = self._at
        while (at := self._at - start) + _HEADER <= len(data):
            left = _BLOCK - self._at % _BLOCK
            if left < _HEADER:
                self._at += left
                continue
            _, length, kind = struct.unpack_from("<IHB", data, at)
            piece = data[at + _HEADER : at + _HEADER + length]
            if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or len(piece) < length or length > left - _HEADER:
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

    def _row(self, record: bytes) -> Iterator[dict[str, float | None]]:
        """The row in a record, if it is one; of others what they change is noted."""
        for number, value in _fields(record):
            if not isinstance(value, bytes):
                continue
            if number == _HISTORY:
                yield dict(_numbers(value, _UPDATE))
            elif number == _SUMMARY:
                self.summary.update(_numbers(value, _UPDATE))
                for name, _ in _items(value, _REMOVE):
                    self.summary.pop(name, None)
            elif number == _CONFIG:
                self._configure(value)
            elif number == _RUN:
                for part, inside in _fields(value):
                    if part == _CONFIG_OF_RUN and isinstance(inside, bytes):
                        self._configure(inside)
            elif number == _EXIT:
                codes = [code for part, code in _fields(value) if part == _CODE_OF_EXIT and isinstance(code, int)]
                self.exit_code = next(iter(codes), 0)

    def _configure(self, message: bytes) -> None:
        for name, text in _items(message, _UPDATE):
            try:
                self.config[name] = parse_json(text, infinite=True)
            except ForeignDataError:
                continue
        for name, _ in _items(message, _REMOVE):
            self.config.pop(name, None)


class _UnreadableError(ValueError):
    """Bytes that are no such record."""


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Numbers of fields and their values: bytes, or of a number its bits."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise _UnreadableError
        if at + length > len(message):
            raise _UnreadableError
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at
    raise _UnreadableError


def _items(message: bytes, which: int) -> Iterator[tuple[str, str]]:
    """Dotted name and JSON of each item of a history or summary."""
    for number, item in _fields(message):
        if number != which or not isinstance(item, bytes):
            continue
        names: list[str] = []
        text = ""
        for part, value in _fields(item):
            if isinstance(value, bytes):
                said = value.decode(errors="replace")
                if part in (_KEY, _NESTED):
                    names.append(said)
                elif part == _JSON:
                    text = said
        yield ".".join(names), text


def _numbers(message: bytes, which: int) -> Iterator[tuple[str, float | None]]:
    for name, text in _items(message, which):
        try:
            yield from _leaves(name, parse_json(text, infinite=True))
        except ForeignDataError:
            continue


def _leaves(name: str, value: Any) -> Iterator[tuple[str, float | None]]:
    if isinstance(value, Mapping):
        for inside, each in value.items():
            yield from _leaves(f"{name}.{inside}", each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        yield name, number if math.isfinite(number) else None


# -- wandb metrics -----------------------------------------------------------------------------------------------
# What a trial logs to W&B rather than to us, put where everything else that is logged is, while it runs.


_SLACK_S = 2.0
"""By which times of files may be inexact."""
Row = Mapping[str, float | None]


class WandbMetrics:
    """The runs of W&B of one attempt at a trial. All of them count, as with W&B's agent, where they are one run.

    Attributes:
        taken: Rows with the metric that were added to the trial's own file.
    """

    def __init__(
        self,
        place: TrialFolder,
        attempt: int,
        metric: Metric | None,
        since: float,
        start: Path = Path(),
    ) -> None:
        """Prepare.

        Args:
            place: Folder of the trial, which the program has as WANDB_DIR.
            attempt: Which attempt.
            metric: What trials are judged by; None where they are not.
            since: When the attempt began, by the clock of its files; runs of earlier ones do not count.
            start: The folder in which the program is started.
        """
        self._start = start
        self.taken = 0
        self._place, self._attempt, self._since = place, attempt, since - _SLACK_S
        self._metric, self._goal = (metric.name, metric.goal) if metric else ("", "minimize")
        self._runs: dict[Path, WandbRun] = {}
        self._said: float | None = None

    def follow(self, *, to_its_end: bool = False) -> None:
        """Add the rows with the metric that are new, and of a program that is over what its summary says else."""
        for path in run_files(folders_of(self._place, self._attempt, self._start), self._since):
            run = self._runs.pop(path, None) or WandbRun(path)
            self._runs[path] = run  # the last one is the one that was written to last
            with suppress(OSError):  # a file that was removed, or a full disk: then it has logged nothing
                self._add(row for row in run.rows() if self._metric in row)

        if to_its_end:
            self._conclude()

    def _conclude(self) -> None:
        """Add of the last run with the metric its summary, where that says something else."""
        runs = list(self._runs.values())
        found = [self._summed_up(run.summary) for run in runs]
        last = next((each for each in reversed(found) if self._metric in each), found[-1] if found else None)
        if last is not None and not (self.taken and last.get(self._metric, self._said) == self._said):
            with suppress(OSError):
                self._add([last])

    def _summed_up(self, summary: Row) -> Row:
        """A summary in which the metric has a value of its own, also where ``define_metric`` chose which it is."""
        best, other = ("min", "max") if self._goal == "minimize" else ("max", "min")
        kinds = ("best", best, "last", "mean", other)
        chosen = [summary[name] for kind in kinds if (name := f"{self._metric}.{kind}") in summary]
        if not chosen or not self.taken or self._metric in summary:
            return summary
        return {**summary, self._metric: chosen[0]}

    @property
    def kept(self) -> Path | None:
        """The folder of runs that W&B was not told of; None where there are none."""
        return next((path.parents[1] for path in self._runs if path.parent.name.startswith("offline-")), None)

    @property
    def exit_code(self) -> int:
        """That of the run that was written to last; 0 where there is none."""
        return next((run.exit_code for run in reversed(self._runs.values())), 0)

    def other_values(self, parameters: Mapping[str, Any]) -> list[str]:
        """What these runs say of parameters that is not what the trial was given, in words.

        Args:
            parameters: Of the trial, in tables as the file has them.
        """
        found = (line for run in self._runs.values() for line in _other(parameters, run.config, ""))
        return list(dict.fromkeys(found))

    def _add(self, rows: Iterator[Row] | list[Row]) -> None:
        lines = []
        for row in rows:
            if self._metric in row:
                self.taken, self._said = self.taken + 1, row[self._metric]
            if row:
                lines.append(_line(row, self.taken, round(time.time(), 3)))
        if lines:
            with self._place.metrics(self._attempt).open("a") as file:
                file.write("".join(lines))


def folders_of(place: TrialFolder, attempt: int, start: Path) -> list[Path]:
    """The folders of the runs of W&B of an attempt at a trial.

    Args:
        place: Folder of the trial, which the program had as WANDB_DIR.
        attempt: Which attempt.
        start: The folder in which the program was started.
    """
    folders = run_folders(place.path)
    with suppress(OSError):
        folders = folders or printed_folders(place.log(attempt), start)
    return folders


def _line(row: Row, step: int, now: float) -> str:
    """As `reporting.log` writes it; names of wandb's own begin with an underscore."""
    known = {name: value for name, value in row.items() if not name.startswith("_")}
    when = row.get("_timestamp") or now
    number = row.get("_step")
    told = {"step": step if number is None else int(number), "values": known, "time": when}
    return json_text(told, separators=(",", ":")) + "\n"


def _other(given: Mapping[str, Any], config: Mapping[str, Any], outer: str) -> Iterator[str]:
    for name, value in given.items():
        if name not in config:
            continue
        other = config[name]
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _other(value, other, f"{outer}{name}.")
        elif _is_plain(value) and _is_plain(other) and not _same(value, other):
            yield f"{outer}{name}={other} where the sweep gave {value}"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _same(value: Any, other: Any) -> bool:
    """Whether two values are one, be it that one of them was written as a text."""
    if str(value) == str(other) or fingerprint(value) == fingerprint(other):
        return True
    try:
        return not isinstance(value, bool) and float(value) == float(other)
    except (TypeError, ValueError, OverflowError):
        return False


# -- wandb trial -------------------------------------------------------------------------------------------------
# What a program that uses W&B finds in a trial: its parameters in ``wandb.config``, and no need of an
# account. WANDB_SWEEP_PARAM_PATH says where parameters are, as under W&B's agent: ``wandb.init`` has them
# take the place of what the program gives as ``config``, and lets none of them be changed. WANDB_SWEEP_ID and
# WANDB_RUN_ID are not set: they are of a sweep at W&B, which this one is not.


WANDB_DIR, WANDB_MODE = "WANDB_DIR", "WANDB_MODE"
SWEEP_PARAM_PATH = "WANDB_SWEEP_PARAM_PATH"
_FLUSH = "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL"
_FLUSH_S = "1"
"""Seconds between two writes of wandb's file, 15 by default: trials are compared by it while they run."""
_SERVER = "https://api.wandb.ai"


def write_parameters_for_wandb(place: TrialFolder, parameters: Mapping[str, Any]) -> None:
    """Write them down as W&B's agent does.

    Args:
        place: Folder of the trial.
        parameters: In tables as the file has them.

    Raises:
        OSError: They cannot be written.
    """
    blocks = {str(name): {"value": value} for name, value in parameters.items()}
    write_whole(place.for_wandb, yaml.safe_dump({"wandb_version": 1, **blocks}, sort_keys=False))


def wandb_variables(place: TrialFolder, group: str, given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a trial, as far as it is about W&B.

    Args:
        place: Folder of the trial, with its parameters in it.
        group: Name of the sweep, in which W&B shows its trials together.
        given: The environment that it has otherwise: what a user says there stands.
    """
    wanted = {"WANDB_RUN_GROUP": group, _FLUSH: _FLUSH_S}
    if not has_key(given):
        wanted[WANDB_MODE] = "offline"
    left = {name: value for name, value in wanted.items() if name not in given}
    return {SWEEP_PARAM_PATH: str(place.for_wandb.absolute()), **left}


def has_key(environment: Mapping[str, str]) -> bool:
    """Whether ``wandb.init`` finds who is logged in, or its mode, without asking: where it looks for them.

    Args:
        environment: Of the program.
    """
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = _settings(environment)
    if "api_key" in settings or "mode" in settings:
        return True
    server = environment.get("WANDB_BASE_URL") or settings.get("base_url") or _SERVER
    for path in _netrc_files(environment):
        with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
            return netrc.netrc(path).authenticators(urlsplit(server).netloc) is not None
    return False


def _settings(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Of the user, as ``wandb login`` and ``wandb offline`` write them; a trial sees none of a folder."""
    folder = environment.get("WANDB_CONFIG_DIR") or "~/.config/wandb"
    parser = configparser.ConfigParser(interpolation=None)
    with suppress(configparser.Error, OSError, UnicodeDecodeError):
        parser.read(Path(folder).expanduser() / "settings")
        return parser["default"] if parser.has_section("default") else {}
    return {}


def _netrc_files(environment: Mapping[str, str]) -> list[Path]:
    if named := environment.get("NETRC"):
        return [Path(named).expanduser()]
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - the same where there is no home
    return [path for path in (home / ".netrc", home / "_netrc") if path.exists()]
