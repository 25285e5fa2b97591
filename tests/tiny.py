"""Tiny models in memory. Two layers are enough, but they must be sharp: with Transformers' default initialiser range of 0.02 the
greedy text of a random model hardly depends on positions, and wrong position ids went unseen. With 0.2 every planted bug is caught.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from paceline.targets.hf import HFTarget

VOCAB = 61
WINDOW = 8
_BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
_MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}

# family -> configuration class, seed and what it takes beside the base. The seed is one whose greedy text is lively: of 40 tokens
# at least 9 differ, and mostly 20, where others fall into a loop of 3.
FAMILIES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "llama": ("LlamaConfig", 36, {}),
    "qwen2": ("Qwen2Config", 30, {"use_sliding_window": True, **_MIXED}),
    "qwen3": ("Qwen3Config", 33, {"head_dim": 8, "use_sliding_window": True, **_MIXED}),
    "gemma2": ("Gemma2Config", 39, {"head_dim": 8, **_MIXED}),
    "gemma3": ("Gemma3TextConfig", 29, {"head_dim": 8, **_MIXED}),
    "mistral": ("MistralConfig", 26, {"sliding_window": WINDOW}),
    "phi3": ("Phi3Config", 37, {"sliding_window": WINDOW}),
    "gpt_neox": ("GPTNeoXConfig", 10, {"num_key_value_heads": None}),
    "gpt2": ("GPT2Config", 5, {**_GPT2, **dict.fromkeys(["hidden_size", "num_hidden_layers", "num_attention_heads"])}),
    "olmo2": ("Olmo2Config", 33, {}),
    "mixtral": ("MixtralConfig", 30, {"num_local_experts": 4, "sliding_window": WINDOW}),
    "qwen3_moe": ("Qwen3MoeConfig", 37, {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
}


def config(family: str, **changes: Any) -> Any:
    """A new configuration of this family; None takes a setting out."""
    kind, _, own = FAMILIES[family]
    settings = {k: v for k, v in {**_BASE, **own, **changes}.items() if v is not None or k == "eos_token_id"}
    return getattr(transformers, kind)(**settings)


def build(settings: Any, seed: int = 0) -> Any:
    """A random model with this configuration."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(settings).eval()


@cache
def plain(family: str) -> Any:
    """The original model with its own attention, made once: for the oracle, and to be copied."""
    return build(config(family), FAMILIES[family][1])


@cache
def ours(family: str) -> Any:
    """A copy for our targets, which give it their attention."""
    return copy.deepcopy(plain(family))


@cache
def noisy(family: str, noise: float = 0.02) -> Any:
    """A copy of the target plus small noise: a draft model that is often right and often wrong."""
    model = copy.deepcopy(plain(family))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * torch.randn_like(parameter)
    return model


def target(family: str = "llama", **arguments: Any) -> HFTarget:
    """A target with an empty cache."""
    return HFTarget(ours(family), **arguments)


def draft(family: str = "llama", noise: float = 0.02) -> HFTarget:
    """A draft model with an empty cache."""
    return HFTarget(noisy(family, noise))
