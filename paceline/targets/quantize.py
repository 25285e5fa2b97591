"""Rounded draft weights: a draft model guesses, so its rounding can cost acceptance but never changes what is emitted.

bfloat16, 4 bits: groups of 32 inputs share a scale and a zero point (asymmetric, round to nearest), stored for torch's own int4 CPU kernel.
That kernel is quick for a few rows and slow for many, so each layer keeps its packed bfloat16 weight too, for prompts: a quarter more
memory. float32, 8 bits: one scale per output (symmetric), inputs rounded per call, which CPUs without AVX-512 multiply quickest. A
target is never quantised here: that would be another model.
"""

from __future__ import annotations

import warnings

import torch
from torch import nn

from .pack import X86_ENGINES, PackedLinear, can_pack, replace_linears, widened

GROUP = 32  # inputs per scale
_ROWS = 16  # the kernel wants outputs in multiples of this
_FEW = 8  # up to so many tokens the int4 kernel is the quicker one


class Int4Linear(nn.Module):
    """`nn.Linear` in bfloat16 with a 4-bit weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        blocks = linear.weight.detach().float().reshape(linear.out_features, -1, GROUP)  # (out, groups, GROUP)
        low, high = blocks.amin(-1), blocks.amax(-1)
        scale = ((high - low) / 15).clamp(min=1e-8)
        codes = ((blocks - low[..., None]) / scale[..., None]).round_().clamp_(0, 15).to(torch.int32).flatten(1)
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 2)
        self.scales = torch.stack([scale, low + 8 * scale], -1).transpose(0, 1).contiguous().to(torch.bfloat16)  # the kernel's 0 is code 8
        self.wide = PackedLinear(linear)
        self.bias = self.wide.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[:-1].numel() > _FEW:
            out: torch.Tensor = self.wide(x)
            return out
        rows: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x.flatten(0, -2), self.packed, GROUP, self.scales)
        few = rows.view(*x.shape[:-1], self.out_features)
        return few if self.bias is None else few + self.bias


class Int8Linear(nn.Module):
    """`nn.Linear` in float32 with an 8-bit weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        scale = (weight.abs().amax(1) / 127).clamp(min=1e-12)  # (out,)
        with warnings.catch_warnings(action="ignore"):  # torch calls this constructor deprecated and has no other for the kernel
            codes = torch.quantize_per_channel(weight, scale.double(), torch.zeros(len(scale), dtype=torch.long), 0, torch.qint8)
        bias = None if linear.bias is None else linear.bias.detach().to(torch.float32, copy=True)
        self.packed = torch.ops.quantized.linear_prepack(codes, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.quantized.linear_dynamic(x, self.packed, True)
        return out


def can_quantize(dtype: torch.dtype, device: torch.device, bits: int) -> bool:
    """Whether there is a kernel for this type on this machine: 4 bits for bfloat16, 8 for float32, on a CPU."""
    needs, ready = {
        4: (torch.bfloat16, hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")),
        8: (torch.float32, torch.backends.quantized.engine in X86_ENGINES and hasattr(torch, "quantize_per_channel")),
    }[bits]
    return ready and dtype == needs and can_pack(dtype, device)


def quantize(model: nn.Module, bits: int) -> nn.Module:
    """Replace all linear layers in place, layer by layer. Layers whose shape the 4-bit kernel cannot take are packed instead."""
    if bits == 8:
        return replace_linears(model, Int8Linear).float()
    return replace_linears(model, _four_bits).bfloat16()


def _four_bits(linear: nn.Linear) -> nn.Module:
    linear = widened(linear, torch.bfloat16)
    fits = linear.in_features % GROUP == 0 and linear.out_features % _ROWS == 0
    return Int4Linear(linear) if fits else PackedLinear(linear)
