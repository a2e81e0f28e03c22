"""The requests whose outputs `tests.golden` digests: all that ships on addition, and a language model on texts.

They take what the defaults do not, since only what a run goes through can be noticed.
"""

import json
from pathlib import Path
from typing import Any

COMMON = (
    "device=cpu",
    "system.use_parallel_execution=false",
    "training.warmup_steps=1",
    "evaluation.bootstrap_samples=50",
)
_TRAINED = ("BestOfN", "CD", "DPO", "GRPO", "GRPO-HF", "PITA", "QSharp", "QSharp-HF", "RAFT")
_VARIANTS = {
    "Adapters": ("grpo.GRPO", "{lora: {rank: 2}}"),
    "Candidates": ("value_guided.PITA", "{head: v, others: dropped}"),
    "Papers": ("qsharp.QSharp", "{head: v, top_k: 3, min_p: 0, others: offset_zero}"),
    "Atoms": ("qsharp.CD", "{atoms: 3}"),
    "Bernoulli": ("qsharp.QSharp", "{atoms: 5, eta: 0.3}"),
    "Free": ("qsharp.QSharp", "{eta: .inf}"),
    "Drawn": (
        "dpo.DPO",
        "{warm_start: false, reference: previous, loss_type: hinge, preferences: {preference: bradley_terry, "
        "ties: coin, widest_first: true, source: reward, pairs_per_prompt: 2}}",
    ),
    "Clipped": (
        "grpo.GRPO",
        "{loss_type: dr_grpo, scale_rewards: batch, epsilon: 0.05, epsilon_high: 0.1, epochs: 2, "
        "learning_rate: 0.01, reference: previous}",
    ),
    "Dapo": ("grpo.GRPO", "{loss_type: dapo, epsilon_high: 0.3, scale_rewards: none, beta: 0}"),
    "Online": ("grpo.GRPO", "{epochs: 2, steps_per_generation: 2}"),
    "Majority": ("reward_stage.BestOfN", "{selection: majority}"),
    "Sampled": (
        "value_guided.PITA",
        "{pairing: sampled, preference: bradley_terry, ties: coin, warm_start: false, source: reward, "
        "head_learning_rate: 0.02}",
    ),
}
_ROUNDS = ("GRPO", "GRPO-HF", "Adapters", "Clipped", "Dapo")
"""Those that draw before they train."""
ADDITION = (
    *COMMON,
    "experiment.name=addition",
    f"algos=[{','.join(_TRAINED)}]",
    *(f"algos.{name}.class_path=pipeline.learning.algos.{path}" for name, (path, _) in _VARIANTS.items()),
    *(f"algos.{name}.batch_size=24" for name in (*_TRAINED, *_VARIANTS)),
    *(f"algos.{name}.batch_size=8" for name in ("PITA", "Candidates")),  # of few pairs is it known which is better
    # What a search has found may be found anew, which is no change of code.
    *("algos.RAFT.learning_rate=2e-4", "algos.RAFT.epochs=1"),
    *(f"algos.{name}.{was}" for name in ("DPO", "Drawn") for was in ("learning_rate=2e-4", "epochs=1", "beta=1")),
    *(f"algos.{name}.learning_rate=2e-4" for name in ("GRPO", "Adapters", "Dapo", "Online")),
    *(f"algos.{name}.{was}" for name in _ROUNDS for was in ("sampling=round", "use_bias_correction_kl=false")),
    *(f"algos.{name}.loss_type=grpo" for name in ("GRPO", "GRPO-HF", "Adapters")),
    *(f"algos.{name}.beta=0.04" for name in ("GRPO", "GRPO-HF", "Adapters", "Clipped")),
    *("algos.QSharp-HF." + was for was in ("learning_rate=1e-3", "head_learning_rate=0.03", "epochs=2")),
    "algos.QSharp-HF.reward_model.learning_rate=1e-3",
    "algos.DPO.sft_weight=0.1",
    "algos.DPO.aggregate=false",
    "algos.QSharp-HF.atoms=12",  # one more than by default, which would be too coarse for eta=0.5
    "generation.top_p=0.95",
    "generation.temperature=0.9",
    "models.tiny.n_embd=32",
    "models.tiny.n_inner=64",
    "models.tiny.steps=100",
    "datasets.addition.digits=1",
    "datasets.addition.test_size=30",
    "datasets.addition.validation_size=10",
    # Larger batches accumulate gradients, and the second round begins anew with the prompts of the first.
    "training.micro_batch_size=16",
    "data_collection.prompts_per_round=40",
    "evaluation.num_prompts=24",
    "evaluation.etas=[2.0]",
    "evaluation.num_samples=3",
    "execution.shard_size=40",
)
_SENTENCES = (
    "what is {a} plus {b}? the sum of {a} and {b} is {c}.",
    "a dull film with {a} bad scenes, not {b}.",
    "a lovely, moving film: {a} good jokes!",
    "tell me of {a} cats and {b} dogs.\nthey are {c} animals.",
    "{c} = {a} + {b}",
)
_TEMPLATE = (
    "{% for turn in messages %}<{{ turn['role'] }}>{{ turn['content'] }}"
    "{% if not loop.last or turn['role'] != 'assistant' %}\n{% elif not continue_final_message | default(false) %}"
    "{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
END = "<end>"


_CONTEXT = 72
"""Positions of the policy: what most prompts need with their completions, and less than the longest ones do."""


def texts_run(scratch: Path) -> tuple[str, ...]:
    """The request on texts, with a language model and a reward model that are made in a folder."""
    policy, value, judge = (scratch / name for name in ("policy", "value", "judge"))
    _models(policy, value, judge)
    (scratch / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _rows()))
    data = {
        "path": scratch / "rows.jsonl",
        "test_size": 8,
        "validation_size": 4,
        "chat": "true",
        "system_prompt": "'be kind.'",
        "prompt_template": "'  {prompt} ({solution}) '",
        "rewards": "{gsm8k: 1.0, judge: -2.0, vader: 0.5}",
        "grading.options.judge": f"{{use: model, path: '{judge}', output: probability}}",
        "grading.options.vader": "{unit: true}",
        "grading.isolated": "false",
    }
    return (
        *COMMON,
        "experiment.name=texts",
        "rounds_of_training=1",
        "algos=[PITA,QSharp,DPO,RAFT]",
        "dataset=jsonl",
        "model=hf",
        f"models.hf.path={policy}",
        f"models.hf.value_path={value}",
        *(f"datasets.jsonl.{name}={given}" for name, given in data.items()),
        "system.dtype=bfloat16",
        "system.attn_impl=eager",
        "training.schedule=constant",
        "generation.long_prompts=truncate",
        "generation.max_new_tokens=12",
        "algos.PITA.head=v",
        "algos.PITA.top_k=4",
        "algos.QSharp.eta=0.5",
        "algos.QSharp.value_min=-2",
        "algos.QSharp.value_max=2",
        "algos.QSharp.atoms=3",
        "algos.DPO.pairs=existing",
        "algos.RAFT.lora={rank: 2, target_modules: [q_proj, v_proj]}",
        *(f"algos.{name}.epochs=1" for name in ("PITA", "QSharp", "DPO", "RAFT")),
        "algos.DPO.beta=1",
        "algos.RAFT.only_correct=false",
        *(f"algos.{name}.learning_rate=0.01" for name in ("PITA", "QSharp", "DPO", "RAFT")),
        *(f"algos.{name}.batch_size=8" for name in ("PITA", "QSharp", "DPO", "RAFT")),
        "data_collection.prompts_per_round=12",
        "evaluation.num_prompts=6",
        "evaluation.num_samples=2",
    )


