"""Whether datasets hold the pairs and the completions that algorithms ask of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product

from pipeline.config.schema import Config
from pipeline.errors import ConfigError
from pipeline.learning.algos.dpo import FeedbackConfig, PairSource
from pipeline.learning.algos.kto import KTOConfig
from pipeline.learning.algos.sft import SFTConfig
from pipeline.learning.datasets.registry import load_dataset

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
