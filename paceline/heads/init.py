"""A better start than random: the head's layers begin as the target's last ones, and its context as the last tapped layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .borrow import final_norm
from .jetspec import JetSpecHead


@torch.no_grad()
def init_from_target(head: JetSpecHead, target: Any, texts: Sequence[Sequence[int]] = ()) -> list[str]:
    """Copy what has the same name and shape in the target's last layers, with its final norm; returns the names that were copied.

    The fused context starts as the last tapped layer under the input norm of the first copied layer. Queries and keys of the head are
    normed; where those of the target are not, the norms start at the size that the target's have on `texts` (token ids), so that attention
    is about as sharp, and without texts at one. Needs plain weights: a packed target (`weights="packed"`) gives norms only.
    """
    first = head.config.num_target_layers - head.config.num_hidden_layers
    copied = []
    for index, layer in enumerate(head.layers):
        source = target.decoder_layers[max(0, first + index)]
        own = _copy(layer, source)
        for name, size in _sizes(target, source, texts, head.config.head_dim).items():
            if f"self_attn.{name}.weight" not in own:
                getattr(layer.self_attn, name).weight.fill_(size)  # type: ignore[union-attr]
        copied += [f"layers.{index}.{name}" for name in own]
    copied += [f"norm.{name}" for name in _copy(head.norm, final_norm(target))]
    hidden = head.config.hidden_size
    head.fc.weight.zero_()
    head.fc.weight[:, -hidden:].fill_diagonal_(1)
    head.hidden_norm.weight.copy_(head.layers[0].input_layernorm.weight)  # type: ignore[union-attr,arg-type]
    if head.mask_embedding is not None:
        head.mask_embedding.copy_(head.embed_weight.float().mean(0))
    return copied


def _sizes(target: Any, layer: nn.Module, texts: Sequence[Sequence[int]], head_dim: int) -> dict[str, float]:
    """The mean over tokens and heads of the root mean square of a layer's queries and keys, by the name of the norm."""
    found: dict[str, list[torch.Tensor]] = {}
    hooks = []
    for norm, projection in (("q_norm", "q_proj"), ("k_norm", "k_proj")):
        module = getattr(getattr(layer, "self_attn", None), projection, None)
        if isinstance(module, nn.Module):

            def keep(_module: nn.Module, _args: Any, out: torch.Tensor, norm: str = norm) -> None:
                found.setdefault(norm, []).append(out.float().reshape(*out.shape[:-1], -1, head_dim).square().mean(-1).sqrt().flatten())

            hooks.append(module.register_forward_hook(keep))
    slot = target.cache.open(max(map(len, texts), default=1))
    try:
        for text in texts:
            target.prefill([slot], [text])
            target.cache.truncate(slot, 0)
    finally:
        target.cache.free(slot)
        for hook in hooks:
            hook.remove()
    return {name: float(torch.cat(rows).mean()) for name, rows in found.items()}


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
