"""Linear weights in a layout of the CPU's own libraries: the same numbers, read faster.

bfloat16 needs oneDNN's kernels and AVX-512. In float32 most checkpoints hold numbers that a 16-bit float times a power of two
represents exactly; such weights are kept in 16 bits and multiplied in float32, which halves what a forward has to read.

A packed layer replaces the original one at a time, and the pages of the original go back to the system at once, so both never live
side by side. An output layer tied to the embedding is packed as a copy, since the embedding needs its rows: that costs the size of
the embedding. Nothing else of the model changes, and the decode loop does not know.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

X86_ENGINES = ("x86", "fbgemm")  # torch's engines with kernels for 16-bit and 8-bit weights and float32 inputs
_ROWS = 8  # a hint: how many tokens a forward of one sequence usually has
_MANY_ROWS = 16  # from here on wide layers are quicker in pieces
_PIECE = 2048  # outputs of a piece for each core; a multiple of 16, the kernel's own width, so that each sum stays the same
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


class HalfLinear(nn.Module):
    """`nn.Linear` in float32 whose weight is held in float16, without rounding.

    The weight is multiplied by a power of two that brings its largest entry near float16's largest number, and the input is divided by
    it; both are exact. Raises ValueError if an entry cannot be represented (see `_halved`).

    The kernel reads the weights again for every six rows of the input. A wide layer does not stay in the cache between two readings, so
    for many rows it is cut into pieces that do: 42 instead of 63 ms for 48 rows of 1536 x 17920 numbers on one core. For up to four rows
    pieces are 10 to 20 % slower, so a layer is cut only if `rows`, what a forward usually has, says so. The numbers are the same.
    """

    def __init__(self, linear: nn.Linear, rows: int = _ROWS) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scaled, self.scale = _halved(linear.weight.detach())
        bias = None if linear.bias is None else linear.bias.detach().to(torch.float32, copy=True)
        size = _PIECE * torch.get_num_threads() if rows >= _MANY_ROWS else self.out_features
        cut = [None] * -(-self.out_features // size) if bias is None else torch.split(bias, size)
        pieces = zip(torch.split(scaled, size), cut, strict=True)
        self.pieces = [torch.ops.quantized.linear_prepack_fp16(weight, bias) for weight, bias in pieces]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        made = [torch.ops.quantized.linear_dynamic_fp16.default(x, piece) for piece in self.pieces]
        return made[0] if len(made) == 1 else torch.cat(made, -1)

    def unpacked(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The weight (out, in) and the bias (out,), if there is one."""
        weights, biases = zip(*map(torch.ops.quantized.linear_unpack_fp16, self.pieces), strict=True)
        return torch.cat(weights) * self.scale, None if biases[0] is None else torch.cat(biases)


def _halved(weight: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The weight times a power of two, all entries of which are float16 numbers, and the reciprocal of the power."""
    largest = float(weight.abs().max())
    power = 14 - math.frexp(largest)[1] if largest > 0 and math.isfinite(largest) else 0
    scaled = weight.to(torch.float32, copy=True).mul_(2.0**power)
    if not all(torch.equal(rows.half().float(), rows) for rows in torch.split(scaled, 1024)):
        raise ValueError("the weight has entries that float16 would round")
    return scaled, 2.0**-power


def _packed(linear: nn.Linear, dtype: torch.dtype, rows: int) -> nn.Module:
    """The quickest form that keeps every number and computes in `dtype`, for about this many rows."""
    ready = torch.backends.quantized.engine in X86_ENGINES and hasattr(torch.ops.quantized, "linear_dynamic_fp16")
    if ready and dtype == torch.float32:
        try:
            return HalfLinear(linear, rows)
        except ValueError:
            pass
    return PackedLinear(widened(linear, dtype))


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this build of torch packs, and this CPU multiplies numbers of this type."""
    ready = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise") and device.type == "cpu"
    return ready and (dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())))


def pack(model: nn.Module, dtype: torch.dtype, batch_size: int = 1) -> nn.Module:
    """Pack all linear layers of a model in place, to compute in this type, for batches of about this size. Training it afterwards is not
    possible."""
    return replace_linears(model, lambda linear: _packed(linear, dtype, batch_size * _ROWS)).to(dtype)


@torch.no_grad()
def replace_linears(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """Put `make(linear)` in the place of every linear layer, one by one, and give back the memory of each original.

    Other parameters are copied once, so that no part of the weight file stays mapped.
    """
    uses: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        uses[parameter.data_ptr()] = uses.get(parameter.data_ptr(), 0) + 1
    found = [(module, name, child) for module in model.modules() for name, child in module.named_children() if type(child) is nn.Linear]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # reordering uses one core
        for (module, name, child), new in zip(found, pool.map(lambda each: make(each[2]), found), strict=True):
            setattr(module, name, new)
            if uses[child.weight.data_ptr()] == 1:
                _forget(child.weight)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if uses.get(parameter.data_ptr(), 0) == 1:
                setattr(module, name, nn.Parameter(parameter.detach().clone(), requires_grad=False))
                _forget(parameter)
    return model


def widened(linear: nn.Linear, dtype: torch.dtype) -> nn.Linear:
    """The layer in another type; itself if it has that type already."""
    if linear.weight.dtype == dtype:
        return linear
    bias = linear.bias
    new = nn.Linear(linear.in_features, linear.out_features, bias=bias is not None, device="meta")
    new.weight = nn.Parameter(linear.weight.to(dtype), requires_grad=False)
    if bias is not None:
        new.bias = nn.Parameter(bias.to(dtype), requires_grad=False)
    return new


def _forget(tensor: torch.Tensor) -> None:
    """Give the pages of a tensor that is no longer used back: weights read from a file are mapped, and would count as resident."""
    if not sys.platform.startswith("linux"):
        return
    page = 4096
    start = -(-tensor.data_ptr() // page) * page
    size = (tensor.data_ptr() + tensor.nbytes - start) // page * page
    if size > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), 4)  # MADV_DONTNEED
