"""A start for a head's first layer: each attention head looks a fixed distance back.

The target's last layers attend to far places and to the first token; a slot needs the few places before it, and the anchor's own
features are always a slot's number of places away. Rotary positions can say that without looking at content: with a constant key c and a
query that is c turned back by d places, the score depends on the distance alone and is highest at d. Keys and queries are normed, so a
projection of rank one gives a constant, as long as the input's component along one direction has the same sign everywhere; hidden
states have such a direction, their mean.

Axes: T context rows, H hidden size, D head size.
"""

from __future__ import annotations

import torch
from torch import nn

from .jetspec import JetSpecHead

_FASTEST = 0.125  # of the rotary pairs: those that tell neighbouring places apart


@torch.no_grad()
def start_local(head: JetSpecHead, features: torch.Tensor) -> None:
    """Set queries and keys of the first layer. Attention head h looks h % (block_size + 1) + 1 places back.

    Args:
        head: values and outputs of its layers stay as they are.
        features: (T, F) of some text of the target, to see where fused features lie.
    """
    layer, config = head.layers[0], head.config
    norm: nn.Module = layer.input_layernorm  # type: ignore[assignment,union-attr]
    anywhere = torch.zeros(1, dtype=torch.long, device=features.device)
    slot = _unit(norm(head.slots(anywhere, 2)[0, 1]))  # a mask
    both = _unit(_unit(head.fuse(features).mean(0)) + slot)  # keys are of the context and of slots
    half = config.head_dim // 2
    chosen = (torch.arange(half, device=slot.device) < max(1, int(config.head_dim * _FASTEST))).float()
    attention = layer.self_attn
    key = torch.cat([chosen, torch.zeros_like(chosen)])
    attention.k_proj.weight.copy_(torch.outer(key.repeat(config.num_key_value_heads), both))  # type: ignore[union-attr,operator]
    queries = []
    for number in range(config.num_attention_heads):
        angle = -head.rotary.frequencies.to(slot.device) * (number % (config.block_size + 1) + 1)
        queries.append(torch.cat([chosen * angle.cos(), chosen * angle.sin()]))
    attention.q_proj.weight.copy_(torch.outer(torch.cat(queries), slot))  # type: ignore[union-attr,operator]


def _unit(vector: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(vector, dim=0)
