"""Memory of the key/value cache: slots side by side in slabs, so that one attention call can read several of them.

A batch of eight needs few calls, and a batch of one has a slab of its own. Slots get their place when their first rows come: those that
were opened until then, a batch for instance, share slabs. A slab whose slots are all free gives its memory back.

Axes: R slots of a slab, H key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

_STEP = 64  # rows; capacities are multiples of this
_SLOTS = 64  # of a slab, at most
_GUESS = 16  # free slots that a slab is given for those that may come, at most
_SPREAD = 2  # slots that come together share a slab if the largest needs at most this many times the rows of the smallest
_LOOSE = 4  # a slab's free row is taken by a slot that needs at least a fourth of it


class Slab:
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
class Slot:
    capacity: int  # rows that it was opened for
    place: Slab | None = None  # none before its first rows come
    row: int = 0
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

    @property
    def slab(self) -> Slab:
        assert self.place is not None, "a slot with rows has a place"
        return self.place

    def buffers(self) -> Iterator[torch.Tensor]:
        """Keys and values of every layer, (H, capacity, D) each."""
        layers = self.place.layers if self.place else {}
        return (buffer[self.row] for pair in layers.values() for buffer in pair)


class Slabs:
    """All slabs of a cache."""

    def __init__(self) -> None:
        self._slabs: list[Slab] = []

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for slab in self._slabs for pair in slab.layers.values() for buffer in pair)

    def place(self, waiting: Sequence[Slot]) -> None:
        """Give each slot a row: one that is free and not much too large, else one of a new slab for all that are alike."""
        left = [slot for slot in sorted(waiting, key=lambda s: _rounded(s.capacity)) if not self._settle(slot)]
        for alike in _alike(left):
            capacity = _rounded(alike[-1].capacity)
            in_use = sum(s.slots for s in self._slabs if s.capacity == capacity)
            self._slabs.append(Slab(max(len(alike), min(in_use, _GUESS)), capacity))
            for slot in alike:
                slot.place, slot.row = self._slabs[-1], self._slabs[-1].free.pop(0)

    def _settle(self, slot: Slot) -> bool:
        """Put a slot into the smallest slab that has a free row for it, if there is one."""
        capacity = _rounded(slot.capacity)
        fitting = [slab for slab in self._slabs if slab.free and capacity <= slab.capacity <= _LOOSE * capacity]
        if fitting:
            slot.place = min(fitting, key=lambda slab: slab.capacity)
            slot.row = slot.slab.free.pop(0)
        return bool(fitting)

    def grow(self, slot: Slot, rows: int) -> None:
        """Move a slot whose slab has too little room for so many rows."""
        if rows <= slot.slab.capacity:
            return
        old, row = slot.slab, slot.row
        used = slot.length + slot.scratch + len(slot.begun)
        slot.capacity = max(rows, old.capacity * 3 // 2)
        self.place([slot])
        for layer, pair in old.layers.items():
            for new, before in zip(slot.slab.buffers(layer, *pair), pair, strict=True):
                new[slot.row, :, :used] = before[row, :, :used]
        self._give_back(old, row)

    def leave(self, slot: Slot) -> None:
        """Give a slot's row back."""
        if slot.place is not None:
            self._give_back(slot.place, slot.row)
            slot.place = None

    def _give_back(self, slab: Slab, row: int) -> None:
        slab.give_back(row)
        if len(slab.free) == slab.slots:
            self._slabs.remove(slab)


def _alike(slots: Sequence[Slot]) -> Iterator[list[Slot]]:
    """Cut slots of ascending capacity into runs that may share a slab."""
    run: list[Slot] = []
    for slot in slots:
        if run and (_rounded(slot.capacity) > _SPREAD * _rounded(run[0].capacity) or len(run) == _SLOTS):
            yield run
            run = []
        run.append(slot)
    if run:
        yield run


def _rounded(capacity: int) -> int:
    """A capacity of which there are few, so that slots share slabs: three significant bits."""
    step = max(_STEP, (1 << (max(capacity, 1) - 1).bit_length()) // 4)
    return -(-max(capacity, 1) // step) * step
