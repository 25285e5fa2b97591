"""The trees of several drafters as one."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..draft import Draft
from ..tree import Tree


@dataclass
class Union:
    """All nodes of some scored drafts, equal paths counted once with the better score."""

    root: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=lambda: [-1])
    scores: list[float] = field(default_factory=lambda: [0.0])
    _index: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens.append(self.root)

    def add(self, draft: Draft) -> None:
        assert draft.scores is not None
        place = [0]
        for token, parent, score in zip(draft.tree.tokens[1:], draft.tree.parents[1:], draft.scores[1:], strict=True):
            node = self._index.setdefault((place[parent], token), len(self.tokens))
            if node == len(self.tokens):
                self.tokens.append(token)
                self.parents.append(place[parent])
                self.scores.append(score)
            self.scores[node] = max(self.scores[node], score)
            place.append(node)

    def likeliest(self, budget: int) -> Draft:
        """The best nodes, best first. No node scores above its parent, which comes first among equals, so they are a tree."""
        order = sorted(range(len(self.tokens)), key=lambda n: (-self.scores[n], n))[:budget]
        place = {-1: -1} | {node: i for i, node in enumerate(order)}
        tree = Tree(tuple(self.tokens[n] for n in order), tuple(place[self.parents[n]] for n in order))
        return Draft(tree, scores=tuple(self.scores[n] for n in order))
