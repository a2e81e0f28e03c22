"""The provider ``pipeline`` of inspect_ai: ``--model pipeline/RUN/CHAIN`` or ``--model pipeline/FOLDER``.

inspect_ai loads this module whenever it starts, so it imports no torch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from pipeline.errors import ConfigError, PipelineError
from pipeline.harness import load

if TYPE_CHECKING:
    from pipeline.learning.generation.guided import Options, Prompt

_OPTIONS = {
    "max_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "stop_seqs": "stop",
    "num_choices": "n",
    "seed": "seed",
}
_OF_INSPECT = {
    *("max_retries", "max_connections", "adaptive_connections"),
    *("system_message", "max_tool_output", "cache"),
}
"""Settings that inspect_ai carries out itself."""


@modelapi(name="pipeline")
class PipelineAPI(ModelAPI):
    """A trained model, which completes each prompt exactly as `pipeline.guided` does, one call after another.

    A lone message of the user becomes a prompt as a row of the run's dataset did: by its template, system prompt
    and chat template. Other conversations go through the chat template as they are.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 - as the class that is extended
        **model_args: Any,
    ) -> None:
        """Load it; `model_args` (``-M eta=0.3``) are arguments of `pipeline.guided`.

        Raises:
            PrerequisiteError: There is no such model, or an argument or setting is wrong.
        """
        super().__init__(model_name, base_url, api_key, [], config)
        name, _, chain = model_name.partition("/")
        is_folder = Path(model_name, "usage.json").is_file()
        try:
            if base_url or api_key:
                raise ConfigError("the model is of this machine: leave out its base URL and API key")
            self.model = load(
                Path(model_name) if is_folder else name, None if is_folder else chain or None, model_args
            )
            self.model.complete([], **self._options(config))
        except PipelineError as error:
            raise PrerequisiteError(str(error)) from error
        self._asked: Counter[str] = Counter()
        self._one_at_a_time = anyio.CapacityLimiter(1)

    async def generate(
        self,
        input: list[ChatMessage],  # noqa: A002 - as inspect_ai calls it
        tools: list[ToolInfo],
        tool_choice: ToolChoice,  # noqa: ARG002
        config: GenerateConfig,
    ) -> ModelOutput:
        """Complete a conversation.

        The seed of its draws follows from the one of the settings, the messages and how often they were asked
        before, so the epochs of a sample differ. The output's metadata has it, for `Guided.generate`.

        Raises:
            PipelineError: Something is asked that cannot be done.
        """
        if tools:
            raise ConfigError("tools cannot be offered to this model; take a task without them")
        prompt, options = _prompt(input), self._options(config)
        key = json.dumps([prompt, options], sort_keys=True)
        digest = sha256(f"{self._asked[key]} {key}".encode()).hexdigest()
        self._asked[key] += 1
        options["seed"] = int(digest[:15], 16)
        found = await anyio.to_thread.run_sync(
            partial(self.model.complete, [prompt], **options), limiter=self._one_at_a_time
        )
        tokens = sum(len(one.token_ids) for one in found)
        return ModelOutput(
            model=self.model_name,
            choices=[
                ChatCompletionChoice(
                    message=ChatMessageAssistant(content=one.text, model=self.model_name, source="generate"),
                    stop_reason="stop" if one.ended else "max_tokens",
                )
                for one in found
            ],
            usage=ModelUsage(output_tokens=tokens, total_tokens=tokens),
            metadata={"seed": options["seed"]},
        )

    def _options(self, config: GenerateConfig) -> Options:
        given = {name: value for name, value in config.model_dump(exclude_none=True).items() if value is not False}
        if others := sorted(given.keys() - _OPTIONS.keys() - _OF_INSPECT):
            raise ConfigError(f"{others[0]} has no effect on this model. Known: {', '.join(sorted(_OPTIONS))}")
        options: Options = {ours: given[theirs] for theirs, ours in _OPTIONS.items() if theirs in given}  # type: ignore[assignment]
        if options.get("temperature") == 0:
            del options["temperature"]
            options["greedy"] = True
        if "stop" in options:
            options["stop"] = list(dict.fromkeys([*self.model.drawing.stop, *options["stop"]]))
        return options


def _prompt(messages: Sequence[ChatMessage]) -> Prompt:
    for message in messages:
        parts = message.content if isinstance(message.content, list) else []
        if message.role == "tool" or any(part.type != "text" for part in parts):
            raise ConfigError("this model reads text of the system, the user and the assistant alone")
    if [message.role for message in messages] == ["user"]:
        return str(messages[0].text)
    return [{"role": message.role, "content": message.text} for message in messages]
