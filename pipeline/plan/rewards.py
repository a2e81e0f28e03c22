"""Try rewards and rows of local files before a run starts; the stage `prepare` does so for datasets of a hub.

Shipped rewards and datasets that make their rows are known to fit. The user's own modules may import anything, so
they are not imported here but in a separate process (`learning.rewards.probe`).
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from threading import Timer
from typing import Any

from pipeline.config.plain import refuse_all, with_schema
from pipeline.config.schema import AlgoConfig, Config, DatasetConfig, ModelConfig
from pipeline.config.tables import REWARD_MODEL, REWARDS, as_typed
from pipeline.errors import ConfigError, JobError, describe_exit
from pipeline.foreign import ForeignDataError, read_plain
from pipeline.learning.algos.distilled import OTHER_TOKENS
from pipeline.learning.algos.dpo import KTOConfig, PairSource
from pipeline.learning.algos.qsharp import CDConfig, QSharpConfig
from pipeline.learning.algos.reward_stage import BestOfNConfig
from pipeline.learning.algos.sft import SFTConfig
from pipeline.learning.algos.value_guided import ValueAlgoConfig
from pipeline.learning.datasets.base import check_demonstrations, demonstration_length, load_dataset
from pipeline.learning.datasets.files import HubDataset, in_cache
from pipeline.learning.datasets.from_files import FilesConfig, FilesDataset
from pipeline.learning.models.kinds import TinyModelConfig, is_adapters, tokenizer_place
from pipeline.learning.rewards.judge import Asking, Judge, judges_of, key_of
from pipeline.learning.rewards.registry import reads_answers, shipped_traits
from pipeline.machine import children
from pipeline.plan.contents import reward_names
from pipeline.plan.models import (
    CONFIG,
    TEMPLATES,
    all_models,
    is_gguf,
    models_of_rewards,
    read_config,
    reason,
    teachers,
)

# -- rows ------------------------------------------------------------------------------------------------------
# Check that datasets have the pairs, completions and turns that algorithms need.


def check_pairs(config: Config) -> None:
    """Refuse algorithms that need more than the rows of a dataset that makes its rows.

    Raises:
        ConfigError: The message names the algorithm and the dataset.
    """
    asking = any(isinstance(algo, SFTConfig) or _takes_pairs(algo) for algo in config.enabled.values())
    for name, section in config.trained_on.items() if asking else ():
        if not (dataset := load_dataset(section)).prepared:
            row = dataset.row(int(dataset.ids("train")[0]))
            paired = all(getattr(row, column) or row.columns.get(column) for column in ("chosen", "rejected"))
            facts = {
                "unpaired": {} if paired else {name: ["prompt", *row.columns]},
                "unanswered": {} if row.answer is not None or row.whole else {name: (1, 1)},
                "texts": [name] if isinstance(row.prompt, str) else [],
            }
            refuse_all(list(row_problems(config, facts)))


def _takes_pairs(algo: AlgoConfig) -> bool:
    return getattr(algo, "pairs", None) is PairSource.existing


def row_problems(config: Config, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what algorithms need of datasets that do not have it.

    Args:
        config: The request.
        facts: Facts on datasets from `learning.rewards.probe`: ``unpaired``, name -> columns of its rows;
            ``unanswered``, name -> (rows without completion, all rows); names of datasets with ``texts``.
    """
    for algo, settings in config.enabled.items():
        asks = _takes_pairs(settings)
        labelled = isinstance(settings, (KTOConfig, ValueAlgoConfig))
        for name, columns in facts["unpaired"].items() if asks else ():
            if not (labelled and "label" in columns):
                yield (
                    f"algos.{algo}.pairs=existing: datasets.{name} has no pairs. Its rows need the columns chosen "
                    f"and rejected{', or completion and label' if labelled else ''}, but have {', '.join(columns)}"
                )
        if not isinstance(settings, SFTConfig):
            continue
        for name, (without, number) in facts["unanswered"].items():
            who = "its rows have" if without == number else f"{without:,} of its first {number:,} rows have"
            others = f"; others are named by datasets.{name}.columns={{prompt: COLUMN, completion: COLUMN}}"
            yield (
                f"algos.{algo} imitates the completions of a dataset: datasets.{name}: {who} none. Rows need the "
                "columns prompt and completion, messages, or chosen, which is then imitated"
                f"{others if hasattr(config.datasets.get(name), 'columns') else ''}"
            )
        for name in facts["texts"] if settings.assistant_only_loss else ():
            yield (
                f"algos.{algo}.assistant_only_loss=true: the rows of datasets.{name} are text, which has no "
                f"turns. Leave it false: of a prompt and a completion the completion alone is learnt; or set "
                f"datasets.{name}.chat=true"
            )


