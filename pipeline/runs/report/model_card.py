"""Write the README of an exported model, its model card: what it is, its use, what was measured.

Pure text of plain facts. What is not ours (names, settings, commands) stands in blocks that are shown as they are.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from pipeline.learning.algos.base import REFERENCE
from pipeline.outputs.formats import GuidanceSettings, ScoresOf, Usage
from pipeline.runs.record import ResultRow

METRICS = ("pass@1", "reward", "regularized_reward", "kl_per_sequence", "kl_per_token")
"""Metrics that a card shows, where there are any."""
AGAINST = "vs_reference"
HERE = "."
"""The folder of the card, in its examples: whoever has been given it may have it anywhere."""
SERVED = "guided"
"""Name of the model on a server: one that guides nothing has no such model."""
ON_GPU, ON_CPU = (
    "vllm serve",
    "VLLM_CPU_KVCACHE_SPACE=1 python -m vllm.entrypoints.openai.api_server --enforce-eager --model",
)
"""Beginnings of commands that serve a model; vLLM's build for CPUs has no `vllm serve`, and needs the GiB."""


@dataclass(frozen=True, kw_only=True)
class FittedReward:
    """Facts on a reward model for its card.

    Attributes:
        fold: Index among the folds.
        folds: Number of folds.
        left_out: Bias of the head, by which scores of the run exceed its logits.
        fit: Fit of the model.
    """

    fold: int
    folds: int
    left_out: float
    fit: ScoresOf


@dataclass(frozen=True, kw_only=True)
class Card:
    """Content of a card.

    Attributes:
        algo: The method.
        dataset: Name of the dataset.
        usage: Usage of the model.
        guidance: Guidance settings of a value model.
        reward: Facts on a reward model.
        base: Hub id of the model that was trained; None where it has none.
        source: Common name of the model that was trained or copied; "" if the run made it.
        origin: The data, and the source of the weights that training began with, in words.
        settings: Sections of the configuration, by name.
        rows: Results after this round.
        reference: Results of the reference.
        confidence: Level of the intervals.
        command: Command that repeats the run; "" if unknown.
        versions: Versions of packages that made it.
        prompt: An example, as text of the model.
        asked: The same for `pipeline.guided`, which fills the template of the dataset.
    """

    algo: str
    dataset: str
    usage: Usage
    guidance: GuidanceSettings | None = None
    reward: FittedReward | None = None
    base: str | None = None
    source: str = ""
    origin: str
    settings: Mapping[str, Any]
    rows: Sequence[ResultRow] = ()
    reference: Sequence[ResultRow] = ()
    confidence: float = 0.95
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    prompt: str = "1 + 1 ="
    asked: str | Mapping[str, str] = "1 + 1 ="

    @property
    def kind(self) -> str:
        """``policy``, ``value`` or ``reward``."""
        return self.usage.kind if self.reward is None else "reward"

    @property
    def is_reference(self) -> bool:
        """Whether the model is the reference, from which methods began."""
        return self.algo == REFERENCE


def card_text(card: Card) -> str:
    """Return the text of ``README.md``."""
    parts = [f"# {card.algo} on {card.dataset}", _what(card), card.origin, "## Use it"]
    parts.append(f"Type these in the folder of this card, or write where that is in the place of `{HERE}`.")
    if card.reward is not None:
        parts += [*_as_reward(card), *_how(card), *_fitted(card, card.reward), "## Repeat it"]
    else:
        parts += _guided(card) if card.kind == "value" else _as_policy(card)
        parts += [*_how(card), *_results(card), "## Repeat it"]
    unknown = "The command was not recorded; the settings above are those of the run."
    parts.append(_block([card.command], "") if card.command else unknown)
    if card.versions:
        parts.append(f"Made with {', '.join(' '.join(item) for item in sorted(card.versions.items()))}.")
    return f"---\n{_front_matter(card)}---\n\n" + "\n\n".join([*parts, _licence(card)]) + "\n"


