"""Rewards and rows of files tried before a run starts; `prepare` does it for what comes from a hub.

Of datasets that make their rows and rewards that ship it is known that they fit. A module of the user's own is not
imported here, as it may import anything: a process of its own does it (`learning.rewards.probe`).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.config.plain import schema_path, to_plain
from pipeline.config.schema import Config, DatasetConfig, ModelConfig
from pipeline.config.tables import REWARD_MODEL, REWARDS
from pipeline.config.values import refuse_all
from pipeline.errors import ConfigError, describe_exit
from pipeline.foreign import ForeignDataError, read_model_json
from pipeline.learning.algos.dpo import FeedbackConfig, KTOConfig, PairSource
from pipeline.learning.algos.qsharp import CDConfig, QSharpConfig
from pipeline.learning.algos.sft import SFTConfig
from pipeline.learning.datasets.base import check_demonstrations, demonstration_length, load_dataset
from pipeline.learning.datasets.files import HubDataset, in_cache
from pipeline.learning.datasets.from_files import FilesConfig, FilesDataset
from pipeline.learning.models.kinds import TinyModelConfig, is_adapters, tokenizer_place
from pipeline.learning.rewards.registry import shipped_traits
from pipeline.machine import children
from pipeline.machine.children import Channel
from pipeline.plan.models import CONFIG, is_gguf, read_config, reason

# -- pairs -------------------------------------------------------------------------------------------------------
# Whether datasets hold the pairs and the completions that algorithms ask of them.


_PAIR = ("chosen", "rejected")


def check_pairs(config: Config) -> None:
    """Refuse existing pairs or completions of a dataset that makes its rows, and makes none with them.

    Raises:
        ConfigError: Names the algorithm and the dataset.
    """
    for name, section in config.datasets.items() if _asking(config) or _imitating(config) else ():
        dataset = load_dataset(section)
        if dataset.prepared:
            continue
        row = dataset.row(int(dataset.ids("train")[0]))
        if any(getattr(row, each) is None and row.columns.get(each) is None for each in _PAIR):
            refuse_unpaired(config, {name: ["prompt", *row.columns]})
        if row.answer is None and not row.whole:
            refuse_unanswered(config, {name: (1, 1)})
        if isinstance(row.prompt, str):
            refuse_text(config, [name])


def refuse_unpaired(config: Config, unpaired: Mapping[str, Sequence[str]]) -> None:
    """Refuse existing pairs of datasets that have none.

    Args:
        config: The request.
        unpaired: Those without, and the columns that their rows have.

    Raises:
        ConfigError: Names the algorithm and the dataset.
    """
    for algo, (name, columns) in product(_asking(config), unpaired.items()):
        labelled = isinstance(config.algos[algo], KTOConfig)
        if labelled and "label" in columns:
            continue
        raise ConfigError(
            f"algos.{algo}.pairs=existing: datasets.{name} has no pairs. Its rows need the columns chosen and "
            f"rejected{', or completion and label' if labelled else ''}, but have {', '.join(columns)}. Choose "
            f"another dataset, or algos.{algo}.pairs=sampled"
        )


def refuse_unanswered(config: Config, unanswered: Mapping[str, Sequence[int]]) -> None:
    """Refuse to imitate completions of datasets with rows that have none.

    Args:
        config: The request.
        unanswered: How many rows have none, of how many that were looked at.

    Raises:
        ConfigError: Names the algorithm and the dataset.
    """
    imitating = _imitating(config)
    for name, (without, number) in unanswered.items() if imitating else ():
        who = "its rows have" if without == number else f"{without:,} of its first {number:,} rows have"
        raise ConfigError(
            f"algos.{imitating[0]} imitates the completions of a dataset: datasets.{name}: {who} none. Rows need "
            "the columns prompt and completion, messages, or chosen, which is then imitated; others are named by "
            f"datasets.{name}.columns={{prompt: COLUMN, completion: COLUMN}}. To imitate what the policy itself "
            "draws, choose algos=[RAFT]"
        )


def refuse_text(config: Config, of_text: Collection[str]) -> None:
    """Refuse to look for turns of the assistant in datasets of text.

    Args:
        config: The request.
        of_text: These.

    Raises:
        ConfigError: Names the algorithm and the dataset.
    """
    for algo in _imitating(config) if of_text else ():
        section = config.algos[algo]
        if isinstance(section, SFTConfig) and section.assistant_only_loss:
            raise ConfigError(
                f"algos.{algo}.assistant_only_loss=true: the rows of datasets.{min(of_text)} are text, which has "
                f"no turns. Leave it false: of a prompt and a completion the completion alone is learnt; or set "
                f"datasets.{min(of_text)}.chat=true"
            )


def _imitating(config: Config) -> list[str]:
    """The algorithms that imitate a dataset's completions."""
    return [name for name, algo in config.algos.items() if algo.enabled and isinstance(algo, SFTConfig)]