# -- tokenizers --------------------------------------------------------------------------------------------------
# Check that tokenizers, models and datasets fit, before anything starts. Guidance adds a value to the logit of
# each candidate token, so token 17 has to mean the same to the reference and to the value model; and a
# conversation needs a chat template. Only files beside the weights, or the header of a GGUF file, are read,
# without torch and transformers.


FILE = "tokenizer.json"
TOKENS = "tokenizer.ggml.tokens"
SETTINGS = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
LARGEST_TOKENIZER = 500_000_000
"""Largest size in bytes; the largest known ones have some tens of millions."""
_OF_TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json", "*token*.py")
"""Names of the files with a tokenizer's vocabulary, by any library."""


def check_tokenizers(config: Config) -> None:
    """Refuse model pairs that do not share a tokenizer, and datasets that no model can be created for.

    Raises:
        ConfigError: The message says which pair differs, and how.
    """
    for key, model in all_models(config).items():
        if model.path is not None:
            setting = as_typed(f"{key}.path=", (), config.evaluation.also).removesuffix("=")
            _check_words(setting, model.path, all_tokens=key.startswith("algos."))
        _check_room(config, key, model)
    for setting, reward in models_of_rewards(config).items():
        _check_words(setting, reward.path, all_tokens=True)
    for name, model in config.models.items():
        for dataset, section in config.trained_on.items() if isinstance(model, TinyModelConfig) else ():
            made = load_dataset(section)
            check_demonstrations(dataset, made)
            if isinstance(model, TinyModelConfig) and (length := demonstration_length(made)) > model.n_positions:
                raise ConfigError(
                    f"models.{name}.n_positions={model.n_positions}: a prompt of datasets.{dataset} and its "
                    f"completion are {length} tokens; set models.{name}.n_positions={length} or more."
                )
        # A model trained in the run has the vocabulary of its dataset.
        vocabularies = {
            f"made for {dataset}": {token: at for at, token in enumerate(load_dataset(section).vocabulary)}
            for dataset, section in (config.trained_on.items() if not model.path else ())
        }
        if model.path is not None:
            key, folder = f"models.{name}.path", Path(tokenizer_place(model.path, None).path)
            if model.value_path or ((folder / FILE).is_file() and not is_adapters(model.path)):
                vocabularies[model.path] = read_vocabulary(key, model.path)
                if (folder / FILE).is_file():
                    _check_rows(f"{key}={folder}", model.path, vocabularies[model.path])
        for typed, teacher in teachers(config).items():
            path = Path(tokenizer_place(str(teacher.path), None).path)
            _check_words(f"{typed}.teacher", str(path), all_tokens=False)
            if vocabularies and path.is_dir() and (path / FILE).is_file():
                taught = read_vocabulary(f"{typed}.teacher", str(path))
                for reference, vocabulary in vocabularies.items():
                    if difference := _difference(vocabulary, taught):
                        raise ConfigError(
                            f"{typed}.teacher={teacher.path}: {OTHER_TOKENS}: {difference} ({reference}). Choose "
                            "a model of the same family"
                        )
        if model.value_path is None:
            continue
        key = f"models.{name}.value_path"
        value = read_vocabulary(key, model.value_path)
        _check_rows(f"{key}={model.value_path}", model.value_path, value)
        for reference, vocabulary in vocabularies.items():
            if difference := _difference(vocabulary, value):
                raise ConfigError(
                    f"models.{name}: the reference ({reference}) and the value model ({model.value_path}) share "
                    f"no tokenizer: {difference}. Choose a value model of the same family, or value_path=null "
                    "for a copy of the reference."
                )


