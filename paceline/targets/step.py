"""The cache as one forward sees it: which new rows go where, and which sequences an attention call serves.

Axes: R slots of a slab, H key/value heads, T committed tokens, S scratch rows, D head size.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from transformers.cache_utils import Cache as TransformersCache

from .slab import Slot

_CALL = 800  # rows of padding for one node that cost about as much as one more attention call
_FEW = 16  # new nodes of a sequence that may share a call


@dataclass(frozen=True)
class Part:
    """Sequences that one attention call serves: one with all its new nodes, or several (n), each with few.

    `nodes` are the new nodes' places in the forward; of several sequences (n, N), where those with fewer repeat their last one, and `real`
    are then the (m,) places in (n * N) that are no repetition. `ends` are the numbers of rows up to each sequence's last new one.
    """

    nodes: slice | torch.Tensor
    ends: tuple[int, ...]
    real: torch.Tensor | None = None

    @classmethod
    def several(cls, first: Sequence[int], sizes: Sequence[int], ends: Sequence[int]) -> Part:
        """Sequences with `sizes` new nodes from the places `first` on."""
        most = max(sizes)
        nodes = [[f + min(i, size - 1) for i in range(most)] for f, size in zip(first, sizes, strict=True)]
        real = [k * most + i for k, size in enumerate(sizes) for i in range(size)]
        return cls(torch.tensor(nodes), tuple(ends), None if len(real) == most * len(sizes) else torch.tensor(real))

    def only_real(self, rows: torch.Tensor) -> torch.Tensor:
        """(n, N, ...) of several sequences -> (m, ...) without the repetitions."""
        flat = rows.flatten(0, 1)
        return flat if self.real is None else flat[self.real]


class Segments(list[torch.Tensor]):
    """Keys or values of the parts of one forward, (sequences of the part, H, longest T + S, D) each.

    `masks` keeps what attention makes of the forward's mask, so that the layers share it.
    """

    def __init__(self, tensors: list[torch.Tensor], parts: list[Part], masks: dict[int, list[torch.Tensor | None]]) -> None:
        super().__init__(tensors)
        self.parts, self.masks = parts, masks


class Step(TransformersCache):  # type: ignore[misc]
    """The cache as one forward sees it. Transformers hands each layer's new rows to `update` and attends to what it returns."""

    def __init__(self, states: list[Slot], sizes: list[int], starts: list[int]) -> None:
        self._states, self._sizes, self._starts = states, sizes, starts
        self._groups = _groups(states, starts, sizes)
        firsts = list(accumulate(sizes, initial=0))
        self._parts = [self._part(group, firsts) for group in self._groups]
        self._places: list[torch.Tensor | None] = [None] * len(self._groups)  # see `_rows`
        self._masks: dict[int, list[torch.Tensor | None]] = {}
        self.layers: list[Any] = []

    def _part(self, group: Sequence[int], firsts: Sequence[int]) -> Part:
        ends = [self._starts[i] + self._sizes[i] for i in group]
        if len(group) == 1:
            return Part(slice(firsts[group[0]], firsts[group[0] + 1]), tuple(ends))
        return Part.several([firsts[i] for i in group], [self._sizes[i] for i in group], ends)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Write (1, H, sum of sizes, D) new rows to their slots and return all rows of each slot, as `Segments`."""
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for number, (group, part) in enumerate(zip(self._groups, self._parts, strict=True)):
            state = self._states[group[0]]
            key, value = state.slab.buffers(layer_idx, key_states, value_states)
            rows = slice(state.row, state.row + len(group))
            for buffer, new, found in ((key, key_states, keys), (value, value_states, values)):
                if isinstance(part.nodes, slice):
                    buffer[rows, :, self._starts[group[0]] : part.ends[0]] = new[:, :, part.nodes]
                else:
                    written = part.only_real(new[0].transpose(0, 1)[part.nodes])  # (m, H, D)
                    buffer.flatten(0, 2).index_copy_(0, self._rows(number, buffer), written.flatten(0, 1))
                found.append(buffer[rows, :, : max(part.ends)])
        return Segments(keys, self._parts, self._masks), Segments(values, self._parts, self._masks)

    def _rows(self, number: int, buffer: torch.Tensor) -> torch.Tensor:
        """(m * H,) where the new rows of a part go in the (R * H * capacity) rows of a buffer; the same in every layer."""
        places = self._places[number]
        if places is None:
            _, heads, capacity, _ = buffer.shape
            news = ((self._states[i].row, self._starts[i] + node) for i in self._groups[number] for node in range(self._sizes[i]))
            rows = [(slot * heads + head) * capacity + row for slot, row in news for head in range(heads)]
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
    none come in where the model is to embed them.

    `calls` is what the model has handed each layer beside the states: masks, positions, this step. The same rows need it in later layers.
    """

    def __init__(self, states: list[Slot], sizes: list[int], span: range, hidden: torch.Tensor | None) -> None:
        super().__init__(states, sizes, [state.enter(span, size) for state, size in zip(states, sizes, strict=True)])
        self.span, self.hidden = span, hidden
        self.calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._lie = _lie(states)

    def go_on(self, span: range, hidden: torch.Tensor) -> None:
        """The same rows go through further layers."""
        starts = [state.enter(span, size) for state, size in zip(self._states, self._sizes, strict=True)]
        assert starts == self._starts, f"rows from {starts} on enter layers {span}, and this step is for those from {self._starts} on"
        self.span, self.hidden = span, hidden

    def is_for(self, states: Sequence[Slot]) -> bool:
        """Whether it is for these sequences, and their rows lie where they did."""
        return len(states) == len(self._states) and all(map(operator.is_, states, self._states)) and _lie(states) == self._lie

    def close(self) -> None:
        """The forward went well."""
        for state, size, first in zip(self._states, self._sizes, self._starts, strict=True):
            state.leave(self.span, first, size)


def _lie(states: Sequence[Slot]) -> list[tuple[int, int]]:
    """Where rows lie: a slot that moves gets a larger slab."""
    return [(state.place.capacity if state.place else 0, state.row) for state in states]


def _groups(states: Sequence[Slot], starts: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Which sequences share an attention call: neighbours in a slab with few new nodes each, if padding costs less than further calls."""
    seen = {id(state.slab): i for i, state in reversed([*enumerate(states)])}  # slabs in the order of their first sequences
    ordered = sorted(range(len(states)), key=lambda i: (seen[id(states[i].slab)], states[i].row))
    groups: list[list[int]] = []
    for i in ordered:
        last = groups[-1] if groups else []
        fits = last and _neighbours(states[last[-1]], states[i]) and all(0 < sizes[k] <= _FEW for k in (last[0], i))
        if fits and _padding([(starts[k] + sizes[k], sizes[k]) for k in (*last, i)]) <= _CALL * len(last):
            last.append(i)
        else:
            groups.append([i])
    return groups


def _neighbours(one: Slot, other: Slot) -> bool:
    return one.slab is other.slab and one.row + 1 == other.row


def _padding(shapes: Sequence[tuple[int, int]]) -> float:
    """What sequences of (rows, nodes) cost more in one call than in calls of their own, in rows for one node.

    A row costs a fixed part, since it is read, and a part for each node: on CPUs twice as much for four nodes, six times for sixteen.
    """
    rows, nodes = (max(each) for each in zip(*shapes, strict=True))
    return float(sum(rows * (2 + nodes) - r * (2 + n) for r, n in shapes)) / 3
