"""The key/value cache of a Transformers model: one slot per sequence, rolled back by moving a length.

A slot has one preallocated buffer per layer for keys and one for values, so slots of different length waste nothing, a freed slot
gives its memory back, and no forward copies what is already there. Rotary positions are prefix length plus depth, so kept rows
never need to be rotated again.

Axes: H key/value heads, T committed tokens, S scratch rows, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import Cache as TransformersCache

_STEP = 64  # rows; buffers grow in multiples of this


@dataclass
class _Slot:
    capacity: int
    length: int = 0
    scratch: int = 0
    layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)  # each (1, H, capacity, D)

    def reserve(self, rows: int) -> None:
        if rows > self.capacity:
            self.capacity = -(-max(rows, self.capacity * 3 // 2) // _STEP) * _STEP
            used = self.length + self.scratch
            for layer, pair in self.layers.items():
                self.layers[layer] = tuple(_grown(old, self.capacity, used) for old in pair)  # type: ignore[assignment]

    def buffers(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffers of a layer, made on first use with the shapes that the model itself produces."""
        if layer not in self.layers:
            self.layers[layer] = tuple(x.new_empty(1, x.shape[1], self.capacity, x.shape[3]) for x in (key, value))  # type: ignore[assignment]
        return self.layers[layer]


def _grown(old: torch.Tensor, capacity: int, used: int) -> torch.Tensor:
    new = old.new_empty(1, old.shape[1], capacity, old.shape[3])
    new[:, :, :used] = old[:, :, :used]
    return new


class SlotCache:
    """Slots with committed and scratch rows. It does not know tokens."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}

    def open(self, capacity: int = 0) -> int:
        slot = next(i for i in range(len(self._slots) + 1) if i not in self._slots)
        self._slots[slot] = _Slot(capacity=-(-max(capacity, 1) // _STEP) * _STEP)
        return slot

    def free(self, slot: int) -> None:
        del self._slots[slot]

    def length(self, slot: int) -> int:
        return self._slots[slot].length

    def scratch(self, slot: int) -> int:
        return self._slots[slot].scratch

    @torch.inference_mode()
    def commit(self, slot: int, path: Sequence[int]) -> None:
        state = self._slots[slot]
        rows = list(path)
        assert all(0 <= r < state.scratch for r in rows), f"path {rows} is outside the {state.scratch} scratch rows"
        moved = next((i for i, row in enumerate(rows) if i != row), len(rows))  # rows before this one are in place already
        if moved < len(rows):
            source = torch.tensor(rows[moved:]) + state.length
            start, end = state.length + moved, state.length + len(rows)
            for pair in state.layers.values():
                for buffer in pair:
                    buffer[:, :, start:end] = buffer[:, :, source.to(buffer.device)]
        state.length += len(rows)
        state.scratch = 0

    def truncate(self, slot: int, length: int) -> None:
        state = self._slots[slot]
        assert length <= state.length, f"cannot truncate {state.length} tokens to {length}"
        state.length, state.scratch = length, 0

    @property
    def nbytes(self) -> int:
        """Bytes held by all slots."""
        return sum(buffer.nbytes for slot in self._slots.values() for pair in slot.layers.values() for buffer in pair)

    def step(self, slots: Sequence[int], sizes: Sequence[int]) -> Step:
        """Room for `sizes` new scratch rows in each slot, as the cache argument of one forward."""
        states = [self._slots[s] for s in slots]
        for state, size in zip(states, sizes, strict=True):
            state.reserve(state.length + state.scratch + size)
        return Step(states, list(sizes))


class Segments(list[torch.Tensor]):
    """Keys or values of the sequences of one forward, (1, H, T + S, D) each, with the number of query rows of each.

    `masks` keeps what attention makes of the forward's mask, so that the layers share it.
    """

    def __init__(self, tensors: list[torch.Tensor], sizes: list[int], masks: dict[int, list[torch.Tensor | None]]) -> None:
        super().__init__(tensors)
        self.sizes, self.masks = sizes, masks


class Step(TransformersCache):  # type: ignore[misc]
    """The cache as one forward sees it. Transformers hands each layer's new rows to `update` and attends to what it returns."""

    def __init__(self, states: list[_Slot], sizes: list[int]) -> None:
        self._states, self._sizes = states, sizes
        self._starts = [s.length + s.scratch for s in states]
        self._masks: dict[int, list[torch.Tensor | None]] = {}
        self.layers: list[Any] = []

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Write (1, H, sum of sizes, D) new rows to their slots and return all rows of each slot, as `Segments`."""
        keys, values, offset = [], [], 0
        for state, start, size in zip(self._states, self._starts, self._sizes, strict=True):
            end = start + size
            key, value = state.buffers(layer_idx, key_states, value_states)
            key[:, :, start:end] = key_states[:, :, offset : offset + size]
            value[:, :, start:end] = value_states[:, :, offset : offset + size]
            keys.append(key[:, :, :end])
            values.append(value[:, :, :end])
            offset += size
        return Segments(keys, self._sizes, self._masks), Segments(values, self._sizes, self._masks)

    def close(self) -> None:
        """The forward went well: the new rows are scratch now."""
        for state, size in zip(self._states, self._sizes, strict=True):
            state.scratch += size

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._starts[0]
