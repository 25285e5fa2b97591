"""A head's own keys and values of one sequence's context, in one buffer that grows.

Axes: L layers of the head, K key/value heads, T context rows, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_STEP = 64  # rows; the buffer grows in multiples of this


class Context:
    """Committed rows 0 to `length - 1`; rows above them are scratch, overwritten by every draft."""

    def __init__(self) -> None:
        self.length = 0
        self.last: torch.Tensor | None = None  # (H,) fused features of the last committed row, if they are known
        self._buffer: torch.Tensor | None = None  # (L, 2, K, capacity, D)

    def append(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]], last: torch.Tensor) -> None:
        """Add rows: for each layer keys and values, (K, n, D) each. `last` (H,) are the fused features that the last one was made of."""
        for index, (key, value) in enumerate(layers):
            self.write(index, key, value, of=len(layers))
        self.length += layers[0][0].shape[1]
        self.last = last

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, *, of: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Put (K, n, D) scratch rows behind the committed ones of one of `of` layers; returns all of its rows, (K, T + n, D) each."""
        end = self.length + key.shape[1]
        buffer = self._reserve(end, key, of)
        buffer[layer, 0, :, self.length : end] = key
        buffer[layer, 1, :, self.length : end] = value
        return buffer[layer, 0, :, :end], buffer[layer, 1, :, :end]

    def truncate(self, length: int) -> None:
        """Forget all rows from `length` on, and with them what the last one was made of: append at least one before the next draft."""
        if length < self.length:
            self.length, self.last = length, None

    @property
    def nbytes(self) -> int:
        return 0 if self._buffer is None else self._buffer.nbytes

    def _reserve(self, rows: int, like: torch.Tensor, layers: int) -> torch.Tensor:
        old = self._buffer
        if old is None or rows > old.shape[3]:
            capacity = -(-max(rows, 0 if old is None else old.shape[3] * 3 // 2) // _STEP) * _STEP
            self._buffer = like.new_empty(layers, 2, like.shape[0], capacity, like.shape[2])
            if old is not None:
                self._buffer[:, :, :, : self.length] = old[:, :, :, : self.length]
        assert self._buffer is not None
        return self._buffer
