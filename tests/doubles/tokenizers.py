"""Tokenizers of the kinds that people have, trained on a little text."""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CHATML = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}<|Assistant|>"
    "{{ m['content'].split('</think>')[-1] }}</s>{% elif m['role'] == 'user' %}<|User|>{{ m['content'] }}"
    "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
QWEN3 = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}"
    "<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m['content'] }}{% for call in m['tool_calls'] or [] %}<tool_call>{{ call | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|sh|>{{ m['role'] }}<|eh|>\n\n{{ m['content'] | trim }}<|eot|>"
    "{% endfor %}{% if add_generation_prompt %}<|sh|>assistant<|eh|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}<sot>"
    "{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}<eot>\n{% endfor %}"
    "{% if add_generation_prompt %}<sot>model\n{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PHI3 = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
DATED = "Today is {{ date_string or '26 Jul 2024' }}\n" + CHATML
LLAMA2 = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %} {{ m['content'] | trim }} </s>"
    "{% else %}{{ bos_token }}[INST] {{ m['content'] | trim }} [/INST]{% endif %}{% endfor %}"
)


def _text() -> Iterator[str]:
    drawn = random.Random(0)
    for _ in range(300):
        one, other = drawn.randint(0, 99), drawn.randint(0, 99)
        yield (
            f"What is {one} + {other}? The answer is {one + other}. user assistant system Human Assistant: think\n"
        )


def _byte_level(
    eos: str | None,
    *,
    bos: str | None = None,
    pad: str | None = None,
    specials: tuple[str, ...] = (),
    template: str | None = None,
    adds_eos: bool = False,
) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    known = [each for each in dict.fromkeys((bos, eos, pad, *specials)) if each]
    made.train_from_iterator(
        _text(),
        trainers.BpeTrainer(
            vocab_size=420,
            special_tokens=known,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    around = ([f"{bos}:0"] if bos else []) + ["$A:0"] + ([f"{eos}:0"] if adds_eos else [])
    if len(around) > 1:
        made.post_processor = processors.TemplateProcessing(
            single=" ".join(around), special_tokens=[(each, made.token_to_id(each)) for each in (bos, eos) if each]
        )
    return _wrapped(made, template, bos_token=bos, eos_token=eos, pad_token=pad, extra=specials)


def _prefix_space(template: str) -> PreTrainedTokenizerFast:
    """A mark before every text and byte fallback, as in the files of Llama 2, Mistral 7B and TinyLlama."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    made.train_from_iterator(
        (line.strip() for line in _text()),
        trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=["<unk>", "<s>", "</s>", *bytes_],
            show_progress=False,
            max_token_length=8,
        ),
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return _wrapped(made, template, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _wrapped(made: Tokenizer, template: str | None, extra: tuple[str, ...] = (), **named: str | None) -> Any:
    found = PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=4096,
        extra_special_tokens=list(extra),
        **{name: each for name, each in named.items() if each},
    )
    found.chat_template = template
    return found


_TURNS = ("<|im_start|>",)
_MADE = {
    "plain": lambda: _byte_level("</s>", bos="<s>"),
    "adds an end": lambda: _byte_level("</s>", bos="<s>", adds_eos=True, template=ZEPHYR),
    "no end": lambda: _byte_level(None, bos="<s>"),
    "pads with its end": lambda: _byte_level("<|im_end|>", pad="<|im_end|>", specials=_TURNS, template=CHATML),
    "base with ChatML": lambda: _byte_level(
        "<|endoftext|>", pad="<|endoftext|>", specials=("<|im_start|>", "<|im_end|>"), template=CHATML
    ),
    "several ends": lambda: _byte_level(
        "<|endoftext|>", specials=("<|user|>", "<|assistant|>", "<|system|>", "<|end|>"), template=PHI3
    ),
    "R1": lambda: _byte_level("</s>", bos="<s>", specials=("<|User|>", "<|Assistant|>"), template=R1),
    "Qwen3": lambda: _byte_level("<|im_end|>", pad="<|endoftext|>", specials=_TURNS, template=QWEN3),
    "tools are special": lambda: _byte_level(
        "<|im_end|>", specials=("<|im_start|>", "<tool_call>", "</tool_call>"), template=QWEN3
    ),
    "Gemma": lambda: _byte_level("<eos>", bos="<bos>", pad="<pad>", specials=("<sot>", "<eot>"), template=GEMMA),
    "Llama 3": lambda: _byte_level("<|eot|>", bos="<|bot|>", specials=("<|sh|>", "<|eh|>"), template=LLAMA3),
    "dated": lambda: _byte_level("<|im_end|>", specials=_TURNS, template=DATED),
    "Llama 2": lambda: _prefix_space(LLAMA2),
    "Zephyr": lambda: _prefix_space(ZEPHYR),
}
TOKENIZERS = tuple(_MADE)


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """One of `TOKENIZERS`; the same for all tests."""
    return _MADE[kind]()
