"""A bundle: one file with all that a run's tables rest on, for others to check, and without weights.

    manifest.json                            format, what was left out, and size and SHA-256 of every other member
    results.json                             as in the run's folder
    config.yaml, origin.json                 settings that determine results; command, versions and processor
    plan.json                                jobs with their keys
    outputs.json                             key -> files of the job's output with SHA-256 sums, and what made it
    outcomes/KEY/[greedy/|eta=X/]FILE        outcomes of every completion, by the key of the job that evaluated it

A bundle is a tar archive in one canonical form: members sorted, all header fields but name and size fixed. Reading
compares every header with the one that writing makes, so links, devices, sparse files, other owners and whatever
else an archive may hold are refused by one rule. Nothing is extracted by a name from the file.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self, TypeVar

import msgspec
import yaml

from pipeline.config.tables import is_own_code
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError, PipelineError
from pipeline.files import at_home, json_text, open_plain, replacing
from pipeline.foreign import LARGEST_FILE, RESOLVED, ForeignDataError, read_json, read_plain, read_resolved
from pipeline.outputs import formats
from pipeline.outputs.formats import Sample
from pipeline.outputs.manifest import NotAnOutputError, read_manifest
from pipeline.plan.graph import Job
from pipeline.plan.recorded import RecordedPlan, parse_plan
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.origin import Maker, maker_of
from pipeline.runs.record import METRICS_STAGE, Results, place_of, read_results
from pipeline.runs.report.model_card import command_for_all

MANIFEST, RESULTS, CONFIG, PLAN = "manifest.json", "results.json", "config.yaml", "plan.json"
ORIGIN, OUTPUTS, OUTCOMES = "origin.json", "outputs.json", "outcomes"
FORMAT = 1
SAMPLES, SETTINGS = "samples", "settings"
LEFT_OUT = (SAMPLES, SETTINGS)
"""What a bundle can do without: texts of prompts and completions; settings and the command."""

_LARGEST, _MOST = 8 << 30, 1_000_000
"""Bytes of a bundle, and its members."""
_MEMBER, _PART = 1 << 30, 1 << 28
"""Bytes of a member with outcomes, and of another."""
_KEY = r"[0-9a-f]{40}"
_OUTCOME = re.compile(
    rf"{OUTCOMES}/({_KEY})/((?:greedy/|eta=[0-9a-z.+-]{{1,24}}/)?(?:samples\.jsonl|prompts\.safetensors))"
)
_FIXED = {RESULTS, CONFIG, PLAN, ORIGIN, OUTPUTS}
_T = TypeVar("_T")
_BLOCK, _RECORD = tarfile.BLOCKSIZE, tarfile.RECORDSIZE
_SHA256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class BundleError(PipelineError):
    """A file is no bundle, or not as it was written."""


class FileSum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and SHA-256 sum of a file."""

    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: _SHA256


class Contents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``manifest.json``."""

    format: int
    left_out: list[str]
    files: dict[str, FileSum]


class Made(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An output as its run recorded it: its files, and the versions and arithmetic that made it."""

    files: dict[str, FileSum]
    maker: Maker


@dataclass(frozen=True, kw_only=True)
class Source:
    """Content of ``origin.json``: how a run was started, and what it ran with, without names of its machine.

    Attributes:
        experiment: Name of the experiment.
        command: Command that repeats the run, without local paths; "" if left out.
        processor: Processor of the machine.
        versions: Package -> version, including Python.
        bounded: Algorithms whose KL divergence is an upper bound.
    """

    experiment: str
    command: str = ""
    processor: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    bounded: list[str] = field(default_factory=list)


# -- archive -----------------------------------------------------------------------------------------------------


def write_bundle(path: Path, members: Mapping[str, bytes], left_out: Sequence[str] = ()) -> str:
    """Write a bundle; the same members always give the same bytes.

    Args:
        path: The file; what it held stays if something fails.
        members: Name -> content, without the manifest.
        left_out: Which of `LEFT_OUT` the members lack.

    Returns:
        The SHA-256 sum of the file.

    Raises:
        BundleError: It would be larger than what is read.
        OSError: It cannot be written.
    """
    if large := [name for name, data in members.items() if len(data) > _limit(name)]:
        raise BundleError(
            f"{large[0]} would have {len(members[large[0]]):,} bytes, which is more than bundles hold"
        )
    sums = {name: {"size": len(data), "sha256": _sum(data)} for name, data in sorted(members.items())}
    every = {**members, MANIFEST: _listing({"format": FORMAT, "left_out": sorted(left_out), "files": sums})}
    whole, written = hashlib.sha256(), 0
    with replacing(path) as temporary, temporary.open("wb") as file:

        def put(data: bytes) -> None:
            nonlocal written
            whole.update(data)
            written += file.write(data)

        for name in _ordered(every):
            put(_header(name, len(every[name])))
            put(every[name])
            put(bytes(-len(every[name]) % _BLOCK))
        put(bytes(2 * _BLOCK))
        put(bytes(-written % _RECORD))
    return whole.hexdigest()


