"""A better start than random: the head's layers begin as the target's last ones, and its context as the last tapped layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .jetspec import JetSpecHead


@torch.no_grad()
def init_from_target(head: JetSpecHead, target: Any) -> list[str]:
    """Copy what has the same name and shape in the target's last layers, with its final norm; returns the names that were copied.

    The fused context starts as the last tapped layer under the input norm of the first copied layer, and queries and keys start with
    norms of one where the target has none. Needs plain weights: a packed target (`weights="packed"`) gives norms only.
    """
    first = head.config.num_target_layers - head.config.num_hidden_layers
    copied = []
    for index, layer in enumerate(head.layers):
        copied += [f"layers.{index}.{name}" for name in _copy(layer, target.layers[max(0, first + index)])]
    copied += [f"norm.{name}" for name in _copy(head.norm, final_norm(target))]
    hidden = head.config.hidden_size
    head.fc.weight.zero_()
    head.fc.weight[:, -hidden:].fill_diagonal_(1)
    head.hidden_norm.weight.copy_(head.layers[0].input_layernorm.weight)  # type: ignore[union-attr,arg-type]
    if head.mask_embedding is not None:
        head.mask_embedding.copy_(head.embed_weight.float().mean(0))
    return copied


def _copy(module: nn.Module, source: nn.Module) -> list[str]:
    """Copy the parameters that both modules have under one name and in one shape."""
    theirs, copied = dict(source.named_modules()), []
    for name, parameter in module.named_parameters():
        owner, _, leaf = name.rpartition(".")
        found = getattr(theirs.get(owner), leaf, None)
        if isinstance(found, nn.Parameter) and found.shape == parameter.shape:
            parameter.copy_(_scale(theirs[owner]) if parameter.dim() == 1 else found)
            copied.append(name)
    return copied


def _scale(norm: nn.Module) -> torch.Tensor:
    """What a norm multiplies by: some (Gemma) keep it less one, so ask the module itself, with an input whose norm is ones."""
    weight: torch.Tensor = norm.weight  # type: ignore[assignment]
    scaled: torch.Tensor = norm(torch.full_like(weight, 1024.0)) if "RMSNorm" in type(norm).__name__ else weight
    return scaled


def final_norm(target: Any) -> nn.Module:
    """The norm between the last layer and the output."""
    base = target.model.base_model
    found = (getattr(base, name, None) for name in ("norm", "final_layernorm", "final_layer_norm", "ln_f"))
    return next((m for m in found if m is not None), nn.Identity())