def _front_matter(card: Card) -> str:
    """Return the metadata that the hub reads from a card."""
    data: dict[str, Any] = {"library_name": "posttrain-pipeline" if card.kind == "value" else "transformers"}
    tasks, tags = {"policy": "text-generation", "reward": "text-classification"}, {"policy": "policy"}
    data |= {"pipeline_tag": tasks[card.kind]} if card.kind in tasks else {}
    data["tags"] = ["posttrain-pipeline", tags.get(card.kind, f"{card.kind}-model"), card.algo]
    data |= {"license": "other", "license_name": "see-below"}
    if card.base is not None:
        data["base_model"] = card.base
    if card.reward is None and (
        measured := [
            {"type": row.metric, "name": row.metric, "value": row.value}
            for row in card.rows
            if row.metric in METRICS and row.value is not None
        ]
    ):
        dataset = {"name": card.dataset, "type": card.dataset}
        result = {"task": {"type": "text-generation"}, "dataset": dataset, "metrics": measured}
        data["model-index"] = [{"name": f"{card.algo} on {card.dataset}", "results": [result]}]
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def _what(card: Card) -> str:
    made = f"after round {card.usage.round} of the chain `{card.usage.chain}`"
    if card.kind == "value":
        what = "A value model. It writes no text by itself: it guides a reference policy while that is decoded"
        return f"{what}. It was trained by {card.algo}, and is what there was {made}."
    if card.kind == "reward":
        what = "A reward model: a sequence classifier with one output, the score of a prompt with its completion"
        return f"{what}. It was fitted to preferences (Bradley and Terry 1952) by {card.algo}, {made}."
    if card.is_reference:
        return "The reference policy of a run: a language model that its methods began with and are compared with."
    return f"A language model whose weights were trained by {card.algo}: what there was {made}."


_HARNESS = "[harness](https://github.com/EleutherAI/lm-evaluation-harness)"


# -- use -------------------------------------------------------------------------------------------------------


def _turns(card: Card, *more: tuple[str, str]) -> list[dict[str, str]]:
    """Return the example as a conversation."""
    system = card.usage.prompting.system_prompt
    turns = [*([] if system is None else [("system", system)]), ("user", card.prompt), *more]
    return [{"role": role, "content": text} for role, text in turns]


def _generate(card: Card, *more: str) -> str:
    lines = ["import pipeline", "", f"model = pipeline.guided({HERE!r})"]
    return _block([*lines, f"print(model.generate({card.asked!r}, n=4, seed=0))", *more], "python")


def _guided(card: Card) -> Iterator[str]:
    eta = 1.0 if card.guidance is None or card.guidance.eta is None else card.guidance.eta
    yield "With the package that made it, `posttrain-pipeline`:"
    yield _generate(
        card, f"print(model.generate({card.asked!r}, eta={eta / 2:g}))  # a smaller eta guides more strongly"
    )
    yield "`model.logits_processor()` is the same guidance for `model.model.generate` of transformers."
    if card.guidance is not None and card.guidance.offset is not None:
        yield "Or serve it with vLLM (the extra `vllm`) by the OpenAI protocol:"
        yield _block([f"{ON_GPU} {_served(card)}"], "")
        yield "On a CPU, with `vllm-cpu`:"
        yield _block([f"{ON_CPU} {_served(card)}"], "")
        yield "Its log says `guided by`; without `--logits-processors` vLLM ignores every eta. A request:"
        yield _block([_asked(card, eta)], "")
        usual = "the plain reference" if card.guidance.eta is None else f"eta {eta:g}"
        yield f"Without `vllm_xargs` it gets {usual}. An eta in another place is ignored. To talk with it:"
        yield _block([_talk(card)], "")
    yield f"Evaluate it, guided, with the {_HARNESS}, here on one task:"
    guided = ["python", "-m", "pipeline.harness", "run", "--model", "pipeline", "--model_args", f"folder={HERE}"]
    limit = json.dumps({"max_gen_toks": card.usage.drawing.max_new_tokens})
    yield _block(["pip install lm_eval", shlex.join([*guided, "--tasks", "gsm8k", "--gen_kwargs", limit])], "")


