"""Attention over packed sequences, registered with Transformers under the name `paceline`.

The model sees one row that holds the new nodes of all sequences; here each sequence attends to its own cache. Sequences with few new
nodes that lie side by side in the cache share a call, the shorter ones padded by the mask. Grouped heads share their keys by a view:
nothing is repeated in memory.

Axes: n sequences of a part, N nodes, T keys of a sequence, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from .step import Part, Segments

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
    """query (1, heads, sum of N, D), key and value (n, kv heads, T, D) per part, mask (1, 1, sum of N, longest T), additive.

    Returns (1, sum of N, heads, D), as Transformers' attention functions do.
    """
    _, heads, nodes, _ = query.shape
    out = query.new_empty(nodes, heads, value[0].shape[-1])
    groups = heads // key[0].shape[1]
    fused = softcap is None and s_aux is None
    for k, v, part, mask in zip(key, value, key.parts, _masks(key, attention_mask, groups if fused else 1), strict=True):
        q = query[:, :, part.nodes] if isinstance(part.nodes, slice) else query[0].transpose(0, 1)[part.nodes].transpose(1, 2)
        found = _fused(q, k, v, mask, scaling) if fused else _explicit(q, k, v, mask, scaling, softcap, s_aux)  # (n, heads, N, D)
        found = found.transpose(1, 2)
        if isinstance(part.nodes, slice):
            if len(key) == 1:
                return found, None
            out[part.nodes] = found[0]
        else:
            out[part.only_real(part.nodes)] = part.only_real(found)
    return out[None], None


def _masks(key: Segments, attention_mask: torch.Tensor, groups: int) -> list[torch.Tensor | None]:
    """Each part's own piece of the mask, made for the first layer of a kind and kept for the others of the same forward.

    Rows are repeated for the heads of a group where they share a pass. Single nodes that see all rows need no mask.
    """
    kept = key.masks.get(id(attention_mask))
    if kept is None:
        kept = [_mask(part, attention_mask[..., : k.shape[2]], groups) for k, part in zip(key, key.parts, strict=True)]
        key.masks[id(attention_mask)] = kept
    return kept


def _mask(part: Part, attention_mask: torch.Tensor, groups: int) -> torch.Tensor | None:
    """(1, 1, sum of N, T) -> (n, 1, N, T)."""
    mask = attention_mask[:, :, part.nodes] if isinstance(part.nodes, slice) else attention_mask[0, 0][part.nodes][:, None]
    nodes = mask.shape[2]
    if nodes == 1 and not bool(mask.any()):
        return None
    return mask.repeat(1, 1, groups, 1) if nodes <= _FEW_NODES else mask


def _fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None) -> torch.Tensor:
    """query (n, heads, N, D) -> (n, heads, N, D); n is 1 for more than `_FEW_NODES` nodes."""
    count, heads, nodes, size = query.shape
    kv_heads = key.shape[1]
    if nodes <= _FEW_NODES:
        rows = query.reshape(count, kv_heads, -1, size)  # the heads of a group become further queries on the same keys
        return scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling).reshape(count, heads, nodes, -1)
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
    grouped = query.reshape(len(query), key.shape[1], -1, *query.shape[2:])  # (n, kv heads, group, N, D)
    scores = grouped @ key.unsqueeze(2).transpose(-2, -1) * (scaling or query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask.unsqueeze(2)
    if sinks is not None:
        column = sinks.view(*grouped.shape[1:3], 1, 1).expand(*scores.shape[:-1], 1).to(scores.dtype)
        scores = torch.cat([scores, column], -1)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    out: torch.Tensor = weights[..., : key.shape[2]] @ value.unsqueeze(2)
    return out.flatten(1, 2)


AttentionInterface.register(NAME, attend)
