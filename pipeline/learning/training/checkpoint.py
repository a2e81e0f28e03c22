"""Checkpoints of a training: an interrupted training resumes from one and ends with the same bytes.

    <folder>/step-00000120/tensors.safetensors     weights, the optimizer's tensors, random states; in several
                                                   files where ranks have spread them
                           state.json              everything else: losses so far, settings of the optimizer
                           manifest.json           whose it is, checksums; written last
    <folder>/.writing-<host>-<pid>/                the next one, until it is renamed whole

Nothing is pickled. The step number gives the position in the data, since it determines the batch.
"""

import json
import os
import platform
import random
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from pipeline import errors, files, foreign
from pipeline.learning.training.distributed import ALONE, Ranks
from pipeline.outputs.formats import OPTIMIZER

# -- checkpoint files --------------------------------------------------------------------------------------------
# The tensors of a checkpoint on disk: in one file, or in one for each of the ranks that have spread them.
# tensors.safetensors what one process has, or each of several tensors.00000.safetensors the part of rank 0 of
# what is spread, and all that is not tensors.00001.safetensors the part of rank 1 of what is spread FSDP cuts
# along the first dimension, in the order of ranks, so a tensor is its parts one below the other, whoever
# reads them. torch.distributed.checkpoint does as much, but what it writes of who has what is a pickle.


_NAME = re.compile(r"tensors(\.\d{5})?\.safetensors")


