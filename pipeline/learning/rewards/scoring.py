"""Score completions by the rewards of a dataset: weighted, isolated if necessary, with failures counted.

    Scorer --- isolated functions ---> pool of grading processes (the main function of `calling`), a socket each
           --- other functions    ---> called here
           --- reward models      ---> run here, on the worker's device

A process has one call at a time, or several of an `async` reward, each with a hard deadline and a limit on
memory. A call that hangs, crashes or eats memory costs its own scores: its process is killed with all that it
started, and replaced. Deadlines are kept here, so one that holds its interpreter for ever (a regular expression)
is no exception. One that dies may have been killed from outside, as by a machine short of memory: its call is
made once more, alone in a fresh one, before it is blamed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import select
import time
import weakref
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import DatasetConfig, GradingConfig
from pipeline.config.tables import JUDGE, REWARD_MODEL
from pipeline.config.user_code import import_object
from pipeline.errors import JobError, PipelineError, WorkerError, describe_exit, told
from pipeline.foreign import parse_json
from pipeline.learning.datasets.base import Row, plain_text
from pipeline.learning.datasets.chat import ARGUMENTS
from pipeline.learning.rewards import calling
from pipeline.learning.rewards.judge import Asking
from pipeline.learning.rewards.registry import LoadedReward, judge_of, load_rewards, ships
from pipeline.learning.rewards.traits import WrongScores, is_async, text_of
from pipeline.machine.children import Child, end
from pipeline.outputs.formats import Asked

Fault = Literal["error", "timeout", "crash"]
FAULTS: tuple[Fault, ...] = ("error", "timeout", "crash")
"""An exception in the reward, no answer before the deadline, or the end of the grading process."""
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # scores must not depend on the order of a set
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_AT_ONCE = 64
"""Concurrent calls of an `async` reward in one process."""
_GRACE_S = 1.0
"""Seconds after the deadlines of `async` calls until their process is killed."""
_MOST_STARTS_IN_VAIN = 3
_HOPELESS = 8
"""Prompts after which a reward is given up, if it has answered for none of them, but hung or crashed."""
_MOST_BYTES = 64 << 20
_LONGEST_VOTE = 1000


@dataclass(frozen=True)
class Graded:
    """Result of grading an item.

    Attributes:
        value: The score; None if the reward does not apply, or failed.
        answer: Vote of the completion in maj@k.
        fault: How the reward failed, or None.
        message: Details of the fault.
        certain: Whether the error cannot depend on the completion.
    """

    value: float | None = None
    answer: str | None = None
    fault: Fault | None = None
    message: str = ""
    certain: bool = False


class _Work:
    """Calls of a reward: waiting to be sent, suspected of having killed a process, or done.

    A call with many prompts has a late deadline. So until a reward has answered once, it is called with single
    prompts of the first call; meanwhile `held` keeps back all requested calls.
    """

    def __init__(
        self,
        function: str,
        options: Mapping[str, Any],
        calls: Sequence[Sequence[Mapping[str, Any]]],
        settings: GradingConfig,
        *,
        has_answered: bool,
    ) -> None:
        self.function, self.options, self.settings = function, dict(options), settings
        self.concurrent = is_async(calling.bind(import_object(function), options, function).function)
        size = min(_AT_ONCE, -(-len(calls) // settings.processes)) if self.concurrent else 1
        places = range(len(calls))
        self.held = [list(places[at : at + size]) for at in range(0, len(calls), size or 1)]
        first = calls[0] if calls and not has_answered else ()
        prompts = [list(items) for _, items in groupby(first, key=lambda item: str(item["prompt"]))][:_HOPELESS]
        self.calls = [*calls, *(prompts if len(prompts) > 1 else ())]
        self.waiting = deque([call] for call in range(len(calls), len(self.calls)))
        self.left = set(places)
        self.suspects: deque[int] = deque()
        self.again: set[int] = set()
        self.done: dict[int, Sequence[Graded]] = {}
        self.in_vain = 0
        self.has_answered = has_answered
        self._lost: set[str] = set()

    def limit_s(self, call: int) -> float:
        return self.settings.timeout_s * len(self.calls[call])

    def fail(self, call: int, fault: Fault, message: str, *, certain: bool = False) -> None:
        """Record a failure for every item of a call, as a call may compare its items."""
        failed = Graded(fault=fault, message=message, certain=certain)
        self.finish(call, [failed] * len(self.calls[call]))
        if fault == "error":
            self.has_answered = True
        else:
            self.lose(call, message)

    def finish(self, call: int, graded: Sequence[Graded]) -> None:
        """Record the results of a call."""
        self.done[call] = graded
        self.left.discard(call)

    def release(self, *, idle: bool) -> None:
        """Queue the calls that were held back, once the reward has answered or no other call is left to try."""
        if self.held and (self.has_answered or (idle and not self.waiting)):
            self.waiting, self.held = deque(self.held), []

    def lose(self, call: int, message: str) -> None:
        """Record that a call hung or ended its process.

        Raises:
            JobError: The reward has answered for none of the first prompts.
        """
        if self.has_answered:
            return
        self._lost |= {str(item["prompt"]) for item in self.calls[call]}
        if len(self._lost) >= _HOPELESS:
            raise JobError(
                f"the reward '{self.function}' hangs or ends its process whatever it is given, as at all of the "
                f"first {len(self._lost)} prompts: {message}"
            )

    def fail_late(self, call: int) -> None:
        count = len(self.calls[call])
        several = f" for {count} completions" if count > 1 else ""
        self.fail(call, "timeout", f"no answer within {self.limit_s(call):g} s{several}")


class _Grader(Child):
    """A grading process, with its current calls and its deadline."""

    def __init__(self, settings: GradingConfig) -> None:
        self.calls: list[int] = []
        self.loaded = False
        self.deadline = 0.0
        super().__init__(
            "pipeline.learning.rewards.calling",
            {**os.environ, **_ENVIRONMENT},
            {"memory_gib": settings.memory_gib},
            max_bytes=_MOST_BYTES,
            # An idle process waits for requests. A process that does not, because threads of an earlier call keep
            # it busy, cannot be used any more.
            send_timeout_s=settings.start_timeout_s,
        )

    def begin(self, work: _Work) -> bool:
        """Send the next calls in the queue; return False if the process does not accept them."""
        self.calls, self.loaded = work.waiting.popleft(), False
        self.deadline = time.monotonic() + work.settings.start_timeout_s
        calls = [{"id": call, "limit_s": work.limit_s(call), "items": work.calls[call]} for call in self.calls]
        request = {"function": work.function, "options": work.options, "calls": calls}
        try:
            self.channel.send(json.dumps(request).encode())
        except OSError:
            return False
        return True

    def take_answers(self, work: _Work) -> bool:
        """Read the answers that have arrived; return False if the process cannot be used any more."""
        try:
            for line in self.channel.receive():
                self._take(parse_json(line), work)
        except (WorkerError, ValueError, TypeError, KeyError):
            return False  # a completion has written to the socket
        return not self.channel.closed

    def _take(self, answer: dict[str, Any], work: _Work) -> None:
        if "broken" in answer:
            raise JobError(str(answer["broken"]))
        if "loaded" in answer:
            self.loaded, work.in_vain = True, 0
        else:
            call = answer["id"]
            if call not in self.calls:
                raise ValueError(call)
            if "error" in answer:
                work.fail(call, "error", str(answer["error"]), certain=bool(answer["certain"]))
            elif "timeout" in answer:
                work.fail_late(call)
            else:
                found = [
                    _graded(value, vote and vote[:_LONGEST_VOTE], error) for value, vote, error in answer["scores"]
                ]
                if len(found) != len(work.calls[call]):
                    raise ValueError(call)
                work.finish(call, found)
                work.has_answered = True
            self.calls.remove(call)
        grace_s = _GRACE_S if work.concurrent else 0.0
        self.deadline = time.monotonic() + max(map(work.limit_s, self.calls), default=0.0) + grace_s


class GraderPool:
    """Starts graders when there is work, and keeps them until `close`."""

    def __init__(self, settings: GradingConfig) -> None:
        """Store the settings of processes, their deadlines and their memory."""
        self.settings = settings
        self._graders: list[_Grader] = []
        self._answered: set[str] = set()
        self._finalizer = weakref.finalize(self, _close_all, self._graders)

    def __enter__(self) -> GraderPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all graders and their child processes. The pool can be used again."""
        _close_all(self._graders)

    def pids(self) -> list[int]:
        """Return the process ids of the graders."""
        return [grader.process.pid for grader in self._graders]

    def grade(
        self, function: str, options: Mapping[str, Any], calls: Sequence[Sequence[calling.Item]]
    ) -> list[Sequence[Graded]]:
        """Call a reward; equal calls are made once.

        Args:
            function: Dotted path of the reward; an `async` one is awaited for many calls at once.
            options: Further arguments of the reward.
            calls: Items to grade, by call.

        Returns:
            One entry per item of each call, in their order.

        Raises:
            JobError: A grader cannot import the reward, graders keep ending, or the reward hangs or crashes at all
                of the first prompts.
        """
        plain = [[_plain(item) for item in call] for call in calls]
        keys = [json.dumps(call, sort_keys=True) for call in plain]
        different = dict(zip(keys, plain, strict=True))
        known = function in self._answered
        work = _Work(function, options, [*different.values()], self.settings, has_answered=known)
        try:
            while work.left or not self._is_idle():
                work.release(idle=self._is_idle() and not work.suspects)
                if work.suspects and not work.waiting and self._is_idle():
                    self.close()  # so that a fresh process makes this call, with no other one beside it
                    work.again.add(work.suspects[0])
                    work.waiting.append([work.suspects.popleft()])
                self._give_out(work)
                self._collect(work)
        except BaseException:
            self.close()  # a later call must find no half-answered request
            raise
        self._answered |= {function} if work.has_answered else set()
        places = {key: call for call, key in enumerate(different)}
        return [work.done[places[key]] for key in keys]

    def _is_idle(self) -> bool:
        return not any(grader.calls for grader in self._graders)

    def _give_out(self, work: _Work) -> None:
        for grader in [grader for grader in self._graders if not grader.calls]:
            if grader.process.poll() is not None:  # no call is responsible, as the process was idle
                self._graders.remove(grader)
                _close_all([grader])
            elif work.waiting and not grader.begin(work):
                self._bury(grader, work)
        while work.waiting and len(self._graders) < self.settings.processes:
            self._graders.append(grader := _Grader(self.settings))
            if not grader.begin(work):
                self._bury(grader, work)

    def _collect(self, work: _Work) -> None:
        """Wait for answers and deadlines, whichever comes first."""
        busy = {grader.channel.fileno(): grader for grader in self._graders if grader.calls}
        if not busy:
            return
        poll = select.poll()
        for fd in busy:
            poll.register(fd, select.POLLIN)
        patience = max(0.0, min(grader.deadline for grader in busy.values()) - time.monotonic())
        ready = {fd for fd, _ in poll.poll(patience * 1000 + 1)}
        for fd, grader in busy.items():
            if fd in ready:
                if not grader.take_answers(work):
                    self._bury(grader, work)
            elif time.monotonic() >= grader.deadline:
                self._bury(grader, work, overdue=True)

    def _bury(self, grader: _Grader, work: _Work, *, overdue: bool = False) -> None:
        """Kill a grader. A single unfinished call becomes suspect; several are queued again, one by one."""
        self._graders.remove(grader)
        (exit_code,) = _close_all([grader])
        calls = [call for call in grader.calls if call not in work.done]
        said = f"the grading process ended with {describe_exit(exit_code)}"
        if calls and not grader.loaded:
            work.waiting.appendleft(calls)
            work.in_vain += 1
            if work.in_vain > _MOST_STARTS_IN_VAIN:
                why = f"no answer within {self.settings.start_timeout_s:g} s" if overdue else said
                raise JobError(
                    f"the processes that grade with '{work.function}' end before they grade anything, "
                    f"{work.in_vain} times in a row: {why}. Does importing it hang, end its process, or take more "
                    "memory than there is?"
                )
        elif len(calls) != 1:
            work.waiting.extendleft([call] for call in reversed(calls))
        elif overdue:
            work.fail_late(calls[0])
        elif calls[0] in work.again:
            work.fail(calls[0], "crash", f"{said}, twice")
        else:
            work.suspects.append(calls[0])
            work.lose(calls[0], said)