def _asking(config: Config) -> list[str]:
    """The algorithms that ask for pairs."""
    return [name for name, algo in config.algos.items() if algo.enabled and _asks(algo)]


def _asks(algo: object) -> bool:
    return isinstance(algo, FeedbackConfig) and algo.pairs is PairSource.existing


# -- tokenizers --------------------------------------------------------------------------------------------------
# What must fit between tokenizers, models and datasets: checked before anything starts. Guidance adds a value
# to the logit of each candidate token, so token 17 has to mean the same to the reference and to the value
# model that guides it; and a conversation needs a chat template. Only files beside the weights are read, or
# the head of a GGUF file, which takes no torch and no transformers.


FILE = "tokenizer.json"
TOKENS = "tokenizer.ggml.tokens"
SETTINGS = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
TEMPLATES = "additional_chat_templates"
LARGEST_TOKENIZER = 500_000_000
"""Bytes; the largest known ones have some tens of millions."""
_OF_TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json", "*token*.py")
"""What the files that hold a tokenizer's vocabulary are called, whichever library made it."""


def check_tokenizers(config: Config) -> None:
    """Refuse model pairs that do not share a tokenizer, and datasets that no model can be made for.

    Raises:
        ConfigError: Says which pair differs, and in what.
    """
    for name, model in config.models.items():
        if isinstance(model, TinyModelConfig):
            for dataset, section in config.datasets.items():
                made = load_dataset(section)
                check_demonstrations(dataset, made)
                length = demonstration_length(made)
                if length > model.n_positions:
                    raise ConfigError(
                        f"models.{name}.n_positions={model.n_positions}: a prompt of datasets.{dataset} and its "
                        f"completion are {length} tokens; set models.{name}.n_positions={length} or more."
                    )
        if model.path is not None:
            given, folder = f"models.{name}.path", Path(tokenizer_place(model.path, None).path)
            if folder.is_dir():
                _check_there(f"{given}={model.path}", folder)
            # With adapters may come more tokens than their base has.
            if (folder / FILE).is_file() and not is_adapters(model.path):
                _check_rows(f"{given}={folder}", model.path, read_vocabulary(given, model.path))
        if model.value_path is None:
            continue
        value = read_vocabulary(f"models.{name}.value_path", model.value_path)
        if not is_adapters(model.value_path):
            _check_rows(f"models.{name}.value_path={model.value_path}", model.value_path, value)
        for reference, vocabulary in _reference_vocabularies(name, model, config):
            difference = _difference(vocabulary, value)
            if difference:
                raise ConfigError(
                    f"models.{name}: the reference ({reference}) and the value model ({model.value_path}) share "
                    f"no tokenizer: {difference}. Choose a value model of the same family, or value_path=null "
                    "for a copy of the reference."
                )


def _check_there(given: str, folder: Path) -> None:
    """Refuse the folder of a model that was saved without its tokenizer."""
    there = {file.name for name in _OF_TOKENIZERS for file in folder.glob(name)} - {SETTINGS}
    if not there:
        raise ConfigError(
            f"{given}: the folder holds no tokenizer ({FILE}, tokenizer.model, vocab.json, ...). Save that of the "
            "model beside it, with save_pretrained of the tokenizer."
        )