def _check_words(key: str, path: str, *, all_tokens: bool) -> None:
    """Refuse a model that was saved without its tokenizer, or, if asked, that cannot read all of its tokens."""
    folder = Path(tokenizer_place(path, None).path)
    if not folder.is_dir():
        return
    if not {file.name for name in _OF_TOKENIZERS for file in folder.glob(name)} - {SETTINGS}:
        raise ConfigError(
            f"{key}={path}: the folder holds no tokenizer ({FILE}, tokenizer.model, vocab.json, ...). Save that "
            "of the model beside it, with save_pretrained of the tokenizer."
        )
    if all_tokens and (folder / FILE).is_file():
        _check_rows(f"{key}={path}", path, read_vocabulary(key, path))


def _check_room(config: Config, key: str, model: ModelConfig) -> None:
    """Refuse completions that leave no room for a prompt in the context of a model."""
    context = model.n_positions if isinstance(model, TinyModelConfig) else _context(model.path)
    if context is None:
        return
    for name, section in config.datasets.items():
        own, longest = section.sampling.max_new_tokens, load_dataset(section).completion_length
        asked = {} if own is None else {f"datasets.{name}.sampling.max_new_tokens": own}
        if section.trained_on or own is None:
            asked["generation.max_new_tokens"] = config.generation.max_new_tokens
        for setting, tokens in asked.items():
            if min(tokens, longest or tokens) >= context:
                whose = key if model.path is None else f"{key}.path={model.path}"
                raise ConfigError(
                    f"{setting}={tokens} leaves no room for a prompt of datasets.{name}: the context of "
                    f"{as_typed(whose, (), config.evaluation.also)} has {context:,} tokens"
                )


def _context(path: str | None) -> int | None:
    """Return the tokens in the context of a model, as its configuration says; None if it does not."""
    text = {} if path is None else _of_text(path)
    lengths = (text.get(name) for name in ("max_position_embeddings", "n_positions", "max_seq_len"))
    return next((length for length in lengths if isinstance(length, int) and length > 0), None)


def _of_text(path: str) -> Mapping[str, Any]:
    """Return the part of a model's configuration on texts; empty for a GGUF file, or if it cannot be read."""
    file = Path(path) / CONFIG
    try:
        config = read_config(file if file.is_file() else in_cache(path, CONFIG) or file)
    except (OSError, ForeignDataError):
        return {}  # errors are reported where models are checked
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _check_rows(typed: str, path: str, vocabulary: Mapping[str, int]) -> None:
    """Refuse a model without weights for some tokens of its tokenizer, such as added tokens."""
    if is_adapters(path):  # adapters may bring more tokens than their base has
        return
    rows = _of_text(path).get("vocab_size")
    tokens = max(vocabulary.values(), default=-1) + 1
    if isinstance(rows, int) and rows < tokens:
        raise ConfigError(
            f"{typed}: its tokenizer has {tokens:,} tokens and its embedding {rows:,} rows, so it cannot read "
            "all of them. Choose another model, or save this one after resize_token_embeddings of transformers."
        )


def check_chat_templates(config: Config, conversations: Collection[str] = ()) -> None:
    """Refuse a model without a chat template for a dataset of conversations.

    Args:
        config: The request.
        conversations: Names of datasets whose rows are known to be conversations. For others, only settings that
            turn their text into one are known.

    Raises:
        ConfigError: The message names the model and the dataset.
    """
    lacking = [name for name, model in all_models(config).items() if _chats(model) is False]
    for name, section in config.datasets.items() if lacking else ():
        made = isinstance(section, FilesConfig) and section.chat
        if made or name in conversations:
            raise ConfigError(
                f"datasets.{name}{'.chat=true' if made else ''} has conversations for prompts, but "
                f"{_typed(config, lacking[0])} has no chat template. Choose an instruct model, or prompts of text"
            )


