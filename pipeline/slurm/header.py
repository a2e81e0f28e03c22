"""Lines ``#SBATCH`` of a batch script: read as sbatch reads them, and written so that it reads what was meant.

It has a grammar of its own, which is not that of a shell: a line counts only if it begins with the word, in the
first column, before the first command. A backslash takes the next character as it is, inside of quotes too, though
not a space outside of them; ``#`` outside of quotes begins a remark. Nothing is expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

MARK = "#SBATCH"
_SPACE = " \t\n\v\f\r"
"""What sbatch takes for one; a space without a break, say, is part of a word."""
_PLAIN = re.compile(r"[\w./:=,@%+\[\]-]+")
_SHORT = {
    "A": "account",
    "a": "array",
    "b": "begin",
    "B": "extra-node-info",
    "C": "constraint",
    "c": "cpus-per-task",
    "d": "dependency",
    "D": "chdir",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "i": "input",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "S": "core-spec",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}
_SHORT_FLAGS = {
    "H": "hold",
    "h": "help",
    "I": "immediate",
    "k": "no-kill",
    "O": "overcommit",
    "Q": "quiet",
    "s": "oversubscribe",
    "v": "verbose",
    "V": "version",
    "W": "wait",
}
_FLAGS = {
    *_SHORT_FLAGS.values(),
    *("contiguous", "exclusive", "get-user-env", "ignore-pbs", "nice", "no-requeue", "parsable", "propagate"),
    *("reboot", "requeue", "spread-job", "test-only", "usage", "use-min-nodes", "share"),
    *("container-mount-home", "no-container-mount-home", "container-remap-root", "no-container-remap-root"),
    *("container-writable", "container-readonly", "container-entrypoint", "no-container-entrypoint"),
}
"""Options that take no word after them; to some a value may be given behind ``=``."""
_VALUED = {
    *_SHORT.values(),
    *("acctg-freq", "batch", "bb", "bbf", "cluster-constraint", "comment", "container", "container-id"),
    *("cores-per-socket", "cpu-freq", "cpus-per-gpu", "deadline", "delay-boot", "export", "export-file", "extra"),
    *("gid", "gpu-bind", "gpu-freq", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags"),
    *("hint", "kill-on-invalid-dep", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu"),
    *("mem-per-gpu", "mincpus", "network", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node"),
    *("ntasks-per-socket", "oom-kill-step", "open-mode", "power", "prefer", "priority", "profile", "reservation"),
    *("resv-ports", "segment", "signal", "sockets-per-node", "stepmgr", "switches", "thread-spec"),
    *(
        "threads-per-core",
        "time-min",
        "tmp",
        "tres-bind",
        "tres-per-task",
        "uid",
        "wait-all-nodes",
        "wckey",
        "wrap",
    ),
    *(f"container-{what}" for what in ("image", "mounts", "workdir", "name", "save", "env", "entrypoint-log")),
}
KNOWN = _FLAGS | _VALUED
"""Long options of sbatch, of all versions in use, and those of pyxis for containers."""


def is_flag(name: str) -> bool:
    """Whether a long option stands alone."""
    return name in _FLAGS


def is_misspelt(name: str) -> bool:
    """Whether a long option is none of Slurm's, but much like one; a plugin (SPANK) may have any other."""
    return name not in KNOWN and (not name.isprintable() or bool(get_close_matches(name, sorted(KNOWN), 1, 0.75)))


def no_option(name: str) -> str:
    """What to say of a long option that there is not."""
    near = get_close_matches(name, sorted(KNOWN), 1, 0.6)
    shown = name if name.isprintable() else repr(name)
    return f"sbatch has no option --{shown}" + (f"; did you mean --{near[0]}?" if near else "")


