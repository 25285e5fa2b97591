"""Refuse models that cannot be speculated on, before the first token and with the reason."""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedModel

_RECURRENT_LAYERS = {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "hybrid", "rwkv", "ssm"}
_REMEDY = "choose a model whose layers all keep a key/value cache, such as Llama, Qwen, Gemma or Mistral"


def check_supported(model: Any) -> None:
    """Raise UnsupportedModel for recurrent, hybrid and encoder-decoder models, and for positions that are not passed as ids."""
    config = model.config.get_text_config()
    kind = config.model_type
    layers = set(getattr(config, "layer_types", None) or []) | set(getattr(config, "layers_block_type", None) or [])
    if recurrent := sorted(layers & _RECURRENT_LAYERS):
        raise UnsupportedModel(
            f"{kind} has {recurrent[0]} layers, whose recurrent state cannot be rolled back after a rejected draft; {_REMEDY}"
        )
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModel(f"{kind} keeps recurrent state, which cannot be rolled back after a rejected draft; {_REMEDY}")
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{kind} is an encoder-decoder model; {_REMEDY}")
    if getattr(config, "alibi", False) or kind in {"bloom", "mpt"}:
        raise UnsupportedModel(f"{kind} takes positions from the order of its input (ALiBi), so a tree cannot be verified; {_REMEDY}")
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedModel(f"{kind} does not take an attention function in this version of Transformers; {_REMEDY}")