def _typed(config: Config, name: str) -> str:
    """Return a model as it is typed, by the key of its section."""
    path = all_models(config)[name].path
    return name if path is None else as_typed(f"{name}.path={path}", (), config.evaluation.also)


def _chats(model: ModelConfig) -> bool | None:
    """Return whether a model has a chat template, which one that the run trains lacks; None if unknown."""
    return False if model.path is None else has_chat_template(model.path)


def _without_template(config: Config, used: Collection[str], texts: Collection[str]) -> Iterator[str]:
    """Warn of models with a chat template that are asked texts outside of it, which many answer by an end.

    Args:
        config: The request.
        used: Names of datasets that the run still uses.
        texts: Names of datasets whose prompts are known to be texts.
    """
    chats = {name: _chats(model) for name, model in all_models(config).items()}
    chatting = [name for name, own in chats.items() if own]
    lacking = [name for name, own in chats.items() if own is False]
    for name in used if chatting else ():
        section = config.datasets[name]
        if isinstance(section, FilesConfig) and not section.chat and (section.prompt_template or name in texts):
            advice = f"For an instruct model set datasets.{name}.chat=true"
            if lacking:
                advice = f"{_typed(config, lacking[0])} has none, so evaluate an instruct model without it"
            typed = _typed(config, chatting[0])
            yield f"datasets.{name}: its prompts are texts; the chat template of {typed} is not used. {advice}"


def has_chat_template(path: str) -> bool | None:
    """Return whether a model has a chat template; None if that is only known once it is fetched from the hub."""
    if is_gguf(path):
        return "tokenizer.chat_template" in _gguf(path).fields
    folder = Path(tokenizer_place(path, None).path)
    if not folder.is_dir():
        return None
    settings = {}
    with suppress(OSError, ForeignDataError):
        settings = read_config(folder / SETTINGS)
    return (folder / TEMPLATE).is_file() or (folder / TEMPLATES).is_dir() or bool(settings.get("chat_template"))


def read_vocabulary(key: str, path: str) -> dict[str, int]:
    """Return token -> id of a model folder, a GGUF file, or a hub id whose tokenizer is in the local cache.

    Raises:
        ConfigError: No tokenizer can be read.
    """
    if is_gguf(path):
        return {token: index for index, token in enumerate(_gguf(path).fields[TOKENS].contents())}
    folder = tokenizer_place(path, None).path
    file = Path(folder) / FILE
    if not file.is_file():
        file = in_cache(folder, FILE) or file
    from tokenizers import Tokenizer  # a tenth of a second, needed only to compare

    try:
        vocabulary = Tokenizer.from_str(read_plain(file, LARGEST_TOKENIZER, follow=True).decode()).get_vocab()
    except Exception as error:  # that library has no error class of its own
        why = (
            reason(error) if isinstance(error, OSError | ForeignDataError) else " ".join(str(error).split())[:200]
        )
        raise ConfigError(
            f"{key}={path}: cannot read {file} ({why}). Give the folder of a model saved by save_pretrained "
            "together with its tokenizer."
        ) from error
    return dict(sorted(vocabulary.items(), key=itemgetter(1)))


@cache
def _gguf(path: str) -> Any:
    """Read the header of a GGUF file, which takes some seconds."""
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except Exception as error:  # any exception that a wrong byte may cause
        raise ConfigError(
            f"{path}: cannot be read as a GGUF file ({type(error).__name__}). Get it again."
        ) from error


def _difference(own: Mapping[str, int], other: Mapping[str, int]) -> str:
    if own == other:
        return ""
    if len(own) != len(other):
        return f"{len(own)} tokens against {len(other)}"
    token = next(token for token in own if own[token] != other.get(token))
    theirs = f"id {other[token]}" if token in other else "missing"
    return f"token {token!r} has id {own[token]} in the one and is {theirs} in the other"


