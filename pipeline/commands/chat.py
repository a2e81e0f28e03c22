"""Talk with a trained policy in a terminal: ``python -m pipeline chat NAME CHAIN``.

Answers are drawn by our own decoder, as `pipeline.guided` draws them: for one who talks, an engine of vLLM is
hardly faster by the token, and takes longer to start than to answer. To serve many, `export` writes a folder
whose card has the commands.
"""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.export import held_model
from pipeline.commands.python import guided
from pipeline.commands.start import WRONG_REQUEST, complain
from pipeline.commands.typed import OUTPUTS, Experiment, OutputDir, Stamp, examples
from pipeline.errors import ConfigError, PipelineError
from pipeline.runs.loaded import choose_run, load_planned
from pipeline.terminal.console import Terminal, make_console, say
from pipeline.terminal.streams import is_gone, printable

if TYPE_CHECKING:
    from pipeline.learning.generation.guided import Guided, Prompt

app = typer.Typer()


@app.command(
    epilog=examples(
        "pipeline chat first_run PITA",
        "pipeline chat my_run s0/DPO --system 'Answer in one sentence.'",
        "echo '789+456=' | pipeline chat first_run PITA --eta 0.2",
    )
)
def chat(
    name: Experiment,
    chain: Annotated[
        str | None,
        typer.Argument(help="Which chain, as PITA or s0/DPO; not needed where only one trains a model."),
    ] = None,
    eta: Annotated[
        float | None, typer.Option(help="Strength of guidance, the smaller the stronger; inf is the reference.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt; else that of the run.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most new tokens of an answer; else as in the run.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; else a GPU where there is one.")] = None,
    run: Stamp = None,
    output_dir: OutputDir = OUTPUTS,
) -> int:
    """Talk with a policy that a run has trained: each line gets an answer."""
    loaded, console = load_planned(choose_run(output_dir, name, run)), make_console(stderr=True)
    with held_model(loaded, chain, None, console) as trained:
        job, is_value = trained.job, trained.is_value
        policy = guided(loaded, job.chain, eta=eta, device=device)
    has_turns, asked = policy.tokenizer.chat_template is not None, policy.prompting
    if system is not None:
        if not has_turns:
            raise ConfigError(
                f"--system: {job.chain} has no chat template, so it reads no system prompt; leave it out"
            )
        policy.prompting = replace(asked, system_prompt=system)
    told = f"{job.chain}, round {job.round}{f', eta {policy.eta:g}' if is_value else ''}."
    if not has_turns:
        told += " It has no chat template: each line is a prompt of its own, which it completes."
    elif not asked.chat:
        told += " Its run asked it with plain texts, not with conversations as here."
    say(console, f"{told} Ctrl-C stops an answer; an empty line or Ctrl-D ends.")
    log, handler = logging.getLogger("pipeline"), _Said(console)
    log.addHandler(handler)
    try:
        return _talk(policy, max_tokens or policy.drawing.max_new_tokens, has_turns=has_turns)
    finally:
        log.removeHandler(handler)


class _Said(logging.Handler):
    """Says warnings to who talks."""

    def __init__(self, console: Terminal) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Say a warning in lines of its own."""
        say(self._console, f"note: {record.getMessage()}")


def _talk(policy: "Guided", limit: int, *, has_turns: bool) -> int:
    """Answer lines until there are no more; return the exit code."""
    turns: list[dict[str, str]] = []
    code = 0
    for number, line in enumerate(_lines()):
        asked = [*turns, {"role": "user", "content": line}]
        try:
            answer = _answer(policy, asked if has_turns else line, limit, seed=number)
        except PipelineError as error:
            complain(str(error))
            code = WRONG_REQUEST
            continue
        turns = [*asked, {"role": "assistant", "content": answer}]
    return code


def _lines() -> Iterator[str]:
    """Yield what the user says, until an empty line, the end, or nobody reads the answers."""
    with suppress(ImportError):
        import readline  # noqa: F401 - lets `input` edit a line
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    while not is_gone(sys.stdout):
        try:
            line = input("> " if asks else "").rstrip("\r")  # of files from Windows
        except (EOFError, KeyboardInterrupt) as end:
            if asks:
                sys.stdout.write("\n")
            if isinstance(end, KeyboardInterrupt):
                raise
            return
        if not line.strip():
            return
        yield line


def _answer(policy: "Guided", prompt: "Prompt", limit: int, seed: int) -> str:
    """Print an answer while it is drawn, and return it; Ctrl-C on a terminal cuts it off."""
    shown = ""

    def show(text: str) -> None:
        nonlocal shown
        if not text.startswith(shown):  # a tokenizer may write spaces anew when it sees what follows
            sys.stdout.write("\n")
            shown = ""
        sys.stdout.write(printable(text[len(shown) :]))
        sys.stdout.flush()
        shown = text

    def show_part(text: str) -> None:
        if (part := settled(text, policy.drawing.stop)).startswith(shown):
            show(part)

    try:
        [answer] = policy.complete([prompt], seed=seed, max_new_tokens=limit, on_text=show_part)
        show(answer.text)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    finally:
        sys.stdout.write("\n")
    return shown


def settled(text: str, stop: Sequence[str]) -> str:
    """Return the part of an unfinished text that further tokens leave as it is.

    Args:
        text: Text so far; its last character may lack bytes.
        stop: Texts that end it and are no part of it.
    """
    text = text.rstrip("\ufffd")
    begun = (size for end in stop for size in range(1, len(end)) if text.endswith(end[:size]))
    return text[: len(text) - max(begun, default=0)]
