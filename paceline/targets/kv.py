"""The key/value cache of a Transformers model: one slot per sequence, rolled back by moving a length.

Slots of equal capacity lie side by side in slabs, so that one attention call can read several of them; a batch of eight needs few calls
and a batch of one has its own slab. No forward copies what is already there, and a slab whose slots are all free gives its memory back.
Rotary positions are prefix length plus depth, so kept rows never need to be rotated again.

Rows that have been through some layers only lie behind a slot's scratch rows, until they have been through all.

Axes: R slots of a slab, H key/value heads, T committed tokens, S scratch rows, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import Cache as TransformersCache

_STEP = 64  # rows; capacities are multiples of this
_SLOTS = 16  # of a slab, at most
_PADDING = 256  # rows of padding that cost about as much as one more attention call


class _Slab:
    """Slots of one capacity, each (H, capacity, D) in every layer."""

    def __init__(self, slots: int, capacity: int) -> None:
        self.slots, self.capacity = slots, capacity
        self.free = list(range(slots))  # ascending
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # keys and values, (R, H, capacity, D)

    def buffers(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffers of a layer, made on first use with the shapes that the model itself produces.

        Where one call reads several slots it also reads what lies behind the shorter ones, and multiplies it by zero: that must be finite.
        """
        if layer not in self.layers:
            make = torch.Tensor.new_empty if self.slots == 1 else torch.Tensor.new_zeros
            shapes = ((x, (self.slots, x.shape[1], self.capacity, x.shape[3])) for x in (key, value))
            self.layers[layer] = tuple(make(x, shape) for x, shape in shapes)  # type: ignore[assignment]
        return self.layers[layer]

    @torch.inference_mode()
    def give_back(self, row: int) -> None:
        self.free = sorted([*self.free, row])
        if len(self.free) < self.slots:  # a neighbour may read here yet, and a failed request may have left infinities
            for pair in self.layers.values():
                for buffer in pair:
                    buffer[row].zero_()


@dataclass
class _Slot:
    slab: _Slab
    row: int
    length: int = 0
    scratch: int = 0
    begun: list[int] = field(default_factory=list)  # layers that each row behind the scratch rows has been through, never ascending

    def rows(self, layer: int) -> int:
        """How many rows there are in this layer."""
        return self.length + self.scratch + sum(done > layer for done in self.begun)

    def enter(self, span: range, size: int) -> int:
        """Where so many rows begin that go through these layers next. All rows before them have been there (invariant I1)."""
        first = self.rows(span.start)
        ahead = first - self.length - self.scratch
        entering = self.begun[ahead : ahead + size]
        assert all(done >= span.stop for done in self.begun[:ahead]), f"rows enter layers {span} before {self.begun[:ahead]} are through"
        assert entering == [span.start] * len(entering), f"rows that enter layer {span.start} have been through {entering} layers"
        assert len(entering) == size or span.start == 0, f"{size} rows enter layer {span.start}, and {len(entering)} are there"
        return first

    def leave(self, span: range, first: int, size: int) -> None:
        """These rows have been through the layers."""
        ahead = first - self.length - self.scratch
        self.begun[ahead : ahead + size] = [span.stop] * size
        assert self.begun == sorted(self.begun, reverse=True), f"layers done must never ascend: {self.begun} (invariant I2)"

    def buffers(self) -> Iterator[torch.Tensor]:
        """Keys and values of every layer, (H, capacity, D) each."""
        return (buffer[self.row] for pair in self.slab.layers.values() for buffer in pair)


