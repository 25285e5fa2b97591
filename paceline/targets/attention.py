"""Attention over packed sequences, registered with Transformers under the name `paceline`.

The model sees one row that holds the new nodes of all sequences; here each sequence attends to its own cache. Grouped heads share
their keys by a view: nothing is repeated in memory.

Axes: N nodes, T keys of a sequence, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from .kv import Segments

NAME = "paceline"
_FEW_NODES = 64  # up to here the heads of a group share one pass over their keys: 1.8 to 0.1 ms a layer for 1 node and 1000 keys


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor | Segments,
    value: torch.Tensor | Segments,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query (1, heads, sum of N, D), key and value (1, kv heads, T, D) per sequence, mask (1, 1, sum of N, longest T), additive.

    Returns (1, sum of N, heads, D), as Transformers' attention functions do.
    """
    if isinstance(key, torch.Tensor):
        return _attend(query, key, value, attention_mask, scaling, softcap, s_aux).transpose(1, 2), None  # type: ignore[arg-type]
    outputs, start = [], 0
    for k, v, size in zip(key, value, key.sizes, strict=True):
        rows = slice(start, start + size)
        mask = attention_mask[:, :, rows, : k.shape[2]]
        outputs.append(_attend(query[:, :, rows], k, v, mask, scaling, softcap, s_aux))
        start += size
    return torch.cat(outputs, 2).transpose(1, 2), None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One sequence: query (1, heads, N, D) -> (1, heads, N, D)."""
    _, heads, nodes, size = query.shape
    kv_heads = key.shape[1]
    if nodes <= _FEW_NODES and softcap is None and sinks is None:
        rows = query.reshape(1, kv_heads, -1, size)  # the heads of a group become further queries on the same keys
        out = scaled_dot_product_attention(rows, key, value, attn_mask=mask.repeat(1, 1, heads // kv_heads, 1), scale=scaling)
        return out.reshape(1, heads, nodes, -1)
    grouped = query.reshape(kv_heads, heads // kv_heads, nodes, size)
    k = key.transpose(0, 1).expand(-1, heads // kv_heads, -1, -1)
    v = value.transpose(0, 1).expand(-1, heads // kv_heads, -1, -1)
    if softcap is None and sinks is None:
        out = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scaling)
    else:
        out = _explicit(grouped, k, v, mask, scaling or size**-0.5, softcap, sinks)
    return out.reshape(1, heads, nodes, -1)


def _explicit(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention with capped scores (Gemma 2) or attention sinks (GPT-OSS), which the fused kernel does not offer."""
    scores = query @ key.transpose(2, 3) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    if sinks is not None:
        column = sinks.reshape(*query.shape[:2], 1, 1).expand(-1, -1, scores.shape[2], 1).to(scores.dtype)
        scores = torch.cat([scores, column], -1)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    return weights[..., : key.shape[2]] @ value


AttentionInterface.register(NAME, attend)
