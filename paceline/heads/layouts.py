"""Public layouts of block heads: how a configuration reads and writes as the flat DFlash layout and as the speculators layout.

Both name tensors as our modules do. What the layer ids mean differs: the flat layout counts decoder layers from 0 and means their
outputs, as we do; speculators counts entries of Transformers' hidden states, which is one more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import CheckpointMismatch
from .config import JetSpecConfig

LAYER_IDS = "output of decoder layer l, counted from 0"
_SHAPES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "rms_norm_eps",
    "vocab_size", "max_position_embeddings",
)  # fmt: skip
_OWN = ("markov_rank", "last_feature", "temperatures", "target_name", "target_tokenizer", "target_fingerprint")  # of no public layout
_LATER = ("shift_label", "sample_from_anchor", "attention_bias")  # true means another kind of head


def layout_of(config: Mapping[str, Any]) -> str:
    """`dflash` or `speculators`. Raises CheckpointMismatch if it is neither."""
    if "speculators_model_type" in config:
        return "speculators"
    if "dflash_config" in config:
        return "dflash"
    raise CheckpointMismatch(
        "config.json has neither dflash_config nor speculators_model_type, so it describes no block head; get the head again"
    )


def read(config: Mapping[str, Any]) -> JetSpecConfig:
    """Our configuration of a config.json in either layout. Raises CheckpointMismatch, naming the key, for what is missing or not ours."""
    if on := [key for key in _LATER if config.get(key)]:
        raise CheckpointMismatch(
            f"config.json sets {on[0]}, which is another kind of head; Paceline runs heads whose slot k predicts its own token"
        )
    return _read_flat(config) if layout_of(config) == "dflash" else _read_speculators(config)


def write(config: JetSpecConfig, layout: str, dtype: str) -> dict[str, Any]:
    """The config.json of a head in this layout."""
    return {"dflash": _write_flat, "speculators": _write_speculators}[layout](config, dtype)


def _write_flat(config: JetSpecConfig, dtype: str) -> dict[str, Any]:
    dflash = {
        "causal": config.causal,
        "causal_head": config.causal,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
    }
    return {
        "architectures": ["DFlashDraftModel"],
        **_qwen3(config),
        "block_size": config.block_size,
        "dflash_config": dflash,
        "draft_vocab_size": config.draft_size,
        "dtype": dtype,
        "is_causal": config.causal,
        "num_target_layers": config.num_target_layers,
        "paceline": _own(config),
    }


def _read_flat(config: Mapping[str, Any]) -> JetSpecConfig:
    dflash = config["dflash_config"]
    said = {
        k: bool(v) for k, v in {"is_causal": config.get("is_causal"), **_pick(dflash, ("causal", "causal_head"))}.items() if v is not None
    }
    if len(set(said.values())) > 1:
        raise CheckpointMismatch(
            f"config.json says both that the head is causal and that it is not ({said}); correct it to what it was trained as"
        )
    layers = _key(config, "num_target_layers")
    return JetSpecConfig(
        **_shapes(config),
        block_size=config.get("block_size") or _key(dflash, "block_size", "dflash_config"),
        target_layer_ids=_ids(dflash, "target_layer_ids", "dflash_config"),
        num_target_layers=layers,
        causal=next(iter(said.values()), False),  # DFlash itself says nothing and sees both ways
        mask_token_id=dflash.get("mask_token_id"),
        draft_vocab_size=_reduced(config.get("draft_vocab_size"), _key(config, "vocab_size")),
        **_given(config),
    )


def _write_speculators(config: JetSpecConfig, dtype: str) -> dict[str, Any]:
    """Full attention sees both ways in this layout, and only sliding windows are causal: a causal head is written as windows that hold
    every context."""
    kind = "sliding_attention" if config.causal else "full_attention"
    layer = {
        **_qwen3(config),
        "layer_types": [kind] * config.num_hidden_layers,
        "sliding_window": config.max_position_embeddings if config.causal else None,
        "use_sliding_window": config.causal,
        "max_window_layers": 0,
    }
    greedy = {"proposal_type": "greedy", "speculative_tokens": config.depth, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["DFlashDraftModel"],
        "aux_hidden_state_layer_ids": [i + 1 for i in config.target_layer_ids],
        "block_size": config.block_size,
        "draft_vocab_size": config.draft_size,
        "dtype": dtype,
        "mask_token_id": config.mask_token_id,
        "paceline": {**_own(config), "num_target_layers": config.num_target_layers},
        "sample_from_anchor": False,
        "sliding_window_non_causal": False,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"architectures": [], "name_or_path": config.target_name},
        },
        "speculators_model_type": "dflash",
        "transformer_layer_config": layer,
    }


def _read_speculators(config: Mapping[str, Any]) -> JetSpecConfig:
    kind = config["speculators_model_type"]
    if kind != "dflash" or config.get("projector_type", "dflash") != "dflash":
        raise CheckpointMismatch(f"config.json describes a {config.get('projector_type', kind)} speculator; Paceline reads dflash ones")
    layer = _key(config, "transformer_layer_config")
    ids = tuple(i - 1 for i in _ids(config, "aux_hidden_state_layer_ids", "config.json"))
    own = config.get("paceline") or {}
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    return JetSpecConfig(
        **_shapes(layer),
        block_size=_key(config, "block_size"),
        target_layer_ids=ids,
        num_target_layers=own.get("num_target_layers") or ids[-1] + 1,
        causal=_windows_are_causal(config, layer),
        mask_token_id=config.get("mask_token_id"),
        draft_vocab_size=_reduced(config.get("draft_vocab_size"), _key(layer, "vocab_size", "transformer_layer_config")),
        **{"target_name": verifier.get("name_or_path") or "", **_given(config)},
    )


def _windows_are_causal(config: Mapping[str, Any], layer: Mapping[str, Any]) -> bool:
    kinds = set(layer.get("layer_types") or ["full_attention"])
    if kinds == {"full_attention"}:
        return False
    window, longest = layer.get("sliding_window") or 0, layer.get("max_position_embeddings") or 0
    if len(kinds) > 1 or window < longest:
        raise CheckpointMismatch(
            f"its layers are {sorted(kinds)} with a window of {window}; Paceline's heads read the whole context in every layer"
        )
    return not config.get("sliding_window_non_causal", False)


def _qwen3(config: JetSpecConfig) -> dict[str, Any]:
    shapes = {name: getattr(config, name) for name in _SHAPES}
    rope = dict(sorted(config.rope_parameters.items()))
    fixed = {"attention_bias": False, "hidden_act": "silu", "model_type": "qwen3", "tie_word_embeddings": False}
    return {**shapes, **fixed, "rope_parameters": rope, "rope_theta": rope["rope_theta"]}


def _shapes(config: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: _key(config, name) for name in _SHAPES if name not in ("head_dim", "max_position_embeddings")}
    found["head_dim"] = config.get("head_dim") or found["hidden_size"] // found["num_attention_heads"]
    found["max_position_embeddings"] = config.get("max_position_embeddings") or 32768
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_type", rope.pop("type", "default"))
    if rope.get("rope_theta") is None:
        rope["rope_theta"] = _key(config, "rope_theta")
    return {**found, "rope_parameters": rope}


def _own(config: JetSpecConfig) -> dict[str, Any]:
    values = {name: getattr(config, name) for name in _OWN}
    return {**{k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}, "layer_ids_mean": LAYER_IDS}


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in _pick(config.get("paceline") or {}, _OWN).items()}


def _pick(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _reduced(draft: int | None, whole: int) -> int | None:
    return None if draft in (None, whole) else draft


def _ids(values: Mapping[str, Any], name: str, where: str) -> tuple[int, ...]:
    found = _key(values, name, where)
    if not isinstance(found, list) or not found or not all(type(i) is int for i in found):
        raise CheckpointMismatch(f"{name} is {found!r}; it must be a list of whole numbers")
    return tuple(found)


def _key(values: Mapping[str, Any], name: str, where: str = "config.json") -> Any:
    if values.get(name) is None:
        raise CheckpointMismatch(f"{where} of the head lacks {name}; it may be renamed, or be of another layout: see docs/heads.md")
    return values[name]
