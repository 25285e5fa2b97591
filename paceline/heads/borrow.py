"""What a head borrows of its target: rows of the embedding and of the output matrix, and the norm before the latter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import UnsupportedModel
from ..targets import layers
from ..targets.pack import HalfLinear


def embedding_weight(target: Any) -> torch.Tensor:
    """(V, H) the target's input embedding. Raises UnsupportedModel if it is not as wide as the model."""
    weight: torch.Tensor = target.model.get_input_embeddings().weight.detach()
    if weight.shape[1] != target.config.hidden_size:
        raise UnsupportedModel(
            f"{target.name} embeds tokens in {weight.shape[1]} numbers and computes with {target.config.hidden_size}, which no head fits; "
            "use another drafter"
        )
    return weight


def output_weight(target: Any) -> torch.Tensor:
    """(V, H) the target's output matrix. A packed one is unpacked, which takes its size in memory for as long as the result lives."""
    if getattr(target.config, "tie_word_embeddings", False):
        return embedding_weight(target)
    layer = target.model.get_output_embeddings()
    return _unpacked(layer)[0]


def output_layer(target: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The target's own output layer, (..., H) -> (..., V), in whatever form it is held; None if it adds a bias, which heads leave out."""
    layer = target.model.get_output_embeddings()
    tied_and_packed = getattr(target.config, "tie_word_embeddings", False) and not hasattr(layer, "weight")
    return layer.forward if tied_and_packed or _unpacked(layer)[1] is None else None  # type: ignore[no-any-return]


def final_norm(target: Any) -> nn.Module:
    """The norm between the last layer and the output matrix."""
    return layers.final_norm(target.model.base_model)


def finisher(target: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """What some families do to their logits: cap them (Gemma)."""
    cap = getattr(target.config, "final_logit_softcapping", None)
    if cap:
        return lambda logits: cap * torch.tanh(logits / cap)
    return lambda logits: logits


def output_rows(target: Any, ids: torch.Tensor) -> torch.Tensor:
    """(n, H) a copy of some rows of the output matrix."""
    return output_weight(target)[ids].clone()


def _unpacked(layer: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of a linear layer in any of the forms of `targets.pack`."""
    if hasattr(layer, "weight"):
        return layer.weight.detach(), layer.bias
    if isinstance(layer, HalfLinear):
        return layer.unpacked()
    return layer.packed.to_dense(), layer.bias
