"""The key/value cache of a Transformers model: one slot per sequence, rolled back by moving a length.

No forward copies what is already there. Rotary positions are prefix length plus depth, so kept rows never need to be rotated again.
Rows that have been through some layers only lie behind a slot's scratch rows, until they have been through all.

Axes: H key/value heads, T committed tokens, S scratch rows, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .slab import Slabs, Slot
from .step import LayerStep, Step


class SlotCache:
    """Slots with committed and scratch rows. It does not know tokens."""

    def __init__(self) -> None:
        self._slots: dict[int, Slot] = {}
        self._slabs = Slabs()

    def open(self, capacity: int = 0) -> int:
        slot = next(i for i in range(len(self._slots) + 1) if i not in self._slots)
        self._slots[slot] = Slot(capacity)
        return slot

    def free(self, slot: int) -> None:
        self._slabs.leave(self._slots.pop(slot))

    def _reserve(self, needs: Sequence[tuple[Slot, int]]) -> None:
        """Room for so many rows of each slot; all that were opened and have no place yet get theirs now."""
        for slot, rows in needs:
            slot.capacity = max(slot.capacity, rows)
        self._slabs.place([slot for slot in self._slots.values() if slot.place is None])
        for slot, rows in needs:
            self._slabs.grow(slot, rows)

    def length(self, slot: int) -> int:
        return self._slots[slot].length

    def scratch(self, slot: int) -> int:
        return self._slots[slot].scratch

    def scratch_at(self, slot: int, layer: int) -> int:
        """Rows above the committed ones in this layer: more than `scratch` where some have been through a part of the layers."""
        state = self._slots[slot]
        return state.rows(layer) - state.length

    def settle(self, slot: int, layers: int) -> None:
        """The rows that were begun have been through all these layers: they are scratch rows now."""
        state = self._slots[slot]
        assert state.begun == [layers] * len(state.begun), f"rows are scratch after {layers} layers, and these are through {state.begun}"
        state.scratch += len(state.begun)
        state.begun = []

    @torch.inference_mode()
    def commit(self, slot: int, path: Sequence[int]) -> None:
        state = self._slots[slot]
        rows = list(path)
        assert all(0 <= r < state.scratch for r in rows), f"path {rows} is outside the {state.scratch} scratch rows"
        moved = next((i for i, row in enumerate(rows) if i != row), len(rows))  # rows before this one are in place already
        if moved < len(rows):
            source = torch.tensor(rows[moved:]) + state.length
            start, end = state.length + moved, state.length + len(rows)
            for buffer in state.buffers():
                buffer[:, start:end] = buffer[:, source.to(buffer.device)]
        state.length += len(rows)
        state.scratch, state.begun = 0, []

    def truncate(self, slot: int, length: int) -> None:
        state = self._slots[slot]
        assert length <= state.length, f"cannot truncate {state.length} tokens to {length}"
        state.length, state.scratch, state.begun = length, 0, []

    @property
    def nbytes(self) -> int:
        """Bytes held by all slabs."""
        return self._slabs.nbytes

    def step(self, slots: Sequence[int], sizes: Sequence[int]) -> Step:
        """Room for `sizes` new scratch rows in each slot, as the cache argument of one forward."""
        states = [self._slots[s] for s in slots]
        for state in states:
            state.begun = []  # what was begun is run anew
        self._reserve([(state, state.length + state.scratch + size) for state, size in zip(states, sizes, strict=True)])
        return Step(states, list(sizes), [s.length + s.scratch for s in states])

    def layer_step(
        self, slots: Sequence[int], sizes: Sequence[int], span: range, hidden: torch.Tensor | None, known: LayerStep | None = None
    ) -> LayerStep:
        """The same for a forward through the layers of `span` only, which `sizes` rows of each slot enter with `hidden`. It is `known`, the
        step of the same rows in earlier layers, unless they lie elsewhere by now."""
        states = [self._slots[s] for s in slots]
        if known is not None and hidden is not None and known.is_for(states):
            known.go_on(span, hidden)
            return known
        self._reserve([(state, state.rows(span.start) + size) for state, size in zip(states, sizes, strict=True)])
        return LayerStep(states, list(sizes), span, hidden)
