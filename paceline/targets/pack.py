"""Linear weights in oneDNN's own layout: the same numbers, read faster by a CPU.

A packed layer replaces the original one at a time, and the pages of the original go back to the system at once, so both never live
side by side. An output layer tied to the embedding is packed as a copy, since the embedding needs its rows: that costs the size of
the embedding. Nothing else of the model changes, and the decode loop does not know.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import torch
from torch import nn

_DTYPES = (torch.float32, torch.bfloat16)
_ROWS = 8  # a hint: how many tokens a forward usually has
_LEAST_ROWS = 4  # oneDNN's kernel for fewer rows is slower than its kernel for this many, by up to 15 % in bfloat16


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on a CPU, with its weight in oneDNN's blocked layout."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().contiguous(), _ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach().clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[:-1].numel()
        if rows < _LEAST_ROWS:
            x, shape = nn.functional.pad(x.reshape(rows, -1), (0, 0, 0, _LEAST_ROWS - rows)), x.shape[:-1]
            return self._multiply(x)[:rows].view(*shape, self.out_features)
        return self._multiply(x)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


def can_pack(model: nn.Module) -> bool:
    """Whether this build of torch packs, and every parameter is a CPU tensor of a type that oneDNN multiplies."""
    ready = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return ready and all(p.device.type == "cpu" and p.dtype in _DTYPES for p in model.parameters())


def pack(model: nn.Module) -> nn.Module:
    """Pack all linear layers of a model in place. Training it afterwards is not possible."""
    return replace_linears(model, PackedLinear)


@torch.no_grad()
def replace_linears(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """Put `make(linear)` in the place of every linear layer, one by one, and give back the memory of each original.

    Other parameters are copied once, so that no part of the weight file stays mapped.
    """
    uses: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        uses[parameter.data_ptr()] = uses.get(parameter.data_ptr(), 0) + 1
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, make(child))
                if uses[child.weight.data_ptr()] == 1:
                    _forget(child.weight)
        for name, parameter in list(module.named_parameters(recurse=False)):
            if type(module) is not nn.Linear and uses.get(parameter.data_ptr(), 0) == 1:
                setattr(module, name, nn.Parameter(parameter.detach().clone(), requires_grad=False))
                _forget(parameter)
    return model


def _forget(tensor: torch.Tensor) -> None:
    """Give the pages of a tensor that is no longer used back: weights read from a file are mapped, and would count as resident."""
    if not sys.platform.startswith("linux"):
        return
    page = 4096
    start = -(-tensor.data_ptr() // page) * page
    size = (tensor.data_ptr() + tensor.nbytes - start) // page * page
    if size > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), 4)  # MADV_DONTNEED
