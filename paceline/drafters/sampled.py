"""A draft drawn into a shape, level by level: one forward of the draft model for all nodes of a level that have children.

What is drawn at a node is a function of its path and of the request's own random numbers; how many children it has, of its path
alone. Both are needed for a rule that reads the draft's probabilities to be lossless.

Axes: M nodes of one forward, V vocabulary.
"""

from __future__ import annotations

import torch

from ..draft import Draft, Siblings, law
from ..sampling import Rng, process, truncate
from ..sequence import Sequence as Request
from ..tree import Tree
from .draft_growth import Growth
from .shapes import Shape


class ShapedGrowth(Growth):
    """Fills a shape with draws, or with the likeliest children if `siblings` is FIXED. Nodes are in breadth-first order.

    A node whose law gives mass to fewer tokens than it has places has fewer children, unless draws may repeat.
    """

    def __init__(self, seq: Request, fed: list[int], depth: int, *, shape: Shape, siblings: Siblings) -> None:
        super().__init__(seq, fed, depth)
        self.shape, self.siblings = shape, siblings
        self._places, self._level = [0], 0  # of each node, the node of the shape
        self._logits: list[torch.Tensor] = []
        self._rows: dict[int, int] = {}  # node -> row of logits

    def expand(self, rows: torch.Tensor) -> None:
        """Draw the children of the nodes that ran, (M, V) logits; those that have places below them run next."""
        new = []
        for node, row in zip(self.running, rows, strict=True):
            places = self.shape.children[self._places[node]]
            tokens = self._children(node, row, len(places))
            self._places += places[: len(tokens)]
            new += [self.add(node, token) for token in tokens]
        self._level += 1
        self.run_next([n for n in new if self.shape.children[self._places[n]]] if self._level < self.depth else [])

    def _children(self, node: int, row: torch.Tensor, count: int) -> list[int]:
        row = process(row, self.seq, self.path_tokens(node), custom=False)
        if not bool(row.max().isfinite()):  # all banned, or a draft model that returns no numbers: nothing to propose here
            return []
        self.believe(node, row)
        if self.siblings is Siblings.FIXED:
            return likeliest(row, count)
        row = stated(truncate(row, self.seq.params))
        self._rows[node] = len(self._logits)
        self._logits.append(row)
        return draw(law(row), count, self.siblings, self.seq.rng)

    def draft(self) -> Draft:
        tree = Tree(tuple(self.tokens), tuple(self.parents))
        beliefs = self.beliefs(range(len(tree)))
        if not self._logits:
            return Draft(tree, self.siblings, beliefs=beliefs)
        rows = tuple(self._rows.get(n, -1) for n in range(len(tree)))
        return Draft(tree, self.siblings, torch.stack(self._logits), rows, beliefs=beliefs)


def stated(row: torch.Tensor) -> torch.Tensor:
    """(V,) logits as a draft states them and draws from them: the largest is 0, and in half precision, which halves the memory and
    moves a probability above 1e-7 by at most 0.4 %. Float64 stays what it is, for tests of exact laws."""
    row = row - row.max()
    return row if row.dtype == torch.float64 else row.half()


def likeliest(row: torch.Tensor, count: int) -> list[int]:
    """The tokens of the largest of (V,) logits, at most `count`, none that is banned."""
    best = row.topk(min(count, len(row)))
    return best.indices[best.values.isfinite()].tolist()


def draw(probs: torch.Tensor, count: int, siblings: Siblings, rng: Rng) -> list[int]:
    """Children in draw order from (V,) probabilities, which are used up: fewer than `count` if there are not as many to choose from."""
    if siblings is Siblings.IID:
        return [rng.pick(probs) for _ in range(count)]
    count = min(count, int(probs.count_nonzero()))
    tokens: list[int] = probs.topk(count - 1).indices.tolist() if siblings is Siblings.TOP_AND_DRAW else []
    probs[tokens] = 0
    while len(tokens) < count:
        tokens.append(rng.pick(probs))
        probs[tokens[-1]] = 0
    return tokens
