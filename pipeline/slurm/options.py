"""Options of sbatch, on its command line and in ``#SBATCH`` lines, and the numbers in them."""

from __future__ import annotations

import getopt
import re
from collections.abc import Iterable, Mapping, Sequence

from pipeline.errors import ConfigError

MARK = "#SBATCH"
_SHORT = dict(
    pair.split(":")
    for pair in (
        "A:account a:array b:begin B:extra-node-info C:constraint c:cpus-per-task d:dependency D:chdir e:error "
        "F:nodefile G:gpus i:input J:job-name L:licenses M:clusters m:distribution N:nodes n:ntasks o:output "
        "p:partition q:qos S:core-spec t:time w:nodelist x:exclude H:hold I:immediate k:no-kill O:overcommit "
        "Q:quiet s:oversubscribe v:verbose V:version W:wait"
    ).split()
)
_FLAGS = set(
    "hold immediate no-kill overcommit quiet oversubscribe verbose version wait contiguous exclusive get-user-env "
    "ignore-pbs nice no-requeue parsable propagate reboot requeue spread-job test-only usage use-min-nodes share "
    "container-mount-home no-container-mount-home container-remap-root no-container-remap-root "
    "container-writable container-readonly container-entrypoint no-container-entrypoint".split()
)
KNOWN = {*_FLAGS, *_SHORT.values()} | set(
    "acctg-freq batch bb bbf cluster-constraint comment container container-id cores-per-socket cpu-freq "
    "cpus-per-gpu deadline delay-boot export export-file extra gid gpu-bind gpu-freq gpus-per-node "
    "gpus-per-socket gpus-per-task gres gres-flags hint kill-on-invalid-dep mail-type mail-user mcs-label mem "
    "mem-bind mem-per-cpu mem-per-gpu mincpus network ntasks-per-core ntasks-per-gpu ntasks-per-node "
    "ntasks-per-socket oom-kill-step open-mode power prefer priority profile reservation resv-ports segment "
    "signal sockets-per-node stepmgr switches thread-spec threads-per-core time-min tmp tres-bind tres-per-task "
    "uid wait-all-nodes wckey wrap container-image container-mounts container-workdir container-name "
    "container-save container-env".split()
)
"""Long options of sbatch, of all versions in use, and those of pyxis for containers."""


def options_of(words: Sequence[str], own: Iterable[str] = ()) -> tuple[list[tuple[str, str]], list[str]]:
    """Read options up to the first word that is none.

    Args:
        words: Of a command line, or of a line.
        own: Further long options, with ``=`` behind those that take a value.

    Returns:
        Long names and values, "" for a flag; and the words from the first one on that is no option.

    Raises:
        ConfigError: It is no option of sbatch, or lacks its value. One of a plugin has to be ``--NAME=VALUE``.
    """
    long = {*_FLAGS, *(f"{name}=" for name in KNOWN - _FLAGS), *own}
    for word in words:
        name = word[2:].partition("=")[0] if word.startswith("--") and "=" in word else ""
        if name in _FLAGS or (name and not any(each.startswith(name) for each in long)):
            long = long - {name} | {f"{name}="}
    short = "".join(letter if name in _FLAGS else f"{letter}:" for letter, name in _SHORT.items())
    try:
        given, rest = getopt.getopt(list(words), short, sorted(long))
    except getopt.GetoptError as error:
        raise ConfigError(
            f"{error}. It must be an option of sbatch; one of a plugin is written --NAME=VALUE"
        ) from error
    return [(_SHORT.get(name[1:], name[2:]), value) for name, value in given], rest


def written(name: str, value: str = "") -> str:
    """Write a line for an option; "" is a flag, and a value is any text on one line."""
    if not re.fullmatch(r"[\w./:=,@%+\[\]-]*", value):
        value = '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    return f"{MARK} --{name}" + (f"={value}" if value else "")


# -- numbers -----------------------------------------------------------------------------------------------------

_GPUS = re.compile(
    r"(?:^|,)(?:gres[:/])?gpu(?::(?=[^:,(=]*[A-Za-z])\w[^:,(=]*)?(?:[:=](\d{1,9}))?(?=$|[,(])", re.ASCII
)
"""A type may begin with a digit, as that of a part of a GPU: gpu:1g.10gb:2."""
_TIME = re.compile(r"(?:(\d{1,6})-)?(\d{1,8})(?::(\d{1,8}))?(?::(\d{1,8}))?", re.ASCII)


def number(text: str | None) -> int | None:
    """Read a whole number; None for anything else."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 9 else None


def nodes_of(options: Mapping[str, str]) -> int:
    """Nodes of a job, the most of a range; as many as its tasks need where it does not say."""
    tasks, each = number(options.get("ntasks")), number(options.get("ntasks-per-node"))
    return number(options.get("nodes", "").rpartition("-")[2]) or -(-(tasks or 1) // (each or tasks or 1))


def gpus_of(options: Mapping[str, str]) -> int:
    """GPUs of each node, of all types together, by whichever option asks for them."""

    def named(text: str) -> int:
        return sum(int(found[1] or 1) for found in _GPUS.finditer(text))

    def counted(name: str) -> int:
        return named(",".join(f"gpu:{part}" for part in options[name].split(","))) if name in options else 0

    nodes = nodes_of(options)
    here = number(options.get("ntasks-per-node")) or -(-(number(options.get("ntasks")) or nodes) // nodes)
    return (
        named(options.get("gres", ""))
        or counted("gpus-per-node")
        or -(-counted("gpus") // nodes)
        or (counted("gpus-per-task") or named(options.get("tres-per-task", ""))) * here
    )


def seconds_of(time: str) -> int | None:
    """Read a time as sbatch does: ``90`` are minutes, ``1:30`` minutes and seconds, ``1-12`` days and hours.

    Returns:
        Seconds; None where there is no bound.

    Raises:
        ConfigError: It is no time.
    """
    if time.lower() in ("infinite", "unlimited"):
        return None
    if not (found := _TIME.fullmatch(time)):
        raise ConfigError(f"--time {time}: as 90 (minutes), 1:30:00 (hours), 2-12 (days and hours) or 2-12:30:00")
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[1] is None and found[4] is None:
        return first * 60 + second
    return days * 86_400 + first * 3600 + second * 60 + third