class Unreadable(ValueError):  # noqa: N818 - it names what was found
    """A line that sbatch refuses; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the ``#SBATCH`` lines of a script say.

    Attributes:
        options: Long name -> value, "" for a flag; of one given twice the last, as sbatch takes it.
        lines: Number and text of each line that sbatch reads, from 1.
        late: The same for lines that come after a command, which it does not read.
        misspelt: The same for lines that look like one and are none.
        continued: The same for lines that end in a backslash, which does not continue them.
        refused: Number of a line -> why sbatch refuses it.
        unknown: Number of a line -> an option that Slurm does not have, and a plugin of a cluster may.
        others: Whether there are further lines, of a second component of the job.
    """

    options: dict[str, str] = field(default_factory=dict)
    lines: list[tuple[int, str]] = field(default_factory=list)
    late: list[tuple[int, str]] = field(default_factory=list)
    misspelt: list[tuple[int, str]] = field(default_factory=list)
    continued: list[tuple[int, str]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    unknown: dict[int, str] = field(default_factory=dict)
    others: bool = False


_LOOKS_LIKE_ONE = re.compile(r"\s+#SBATCH\b|\s*#\s+SBATCH\s+-|\s*#(?!SBATCH)(?i:sbatch)\s+-")


def read_header(lines: Sequence[str]) -> Header:
    """Read a script's lines as sbatch would."""
    header = Header()
    began = others = False
    for number, line in enumerate(lines, 1):
        bare = line.strip()
        if line.startswith(MARK):
            if began:
                header.late.append((number, bare))
            elif bare.split()[1:2] in (["hetjob"], ["packjob"]):
                others = True
            elif not others:
                header.lines.append((number, bare))
                header.continued.extend([(number, bare)] if bare.endswith("\\") else [])
                _take(header, number, line.removeprefix(MARK))
        elif _LOOKS_LIKE_ONE.match(line):
            header.misspelt.append((number, bare))
        elif bare and not bare.startswith("#"):
            began = True
    return Header(**{**vars(header), "others": others})


def _take(header: Header, number: int, text: str) -> None:
    try:
        for name, value in options_of(words_of(text)):
            header.options[name] = value
            if is_misspelt(name):
                raise Unreadable(no_option(name))
            if name not in KNOWN:
                header.unknown[number] = name
    except Unreadable as problem:
        header.refused[number] = str(problem)


def words_of(text: str) -> list[str]:
    """Words of what follows ``#SBATCH``.

    Raises:
        Unreadable: A quote is not closed.
    """
    words: list[str] = []
    word: list[str] = []
    quote, at = "", 0
    within = False
    while at < len(text):
        char = text[at]
        if not quote and char in _SPACE:
            words += ["".join(word)] if within else []
            word, within = [], False
        elif char == "\\" and at + 1 == len(text) and not quote:
            pass  # it would continue the line for a shell; sbatch forgets it
        elif char == "\\" and at + 1 < len(text) and (quote or text[at + 1] not in _SPACE):
            at += 1
            word.append(text[at])
            within = True
        elif quote and char == quote:
            quote = ""
        elif not quote and char in "\"'":
            quote, within = char, True
        elif not quote and char == "#":
            break
        else:
            word.append(char)
            within = True
        at += 1
    if quote:
        raise Unreadable(f"a quote ({quote}) is not closed")
    return words + (["".join(word)] if within else [])


def options_of(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Long names and values of options, as getopt takes words.

    Raises:
        Unreadable: A word is no option, or lacks its value.
    """
    left = iter(words)
    for word in left:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = _whole(name)
            takes = not equals and name in _VALUED
        elif word.startswith("-") and word[1:2] in _SHORT_FLAGS:
            name, value, takes = _SHORT_FLAGS[word[1]], "", False
        elif word.startswith("-") and word[1:2] in _SHORT:
            name, value = _SHORT[word[1]], word[2:].removeprefix("=")
            takes = not value
        else:
            raise Unreadable(f"{word!r} is no option, and sbatch refuses the script")
        if takes:
            following = next(left, None)
            if following is None:
                raise Unreadable(f"{word} lacks its value")
            value = following
        yield name, value


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options of sbatch, and what comes after them: the script and its arguments.

    Raises:
        Unreadable: The last option lacks its value.
    """
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if words[at] == "--":
            return list(words[:at]), list(words[at + 1 :])
        try:
            list(options_of(words[at : at + 1]))
            at += 1
        except Unreadable:
            list(options_of(words[at : at + 2]))
            at += 2
    return list(words[:at]), list(words[at:])


def _whole(name: str) -> str:
    """A long option that was cut short, whole: getopt takes any beginning that only one has."""
    begun = [known for known in KNOWN if known.startswith(name)]
    return begun[0] if name not in KNOWN and len(begun) == 1 else name


def written(name: str, value: str = "") -> str:
    """A line for an option.

    Args:
        name: Its long name.
        value: Any text without control characters; "" for a flag.
    """
    return f"{MARK} --{name}" + (f"={_quoted(value)}" if value else "")


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'"{escaped}"'
