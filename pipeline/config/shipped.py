"""What ships, by name: dotted paths, of which nothing is imported before it is asked for. One line for each."""

from __future__ import annotations

ALGORITHMS = {
    "BestOfN": "pipeline.learning.algos.best_of_n:BestOfN",
    "CD": "pipeline.learning.algos.qsharp:CD",
    "DPO": "pipeline.learning.algos.dpo:DPO",
    "GRPO": "pipeline.learning.algos.grpo:GRPO",
    "GRPO-HF": "pipeline.learning.algos.grpo:GRPOHF",
    "KTO": "pipeline.learning.algos.dpo:KTO",
    "ORPO": "pipeline.learning.algos.dpo:ORPO",
    "PITA": "pipeline.learning.algos.pita:PITA",
    "QSharp": "pipeline.learning.algos.qsharp:QSharp",
    "QSharp-HF": "pipeline.learning.algos.qsharp:QSharpHF",
    "RAFT": "pipeline.learning.algos.sft:RAFT",
    "REINFORCEpp": "pipeline.learning.algos.grpo:REINFORCEpp",
    "RLOO": "pipeline.learning.algos.grpo:RLOO",
    "SFT": "pipeline.learning.algos.sft:SFT",
    "SimPO": "pipeline.learning.algos.dpo:SimPO",
}
"""Name -> class, whose `config_class` has the settings under ``algos.<name>``."""

DATASETS = {
    "addition": "pipeline.learning.datasets.made:Addition",
    "csv": "pipeline.learning.datasets.shipped:CsvFiles",
    "gsm8k": "pipeline.learning.datasets.shipped:GSM8K",
    "hf": "pipeline.learning.datasets.shipped:HuggingFace",
    "imdb_sentiment": "pipeline.learning.datasets.shipped:IMDBSentiment",
    "jsonl": "pipeline.learning.datasets.shipped:JsonLines",
    "math": "pipeline.learning.datasets.shipped:CompetitionMath",
    "parquet": "pipeline.learning.datasets.shipped:ParquetFiles",
    "star_graph": "pipeline.learning.datasets.made:StarGraph",
    "tldr": "pipeline.learning.datasets.shipped:TLDR",
}
"""Kind -> class, likewise."""

MODELS = {
    "hf": "pipeline.learning.models.kinds:HFModelConfig",
    "tiny": "pipeline.learning.models.kinds:TinyModelConfig",
}
"""Kind -> the settings themselves: a model has no class of ours."""

REWARDS = {
    "boxed": "pipeline.learning.rewards.answers:boxed",
    "exact_match": "pipeline.learning.rewards.answers:exact_match",
    "gsm8k": "pipeline.learning.rewards.answers:gsm8k",
    "length": "pipeline.learning.rewards.answers:length",
    "math_verify": "pipeline.learning.rewards.math_verify:math_verify",
    "star_graph": "pipeline.learning.rewards.answers:star_graph",
    "vader": "pipeline.learning.rewards.answers:vader",
}
"""Name -> function."""

REWARD_MODEL = "model"
"""The reward that is a sequence-classification model rather than a function."""

TRL_REWARDS = {
    "accuracy_reward": "trl.rewards:accuracy_reward",
    "get_cosine_scaled_reward": "trl.rewards:get_cosine_scaled_reward",
    "get_repetition_penalty_reward": "trl.rewards:get_repetition_penalty_reward",
    "get_soft_overlong_punishment": "trl.rewards:get_soft_overlong_punishment",
    "reasoning_accuracy_reward": "trl.rewards:reasoning_accuracy_reward",
    "think_format_reward": "trl.rewards:think_format_reward",
}
"""TRL's own rewards, and the functions that make one of their settings."""

REWARD_NAMES = (*REWARDS, REWARD_MODEL, *TRL_REWARDS)
"""Rewards with a name; any other one is the dotted path of a function with TRL's signature."""
