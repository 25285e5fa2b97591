"""A loss whose large intermediate tensors live one chunk at a time.

The chunk's own gradients are made at once and kept, which are as small as its inputs; so nothing is computed twice, unlike with
checkpointing. The result is the same as that of the plain loss, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Part = Callable[[torch.Tensor, slice], tuple[torch.Tensor, torch.Tensor]]  # rows, where -> loss (), figures (M,)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Part, chunk: int, hidden: torch.Tensor, *parameters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wanted = any(ctx.needs_input_grad)
        grad = torch.zeros_like(hidden)
        sums = [torch.zeros_like(p) for p in parameters]
        total, figures = hidden.new_zeros((), dtype=torch.float32), None
        for start in range(0, len(hidden), chunk):
            where = slice(start, start + chunk)
            with torch.set_grad_enabled(wanted):
                rows = hidden[where].detach().requires_grad_(wanted)
                loss, found = part(rows, where)
            if wanted:
                own, *others = torch.autograd.grad(loss, [rows, *parameters], allow_unused=True)
                grad[where] = own
                for into, other in zip(sums, others, strict=True):
                    if other is not None:
                        into += other
            total = total + loss.detach()
            figures = found.detach() if figures is None else figures + found.detach()
        ctx.save_for_backward(grad, *sums)
        assert figures is not None, "there are no rows"
        ctx.mark_non_differentiable(figures)
        return total, figures

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        scale = grads[0]
        return (None, None, *(scale * g for g in ctx.saved_tensors))


def chunked(part: Part, hidden: torch.Tensor, parameters: Sequence[torch.Tensor], chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum `part` over chunks of `hidden`'s first axis. Gradients reach `hidden` and `parameters`, which `part` may use besides.

    Returns the loss () and the summed figures, which carry no gradient.
    """
    found: tuple[torch.Tensor, torch.Tensor] = _Chunked.apply(part, chunk, hidden, *parameters)  # type: ignore[no-untyped-call]
    return found