def _check_rows(given: str, path: str, vocabulary: Mapping[str, int]) -> None:
    """Refuse a model that has no weights for some tokens of its tokenizer, as one to which tokens were added."""
    file = Path(path) / CONFIG
    file = file if file.is_file() else in_cache(path, CONFIG) or file
    try:
        config = read_config(file)
    except (OSError, ForeignDataError):
        return  # of a GGUF file; what is wrong with others is told where models are checked
    inner = config.get("text_config")
    rows = (inner if isinstance(inner, dict) else config).get("vocab_size")
    tokens = max(vocabulary.values(), default=-1) + 1
    if isinstance(rows, int) and rows < tokens:
        raise ConfigError(
            f"{given}: its tokenizer has {tokens:,} tokens and its embedding {rows:,} rows, so it cannot read "
            "all of them. Choose another model, or save this one after resize_token_embeddings of transformers."
        )


def check_chat_templates(config: Config, conversations: Collection[str] = ()) -> None:
    """Refuse a model without a chat template for a dataset of conversations.

    Args:
        config: The request.
        conversations: Names of datasets whose rows are known to be conversations. Of others it is known where
            their text is made one.

    Raises:
        ConfigError: Names the model and the dataset.
    """
    for name, section in config.datasets.items():
        if isinstance(section, FilesConfig) and section.chat:
            said = f"datasets.{name}.chat=true makes prompts conversations"
            instead = f"datasets.{name}.chat=false"
        elif name in conversations:
            said, instead = f"the prompts of datasets.{name} are conversations", "prompts of text"
        else:
            continue
        for model_name, model in config.models.items():
            if model.path is not None and has_chat_template(model.path) is False:
                raise ConfigError(
                    f"{said}, but models.{model_name}.path={model.path} has no chat template. Choose an instruct "
                    f"model, or {instead}."
                )


def has_chat_template(path: str) -> bool | None:
    """Whether a model brings a chat template; None where that is only known once it is fetched from the hub."""
    if is_gguf(path):
        return "tokenizer.chat_template" in _gguf(path).fields
    folder = Path(tokenizer_place(path, None).path)
    if not folder.is_dir():
        return None
    try:
        settings = read_config(folder / SETTINGS)
    except (OSError, ForeignDataError):
        settings = {}
    return (folder / TEMPLATE).is_file() or (folder / TEMPLATES).is_dir() or bool(settings.get("chat_template"))


def _reference_vocabularies(name: str, model: ModelConfig, config: Config) -> list[tuple[str, dict[str, int]]]:
    if model.path is not None:
        return [(model.path, read_vocabulary(f"models.{name}.path", model.path))]
    # A model that is trained in the run has the vocabulary of its dataset.
    return [
        (
            f"made for {dataset}",
            {token: index for index, token in enumerate(load_dataset(section).vocabulary)},
        )
        for dataset, section in config.datasets.items()
    ]


def read_vocabulary(key: str, path: str) -> dict[str, int]:
    """Token -> id of a model folder, of a GGUF file, or of a hub id whose tokenizer is in the local cache.

    Raises:
        ConfigError: There is no tokenizer to read.
    """
    if is_gguf(path):
        return {token: index for index, token in enumerate(_gguf(path).fields[TOKENS].contents())}
    place = tokenizer_place(path, None).path
    file = Path(place) / FILE
    if not file.is_file():
        file = in_cache(place, FILE) or file
    try:
        found = read_model_json(file, _Tokenizer, LARGEST_TOKENIZER)
    except (OSError, ForeignDataError) as error:
        raise ConfigError(
            f"{key}={path}: cannot read {file} ({reason(error)}). Give the folder of a model saved by "
            "save_pretrained together with its tokenizer."
        ) from error
    vocabulary = found.model.vocab
    if not isinstance(vocabulary, dict):  # unigram models list tokens with their scores
        vocabulary = {token: index for index, (token, _) in enumerate(vocabulary)}
    return {**vocabulary, **{token.content: token.id for token in found.added_tokens}}


