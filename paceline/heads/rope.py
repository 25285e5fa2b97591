"""Rotary positions of a head: the target's own base and scaling, always in float32.

A table rounded to bfloat16 differs from the exact one by more, the later the position, and a head that was trained on one and runs
on the other loses acceptance there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import UnsupportedModel

SCALINGS = ("default", "linear", "llama3", "yarn")


def rope_of(config: Any) -> dict[str, Any]:
    """The rotary parameters of a Transformers configuration; those of full attention where layers differ.

    Scalings that change with the length of the text (dynamic, longrope) are left out: a head needs no more than distinct positions.
    """
    found = dict(getattr(config, "rope_parameters", None) or {})
    found = dict(found.get("full_attention") or found)
    theta = float(found.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0)
    if found.get("rope_type", "default") not in SCALINGS:
        found = {}
    if found.get("rope_type") == "yarn":
        found.setdefault("original_max_position_embeddings", getattr(config, "max_position_embeddings", None))
    kept = {k: v for k, v in found.items() if k != "partial_rotary_factor" and v is not None}
    return {**kept, "rope_type": found.get("rope_type", "default"), "rope_theta": theta}


def inverse_frequencies(parameters: Mapping[str, Any], head_dim: int) -> tuple[torch.Tensor, float]:
    """(head_dim / 2,) float32 angles per position, and the factor on cosine and sine (1 but for yarn)."""
    kind = parameters.get("rope_type", "default")
    base = float(parameters["rope_theta"]) ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    plain = 1.0 / base
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / float(parameters["factor"]), 1.0
    if kind == "llama3":
        return _llama3(plain, parameters), 1.0
    if kind == "yarn":
        return _yarn(plain, parameters, head_dim)
    raise UnsupportedModel(f"rotary scaling {kind!r} is unknown to heads; use one of {', '.join(SCALINGS)}")


def _llama3(plain: torch.Tensor, parameters: Mapping[str, Any]) -> torch.Tensor:
    """Long waves are slowed by the factor, short ones kept, those between interpolated (Llama 3.1)."""
    factor, low, high = (float(parameters[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(parameters["original_max_position_embeddings"]) * plain / (2 * math.pi)  # over the original context
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 0: slowed, 1: kept
    return plain * (kept + (1 - kept) / factor)


def _yarn(plain: torch.Tensor, parameters: Mapping[str, Any], head_dim: int) -> tuple[torch.Tensor, float]:
    """Interpolated by number of turns over the original context, and sharper attention (Peng et al. 2023)."""
    factor, length = float(parameters["factor"]), float(parameters["original_max_position_embeddings"])
    theta = float(parameters["rope_theta"])

    def dimension(turns: float) -> float:
        return head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = dimension(float(parameters.get("beta_fast") or 32)), dimension(float(parameters.get("beta_slow") or 1))
    first, last = max(math.floor(first), 0), min(math.ceil(last), head_dim - 1)
    slowed = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / max(last - first, 1e-3)).clamp(0, 1)
    scale = parameters.get("attention_factor") or (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    return plain * (slowed / factor + (1 - slowed)), float(scale)


class Rotary:
    """Cosines and sines of positions. Not a module: no cast of the head may reach its table."""

    def __init__(self, parameters: Mapping[str, Any], head_dim: int) -> None:
        self.frequencies, self.scale = inverse_frequencies(parameters, head_dim)

    def __call__(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(..., T) positions -> cosine and sine, each (..., 1, T, head_dim) in float32, ready for (..., heads, T, head_dim)."""
        angles = positions[..., None].float() * self.frequencies.to(positions.device)
        angles = torch.cat([angles, angles], -1).unsqueeze(-3)
        return angles.cos() * self.scale, angles.sin() * self.scale


def rotate(x: torch.Tensor, table: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate (..., heads, T, head_dim) in float32 and give it back in its own type."""
    half = x.shape[-1] // 2
    cosine, sine = table
    wide = x.float()
    turned = torch.cat([-wide[..., half:], wide[..., :half]], -1)
    return (wide * cosine + turned * sine).to(x.dtype)