def is_spread(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether some of the tensors are sharded over ranks."""
    return any(isinstance(tensor, DTensor) for tensor in tensors.values())


def file_name(tensors: Mapping[str, Tensor], ranks: Ranks) -> str:
    """Return the name of the file that a rank writes."""
    return f"tensors.{ranks.rank:05}.safetensors" if is_spread(tensors) else "tensors.safetensors"


def is_file_name(name: str) -> bool:
    """Return whether a file of a checkpoint holds tensors."""
    return _NAME.fullmatch(name) is not None


def own_part(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Return the tensors that a rank writes; each is written by one rank."""
    own = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            if ranks.is_first:
                own[name] = tensor.detach().contiguous()
            continue
        coords = tensor.device_mesh.get_coordinate()
        assert coords is not None
        is_copy = any(where for where, how in zip(coords, tensor.placements, strict=True) if how.is_replicate())
        part = tensor.to_local().detach()
        if not is_copy and part.numel():
            assert all(how.is_replicate() or how.is_shard(dim=0) for how in tensor.placements), tensor.placements
            own[name] = part.contiguous()
    return own


class TensorFiles(Mapping[str, Tensor]):
    """Tensors of files, each read on access: a rank keeps only its part of them, and never all at once."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Open files.

        Args:
            paths: Files with all parts.

        Raises:
            SafetensorError: A file cannot be read.
        """
        self._parts: dict[str, list[safe_open]] = {}
        for path in sorted(paths):
            file = safe_open(path, "pt")
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                self._parts.setdefault(name, []).append(file)

    def __getitem__(self, name: str) -> Tensor:
        # A copy: what safetensors returns lies in the mapped file, at any alignment.
        parts = [file.get_tensor(name) for file in self._parts[name]]
        tensor: Tensor = torch.cat(parts) if len(parts) > 1 else parts[0].clone()
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


VALUES = "state.json"
MANIFEST = "manifest.json"

_T = TypeVar("_T")
_CHECKPOINT_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class State:
    """Content of a checkpoint.

    Attributes:
        tensors: Tensors by name, on any device; no two may share memory. If some are sharded, each rank has its
            part.
        values: Plain data, as in JSON.
    """

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Saved:
    """A checkpoint found on disk.

    Attributes:
        step: Number of steps done when it was saved.
        state: Its content; tensors are on the CPU, and read from disk on access.
    """

    step: int
    state: State


class _Unusable(Exception):  # noqa: N818 - the checkpoint is the subject
    """Raised when a checkpoint cannot be used; the message says why."""


class Checkpoints:
    """The checkpoints of one training, in a folder of their own. The newest intact one is kept.

    Attributes:
        saved_step: Number of steps done when it was saved; 0 without a checkpoint.
        lacks: Says what else is missing to resume after a number of steps, or None if nothing is.
    """

    def __init__(
        self,
        folder: Path,
        about: Mapping[str, Any],
        *,
        every_steps: int = 0,
        every_minutes: float = 5.0,
        stopping: Callable[[], bool] = lambda: False,
        also_finished: bool = False,
        ranks: Ranks = ALONE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to save and to find checkpoints; nothing is read or written yet.

        Args:
            folder: Folder for this training only; created with the first checkpoint.
            about: Identity of the training, as plain data: a checkpoint with another `about` is never used.
            every_steps: Steps between checkpoints; 0 disables this limit.
            every_minutes: Minutes between checkpoints; 0 disables this limit. The first limit reached counts.
            stopping: Returns whether the run is about to end.
            also_finished: Whether to save the end of the training too, for a job that has more to do afterwards.
            ranks: The processes that do this training. All save, find and stop together, and rank 0 writes.
            clock: Seconds.
        """
        self.folder = folder
        self._identity = json.loads(json.dumps({**about, "torch": str(torch.__version__)}))
        self._every_steps = every_steps
        self._every_s = every_minutes * 60
        self._stopping = stopping
        self._also_finished = also_finished
        self._ranks = ranks
        self._clock = clock
        self._saved_at = clock()
        self.saved_step = 0
        self.lacks: Callable[[int], str | None] = lambda _: None

    def latest(self, problem: Callable[[Saved], str | None] | None = None) -> Saved | None:
        """Return the newest usable checkpoint, or None; unusable ones are skipped and logged.

        Args:
            problem: Says why the training cannot resume from an intact checkpoint, or None if it can.
        """
        newest = None
        if self._ranks.is_first:
            newest = self._latest(problem)
        # The other ranks use what rank 0 has verified, so that nobody reads all of it twice.
        step = self._ranks.made_by_first(lambda: newest.step if newest else -1)
        if self._ranks.is_first or step < 0:
            return newest
        self.saved_step = step
        try:
            return self._read(step, self.folder / f"step-{step:08d}", trusted=True)
        except _Unusable as error:
            where = f"step {step} in {self.folder}"
            raise errors.JobError(f"rank 0 goes on from {where}, and this rank cannot: {error}") from error

    def _latest(self, problem: Callable[[Saved], str | None] | None) -> Saved | None:
        for step, path in sorted(self._present(), reverse=True):
            try:
                saved = self._read(step, path)
                if wrong := self.lacks(step) or (problem(saved) if problem is not None else None):
                    raise _Unusable(wrong)
            except _Unusable as error:
                _say(f"warning: the checkpoint of step {step} is passed over: {error}")
            else:
                _say(f"going on from the checkpoint of step {step}")
                self.saved_step = step
                return saved
        return None

    def after_step(self, step: int, state: Callable[[], State], *, last: bool = False) -> None:
        """Save if it is time to, and end the job if the run is about to end. Call it after every step.

        Args:
            step: Steps done.
            state: Makes what is to be saved; called only if something is.
            last: Whether the training ends with this step.

        Raises:
            JobStopped: The run is about to end; the state is saved.
        """
        # The clock of rank 0 counts, and a request to stop may reach one rank a step before another.
        is_time = self._ranks.is_first and not last and self._is_time(step)
        stopping, is_time = self._ranks.any_of(not last and self._stopping(), is_time)
        due = stopping or (self._also_finished if last else is_time)
        if due and step != self.saved_step:
            self._save_or_warn(step, state)
        if stopping:
            where = f"from step {self.saved_step}" if self.saved_step else "from the start: nothing could be saved"
            raise errors.JobStopped(f"at step {step}; the next attempt goes on {where}")

    def save(self, step: int, state: State) -> None:
        """Save now, and remove earlier checkpoints. Ranks with sharded tensors must call this together.

        Raises:
            OSError: Saving failed; the earlier checkpoint is still there.
        """
        if not is_spread(state.tensors) and not self._ranks.is_first:
            return
        writers = self._ranks if is_spread(state.tensors) else ALONE
        target = self.folder / f"step-{step:08d}"
        writing = self.folder / f".writing-{platform.node()}-{os.getpid()}"
        try:
            writing = Path(_all_of(writers, lambda: self._begin(writing))[0])
            written = dict(_all_of(writers, lambda: _write_tensors(writing, state, writers)))
            if not self._ranks.is_first:
                return
            self._write_rest(writing, step, state, written)
            if target.exists():
                # Damaged, or written by another process that does the same job and so has the same state.
                shutil.rmtree(target, ignore_errors=True)
            writing.rename(target)
            files.fsync(self.folder)
        finally:
            if self._ranks.is_first:
                shutil.rmtree(writing, ignore_errors=True)
        self.saved_step = step
        # Also partial checkpoints of killed processes.
        for path in (*self.folder.glob("step-*"), *self.folder.glob(".writing-*")):
            if path != target:
                shutil.rmtree(path, ignore_errors=True)

    def _begin(self, writing: Path) -> str:
        """Create the folder to write a checkpoint to; rank 0 chooses its name."""
        if self._ranks.is_first:
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir(parents=True)
        return str(writing)

    def _is_time(self, step: int) -> bool:
        by_steps = self._every_steps > 0 and step % self._every_steps == 0
        return by_steps or (self._every_s > 0 and self._clock() - self._saved_at >= self._every_s)

    def _save_or_warn(self, step: int, state: Callable[[], State]) -> None:
        # A full disk must not end a training that may still finish; the last good checkpoint is untouched.
        made, wrong = state(), ""
        try:
            self.save(step, made)
        except OSError as error:
            wrong = str(error) or type(error).__name__
        # Rank 0 alone writes the last part; without this, the others would count on a checkpoint that does not
        # exist.
        wrong = self._ranks.made_by_first(lambda: wrong)
        if wrong:
            _say(f"warning: the checkpoint of step {step} could not be saved: {wrong}")
        else:
            self.saved_step = step
        # Counted from the end of saving, so that a slow disk does not stop the training.
        self._saved_at = self._clock()

    def _write_rest(self, folder: Path, step: int, state: State, written: Mapping[str, Any]) -> None:
        """Write the data that are not tensors, and the manifest."""
        (folder / VALUES).write_text(json.dumps(state.values), encoding="utf-8")
        manifest = {
            "step": step,
            "about": self._identity,
            "files": {**written, VALUES: _described(folder / VALUES)},
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        for name in (VALUES, MANIFEST):
            files.fsync(folder / name)
        files.fsync(folder)

    def _present(self) -> Iterator[tuple[int, Path]]:
        if self.folder.is_dir():
            for path in list(self.folder.iterdir()):
                if match := _CHECKPOINT_NAME.fullmatch(path.name):
                    yield int(match[1]), path

    def _read(self, step: int, path: Path, *, trusted: bool = False) -> Saved:
        """Read a checkpoint.

        Args:
            step: Step in its name.
            path: Folder of the checkpoint.
            trusted: Whether another rank has verified it.

        Raises:
            _Unusable: The checkpoint is damaged or belongs to another training.
        """
        try:
            manifest = foreign.parse_json(foreign.read_plain(path / MANIFEST))
            if manifest["step"] != step:
                raise _Unusable(f"its manifest is of step {manifest['step']}")
            if manifest["about"] != self._identity:
                raise _Unusable("it is of another training, or version of torch")
            tensors = [path / name for name in manifest["files"] if is_file_name(name)]
            for file in () if trusted else (*tensors, path / VALUES):
                size, checksum = manifest["files"][file.name]["size"], manifest["files"][file.name]["sha256"]
                if file.stat().st_size != size or files.file_sha256(file) != checksum:
                    raise _Unusable(f"{file.name} does not have its size and checksum")
            values = foreign.parse_json(foreign.read_plain(path / VALUES), infinite=True)
            return Saved(step, State(TensorFiles(tensors), values))
        except SafetensorError as error:
            raise _Unusable(f"it cannot be read ({error})") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _Unusable(f"it cannot be read ({type(error).__name__}: {error})") from error


def _write_tensors(folder: Path, state: State, ranks: Ranks) -> tuple[str, Mapping[str, Any]]:
    """Write a rank's tensors; return the file's name, and its entry in the manifest."""
    path = folder / file_name(state.tensors, ranks)
    try:
        save_file(own_part(state.tensors, ranks), path)
    except SafetensorError as error:  # also for a full disk
        raise OSError(str(error)) from error
    files.fsync(path)
    return path.name, _described(path)


def _described(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": files.file_sha256(path)}


def _all_of(ranks: Ranks, work: Callable[[], _T]) -> list[_T]:
    """Return each rank's result of some work on files.

    Raises:
        OSError: The work failed on a rank; raised on all ranks, so that none continues alone.
    """
    made: tuple[_T | None, str]
    try:
        made = (work(), "")
    except OSError as error:
        if ranks.size == 1:
            raise
        made = (None, str(error))
    results = ranks.all_of(made)
    if wrong := [f"rank {rank}: {error}" for rank, (_, error) in enumerate(results) if error]:
        raise OSError("; ".join(wrong))
    return [cast("_T", result) for result, _ in results]


def _say(text: str) -> None:
    with suppress(OSError):
        print(text, flush=True)  # noqa: T201 - the job's log


# -- training state ----------------------------------------------------------------------------------------------
# Everything that determines how a training continues, saved and restored: model, optimizer, RNGs.


OPTIMIZER_SETTINGS = "optimizer.json"
"""Key beside `OPTIMIZER` for the optimizer's data that are not tensors."""
_OF_8_BITS = {"qmap1", "qmap2", "absmax1", "absmax2"}
"""Lookup tables of bitsandbytes for 8-bit moments: the values of the codes, and the maximum of each block."""


def training_state(model: nn.Module, optimizer: torch.optim.Optimizer, **values: Any) -> State:
    """Return everything that determines how a training continues; with a sharded model, this rank's part.

    Args:
        model: Its trained parameters and buffers are saved; frozen parameters come with the model.
        optimizer: Its state is saved exactly, tensor by tensor.
        values: Further data that the training needs, as plain data.
    """
    tensors = {f"model.{name}": tensor for name, tensor in _model_tensors(model).items()}
    moments, plain = _optimizer_state(optimizer)
    random_tensors, random_values = random_state()
    return State(
        {**tensors, **moments, **{f"random.{name}": tensor for name, tensor in random_tensors.items()}},
        {"optimizer": plain, "random": random_values, "own": values},
    )


def _optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of an optimizer by name, and its other state as plain data."""
    tensors: dict[str, Tensor] = {}
    loose: dict[str, Any] = {}
    # bitsandbytes hides its tensors from FSDP.
    described = torch.optim.Optimizer.state_dict(optimizer)
    for index, entry in described["state"].items():
        for name, value in entry.items():
            if isinstance(value, Tensor):
                # A table of bitsandbytes is shared by all weights, and files cannot contain shared tensors.
                tensors[f"optimizer.{index}.{name}"] = value.clone() if name in _OF_8_BITS else value
            elif value is None or isinstance(value, (bool, int, float, str)):
                loose.setdefault(str(index), {})[name] = value
            else:
                raise errors.JobError(
                    f"{type(optimizer).__name__} keeps a {type(value).__name__} as '{name}': a checkpoint holds "
                    "tensors and plain values only. Use an optimizer of torch.optim, such as AdamW."
                )
    return tensors, {"state": loose, "param_groups": described["param_groups"]}


def save_optimizer(folder: Path, optimizer: torch.optim.Optimizer, ranks: Ranks = ALONE) -> None:
    """Write the state of an optimizer unsharded, for `restore_optimizer`. All ranks must call it."""
    tensors, plain = _optimizer_state(optimizer)
    whole = {name: ranks.whole(tensor).detach().cpu().contiguous() for name, tensor in tensors.items()}
    if ranks.is_first:
        save_file(whole, folder / OPTIMIZER)
        (folder / OPTIMIZER_SETTINGS).write_text(files.json_text(plain) + "\n")


def restore_optimizer(folder: Path, optimizer: torch.optim.Optimizer, ranks: Ranks = ALONE) -> None:
    """Restore a new optimizer to the state that an earlier training has left.

    Raises:
        JobError: The folder has no such state, or it belongs to another model.
    """
    try:
        plain = foreign.parse_json(foreign.read_plain(folder / OPTIMIZER_SETTINGS))
        with files.open_plain(folder / OPTIMIZER):
            tensors = load_file(folder / OPTIMIZER)
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        for name, tensor in tensors.items():
            _, index, kind = name.split(".", 2)
            if tensor.ndim and kind not in _OF_8_BITS and tensor.shape != weights[int(index)].shape:
                raise ValueError(f"{kind} of weight {index} is {_shape(tensor)}")
        _load_optimizer(optimizer, tensors, plain, ranks)
    except (OSError, SafetensorError, ValueError, KeyError, IndexError, TypeError) as error:
        raise errors.JobError(
            f"{folder}: training cannot go on with the optimizer that was left there: {error}. Compute that round "
            "again: `python -m pipeline store invalidate`"
        ) from error


def _load_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any], ranks: Ranks
) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries: dict[int, dict[str, Any]] = {}
    for index, values in plain["state"].items():
        entries.setdefault(int(index), {}).update(values)
    for full_name in tensors:
        if full_name.startswith("optimizer."):
            tensor = tensors[full_name]
            _, index, name = full_name.split(".", 2)
            part = ranks.part(tensor, parameters[int(index)])
            # A copy of the part, so that the whole tensor is freed before the next is read.
            entries.setdefault(int(index), {})[name] = part if part is tensor else part.clone()
    groups = [
        {name: tuple(value) if isinstance(now.get(name), tuple) else value for name, value in saved.items()}
        for now, saved in zip(optimizer.param_groups, plain["param_groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


def state_problem(state: State, model: nn.Module, optimizer: torch.optim.Optimizer) -> str | None:
    """Say why a training of this model cannot resume from a state; None if it can."""
    saved = {name: state.tensors[name] for name in state.tensors if name.startswith("model.")}
    own = {f"model.{name}": tensor for name, tensor in _model_tensors(model).items()}
    ours, theirs = ({name: (one.shape, one.dtype) for name, one in part.items()} for part in (own, saved))
    if odd := sorted(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)):
        return f"its model has other tensors ({', '.join(odd[:3])})"
    groups = [len(group["params"]) for group in state.values["optimizer"]["param_groups"]]
    if groups != [len(group["params"]) for group in optimizer.param_groups]:
        return "its optimizer has other groups of parameters"
    return None


def restore_training(
    state: State, model: nn.Module, optimizer: torch.optim.Optimizer, *, ranks: Ranks = ALONE
) -> dict[str, Any]:
    """Restore a model, its optimizer and all RNGs from a saved state.

    Args:
        state: Result of `training_state`, for a model for which `state_problem` finds nothing.
        model: Changed in place.
        optimizer: A new optimizer of that model.
        ranks: Ranks of the training, possibly more or fewer than when it was saved.

    Returns:
        The values that were given to `training_state`.
    """
    with torch.no_grad():
        for name, tensor in _model_tensors(model).items():
            tensor.copy_(ranks.part(state.tensors[f"model.{name}"], tensor))
    _load_optimizer(optimizer, state.tensors, state.values["optimizer"], ranks)
    prefix = "random."
    tensors = {name[len(prefix) :]: state.tensors[name] for name in state.tensors if name.startswith(prefix)}
    restore_random_state(tensors, state.values["random"])
    own: dict[str, Any] = state.values["own"]
    return own


def random_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the global RNG states of torch (CPU and every GPU), numpy and Python, as tensors and plain values."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64))}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors |= {f"cuda.{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    values = {
        "python": [version, list(words), gauss],
        "numpy": [str(kind), int(position), int(has_gauss), float(cached)],
    }
    return tensors, values


def restore_random_state(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Set the global RNGs to the result of `random_state`. States of missing GPUs are ignored."""
    torch.set_rng_state(tensors["torch"])
    for name, tensor in tensors.items():
        if name.startswith("cuda.") and int(name[5:]) < torch.cuda.device_count():
            torch.cuda.set_rng_state(tensor, int(name[5:]))
    kind, position, has_gauss, cached = values["numpy"]
    np.random.set_state((kind, tensors["numpy"].numpy().astype(np.uint32), position, has_gauss, cached))
    version, words, gauss = values["python"]
    random.setstate((version, tuple(words), gauss))


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return trained parameters and saved buffers by name; tied ones appear once."""
    saved = set(model.state_dict())
    trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    return {**trained, **{name: tensor for name, tensor in model.named_buffers() if name in saved}}


def _shape(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