def _listing(contents: Mapping[str, Any]) -> bytes:
    return json_text(contents, indent=1).encode() + b"\n"


def _ordered(names: Mapping[str, object]) -> list[str]:
    return sorted(names, key=_order)


def _order(name: str) -> tuple[bool, str]:
    return name != MANIFEST, name


def _limit(name: str) -> int:
    """Return the most bytes of a member; -1 for a name that none has."""
    return _PART if name in _FIXED or name == MANIFEST else _MEMBER if _OUTCOME.fullmatch(name) else -1


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.USTAR_FORMAT)


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Bundle:
    """An open bundle, which closes as a context; members are checked when they are read.

    Attributes:
        path: The file.
        contents: Its manifest.
    """

    def __init__(self, path: Path) -> None:
        """Open a bundle and check its form: every header, all that lies between members, and the manifest.

        Raises:
            BundleError: It cannot be read, or is no bundle; says why.
        """
        self.path = path
        try:
            self._file: BufferedReader = open_plain(at_home(path), follow=True)
        except OSError as error:
            raise BundleError(f"{path} cannot be read: {error.strerror or error}") from error
        try:
            self._places = self._members()
            self.contents = self._check()
        except BundleError:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()

    @cached_property
    def digest(self) -> str:
        """SHA-256 sum of the file."""
        self._file.seek(0)
        return hashlib.file_digest(self._file, "sha256").hexdigest()

    @property
    def outcomes(self) -> Iterator[tuple[str, str, str]]:
        """Yield the name, the key and the file of each member with outcomes."""
        for name in self.contents.files:
            if match := _OUTCOME.fullmatch(name):
                yield name, match[1], match[2]

    def read(self, name: str) -> bytes:
        """Read a member whole.

        Raises:
            BundleError: There is none, or it does not have its size and sum.
        """
        if name not in self._places:
            raise self._no(f"it has no {name}")
        start, size = self._places[name]
        self._file.seek(start)
        data = self._file.read(size)
        entry = self.contents.files[name] if name != MANIFEST else None
        if len(data) != size or (entry is not None and entry != FileSum(size, _sum(data))):
            raise self._no(f"{name} does not have the size and sum of its manifest")
        return data

    # -- parts -------------------------------------------------------------------------------------------------

    def results(self) -> Results:
        """Return the recorded results."""
        return self._json(RESULTS, Results)

    def source(self) -> Source:
        """Return what is told of how the run was made."""
        return self._json(ORIGIN, Source)

    def outputs(self) -> dict[str, Made]:
        """Return key -> recorded output."""
        return self._json(OUTPUTS, dict[str, Made])

    def plan(self) -> RecordedPlan:
        """Return the jobs of the run."""
        try:
            plan = parse_plan(self.read(PLAN))
        except (PipelineError, RecursionError) as error:
            raise self._no(f"{PLAN} cannot be used: {error}") from error
        for job in plan.jobs.values():
            keys = [job.key, *(key for keys in job.inputs.values() for key in keys)]
            if not all(map(formats.is_key, keys)):
                raise self._no(f"{PLAN} has a job whose key, or that of an input, is none")
        return plan

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        try:
            if len(data := self.read(CONFIG)) > RESOLVED * LARGEST_FILE:
                raise ValueError("it is too large")
            plain = read_resolved(data)
        except (yaml.YAMLError, ValueError, RecursionError, ConfigError) as error:
            raise self._no(f"{CONFIG} cannot be used: {' '.join(str(error).split())}") from error
        if not isinstance(plain, dict):
            raise self._no(f"{CONFIG} holds no settings")
        return plain

    def samples(self, name: str) -> list[Sample]:
        """Return the outcomes of a member ``samples.jsonl``."""
        return _samples(name, self.read(name))

    def _json(self, name: str, kind: type[_T]) -> _T:
        try:
            return read_json(self.read(name), kind)
        except ForeignDataError as error:
            raise self._no(f"{name} cannot be used: {error}") from error

    # -- form --------------------------------------------------------------------------------------------------

    def _members(self) -> dict[str, tuple[int, int]]:
        """Return the place and size of each member."""
        self._file.seek(0, 2)
        end = self._file.tell()
        if end > _LARGEST or end % _RECORD:
            raise self._no(
                f"it has {end:,} bytes, and a bundle has a multiple of {_RECORD:,}, {_LARGEST:,} at most"
            )
        places: dict[str, tuple[int, int]] = {}
        at = 0
        while (header := self._bytes(at, _BLOCK)).strip(b"\0"):
            name, size = self._member(header)
            start = at + _BLOCK
            at = start + size + -size % _BLOCK
            if at > end or self._bytes(start + size, at - start - size).strip(b"\0"):
                raise self._no(f"{name} is cut off, or something hides behind it")
            is_next = not places or _order(next(reversed(places))) < _order(name)
            places[name] = start, size
            if not is_next or len(places) > _MOST:
                raise self._no(f"{name} is there twice or out of order, or there are too many members")
        used = at + 2 * _BLOCK
        if end != used + -used % _RECORD or self._bytes(at, end - at).strip(b"\0"):
            raise self._no("it is cut off, or goes on behind its end")
        return places

    def _member(self, header: bytes) -> tuple[str, int]:
        name, digits = header[:100].rstrip(b"\0"), header[124:135]
        if len(header) == _BLOCK and re.fullmatch(rb"[0-7]{11}", digits):
            text, size = name.decode("ascii", "replace"), int(digits, 8)
            if size <= _limit(text) and header == _header(text, size):
                return text, size
        raise self._no(
            f"it holds {name[:60]!a}, which is no plain file of a bundle in the form that `bundle` writes"
        )

    def _bytes(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        return self._file.read(size)

    def _check(self) -> Contents:
        contents = self._json(MANIFEST, Contents)
        if contents.format != FORMAT:
            raise self._no(f"it is of format {contents.format}, and this version reads {FORMAT}: take a newer one")
        named, there = list(contents.files), set(self._places) - {MANIFEST}
        is_same = self.read(MANIFEST) == _listing(msgspec.to_builtins(contents))
        if (
            not is_same
            or named != sorted(there)
            or not there >= _FIXED
            or not set(contents.left_out) <= set(LEFT_OUT)
        ):
            raise self._no("its manifest does not list what it holds, or parts are missing")
        return contents

    def _no(self, problem: str) -> BundleError:
        return BundleError(f"{self.path} is no bundle that can be used: {problem}")


# -- content -----------------------------------------------------------------------------------------------------
# What of a run goes into a bundle, without the names of its machine, its user and its folders.


_STATED = ("experiment", "rounds_of_training", "evaluation")
"""Sections that numbers follow from, which stay without settings."""
_DETERMINING = ("system", "training", "generation", "data_collection", "algos", "datasets", "models")
_EXPERIMENT = ("name", "seeds", "last_rounds", "looks")
_DISTRIBUTED = ("enabled", "num_gpus", "strategy", "fsdp_sharding_strategy", "fsdp_cpu_offload")
_PATH = re.compile(r"(?:file://|~|\$\{?HOME\}?)?/[^\s/]+/")
"""Start of a text that is a path, wherever it stands."""


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Members of a bundle that is to be written.

    Attributes:
        members: Name -> content.
        prompts: Number of distinct prompts in the texts.
        completions: Number of completions in them.
        example: The beginning of one of them.
        lacking: Jobs whose outcomes are in the store no more.
    """

    members: dict[str, bytes]
    prompts: int = 0
    completions: int = 0
    example: str = ""
    lacking: list[str] = field(default_factory=list)


def collect(run: LoadedRun, left_out: Collection[str]) -> Collected:
    """Read what a bundle of a run holds from its folder and store; every file is checked by its sum.

    Args:
        run: A run with results.
        left_out: Which of `LEFT_OUT` to leave out.

    Raises:
        PipelineError: Something of it cannot be read, or was altered.
    """
    results, plan, store = read_results(run.folder.results_json), run.plan, run.store
    measured = {place_of(row) for row in results.rows}
    jobs = [job for job in plan.jobs.values() if job.stage == METRICS_STAGE and place_of(job) in measured]
    made = {job.key: found for job in plan.jobs.values() if (found := _made(store, job.key)) is not None}
    by_key, lacking, members = plan.by_key, dict[str, None](), dict[str, bytes]()
    for key in dict.fromkeys(key for job in jobs for keys in job.inputs.values() for key in keys):
        if key not in made and key in by_key:
            lacking[by_key[key]] = None
        for file, known in made[key].files.items() if key in made else ():
            if _OUTCOME.fullmatch(name := f"{OUTCOMES}/{key}/{file}"):
                members[name] = _whole(store.path(key) / file, known)
    samples = {name: _samples(name, data) for name, data in members.items() if name.endswith(formats.SAMPLES)}
    if SAMPLES in left_out:
        for name, hidden in without_texts(samples).items():
            lines = (json_text(asdict(sample), ensure_ascii=False) + "\n" for sample in hidden)
            members[name] = "".join(lines).encode()
        samples = {}
    every = [sample for own in samples.values() for sample in own]
    open_ = SETTINGS not in left_out
    parts: dict[str, object] = {
        RESULTS: asdict(results),
        ORIGIN: asdict(_source(run, told=open_)),
        OUTPUTS: msgspec.to_builtins(dict(sorted(made.items()))),
    }
    members |= {name: json_text(part, indent=1).encode() + b"\n" for name, part in parts.items()}
    members[PLAN] = json.dumps(_plan(plan, told=open_), indent=1).encode() + b"\n"  # settings may be infinite
    members[CONFIG] = yaml.safe_dump(_settings(run.read_config(), told=open_), sort_keys=False).encode()
    return Collected(
        members=members,
        prompts=len({sample.prompt for sample in every}),
        completions=len(every),
        example=every[0].prompt if every else "",
        lacking=list(lacking),
    )


def _made(store: Store, key: str) -> Made | None:
    try:
        manifest = read_manifest(key, store.path(key))
    except NotAnOutputError:
        return None
    files = {name: FileSum(entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
    return Made(files, maker_of(manifest.get("about")))


def _whole(path: Path, known: FileSum) -> bytes:
    try:
        data = read_plain(path, _MEMBER)
    except (OSError, ForeignDataError) as error:
        raise BundleError(f"{path} cannot be read: {formats.problem_in_words(error)}") from error
    if FileSum(len(data), _sum(data)) != known:
        raise BundleError(f"{path} was altered since it was stored: run the command of the run again")
    return data


def _samples(name: str, data: bytes) -> list[Sample]:
    try:
        return [read_json(line, Sample) for line in data.splitlines() if line.strip()]
    except ForeignDataError as error:
        raise BundleError(f"{name} cannot be used: {error}") from error


def without_texts(files: Mapping[str, Sequence[Sample]]) -> dict[str, list[Sample]]:
    """Return samples of a run without texts, from which the same numbers follow.

    A prompt becomes its number among the distinct prompts of the run, and an answer that votes its number among
    those of its prompt.

    Args:
        files: Name of a file -> its samples.
    """
    prompts: dict[str, str] = {}
    answers: dict[str, dict[str, str]] = {}

    def hidden(sample: Sample) -> Sample:
        prompt = prompts.setdefault(sample.prompt, str(len(prompts)))
        votes, answer = answers.setdefault(prompt, {}), sample.answer
        vote = None if answer is None else votes.setdefault(answer, str(len(votes)))
        return replace(sample, prompt=prompt, completion="", answer=vote, solution=None)

    return {name: [hidden(sample) for sample in samples] for name, samples in sorted(files.items())}


def _source(run: LoadedRun, *, told: bool) -> Source:
    origin = run.origin
    return Source(
        experiment=run.name,
        command=command_for_all(origin.command) if told else "",
        processor=origin.machine.get("processor", ""),
        versions=origin.versions,
        bounded=origin.bounded,
    )


def _plan(plan: RecordedPlan, *, told: bool) -> dict[str, Any]:
    """Return a ``plan.json`` without payloads, edges and folders; without settings its keys alone."""
    names = ("id", "key", "algo", "dataset", "model", "reference", "seed", "round", "stage", "shard", "weights")
    jobs = [
        {name: getattr(job, name) for name in names}
        | {"inputs": job.inputs, "entry": "", "payload": {}, "determined_by": _known(job, told=told)}
        | ({"keyed": job.keyed} if told and job.keyed else {})
        for job in plan.jobs.values()
    ]
    named = {job.determined_by.get("config") for job in plan.jobs.values()} if told else set()
    sections = {name: _without_folders(section) for name, section in plan.sections.items() if name in named}
    return {"key_format": plan.key_format, "jobs": jobs, "edges": [], "sections": sections}


def _known(job: Job, *, told: bool) -> dict[str, Any]:
    if told:
        found: dict[str, Any] = _without_folders(dict(job.determined_by))
        return found
    path = job.determined_by.get("class_path")
    return {} if path is None else {"class_path": "left.out" if is_own_code(path) else path}


def _settings(plain: Mapping[str, Any], *, told: bool) -> dict[str, Any]:
    """Return the settings that results depend on, without folders.

    Raises:
        ConfigError: They are not those of a run.
    """
    if odd := [
        name for name in ("experiment", "evaluation", "execution", "algos") if not _is_table(plain.get(name))
    ]:
        raise ConfigError(f"the settings of the run have no section {odd[0]}, so they are not those that it wrote")
    kept = {name: plain[name] for name in (*_STATED, *(_DETERMINING if told else ())) if name in plain}
    # What a race has decided are settings of their own.
    kept["experiment"] = {name: kept["experiment"][name] for name in _EXPERIMENT if name in kept["experiment"]}
    if told:
        kept["algos"] = {
            name: each for name, each in kept["algos"].items() if _is_table(each) and each.get("enabled")
        }
        shared = plain.get("distributed") or {}
        number = shared.get("num_gpus") or len(shared.get("gpu_ids") or shared.get("gpu_list") or ()) or None
        shared = {**shared, "num_gpus": number}
        kept["distributed"] = {name: shared[name] for name in _DISTRIBUTED if name in shared}
        kept["execution"] = {"shard_size": plain["execution"].get("shard_size")}
    else:
        kept["evaluation"] = {**kept["evaluation"], "also": {}, "on": []}
    found: dict[str, Any] = _without_folders(kept)
    return found


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _without_folders(value: Any, key: str = "") -> Any:
    """Return settings in which paths are the last names of them; other texts stay, as results depend on them."""
    if isinstance(value, dict):
        return {name: _without_folders(each, key if key == "also" else str(name)) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each, key) for each in value]
    is_path = key == "also" or (key.endswith("path") and key != "class_path")
    if isinstance(value, str) and (_PATH.match(value) or (is_path and value.startswith(("/", "~")))):
        return value.rstrip("/").rpartition("/")[2]
    return value


# -- private -----------------------------------------------------------------------------------------------------


_SECRETS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{35}|xox[abeoprs]-[\w-]{10,}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----|://[^\s/:@\"']+:[^\s/@\"']+@"
)
"""Forms of keys and tokens that are known."""
_SETS_SECRET = re.compile(
    r"(?:(?:api_?key|secret|passwo?r?d)|(?:access|auth|bearer)_?token|authorization)[\"']?\s*[:=]\s*"
    r"(?!null|''|\"\")[^\s,{}\[\]]{6,}",
    re.IGNORECASE,
)
"""A setting that is called like a secret; texts of a dataset may speak of passwords."""
_NAMES_SECRET = re.compile("(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$", re.IGNORECASE)
_LONG_ENOUGH = 8


def find_private(
    members: Mapping[str, bytes], environment: Mapping[str, str], names: Collection[str]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Look for secrets, and for names of the user and the machine.

    Args:
        members: Name of a member -> content.
        environment: Variables; values of those that are called like secrets are secrets.
        names: Names of the user, the machine and the home folder.

    Returns:
        Members with what looks like a secret, each cut to its beginning; and members with such names.
    """
    values = [value for name, value in environment.items() if _NAMES_SECRET.search(name)]
    values = [value for value in values if len(value) >= _LONG_ENOUGH and not value.isdigit()]
    secrets, named = dict[str, list[str]](), dict[str, list[str]]()
    whole = {
        name: re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, _written(name)))})(?![\w-])")
        for name in names
        if len(name) > 1
    }
    for member, data in sorted(members.items()):
        text = data.decode("utf-8", "replace")
        if member == CONFIG:  # YAML breaks lines in a text, and has quotes of its own
            text += json.dumps(yaml.safe_load(text))
        forms = [_SECRETS] if member.startswith(OUTCOMES) else [_SECRETS, _SETS_SECRET]
        found = [match[0] for form in forms for match in form.finditer(text)]
        found += [value for value in values if any(form in text for form in _written(value))]
        if found:
            secrets[member] = [f"{one[:6]}..." for one in dict.fromkeys(found)]
        if seen := [name for name, pattern in whole.items() if pattern.search(text)]:
            named[member] = seen
    return secrets, named


def _written(text: str) -> set[str]:
    """Return the forms in which a text stands in a member: as it is, and as JSON has it."""
    return {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