@dataclass(frozen=True)
class _Added:
    content: str
    id: int


@dataclass(frozen=True)
class _Vocabulary:
    vocab: dict[str, int] | list[tuple[str, float]]


@dataclass(frozen=True)
class _Tokenizer:
    """What of a tokenizer's file is read here."""

    model: _Vocabulary
    added_tokens: list[_Added] = field(default_factory=list)


@cache
def _gguf(path: str) -> Any:
    """What the head of a GGUF file says; it takes some seconds to read."""
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except Exception as error:  # whatever a wrong byte leads it to
        raise ConfigError(
            f"{path}: cannot be read as a GGUF file ({type(error).__name__}). Get it again."
        ) from error


def _difference(one: Mapping[str, int], other: Mapping[str, int]) -> str:
    if one == other:
        return ""
    if len(one) != len(other):
        return f"{len(one)} tokens against {len(other)}"
    token = next(token for token in one if one[token] != other.get(token))
    theirs = f"id {other[token]}" if token in other else "missing"
    return f"token {token!r} has id {one[token]} in the one and is {theirs} in the other"


_MARGIN_S = 60.0
_SOON_S = 20.0
"""Seconds after which a user is told what takes so long."""
_END_S = 10.0
_LARGEST_ANSWER = 64 << 20
"""Bytes."""


def try_rewards(
    config: Config, used: Collection[str] = (), tell: Callable[[str], None] = lambda _: None
) -> tuple[str, ...]:
    """Call every reward once, if it, or a dataset that makes its rows, is not what ships.

    Args:
        config: The request.
        used: Names of datasets that the run is still to use: of local files the first rows are made now. Of
            others that are read, it is only seen whether one of several rewards judges.
        tell: Told where it takes long.

    Returns:
        Warnings.

    Raises:
        ConfigError: A row lacks what it needs, a reward cannot work with its dataset, or an algorithm with what it
            gives; or rows are conversations, and a model has no chat template.
    """
    single = _single_probabilities(config)
    asked = {
        name: section
        for name, section in config.datasets.items()
        if _is_own(section) and (not load_dataset(section).prepared or _leaves_open(section) or single)
    }
    to_read = [name for name in used if in_local_files(config.datasets[name])]
    asked |= {name: config.datasets[name] for name in to_read}
    answer = (
        _ask(asked, to_read, _templates(config), tell)
        if asked
        else {
            "problems": [],
            "warnings": [],
            "graded": {},
            "conversations": [],
            "texts": [],
            "unpaired": {},
            "unanswered": {},
        }
    )
    if answer["problems"]:
        raise ConfigError("\n".join(answer["problems"]))
    refuse_unpaired(config, answer["unpaired"])
    refuse_unanswered(config, answer["unanswered"])
    refuse_text(config, answer["texts"])
    check_chat_templates(config, answer["conversations"])
    if single:
        told = answer["graded"]
        refuse_all(
            [
                problem
                for name, section in config.datasets.items()
                for problem in _graded_problems(name, told.get(name) or _graded(section), single)
            ]
        )
    return tuple(answer["warnings"])


def _single_probabilities(config: Config) -> list[str]:
    """Algorithms of the run whose tilt is E[exp(R / eta)] by a single probability: right for two values."""
    return [
        name
        for name, algo in config.algos.items()
        if algo.enabled and isinstance(algo, QSharpConfig) and not isinstance(algo, CDConfig) and algo.atoms == 1
    ]


def _graded(section: DatasetConfig) -> str:
    """What is known to have more than two values without a look at own code, in words; "" for nothing."""
    counted = [name for name, weight in (section.rewards or {section.reward: 1.0}).items() if weight]
    if len(counted) > 1:
        return f"the sum of its rewards {', '.join(counted)}"
    found = [name for name, traits in shipped_traits(section).items() if traits.graded]
    return f"its reward '{found[0]}'" if found else ""