def packed_run(texts: tuple[str, ...]) -> tuple[str, ...]:
    """That on texts, for a value model with attention as transformers has it: its candidates are packed."""
    return (
        *texts,
        "algos=[]",
        "models.hf.value_path=null",
        "algos.Packed.class_path=pipeline.learning.algos.value_guided.PITA",
        "algos.Packed.head=v",
        "algos.Packed.top_k=4",
        "algos.Packed.learning_rate=0.01",
        "algos.Packed.batch_size=8",
        "algos.Packed.epochs=1",
        "execution.shard_size=5",  # elsewhere one job has all prompts
    )


def addition_run() -> tuple[str, ...]:
    """The request on addition, with settings of the variants as of every algorithm."""
    from omegaconf import OmegaConf

    given = []
    for name, (_, settings) in _VARIANTS.items():
        for key, value in OmegaConf.create(settings).items():
            given.append(f"algos.{name}.{key}={_written(value)}")
    return (*ADDITION, *given)


def _written(value: object) -> str:
    from omegaconf import DictConfig

    if isinstance(value, DictConfig):
        return "{" + ", ".join(f"{name}: {_written(inner)}" for name, inner in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool | float) else str(value)


def _rows() -> list[dict[str, str]]:
    rows = []
    for at in range(40):
        a, b = at % 5, at % 4
        question = " ".join([_SENTENCES[at % 5].format(a=a, b=b, c=a + b)] * (1 + at % 3))
        rows.append(
            {
                "prompt": question,
                "completion": f"it is {a + b}",
                "chosen": f"it is {a + b}." + " good!" * (at % 3),
                "rejected": f"a bad {a}",
                "solution": f"#### {a + b}",
            }
        )
    return rows


def texts_tokenizer() -> Any:
    """A byte-level BPE of few tokens, so that a random model draws the one that ends texts now and then."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    texts = [text for row in _rows() for text in row.values()]
    texts += ["<system>be kind.\n<user>  (#### 0123456789) \n<assistant>", "it is good!"]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=90, special_tokens=[END], show_progress=False))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=END, pad_token=END, chat_template=_TEMPLATE, model_max_length=_CONTEXT
    )


def _models(policy: Path, value: Path, judge: Path) -> None:
    import torch
    from transformers import (
        GPT2Config,
        GPT2ForSequenceClassification,
        GPTNeoConfig,
        GPTNeoForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
    )

    tokenizer = texts_tokenizer()
    size, end = len(tokenizer), tokenizer.eos_token_id
    torch.manual_seed(0)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=_CONTEXT,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=end,
        )
    )
    digit = tokenizer.convert_tokens_to_ids("9")
    llama.generation_config.eos_token_id = [end, digit]
    # Its attention is its own, so that candidates are padded instead of packed.
    neo = GPTNeoForCausalLM(
        GPTNeoConfig(
            vocab_size=size,
            hidden_size=32,
            intermediate_size=48,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=8,
            max_position_embeddings=2 * _CONTEXT,
            initializer_range=0.2,
            bos_token_id=end,
            eos_token_id=end,
        )
    )
    rates = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)
    liking = GPT2ForSequenceClassification(
        GPT2Config(
            vocab_size=size, n_embd=16, n_layer=1, n_head=2, n_positions=2 * _CONTEXT, num_labels=1,
            pad_token_id=end, bos_token_id=end, eos_token_id=end, initializer_range=0.3, **rates,
        )
    )  # fmt: skip
    for folder, model in ((policy, llama), (value, neo), (judge, liking)):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