def _close_all(graders: list[_Grader]) -> list[int]:
    """End graders and all their child processes; return the exit codes."""
    ending = list(graders)
    graders.clear()
    if ending:
        end(ending)
    return [grader.wait() for grader in ending]


def _graded(value: Any, vote: Any, error: Any) -> Graded:
    if error is not None:
        return Graded(fault="error", message=str(error))
    return Graded(None if value is None else float(value), None if vote is None else str(vote))


def _plain(item: calling.Item) -> dict[str, Any]:
    """Convert an item to plain JSON data: numpy's scalars and arrays become numbers and lists."""
    columns = {}
    for name, value in item.columns.items():
        columns[name] = value.tolist() if hasattr(value, "tolist") else value
        try:
            json.dumps(columns[name])
        except (TypeError, ValueError) as error:
            raise JobError(
                f"column '{name}' holds {type(value).__name__}, which cannot be sent to a grading process: {error}"
                ". Use text, numbers, lists and tables of them."
            ) from error
    ids = [int(token) for token in item.ids]
    return {"prompt": item.prompt, "completion": item.completion, "ids": ids, "columns": columns}


# -- scores ------------------------------------------------------------------------------------------------------

log = logging.getLogger("pipeline")

_AS_BY_TRL = (
    ". It is called with many completions at once, as by TRL; if it looks at each alone, put "
    "@reward(RewardTraits(pointwise=True)) above it, and a failure costs one completion"
)