def _rounded(capacity: int) -> int:
    """A capacity of which there are few, so that slots share slabs: three significant bits."""
    step = max(_STEP, (1 << (max(capacity, 1) - 1).bit_length()) // 4)
    return -(-max(capacity, 1) // step) * step


class SlotCache:
    """Slots with committed and scratch rows. It does not know tokens."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._slabs: list[_Slab] = []

    def open(self, capacity: int = 0) -> int:
        slot = next(i for i in range(len(self._slots) + 1) if i not in self._slots)
        self._slots[slot] = _Slot(*self._place(capacity))
        return slot

    def free(self, slot: int) -> None:
        self._leave(self._slots.pop(slot))

    def _place(self, capacity: int) -> tuple[_Slab, int]:
        """A free row of a slab; a new slab has as many rows as its like have in use."""
        capacity = _rounded(capacity)
        alike = [s for s in self._slabs if s.capacity == capacity]
        slab = next((s for s in alike if s.free), None)
        if slab is None:
            slab = _Slab(min(max(sum(s.slots for s in alike), 1), _SLOTS), capacity)
            self._slabs.append(slab)
        return slab, slab.free.pop(0)

    def _leave(self, state: _Slot) -> None:
        state.slab.give_back(state.row)
        if len(state.slab.free) == state.slab.slots:
            self._slabs.remove(state.slab)

    def _reserve(self, state: _Slot, rows: int) -> None:
        """Move a slot whose slab has too little room."""
        if rows <= state.slab.capacity:
            return
        used = state.length + state.scratch + len(state.begun)
        slab, row = self._place(max(rows, state.slab.capacity * 3 // 2))
        for layer, pair in state.slab.layers.items():
            for new, old in zip(slab.buffers(layer, *pair), pair, strict=True):
                new[row, :, :used] = old[state.row, :, :used]
        self._leave(state)
        state.slab, state.row = slab, row

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
        return sum(buffer.nbytes for slab in self._slabs for pair in slab.layers.values() for buffer in pair)

    def step(self, slots: Sequence[int], sizes: Sequence[int]) -> Step:
        """Room for `sizes` new scratch rows in each slot, as the cache argument of one forward."""
        states = [self._slots[s] for s in slots]
        for state, size in zip(states, sizes, strict=True):
            state.begun = []  # what was begun is run anew
            self._reserve(state, state.length + state.scratch + size)
        return Step(states, list(sizes), [s.length + s.scratch for s in states])

    def layer_step(self, slots: Sequence[int], sizes: Sequence[int], span: range, hidden: torch.Tensor | None) -> LayerStep:
        """The same for a forward through the layers of `span` only, which `sizes` rows of each slot enter with `hidden`."""
        states = [self._slots[s] for s in slots]
        for state, size in zip(states, sizes, strict=True):
            self._reserve(state, state.rows(span.start) + size)
        return LayerStep(states, list(sizes), span, hidden)


@dataclass(frozen=True)
class Part:
    """Sequences that one attention call serves: one with all its new nodes, or several with one new node each.

    `nodes` are the new nodes' places in the forward, and `ends` the numbers of rows up to each sequence's last new one.
    """

    nodes: slice | torch.Tensor
    ends: tuple[int, ...]


class Segments(list[torch.Tensor]):
    """Keys or values of the parts of one forward, (sequences of the part, H, longest T + S, D) each.

    `masks` keeps what attention makes of the forward's mask, so that the layers share it.
    """

    def __init__(self, tensors: list[torch.Tensor], parts: list[Part], masks: dict[int, list[torch.Tensor | None]]) -> None:
        super().__init__(tensors)
        self.parts, self.masks = parts, masks


class Step(TransformersCache):  # type: ignore[misc]
    """The cache as one forward sees it. Transformers hands each layer's new rows to `update` and attends to what it returns."""

    def __init__(self, states: list[_Slot], sizes: list[int], starts: list[int]) -> None:
        self._states, self._sizes, self._starts = states, sizes, starts
        self._groups = _groups(states, starts, sizes)
        offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        self._parts: list[Part] = []
        self._places: list[torch.Tensor | None] = []  # see `_rows`
        for group in self._groups:
            ends = tuple(starts[i] + sizes[i] for i in group)
            nodes = slice(offsets[group[0]], offsets[group[0]] + sizes[group[0]])
            self._parts.append(Part(nodes if len(group) == 1 else torch.tensor([offsets[i] for i in group]), ends))
            self._places.append(None)
        self._masks: dict[int, list[torch.Tensor | None]] = {}
        self.layers: list[Any] = []

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Write (1, H, sum of sizes, D) new rows to their slots and return all rows of each slot, as `Segments`."""
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for number, (group, part) in enumerate(zip(self._groups, self._parts, strict=True)):
            state = self._states[group[0]]
            key, value = state.slab.buffers(layer_idx, key_states, value_states)
            rows = slice(state.row, state.row + len(group))
            for buffer, new, found in ((key, key_states, keys), (value, value_states, values)):
                if len(group) == 1:
                    buffer[rows, :, self._starts[group[0]] : part.ends[0]] = new[:, :, part.nodes]
                else:
                    flat = new[0].transpose(0, 1)[part.nodes].flatten(0, 1)  # (n * H, D)
                    buffer.flatten(0, 2).index_copy_(0, self._rows(number, buffer), flat)
                found.append(buffer[rows, :, : max(part.ends)])
        return Segments(keys, self._parts, self._masks), Segments(values, self._parts, self._masks)

    def _rows(self, number: int, buffer: torch.Tensor) -> torch.Tensor:
        """(n * H,) where the new rows of a part go in the (R * H * capacity) rows of a buffer; the same in every layer."""
        places = self._places[number]
        if places is None:
            group = [(self._states[i].row, self._starts[i]) for i in self._groups[number]]
            _, heads, capacity, _ = buffer.shape
            rows = [(row * heads + head) * capacity + start for row, start in group for head in range(heads)]
            places = self._places[number] = torch.tensor(rows, device=buffer.device)
        return places

    def close(self) -> None:
        """The forward went well: the new rows are scratch now."""
        for state, size in zip(self._states, self._sizes, strict=True):
            state.scratch += size

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._starts[0] if self._starts else 0


class LayerStep(Step):
    """The cache as a forward through some layers sees it. It also carries the rows' hidden states (1, N, H) in and out (`layers.Gate`);
    none come in where the model is to embed them."""

    def __init__(self, states: list[_Slot], sizes: list[int], span: range, hidden: torch.Tensor | None) -> None:
        super().__init__(states, sizes, [state.enter(span, size) for state, size in zip(states, sizes, strict=True)])
        self.span, self.hidden = span, hidden

    def close(self) -> None:
        """The forward went well."""
        for state, size, first in zip(self._states, self._sizes, self._starts, strict=True):
            state.leave(self.span, first, size)


def _groups(states: Sequence[_Slot], starts: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Which sequences share an attention call: neighbours in a slab with one new node each, if padding the shorter ones costs less than
    further calls."""
    seen = {id(state.slab): i for i, state in reversed([*enumerate(states)])}  # slabs in the order of their first sequences
    ordered = sorted(range(len(states)), key=lambda i: (seen[id(states[i].slab)], states[i].row))
    groups: list[list[int]] = []
    for i in ordered:
        last = groups[-1] if groups else []
        joins = bool(last) and sizes[i] == sizes[last[0]] == 1 and states[i].slab is states[last[-1]].slab
        if joins and states[i].row == states[last[-1]].row + 1:
            lengths = [starts[k] for k in (*last, i)]
            if sum(max(lengths) - n for n in lengths) <= _PADDING * len(last):
                last.append(i)
                continue
        groups.append([i])
    return groups
