"""Sweeps as they lie on disk, written without running anything."""

import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution

from pipeline.files import lock
from pipeline.sweeps.storage import End, Once, Record, SweepFolder, sweep_folder

BEGAN = 1.7e9


def device(at: int) -> str:
    """A GPU as agents name it."""
    return f"GPU {at} GPU-8f3a1b2c-0000-4000-8000-00000000000{at}"


class SweepOnPaper:
    """A sweep's folder, and what is written to its record."""

    def __init__(self, output_dir: Path, name: str = "lr", **begun: Any) -> None:
        self.folder: SweepFolder = sweep_folder(output_dir, name)
        self.folder.path.mkdir(parents=True)
        self.time = BEGAN
        self.record = Record(self.folder)
        about = {
            "method": "bayes",
            "metric": "val/loss",
            "goal": "minimize",
            "started": BEGAN,
            "round": 1,
            **begun,
        }
        self.tell(**about)

    def tell(self, after_s: float = 1.0, **changed: Any) -> None:
        """Change how it stands."""
        self.time += after_s
        with self.record.turn():
            self.record.tell(self.time, **changed)

    @contextmanager
    def at_work(self, agent: str = "a1") -> Iterator[None]:
        """Have its agent live: nobody else runs a trial."""
        self.folder.agents.mkdir(exist_ok=True)
        with (self.folder.agents / agent).open("w") as held:
            lock(held.fileno())
            yield

    def create(self, number: int, parameters: Mapping[str, Any], num_gpus: int = 1, **told: Any) -> None:
        with self.record.turn():
            assert self.record.create(parameters, num_gpus=num_gpus, **told).number == number

    def start(self, number: int, agent: str = "a1", devices: Sequence[str] = ("cpu",)) -> None:
        self.time += 1
        with self.record.turn():
            self.record.start(self.record.trials[number], agent, list(devices), self.time)

    def end(self, number: int, state: str, value: float | None = None, reason: str = "") -> None:
        self.time += 30
        code = {"done": 0, "failed": 1}.get(state)
        with self.record.turn():
            end = End(state=state, value=value, exit_code=code, reason=reason)
            self.record.end(self.record.trials[number].key, end, now=self.time)

    def log(self, number: int, steps: Iterable[Mapping[str, Any]], attempt: int = 1) -> None:
        """Metrics of a trial."""
        path = self.folder.trial(number).metrics(attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            for step, values in enumerate(steps, 1):
                file.write(json.dumps({"step": step, "values": values, "time": self.time + step}) + "\n")


SPACES = {
    "lr": FloatDistribution(1e-5, 1e-2, log=True),
    "optimizer": CategoricalDistribution(["adamw", "lion", "sgd"]),
    "model.dropout": FloatDistribution(0.0, 0.5),
}


def searched(output_dir: Path, trials: int, name: str = "lr", *, seed: int = 0) -> SweepOnPaper:
    """A sweep of so many trials with curves, most of them done; some failed, were stopped early, or run."""
    chosen = random.Random(seed)
    sweep = SweepOnPaper(output_dir, name)
    for number in range(trials):
        parameters = {
            "lr": 10 ** chosen.uniform(-5, -2),
            "optimizer": chosen.choice(["adamw", "lion", "sgd"]),
            "batch_size": chosen.choice([8, 16, 32]),
            "gradient_accumulation_steps": chosen.choice([1, 2]),
            "num_gpus": chosen.choice([1, 2, 4]),
            "epochs": 3,
            "model.dropout": chosen.uniform(0, 0.5),
        }
        gpus = parameters["num_gpus"]
        sampled = {name: parameters[name] for name in SPACES}
        sweep.create(number, parameters, gpus, sampled=sampled, distributions=SPACES)
        sweep.start(number, devices=[device(at) for at in range(gpus)])
        best = 0.4 + 0.3 * abs(math.log10(parameters["lr"]) + 3.4) + 0.4 * parameters["model.dropout"]
        steps = [{"val/loss": best + 2 * 0.6**step, "tokens_per_s": 1e4 * gpus} for step in range(1, 9)]
        kind = "failed" if number % 11 == 5 else "stopped" if number % 7 == 4 else "done"
        if number > 2 and number >= trials - 2:
            kind = "running"
        sweep.log(number, steps[: {"done": 8, "stopped": 3, "running": 5, "failed": 1}[kind]])
        if kind != "running":
            reason = {
                "failed": "exit code 1: torch.OutOfMemoryError: CUDA out of memory",
                "stopped": "hyperband: band 3",
            }
            last = {"done": 8, "stopped": 3}.get(kind)
            value = steps[last - 1]["val/loss"] if last else None
            sweep.end(number, kind, value, reason.get(kind, ""))
    return sweep


def hostile(output_dir: Path, text: str) -> SweepOnPaper:
    """A sweep with a text of strangers wherever one can be."""
    metric = f"{text} loss"
    sweep = SweepOnPaper(output_dir, "hostile", metric=metric)
    sweep.folder.file.write_text(text)
    states = ["done"] * 12 + ["failed", "lost", "cancelled", "stopped", "running"]
    for number, state in enumerate(states):
        parameters = {text: 10.0**-number, "text": text if number % 2 else "x", "list": [text, {text: number}]}
        sweep.create(number, parameters)
        sweep.start(number, devices=[text])
        sweep.log(number, [{metric: 1.0 / (number + step), text: float(step)} for step in range(1, 4)])
        if state != "running":
            sweep.end(number, state, number**2 if state == "done" else None, text)
    with sweep.record.turn():
        sweep.record.note("winner", Once(agent="a1", done=True, trial=0, results={text: 0.5}))
    sweep.tell(halted="stopped", reason=text)
    return sweep


EVERY: dict[str, Any] = {
    "lr": {"distribution": "log_uniform_values", "min": 1e-5, "max": 0.1},
    "x": {"min": -1.0, "max": 1.0},
    "n": {"min": 1, "max": 9},
    "kind": {"values": [1, True, 1.0, "1", [1], {"a": math.inf}, None]},
    "rare": {"values": ["a", "b"], "probabilities": [0.9, 0.1]},
    "width": {"distribution": "q_log_uniform_values", "min": 8, "max": 512, "q": 8},
    "noise": {"distribution": "normal"},
    "scale": {"distribution": "q_log_normal", "q": 0.5},
    "share": {"distribution": "beta", "a": 2, "b": 5},
    "seed": {"value": 3},
    "model": {"parameters": {"depth": {"values": [1, 2]}}},
}
"""The block ``parameters:`` of a sweep file with every kind of distribution."""
