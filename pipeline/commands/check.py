"""The doctor: every check of this machine, in order. The checks themselves are in `pipeline.commands.doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pipeline.commands.doctor import setup
from pipeline.commands.doctor.facts import Facts, read_facts
from pipeline.commands.doctor.machine import machine_checks
from pipeline.commands.doctor.proof import check_arithmetic, check_generation
from pipeline.commands.exits import refuse, unless_unwritten
from pipeline.errors import ConfigError
from pipeline.slurm.lint import slurm_checks
from pipeline.terminal.console import Check, Verdict, make_console, say
from pipeline.terminal.streams import printable

__all__ = ["Check", "Verdict", "main", "run_checks", "script"]

_INDENT = " " * len("PASS  ")


def run_checks(output_dir: Path) -> Iterator[Check]:
    """Every check in order; one that raises has failed, and the others go on."""
    yield from _guarded(lambda: [setup.check_python()], "python")
    yield from _guarded(lambda: [setup.check_packages()], "packages")
    try:
        facts = read_facts(output_dir)
    except Exception as error:
        yield _broken("facts", error)
    else:
        yield from _of_facts(facts)
    yield from _guarded(lambda: [setup.check_devices()], "devices")
    yield from _guarded(lambda: [setup.check_config()], "config")
    yield from _guarded(lambda: [setup.check_store(output_dir)], "store")
    yield from _guarded(check_generation, "parallel generation")
    yield from _guarded(check_arithmetic, "arithmetic")


def _of_facts(facts: Facts) -> Iterator[Check]:
    visible = len(facts.machine.devices)
    yield from _guarded(lambda: [setup.check_imports(facts.torch)], "imports")
    yield from _guarded(lambda: machine_checks(facts), "machine")
    yield from _guarded(lambda: slurm_checks(facts.environment, visible=visible), "Slurm")


def _guarded(check: Callable[[], Iterable[Check]], name: str) -> Iterator[Check]:
    try:
        yield from check()
    except Exception as error:
        yield _broken(name, error)


def _broken(name: str, error: Exception) -> Check:
    return Check(name, Verdict.FAIL, f"{type(error).__name__}: {error}", "the message above says what to repair")


def main(output_dir: Path = Path("outputs")) -> int:
    """Check this machine; 1 if anything failed, or what was found could not be written."""
    return unless_unwritten(print_checks(run_checks(output_dir), "This machine is ready."))


def script(arguments: Sequence[str]) -> int:
    """``python test_parallel_setup.py``: 2 if it was given arguments, of which it takes none."""
    if arguments:
        return refuse(
            ConfigError(
                f"test_parallel_setup.py {' '.join(arguments)}: it takes no arguments. `python -m pipeline check` "
                "makes the same checks, and says by --help what it can be told"
            )
        )
    return main()


def print_checks(checks: Iterable[Check], ready: str) -> int:
    """Print every check as it ends; 1 if any failed.

    Args:
        checks: What to print.
        ready: What to say in the end if none failed.
    """
    console = make_console()
    counts = dict.fromkeys(Verdict, 0)
    for check in checks:
        counts[check.verdict] += 1
        for line in check_lines(check, console):
            console.print(line, soft_wrap=True)
        if check.remedy:  # in one piece, since it often holds a command to be copied
            say(console, f"{_INDENT}try: {check.remedy}")
    failed = counts[Verdict.FAIL]
    verdict = ready if not failed else "Repair what failed, then run this again."
    say(console, f"\n{counts[Verdict.PASS]} passed, {counts[Verdict.WARN]} warned, {failed} failed. {verdict}")
    return 1 if failed else 0


def check_lines(check: Check, console: Console) -> Iterator[Text]:
    """What was seen; on a terminal broken between words, and indented."""
    name = (check.verdict.name, check.verdict.value)
    text = Text.assemble(name, "  ", (printable(check.name), "bold"), ": ", printable(check.detail))
    if not console.is_terminal:
        yield text
        return
    for number, line in enumerate(text.wrap(console, max(1, console.width - len(_INDENT)))):
        line.rstrip()
        yield Text(_INDENT if number else "") + line