def _served(card: Card) -> str:
    reference = card.usage.reference
    words = ["reference"]
    if reference is not None and reference.hub is not None:
        words = [reference.hub, "--revision", str(reference.commit)]
        words += ["--tokenizer", HERE, "--generation-config", HERE]
        words += ["--additional-config", json.dumps({"guide": HERE})]
    words += ["--served-model-name", SERVED, "--logits-processors", "pipeline.vllm:Guided"]
    words += ["--dtype", card.usage.drawing.dtype]
    return shlex.join([*words, "--host", "127.0.0.1"])


def _talk(card: Card) -> str:
    """Return the command of vLLM that talks with what is served, in conversations or line by line."""
    if not card.usage.prompting.chat:
        return "vllm complete"
    system = card.usage.prompting.system_prompt
    return shlex.join(["vllm", "chat", *([] if system is None else ["--system-prompt", system])])


def _asked(card: Card, eta: float) -> str:
    drawing, prompting = card.usage.drawing, card.usage.prompting
    asked: dict[str, Any] = {"model": SERVED}
    if prompting.chat:
        asked["messages"] = _turns(card)
        if prompting.chat_template_kwargs:
            asked["chat_template_kwargs"] = prompting.chat_template_kwargs
    else:
        asked["prompt"] = card.prompt
    asked |= {"max_tokens": drawing.max_new_tokens, **({"stop": drawing.stop} if drawing.stop else {})}
    place = "chat/completions" if prompting.chat else "completions"
    body = json.dumps({**asked, "seed": 0, "vllm_xargs": {"eta": eta}})
    return shlex.join(
        ["curl", f"http://127.0.0.1:8000/v1/{place}", "-H", "Content-Type: application/json", "-d", body]
    )


def _as_policy(card: Card) -> Iterator[str]:
    yield _block(_with_transformers(card), "python")
    yield "Or with the package that made it, which makes prompts and draws texts as its evaluation did:"
    yield _generate(card)
    yield "Or serve it with vLLM (the extra `vllm`) by the OpenAI protocol, and talk with it elsewhere:"
    yield _block([f"{ON_GPU} {HERE} --dtype {card.usage.drawing.dtype} --host 127.0.0.1", _talk(card)], "")
    yield f"Evaluate it with the {_HARNESS}, here on one task:"
    yield _block(["pip install lm_eval", shlex.join(_harness(card))], "")
    if card.usage.prompting.chat:
        yield "Its prompts were conversations: without `--apply_chat_template` the harness asks it something else."


def _as_reward(card: Card) -> Iterator[str]:
    answer = "42"
    call = f"{card.prompt!r} + {answer!r}"
    if card.usage.prompting.chat:
        turns = _turns(card, ("assistant", answer))
        extra = "".join(f", **{kwargs!r}" for kwargs in [card.usage.prompting.chat_template_kwargs] if kwargs)
        call = f"tokenizer.apply_chat_template({turns!r}, tokenize=False{extra}), add_special_tokens=False"
    lines = [
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({HERE!r})",
        f"model = AutoModelForSequenceClassification.from_pretrained({HERE!r})",
        f'inputs = tokenizer({call}, return_tensors="pt", return_token_type_ids=False)',
        "print(model(**inputs).logits[0, 0].item())",
    ]
    yield _block(lines, "python")
    ends = "the chat template ends" if card.usage.prompting.chat else "with its special tokens the tokenizer ends"
    yield f"The score is read at the end of the completion: {ends} texts as completions of the run end."
    yield "As a reward of a run of `posttrain-pipeline`, with `NAME` a dataset:"
    options = [f"datasets.NAME.reward=model datasets.NAME.grading.options={{model:{{path:{HERE}}}}}"]
    yield _block(options, "")