@dataclass(frozen=True)
class Scored:
    """Scores of N completions.

    Attributes:
        values: Weighted sum of the rewards, shape [N]; NaN if none of them applies, or if one failed.
        parts: Each reward without its weight, shape [N]; NaN if it does not apply or failed.
        correct: Whether a completion is correct; None if no reward decides. A completion for which the reward
            failed is not correct.
        answers: Vote of a completion in maj@k; None if the judging reward cannot read an answer.
        faults: How a reward failed, or None.
        first_fault: Message of the first fault; "" if there is none.
        asked: Usage of judges behind endpoints, by reward.
    """

    values: NDArray[np.float64]
    parts: Mapping[str, NDArray[np.float64]]
    correct: Sequence[bool | None]
    answers: Sequence[str | None]
    faults: Sequence[Fault | None]
    first_fault: str = ""
    asked: Mapping[str, Asked] = field(default_factory=dict)

    def some(self, places: Sequence[int] | NDArray[np.int64]) -> Scored:
        """Return the scores of the completions at these places."""
        return Scored(
            values=self.values[places],
            parts={name: part[places] for name, part in self.parts.items()},
            correct=[self.correct[place] for place in places],
            answers=[self.answers[place] for place in places],
            faults=[self.faults[place] for place in places],
        )


