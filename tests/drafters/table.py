"""A causal model that is a table: logits for each text. Its cache holds tokens where a real one holds keys and values, so that a test
can read what it keeps, and all is float64, so that laws can be enumerated.

Axes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from paceline.sampling import SamplingParams
from paceline.sequence import Sequence as Request
from paceline.targets.base import Output
from paceline.tree import Tree

from ..rules.exact import table

PROMPT = (0, 1)


@dataclass
class Slot:
    tokens: list[int] = field(default_factory=list)
    scratch: Tree | None = None


class TokenCache:
    """The cache protocol, for tokens."""

    def __init__(self) -> None:
        self.slots: dict[int, Slot] = {}

    def open(self, capacity: int = 0) -> int:
        slot = len(self.slots)
        self.slots[slot] = Slot()
        return slot

    def free(self, slot: int) -> None:
        del self.slots[slot]

    def length(self, slot: int) -> int:
        return len(self.slots[slot].tokens)

    def scratch(self, slot: int) -> int:
        tree = self.slots[slot].scratch
        return 0 if tree is None else len(tree)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        kept = self.slots[slot]
        kept.tokens += [kept.scratch.tokens[n] for n in path]
        kept.scratch = None

    def truncate(self, slot: int, length: int) -> None:
        self.slots[slot] = Slot(self.slots[slot].tokens[:length])


class TableModel:
    """`logits` of a text (all its tokens) are (V,) logits. `forwards` counts the nodes of each sequence in each forward."""

    max_length = None
    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self, logits: Callable[[tuple[int, ...]], torch.Tensor]) -> None:
        self.logits, self.cache = logits, TokenCache()
        self.vocab_size = len(logits(PROMPT))
        self.forwards: list[list[int]] = []

    def prefill(self, slots, tokens, layer_ids=()) -> None:
        for slot, more in zip(slots, tokens, strict=True):
            self.cache.slots[slot].tokens += more

    def verify(self, trees, slots, layer_ids=(), head_starts=()) -> Output:
        rows, sizes = [], []
        for tree, slot in zip(trees, slots, strict=True):
            kept, known = self.cache.slots[slot], self.cache.scratch(slot)
            rows += [self.logits((*kept.tokens, *(tree.tokens[n] for n in tree.path(node)))) for node in range(known, len(tree))]
            sizes.append(len(tree) - known)
            kept.scratch = tree
        self.forwards.append(sizes)
        return Output(torch.stack(rows), sizes)


def model(vocab: int, seed: int, zeros: float = 0.0) -> TableModel:
    """Random logits for each text, some of them -inf."""
    return TableModel(table(vocab, seed, zeros))


def request(count: int = 20, prompt: Sequence[int] = PROMPT, **params) -> Request:
    return Request(prompt, SamplingParams(max_new_tokens=count, **{"temperature": 1.0, **params}))