def _fitted(card: Card, reward: FittedReward) -> Iterator[str]:
    yield "## How well it is fitted"
    fit = reward.fit
    if reward.folds > 1:
        yield f"It is model {reward.fold} of {reward.folds}; each was fitted to all folds of prompts but its own."
    if fit.pairs is not None:
        yield f"It was fitted to {fit.pairs:,} pairs."
    if fit.held_out_accuracy is not None and fit.held_out_pairs:
        share = f"{fit.held_out_accuracy:.4g} of {fit.held_out_pairs:,} pairs"
        yield f"It prefers the preferred completion in {share} of prompts that it was not fitted to."
    shift = f"Scores in the run are its logits and {reward.left_out:.6g}, which changes no comparison."
    is_scaled = (fit.mean, fit.deviation) != (0, 1)
    unit = f" {card.algo} used (score - {fit.mean:.6g}) / {fit.deviation:.6g}." if is_scaled else ""
    yield shift + unit


def _harness(card: Card) -> list[str]:
    """Return the command of the evaluation harness with the run's prompts and ends, in JSON for its tables."""
    drawing, prompting = card.usage.drawing, card.usage.prompting
    model: dict[str, Any] = {"pretrained": HERE, "dtype": drawing.dtype}
    if prompting.chat and prompting.chat_template_kwargs:
        model["chat_template_args"] = prompting.chat_template_kwargs
    words = ["lm_eval", "run", "--model", "hf", "--model_args", json.dumps(model)]
    words += ["--tasks", "gsm8k"]
    words += ["--apply_chat_template"] if prompting.chat else []
    if prompting.chat and prompting.system_prompt is not None:
        words += ["--system_instruction", prompting.system_prompt]
    until = {"until": drawing.stop} if drawing.stop else {}
    drawn = json.dumps({"max_gen_toks": drawing.max_new_tokens, **until})
    return [*words, "--gen_kwargs", drawn]


def _with_transformers(card: Card) -> list[str]:
    drawing, prompting = card.usage.drawing, card.usage.prompting
    made = [f'inputs = tokenizer({card.prompt!r}, return_tensors="pt")']
    if prompting.chat:
        arguments = [f"    **{kwargs!r}," for kwargs in [prompting.chat_template_kwargs] if kwargs]
        made = [
            f"turns = {_turns(card)!r}",
            "inputs = tokenizer.apply_chat_template(",
            '    turns, add_generation_prompt=True, return_dict=True, return_tensors="pt",',
            *arguments,
            ")",
        ]
    stop = [f"    stop_strings={drawing.stop!r}, tokenizer=tokenizer,"] if drawing.stop else []
    return [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({HERE!r})",
        f"model = AutoModelForCausalLM.from_pretrained({HERE!r})",
        *made,
        "drawn = model.generate(",
        f"    **inputs, do_sample=True, max_new_tokens={drawing.max_new_tokens},",
        *(f"    {name}={value!r}," for name, value in {"top_k": 0, **drawing.options()}.items()),
        *stop,
        ")",
        'texts = drawn[0, inputs["input_ids"].shape[1] :]',
        f"print(tokenizer.decode(texts, skip_special_tokens={drawing.skip_special_tokens}))",
    ]


# -- how it was made, and what it reaches ----------------------------------------------------------------------


def _how(card: Card) -> Iterator[str]:
    yield "## How it was made"
    if (guidance := card.guidance) is not None:
        eta = "none, it is the reference" if guidance.eta is None else f"{guidance.eta:g}"
        likeliest = f"the {guidance.top_k} likeliest tokens with a probability of at least {guidance.min_p:g}"
        yield f"Guidance (`guidance.json`): eta {eta}; candidates are {likeliest}; others: {guidance.others}."
        if guidance.offset is None:
            yield "Its rule is one of its own, so `pipeline.guided` must be given it: `offset=lambda eta: ...`."
    drawing = card.usage.drawing
    limit = card.settings.get("generation", {}).get("max_new_tokens", drawing.max_new_tokens)
    short = "" if limit == drawing.max_new_tokens else f": no completion of `{card.dataset}` is longer"
    most = f"of at most {drawing.max_new_tokens} new tokens{short}"
    drawn = " and ".join(f"{name} {value:g}" for name, value in drawing.options().items())
    yield f"Texts were drawn at {drawn}, {most}. Settings:"
    yield _block(yaml.safe_dump(dict(card.settings), sort_keys=False, allow_unicode=True).splitlines(), "yaml")


