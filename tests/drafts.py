"""Drafters for tests: one that plants the right continuation among wrong branches, and one that says what it is told."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from paceline.draft import Draft, Siblings
from paceline.sequence import Sequence as Request
from paceline.tree import Tree, TreeBuilder

from .oracle import answer
from .tiny import VOCAB

Truth = Callable[[tuple[int, ...]], Sequence[int]]  # a prompt -> what really follows
Keep = Callable[[Request], int | None]  # how many right tokens to offer next; None offers no draft at all
NODES = 40  # a planted tree is never larger


def varied(seq: Request) -> int | None:
    """No draft, nothing right, or up to six right tokens: by the sequence's own lengths, so the same alone and in company."""
    return random.Random(1000 * seq.prompt_length + len(seq.output)).choice([None, 0, 0, 1, 1, 2, 3, 4, 5, 6])


class Planted:
    """Knows what follows and hides it: at each depth a wrong branch comes first and another after, so that the accepted path is
    never the first rows, and wrong branches spell the right tokens at the wrong place."""

    siblings = Siblings.FIXED
    target_layer_ids: tuple[int, ...] = ()

    def __init__(self, truth: Truth | None = None, keep: Keep = varied) -> None:
        self.truth = truth or (lambda prompt: answer("llama", prompt, 64))
        self.keep = keep

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        return [Draft(self._tree(seq)) for seq in seqs]

    def _tree(self, seq: Request) -> Tree:
        done, keep = len(seq.output), self.keep(seq)
        if keep is None:
            return Tree.chain([seq.root])
        right = list(self.truth(tuple(seq.tokens[: seq.prompt_length])))[done : done + seq.room - 1]
        return plant(seq.root, right[:keep], right[keep : keep + 1], seq.room - 1)


def plant(root: int, right: Sequence[int], then: Sequence[int], depth: int) -> Tree:
    """A tree with the path `right`, whose last node has children, but not `then`, which comes next; no path longer than `depth`."""
    builder, parent = TreeBuilder(root, NODES), 0
    following = [*right, *then]
    for level in range(min(len(right) + 1, depth)):
        token = following[level] if level < len(following) else root
        builder.add_chain([(token + 1) % VOCAB, token][: depth - level], parent)
        node = builder.add(parent, token) if level < len(right) else None
        builder.add_chain([(token + 7) % VOCAB, *right][: min(depth - level, 3)], parent)
        if node is None:
            break
        parent = node
    return builder.build()


class Scripted:
    """Proposes the chain (without the root) or the whole tree that `script` makes of a sequence."""

    target_layer_ids: tuple[int, ...] = ()

    def __init__(self, script: Callable[[Request], Sequence[int] | Tree], siblings: Siblings = Siblings.FIXED) -> None:
        self.script, self.siblings = script, siblings

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        made = [(seq, self.script(seq)) for seq in seqs]
        return [Draft(m if isinstance(m, Tree) else Tree.chain([s.root, *m]), self.siblings) for s, m in made]
