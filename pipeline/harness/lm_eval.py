"""The model class ``pipeline`` of lm-evaluation-harness: policies and guided policies, by run or by folder."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lm_eval.models  # noqa: F401 - a registry with a model in it would not look for those of the harness
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from pipeline.errors import ConfigError, JobError
from pipeline.harness import load

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from pipeline.learning.generation.guided import Options, Prompt


class Conversation(NamedTuple):
    """A prompt of ``--apply_chat_template``.

    Attributes:
        prompt: Turns as JSON, by which requests can be hashed and logged.
    """

    prompt: str


@register_model("pipeline")
class PipelineLM(LM):
    """A trained model, which completes prompts exactly as `pipeline.guided` does.

    The texts of a task become prompts as the rows of the run's dataset did: by its template, system prompt and
    chat template. With ``--apply_chat_template`` the harness makes the turns of a conversation, which the model's
    chat template renders.
    """

    def __init__(
        self,
        name: str | None = None,
        folder: str | None = None,
        chain: str | None = None,
        seed: int = 0,
        device: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,  # noqa: ARG002 - the harness always gives it
        **further: Any,
    ) -> None:
        """Load it.

        Args:
            name: Experiment whose newest run is taken, or hub id of an exported model.
            folder: Folder of an exported model.
            chain: Chain of the run.
            seed: Seed of the draws.
            device: ``cuda:0``, which the harness says where nothing is asked, takes a GPU where there is one.
            batch_size: Sequences at once; 1, which the harness says where nothing is asked, and ``auto`` take
                those of the run. No result depends on it.
            max_batch_size: Has no effect.
            further: Arguments of `pipeline.guided`.

        Raises:
            PipelineError: There is no such model, or an argument is wrong.
        """
        super().__init__()
        if (name is None) == (folder is None):
            raise ConfigError("model_args: give either name=RUN (with chain=CHAIN) or folder=EXPORTED")
        further["device"] = None if device == "cuda:0" else device
        self.model = load(Path(folder) if folder is not None else str(name), chain, further)
        self._options: Options = {"seed": seed}
        if str(batch_size).isdecimal() and int(str(batch_size)) > 1:
            self._options["batch_size"] = int(str(batch_size))

    @property
    def tokenizer_name(self) -> str:
        """Return the name for caches of requests."""
        return str(self.model.tokenizer.name_or_path).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the model's chat template, for the harness to note.

        Raises:
            ConfigError: A template is asked for by name.
        """
        if isinstance(chat_template, str):
            raise ConfigError(
                f"--apply_chat_template {chat_template}: the model has one template; leave the name out"
            )
        return str(self.model.tokenizer.chat_template or "") if chat_template else None

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> Conversation:
        """Return the conversation, to be rendered when it is completed; a last turn of the assistant goes on."""
        del add_generation_prompt
        return Conversation(json.dumps(list(chat_history), ensure_ascii=False))

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Complete the prompts of requests, those with equal settings as one list in their order.

        Raises:
            PipelineError: A setting is not known here or out of range, or a prompt is too long.
        """
        del disable_tqdm
        texts: dict[int, str] = {}
        for settings, places in _equal([request.args[1] for request in requests]):
            options = self._asked(settings)
            prompts = [_prompt(requests[place].args[0]) for place in places]
            texts.update(zip(places, self.model.generate(prompts, **options), strict=True))
        for place, request in enumerate(requests):
            self.cache_hook.add_partial("generate_until", request.args, texts[place])
        return [texts[place] for place in range(len(requests))]

    def _asked(self, settings: Mapping[str, Any]) -> Options:
        """Turn settings of a task into options of `Guided.generate`."""
        from lm_eval.models.utils import normalize_gen_kwargs

        usual = self.model.drawing
        asked = dict(normalize_gen_kwargs(dict(settings), usual.max_new_tokens))
        until, limit = asked.pop("until"), asked.pop("max_gen_toks")
        own: Options = {
            **self._options,
            "max_new_tokens": limit,
            "stop": list(dict.fromkeys([*usual.stop, *filter(self._can_write, until)])),
            "greedy": not asked.pop("do_sample"),
        }
        temperature = asked.pop("temperature", None)
        if not own["greedy"] and temperature is not None:
            own["temperature"] = temperature
        if "top_p" in asked:
            own["top_p"] = asked.pop("top_p")
        if asked:
            raise ConfigError(
                f"the task sets {', '.join(sorted(asked))}, which has no effect here. Known are until, "
                "max_gen_toks, do_sample, temperature and top_p"
            )
        return own

    def _can_write(self, text: str) -> bool:
        """Return whether the model can write a text: tasks stop at texts that a small vocabulary lacks."""
        from pipeline.learning.generation.stops import StopStrings, as_tokens

        try:
            return bool(
                as_tokens(self.model.tokenizer, [text]) or (text and StopStrings(self.model.tokenizer, [text]))
            )
        except JobError:
            return False

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Score continuations of prompts by a plain policy, at temperature 1, as the harness's ``hf`` does.

        Raises:
            ConfigError: A value model guides the policy.
        """
        read = [replace(request, arguments=(self._text(request.args[0]), request.args[1])) for request in requests]
        found: list[tuple[float, bool]] = self._plain().loglikelihood(read, disable_tqdm=disable_tqdm)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Score whole texts as they are, likewise."""
        found: list[float] = self._plain().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)
        return found

    def _text(self, context: str | Conversation) -> str:
        return context and self.model.prompt_text(_prompt(context))

    def _plain(self) -> Any:
        from lm_eval.models.huggingface import HFLM

        if self.model.value is not None and self.model.eta != float("inf"):
            raise ConfigError(
                "this task asks for log-likelihoods, which for a guided policy take a pass of the value model for "
                "each candidate of each token. Take a task that generates, or eta=inf for the reference as it is"
            )
        size = self._options.get("batch_size", self.model.drawing.batch_size)
        return HFLM(pretrained=self.model.model, tokenizer=self.model.tokenizer, batch_size=size)


def _prompt(context: Any) -> Prompt:
    """Return a prompt of the harness as one of ours; logs and caches may have made a list of a conversation."""
    if isinstance(context, str):
        return context
    turns: list[Mapping[str, Any]] = json.loads(context[0])
    return turns


def _equal(settings: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], list[int]]]:
    """Group places by equal settings."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, each in enumerate(settings):
        places[json.dumps(each, sort_keys=True, default=str)].append(place)
    return [(settings[group[0]], group) for group in places.values()]