# -- trying ----------------------------------------------------------------------------------------------------


_MARGIN_S = 60.0
_SOON_S = 20.0
"""Seconds after which the user is told what is taking so long."""
_END_S = 10.0
_LARGEST_ANSWER = 64 << 20
"""Largest size in bytes."""


def try_rewards(
    config: Config, used: Collection[str] = (), tell: Callable[[str], None] = lambda _: None
) -> tuple[str, ...]:
    """Call every reward once, if a reward, or a dataset that makes its rows, is not shipped.

    Args:
        config: The request.
        used: Names of datasets that the run still uses. The first rows of local files are made now. For other
            datasets that are read, only the judging reward is checked if there are several.
        tell: Called with a message if it takes long.

    Returns:
        Warnings.

    Raises:
        ConfigError: A row lacks a field, a reward does not work with its dataset, or an algorithm not with the
            rewards; or rows are conversations, and a model has no chat template.
    """
    # They use E[exp(R / eta)] from a single probability, which is right for two values.
    single = [
        name
        for name, algo in config.enabled.items()
        if isinstance(algo, QSharpConfig) and not isinstance(algo, CDConfig) and algo.atoms == 1
    ]
    voting = [name for name, algo in config.enabled.items() if isinstance(algo, BestOfNConfig) and not algo.trains]
    for name in used:
        for reward, settings in judges_of(config.datasets[name]).items():
            key_of(reward, settings)
    to_read = [name for name in used if in_local_files(config.datasets[name])]
    request = {
        name: section
        for name, section in config.datasets.items()
        if name in to_read
        or (_is_own(section) and (not load_dataset(section).prepared or _leaves_open(section) or single or voting))
    }
    answer = _ask(request, to_read, _templates(config), tell) if request else {}
    facts = {kind: answer.get(kind, {}) for kind in ("unpaired", "unanswered", "texts", "graded", "votes")}
    refuse_all([*answer.get("problems", ()), *row_problems(config, facts)])
    check_chat_templates(config, answer.get("conversations", ()))
    datasets = config.trained_on.items() if single else ()
    graded = {name: facts["graded"].get(name) or _graded(section) for name, section in datasets}
    refuse_all(
        [
            f"datasets.{name}: {what} has more than two values, and algos.{algo}.atoms=1 is a single probability "
            f"of the highest, which cannot express E[exp(R / eta)] of such rewards. Set algos.{algo}.atoms=11, or "
            f"more where eta is small, and algos.{algo}.value_min and value_max to what the reward can give"
            for name, what in graded.items()
            for algo in (single if what else ())
        ]
    )
    tested = {*config.evaluation.on, *(config.trained_on if config.evaluation.on_own else ())} if voting else ()
    refuse_all(
        [
            as_typed(f"algos.{algo}.selection=majority: no reward of datasets.{name} says ", [algo])
            + "what an answer is, so there is no majority. Use reward_model"
            for name in sorted(tested)
            if not (facts["votes"][name] if name in facts["votes"] else reads_answers(config.datasets[name]))
            for algo in voting
        ]
    )
    known = {name for name in to_read if name not in answer.get("conversations", ())}
    return (*answer.get("warnings", ()), *_without_template(config, used, known))


def ask_judges(config: Config, used: Collection[str], hints: Path | None) -> Iterator[str]:
    """Ask judges behind endpoints once, before anything is generated for them.

    Args:
        config: The request.
        used: Names of datasets that the run still uses.
        hints: Folder of the store for replies, so that it is asked once; None stores none.

    Yields:
        A warning for one that does not answer, or not as it should. Jobs ask it again.

    Raises:
        ConfigError: A server refuses the key or the model.
    """
    for name in used:
        for reward, settings in judges_of(config.datasets[name]).items():
            if not settings.endpoint:
                continue
            from pipeline.learning.rewards.endpoint import Endpoint  # and its client, which takes long to import

            once = replace(settings, attempts=1, timeout_s=min(settings.timeout_s, _END_S))
            judge, where = Judge(once, Endpoint(once, key_of(reward, settings), hints).ask), f"datasets.{name}"
            try:
                ((_, problem),), _ = judge(["What is 1 + 2?"], ["3"], ["4"], Asking())
            except JobError as error:
                if error.__cause__ is None:
                    raise ConfigError(f"{where}: the judge '{reward}': {error}") from error
                problem = str(error)
            if problem:
                yield f"{where}: the judge '{reward}' was asked once, as a trial: {problem}"


