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
    key: Segments,
    value: Segments,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query (1, heads, sum of N, D), key and value (1, kv heads, T, D) per sequence, mask (1, 1, sum of N, longest T), additive.

    Returns (1, sum of N, heads, D), as Transformers' attention functions do.
    """
    groups = query.shape[1] // key[0].shape[1]
    fused = softcap is None and s_aux is None
    outputs, start = [], 0
    for k, v, size, mask in zip(key, value, key.sizes, _masks(key, attention_mask, groups if fused else 1), strict=True):
        q = query if len(key) == 1 else query[:, :, start : start + size]
        outputs.append(_fused(q, k, v, mask, scaling) if fused else _explicit(q, k, v, mask, scaling, softcap, s_aux))
        start += size
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)).transpose(1, 2), None


def _masks(key: Segments, attention_mask: torch.Tensor, groups: int) -> list[torch.Tensor | None]:
    """Each sequence's own part of the mask, made for the first layer of a kind and kept for the others of the same forward.

    Rows are repeated for the heads of a group where they share a pass. A single node that sees all of its cache needs no mask.
    """
    kept = key.masks.get(id(attention_mask))
    if kept is None:
        kept, start = [], 0
        for k, size in zip(key, key.sizes, strict=True):
            mask = attention_mask[:, :, start : start + size, : k.shape[2]]
            if size == 1 and not bool(mask.any()):
                kept.append(None)
            else:
                kept.append(mask.repeat(1, 1, groups, 1) if size <= _FEW_NODES else mask)
            start += size
        key.masks[id(attention_mask)] = kept
    return kept


def _fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None) -> torch.Tensor:
    """One sequence: query (1, heads, N, D) -> (1, heads, N, D)."""
    _, heads, nodes, size = query.shape
    kv_heads = key.shape[1]
    if nodes <= _FEW_NODES:
        rows = query.reshape(1, kv_heads, -1, size)  # the heads of a group become further queries on the same keys
        return scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling).reshape(1, heads, nodes, -1)
    grouped, k, v = _grouped(query, key, value)
    return scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scaling).reshape(1, heads, nodes, -1)


def _grouped(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(kv heads, group, N, D) queries, and keys and values expanded to match by a view."""
    kv_heads, groups = key.shape[1], query.shape[1] // key.shape[1]
    k, v = (x.transpose(0, 1).expand(-1, groups, -1, -1) for x in (key, value))
    return query.reshape(kv_heads, groups, *query.shape[2:]), k, v


def _explicit(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention with capped scores (Gemma 2) or attention sinks (GPT-OSS), which the fused kernel does not offer."""
    grouped, k, v = _grouped(query, key, value)
    scores = grouped @ k.transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        column = sinks.reshape(*grouped.shape[:2], 1, 1).expand(-1, -1, scores.shape[2], 1).to(scores.dtype)
        scores = torch.cat([scores, column], -1)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    out = weights[..., : key.shape[2]] @ v
    return out.reshape(1, query.shape[1], query.shape[2], -1)


AttentionInterface.register(NAME, attend)