class Scorer:
    """The rewards of a dataset, ready to be called.

    Keep one scorer for many calls, as it holds models and processes.
    """

    def __init__(self, dataset: DatasetConfig, device: str = "cpu", hints: Path | None = None) -> None:
        """Load the rewards.

        Args:
            dataset: Configuration of the dataset, which names the rewards.
            device: Device of reward models.
            hints: Folder of batch sizes that fitted.

        Raises:
            ConfigError: A reward or one of its settings is wrong.
        """
        grading = dataset.grading
        self._grading = grading
        self.rewards = load_rewards(dataset, device, hints)
        self._judge = judge_of(self.rewards, dataset)
        self._pool = GraderPool(grading)

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the grading processes, which otherwise end with the scorer."""
        self._pool.close()

    def score(
        self,
        rows: Sequence[Row],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        batch_size: int = 256,
        references: Sequence[str] | None = None,
        asking: Asking | None = None,
    ) -> Scored:
        """Score completions.

        Args:
            rows: The row of each completion, N in all; repeated for several completions of one row, which are
                scored together.
            completions: Texts, without special tokens.
            completion_ids: The sampled token ids.
            batch_size: Largest number of completions per call, unless a single row has more.
            references: The reference's completion for each row, for judges that compare with it.
            asking: The job, for judges.

        Raises:
            JobError: A reward fails at every completion, returns the wrong number of scores, or cannot be run.
        """
        asked = (rows, completions, completion_ids)
        graded, spent = dict[str, list[Graded]](), dict[str, Asked]()
        for reward in self.rewards:
            if reward.path == JUDGE:
                others: Sequence[str | None] = [
                    None if row.answer is None else text_of(row.answer) for row in rows
                ]
                if reward.options.get("against") == "reference" and references is not None:
                    others = references
                prompts = [plain_text(row.prompt) for row in rows]
                values, took = reward.function(prompts, completions, others, asking or Asking())
                graded[reward.name] = [
                    Graded(value, fault="error" if problem else None, message=problem) for value, problem in values
                ]
                spent |= {reward.name: took} if took else {}
            else:
                graded[reward.name] = self._grade(reward, *asked, batch_size)
        for reward in self.rewards:
            _report(reward, graded[reward.name])
        return replace(_combine(self.rewards, graded, self._judge, len(rows)), asked=spent)

    def _grade(
        self,
        reward: LoadedReward,
        rows: Sequence[Row],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        batch_size: int,
    ) -> list[Graded]:
        if not rows:
            return []
        needed = calling.needed_columns(reward.function, reward.arguments)
        items = calling.items_of(rows, completions, completion_ids, needed, reward.messages)
        isolated = reward.traits.isolated and self._grading.isolated
        # a reward model needs only the columns for chat templates, and batches texts itself
        if reward.path == REWARD_MODEL:
            places = [list(range(len(items)))]
            names = ("tools", ARGUMENTS)
            items = [replace(item, columns={name: item.columns.get(name) for name in names}) for item in items]
        elif isolated and reward.traits.pointwise:
            places = [[at] for at in range(len(items))]
        else:
            places = calling.batches(rows, items, batch_size)
        calls = [[items[at] for at in part] for part in places]
        graded = self._pool.grade(reward.path, reward.options, calls) if isolated else _here(reward, calls)
        found = {
            at: one for part, ones in zip(places, graded, strict=True) for at, one in zip(part, ones, strict=True)
        }
        return [found[at] for at in range(len(items))]


def _here(reward: LoadedReward, calls: Sequence[Sequence[calling.Item]]) -> list[list[Graded]]:
    """Call a function in this process; await the results of all batches at once if they are awaitable."""
    if not (ships(reward) or reward.path == REWARD_MODEL):  # a reward may change its arguments, which rows share
        calls = [[deepcopy(item) for item in call] for call in calls]
    try:
        given = [reward.function(**calling.arguments(call, reward.arguments)) for call in calls]
        given = calling.loop().run(_awaited(given)) if any(map(isawaitable, given)) else given
        scores = [calling.scores_of(one, reward.traits, call) for one, call in zip(given, calls, strict=True)]
    except PipelineError:
        raise
    except WrongScores as error:
        raise JobError(str(error)) from error
    except Exception as error:
        raise JobError(f"the reward '{reward.name}' failed: {told(error)}") from error
    graded = [[_graded(*one) for one in found] for found in scores]
    if reward.path == REWARD_MODEL:  # of a function NaN means that it does not apply
        for values, found in zip(given, graded, strict=True):
            for at, value in enumerate(values):
                if value is not None and math.isnan(value):
                    found[at] = Graded(
                        fault="error",
                        message="the model gives NaN, as weights that are NaN or too large for its dtype do",
                    )
    return graded


async def _awaited(given: Sequence[Any]) -> list[Any]:
    async def result(one: Any) -> Any:
        return await one if isawaitable(one) else one

    return await asyncio.gather(*map(result, given))


def _report(reward: LoadedReward, graded: Sequence[Graded]) -> None:
    """Log the failures of a reward.

    Raises:
        JobError: The reward failed for every one of several completions, so the reward itself is at fault.
    """
    failed = [entry for entry in graded if entry.fault is not None]
    if not failed:
        return
    if len(failed) == len(graded) > 1:
        raise JobError(
            f"the reward '{reward.name}' failed at all of {len(graded)} completions, the first time with: "
            f"{failed[0].message}{'' if reward.traits.pointwise or reward.path == REWARD_MODEL else _AS_BY_TRL}"
        )
    kinds = Counter(entry.fault for entry in failed)
    counts = ", ".join(f"{kinds[kind]} {kind}{'s' if kinds[kind] > 1 else ''}" for kind in FAULTS if kinds[kind])
    log.warning(
        "reward '%s': %s among %d completions; the first: %s", reward.name, counts, len(graded), failed[0].message
    )


def _combine(
    rewards: Sequence[LoadedReward],
    graded: Mapping[str, Sequence[Graded]],
    judge: LoadedReward | None,
    count: int,
) -> Scored:
    parts = {
        name: np.array([math.nan if one.value is None else one.value for one in found], np.float64)
        for name, found in graded.items()
    }
    faults = [next((one.fault for one in ones if one.fault), None) for ones in zip(*graded.values(), strict=True)]
    weighted = np.array([reward.weight * parts[reward.name] for reward in rewards]).reshape(len(rewards), count)
    applies = ~np.isnan(weighted)
    sums = np.where(applies, weighted, 0.0).sum(0)
    # A failed part must not look like a part with value 0.
    unknown = ~applies.any(0) | np.array([fault is not None for fault in faults], bool)
    return Scored(
        values=np.where(unknown, math.nan, sums),
        parts=parts,
        correct=[None] * count if judge is None else [is_correct(one, judge) for one in graded[judge.name]],
        answers=[None] * count if judge is None else [one.answer for one in graded[judge.name]],
        faults=faults,
        first_fault=next(
            (f"reward '{name}': {one.message}" for name, found in graded.items() for one in found if one.fault), ""
        ),
    )


def is_correct(graded: Graded, judge: LoadedReward) -> bool | None:
    """Return whether a completion is correct by the judging reward; None if the reward has no score for it."""
    if graded.fault is not None:
        return False
    return None if graded.value is None else graded.value >= judge.traits.correct_from