def _results(card: Card) -> Iterator[str]:
    yield "## What was measured"
    rows, before = ({row.metric: row for row in own} for own in (card.rows, card.reference))
    shown = [rows[name] for name in METRICS if name in rows and rows[name].value is not None]
    if not shown:
        yield "Nothing: the run did not come to evaluate it."
        return
    level = f"{100 * card.confidence:g} % interval"
    headings = ["metric", "value", level, *([] if card.is_reference else ["reference", "difference", level])]
    lines = [headings, ["---"] * len(headings)]
    for row in shown:
        other, difference = before.get(row.metric), rows.get(f"{row.metric}/{AGAINST}")
        compared = [_value(other), _value(difference), _interval(difference)]
        lines.append([row.metric, _value(row), _interval(row), *([] if card.is_reference else compared)])
    yield "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    split = card.settings.get("evaluation", {}).get("split", "test")
    yield f"On {shown[0].n} prompts of the {split} split of `{card.dataset}`. KL is from the reference, in nats."
    yield "Intervals are the noise of evaluating this one model, and say nothing of what another seed would give."


def _licence(card: Card) -> str:
    if not card.source:
        made = "made from the data above, whose licence goes on to hold"
    elif card.is_reference:
        made = f"those of `{card.source}`, whose licence goes on to hold"
    else:
        made = f"made from `{card.source}` and from the data above, whose licences go on to hold"
    return f"## Licence\n\nNone is given with these weights. They are {made}; whoever publishes them must choose."


def _block(lines: Sequence[str], language: str) -> str:
    """Return lines as a verbatim block, whatever they contain."""
    text = "\n".join(lines)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def _value(row: ResultRow | None) -> str:
    return _number(None if row is None else row.value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _interval(row: ResultRow | None) -> str:
    if row is None or row.ci_low is None or row.ci_high is None:
        return "-"
    return f"[{_number(row.ci_low)}, {_number(row.ci_high)}]"


# -- published ---------------------------------------------------------------------------------------------------
# What of a run may be told to everybody: how it was made, and neither on which machine nor in whose folders.


_WHERE = {"execution", "tracking", "hydra", "output_dir"}
"""Keys and sections of keys that say where and how work was done, or who was told of it."""
_STAYS = "execution.shard_size"
"""Key among these on which results depend all the same."""
_PATH = re.compile(r"(?:file://|~|\$\{?HOME\}?)?/[^\s/]+/")
"""Start of a text that is one whole path; names in it may have spaces."""
_FOLDERS = re.compile(
    r"(?:(?<![\w./:~$])|(?<=:)(?!//))(?:file://|~|\$\{?HOME\}?)?/(?:[^\s/,'\"\[\]{}=:]+/)*(?=[^\s/,'\"\[\]{}=:])"
)
"""Folders of a whole path, without its last name: hub ids and web addresses begin otherwise."""


def command_for_all(words: Sequence[str]) -> str:
    """Return the command that repeats a run, without local paths.

    Args:
        words: Command that the run recorded; empty for none.
    """
    return shlex.join(name_for_all(word) for word in words if not _says_where(word))


def name_for_all(text: str) -> str:
    """Replace whole paths in a text by names, since they lead nowhere for others."""
    if _PATH.match(text):
        return text.rstrip("/").rpartition("/")[2]
    key, equals, value = text.partition("=")
    quote = value[:1]
    if quote in ("'", '"') and value[1:].endswith(quote) and _PATH.match(value[1:]):
        return f"{key}{equals}{quote}{name_for_all(value[1:-1])}{quote}"
    return text if any(map(str.isspace, text)) else _FOLDERS.sub("", text)


def settings_for_all(settings: Any) -> Any:
    """Plain settings, likewise."""
    if isinstance(settings, dict):
        return {key: settings_for_all(value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [settings_for_all(value) for value in settings]
    return name_for_all(settings) if isinstance(settings, str) else settings


def _says_where(word: str) -> bool:
    key, is_setting, _ = word.lstrip("+").partition("=")
    return bool(is_setting) and key != _STAYS and key.partition(".")[0] in _WHERE
