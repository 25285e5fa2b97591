"""From rounds to pairs: what the target said where the drafter would have said something else.

Labels end with the first refusal. Behind it the drafter's words stand on a prefix that never was, and tell nothing.

Axes: D depths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..errors import InvalidRequest
from ..tree import Tree
from .texts import RoundRecord, TextRecord


@dataclass(frozen=True)
class Pair:
    """At `depth` (from 1) behind the root the target said `chosen`, and the drafter ranked node `node` with token `refused` above it."""

    depth: int
    chosen: int
    refused: int
    node: int


def pairs(text: TextRecord, round_: RoundRecord) -> Iterator[Pair]:
    """At most one per depth that the round reached: nothing where the drafter's first choice was the target's, or where it had none.

    Of siblings in a tree the best-scored one counts, also where a worse-scored one was accepted; of a chain this leaves the first
    refusal alone.
    """
    tree = round_.tree
    for depth, chosen in enumerate(text.tokens[round_.at + 1 : round_.at + 1 + round_.taken], 1):
        first = first_choice(tree, round_.path[depth - 1], round_.scores)
        if first is not None and tree.tokens[first] != chosen:
            yield Pair(depth, chosen, tree.tokens[first], first)


def first_choice(tree: Tree, node: int, scores: tuple[float, ...] | None) -> int | None:
    """The child that the drafter ranked first: by score, without scores in the order of its children."""
    children = tree.children(node)
    if not children or scores is None:
        return children[0] if children else None
    return max(children, key=lambda child: scores[child])


def branch(round_: RoundRecord, node: int) -> list[int]:
    """The tokens that the drafter ranked first below a node, the node's own first."""
    found: list[int] = []
    tree, following = round_.tree, node
    while following is not None:
        found.append(tree.tokens[following])
        following = first_choice(tree, following, round_.scores)  # type: ignore[assignment]
    return found


def check_pairs(texts: Iterable[TextRecord], where: str) -> int:
    """How many pairs there are. Raises InvalidRequest if there is nothing to learn from: no rounds, or rounds of one kind only."""
    rounds = [(text, r) for text in texts for r in text.rounds]
    if not rounds:
        raise InvalidRequest(f"{where} holds no round of a finished text; record some first: paceline generate ... --record FOLDER")
    if all(len(r.tokens) == 1 for _, r in rounds):
        raise InvalidRequest(f"{where} holds {len(rounds)} rounds without a draft, so nothing was refused; record with a drafter")
    count = sum(1 for text, r in rounds for _ in pairs(text, r))
    if count == 0:
        raise InvalidRequest(f"{where} is one-sided: in {len(rounds)} rounds nothing was refused, so there is no pair; record harder text")
    if all(r.accepted == 0 for _, r in rounds):
        raise InvalidRequest(f"{where} is one-sided: in {len(rounds)} rounds nothing was accepted; train by distillation first")
    return count