def _graded(section: DatasetConfig) -> str:
    """Say which reward is known to have more than two values, without looking at the user's code; "" for none."""
    counted = [name for name, weight in section.reward_weights.items() if weight]
    if len(counted) > 1:
        return f"the sum of its rewards {', '.join(counted)}"
    names = [name for name, traits in shipped_traits(section).items() if traits.graded]
    return f"its reward '{names[0]}'" if names else ""


def _is_own(section: DatasetConfig) -> bool:
    shipped = {*reward_names(section)} <= {*REWARDS, REWARD_MODEL}
    return section.class_path is not None or bool(section.grading.options) or not shipped


def _leaves_open(section: DatasetConfig) -> bool:
    """Return whether only looking at the rewards tells which of them judges correctness."""
    return len(section.reward_weights) > 1 and section.grading.correct_by is None


def in_local_files(section: DatasetConfig) -> bool:
    """Return whether the rows of a dataset are in files of this machine."""
    dataset = load_dataset(section)
    return isinstance(dataset, FilesDataset) and not any(
        isinstance(location, HubDataset) for location in dataset.locations().values()
    )


def _templates(config: Config) -> dict[str, str]:
    """Return the local folders with the models' chat templates."""
    paths = {name: tokenizer_place(model.path, None).path for name, model in config.models.items() if model.path}
    return {name: path for name, path in paths.items() if Path(path).is_dir()}


def _ask(
    datasets: Mapping[str, DatasetConfig],
    to_read: Sequence[str],
    templates: Mapping[str, str],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Run a process that tries rewards and rows, and return its answer.

    End it with everything its modules started.
    """
    limit_s = _MARGIN_S + sum(
        section.grading.start_timeout_s + section.grading.timeout_s * len(section.reward_weights)
        for section in datasets.values()
    )
    tried = f"trying the rewards of {', '.join(datasets)} on a single row"
    hint = "Does importing one, or making the row, hang?"
    plain = {name: with_schema(section) for name, section in datasets.items()}
    with tempfile.TemporaryFile() as output:
        child = children.Child(
            "pipeline.learning.rewards.probe",
            {**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            {"datasets": plain, "to read": list(to_read), "templates": dict(templates)},
            max_bytes=_LARGEST_ANSWER,
            send_timeout_s=_MARGIN_S,
            output=output,
            own_group=True,
        )
        message = f"{tried} has taken {_SOON_S:g} s so far, and ends after {limit_s:g}. {hint}"
        clocks = [Timer(_SOON_S, tell, [message]), Timer(limit_s, children.end, [[child]])]
        try:
            for clock in clocks:
                clock.start()
            began = time.monotonic()
            line = next(child.channel.lines(), None)
            if line is None:
                with suppress(subprocess.TimeoutExpired):  # a moment after it has hung up it has an exit code
                    child.process.wait(_END_S)
        finally:
            for clock in clocks:
                clock.cancel()
            children.end([child])
            code = child.wait()
        if line is not None:
            answer: dict[str, Any] = json.loads(line)
            return answer
        if time.monotonic() - began >= limit_s:
            raise ConfigError(f"{tried} took more than {limit_s:g} s. {hint}")
        output.seek(0)
        last = (output.read().decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
    named = ", ".join(dict.fromkeys(name for section in datasets.values() for name in section.reward_weights))
    raise ConfigError(
        f"the process that tries the rewards of {', '.join(datasets)} ended with {describe_exit(code)} and said: "
        f"{last}. Importing {named}, or what it imports, or making a row, ends the process"
    )