def _graded_problems(dataset: str, graded: str, algos: Iterable[str]) -> Iterator[str]:
    for algo in algos if graded else ():
        yield (
            f"datasets.{dataset}: {graded} has more than two values, and algos.{algo}.atoms=1 is a single "
            "probability of the highest, which cannot express E[exp(R / eta)] of such rewards. "
            f"Set algos.{algo}.atoms=11, or more where eta is small, and algos.{algo}.value_min and value_max to "
            "what the reward can give"
        )


def _is_own(section: DatasetConfig) -> bool:
    named = {str((section.grading.options.get(name) or {}).get("use", name)) for name in _names(section)}
    return section.class_path is not None or bool(section.grading.options) or not named <= {*REWARDS, REWARD_MODEL}


def _leaves_open(section: DatasetConfig) -> bool:
    """Whether it takes a look at the rewards to know which of them says what is correct."""
    return len(_names(section)) > 1 and section.grading.correct_by is None


def _names(section: DatasetConfig) -> list[str]:
    return list(section.rewards or [section.reward])


def in_local_files(section: DatasetConfig) -> bool:
    """Whether the rows of a dataset are in files of this machine."""
    dataset = load_dataset(section)
    return isinstance(dataset, FilesDataset) and not any(
        isinstance(location, HubDataset) for location in dataset.locations().values()
    )


def as_plain(datasets: Mapping[str, DatasetConfig]) -> dict[str, Any]:
    """Settings of datasets as that process is told them."""
    return {name: {"_schema_": schema_path(section), **to_plain(section)} for name, section in datasets.items()}


def _templates(config: Config) -> dict[str, str]:
    """The folders of this machine that have the models' chat templates."""
    paths = {
        name: tokenizer_place(model.path, None).path
        for name, model in config.models.items()
        if model.path is not None
    }
    return {name: path for name, path in paths.items() if Path(path).is_dir()}


def _ask(
    datasets: Mapping[str, DatasetConfig],
    to_read: Sequence[str],
    templates: Mapping[str, str],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """What a process says that tries rewards and rows; it ends then, with whatever their modules have started."""
    limit_s = _MARGIN_S + sum(
        section.grading.start_timeout_s + section.grading.timeout_s * len(_names(section))
        for section in datasets.values()
    )
    tried = f"trying the rewards of {', '.join(datasets)} on a single row"
    hint = "Does importing one, or making the row, hang?"
    with tempfile.TemporaryFile() as output:
        child = children.Child(
            "pipeline.learning.rewards.probe",
            {**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            {"datasets": as_plain(datasets), "to read": list(to_read), "templates": dict(templates)},
            max_bytes=_LARGEST_ANSWER,
            send_timeout_s=_MARGIN_S,
            output=output,
            own_group=True,
        )
        try:
            try:
                line = _first_line(child.channel, _SOON_S)
            except TimeoutError:
                tell(f"{tried} has taken {_SOON_S:g} s so far, and ends after {limit_s:g}. {hint}")
                line = _first_line(child.channel, limit_s - _SOON_S)
            if line is None:
                with suppress(subprocess.TimeoutExpired):  # a moment after it has hung up it has an exit code
                    child.process.wait(_END_S)
        except TimeoutError as error:
            raise ConfigError(f"{tried} took more than {limit_s:g} s. {hint}") from error
        finally:
            children.end([child])
            code = child.wait()
        if line is not None:
            answer: dict[str, Any] = json.loads(line)
            return answer
        output.seek(0)
        said = (output.read().decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
    named = ", ".join(dict.fromkeys(name for section in datasets.values() for name in _names(section)))
    raise ConfigError(
        f"the process that tries the rewards of {', '.join(datasets)} ended with {describe_exit(code)} and said: "
        f"{said}. Importing {named}, or what it imports, or making a row, ends the process"
    )


def _first_line(channel: Channel, limit_s: float) -> bytes | None:
    """The first line that arrives; None where the other side hangs up before.

    Raises:
        TimeoutError: Neither happens in time.
    """
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    give_up = time.monotonic() + limit_s
    while not channel.closed:
        if not poll.poll(max(0.0, give_up - time.monotonic()) * 1000):
            raise TimeoutError
        for line in channel.receive():
            return line
    return None
