"""The shape of a sampled draft tree, fixed before anything is drawn.

A rule that reads the draft's probabilities is lossless only if how many children a node has does not depend on what was drawn. So a
sampled tree is drawn into a shape: a chain, a complete tree (SpecInfer, Miao et al. 2024), or the tree that is best for measured
acceptance (Sequoia, Chen et al. 2024).

Axes: N nodes, the root included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import InvalidRequest

DEPTH, BUDGET = 6, 6  # where a shape leaves them open and nobody says
MOST_NODES = 1024
FORMS = "chain, chain:LENGTH, WIDTHxDEPTH (3x2 is complete), or sequoia:P1,P2,... (how often the first, second, ... child is accepted)"
_OPEN = frozenset({"num_speculative_tokens", "budget"})


@dataclass(frozen=True)
class Shape:
    """`parents` (N,) in breadth-first order, -1 for the root; the children of a node are in draw order."""

    parents: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """(N,) the children of each node, in draw order."""
        lists: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], 1):
            lists[parent].append(node)
        return tuple(map(tuple, lists))

    @cached_property
    def depth(self) -> int:
        """Of the deepest node; the root has depth 0."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return depths[-1]

    @property
    def is_chain(self) -> bool:
        return self.depth == len(self) - 1

    @classmethod
    def parse(cls, text: str, num_speculative_tokens: int | None = None, budget: int | None = None) -> Shape:
        """The shape that `text` describes, see FORMS. Depth and budget (nodes, the root included) are for what `text` leaves open.

        Raises InvalidRequest for text of another form, and for a depth or a budget that would have no effect.
        """
        kind, _, rest = text.partition(":")
        if text == "chain":
            return chain(min(num_speculative_tokens or DEPTH, budget - 1 if budget else MOST_NODES))
        if kind == "sequoia":
            return sequoia(_numbers(text, rest), budget or BUDGET, num_speculative_tokens or DEPTH)
        if kind == "chain":
            shape = chain(_count(text, rest))
        else:
            width, _, depth = text.partition("x")
            shape = complete(_count(text, width), _count(text, depth))
        for name, value in (("budget", budget), ("num_speculative_tokens", num_speculative_tokens)):
            if value is not None:
                raise InvalidRequest(
                    f"shape {text} has {len(shape)} nodes whatever {name} {value} says; leave {name} out, or name a shape that it limits: "
                    "chain or sequoia:P1,P2,..."
                )
        return shape


def reads(text: str) -> frozenset[str]:
    """Which of depth and budget have an effect on a shape. Raises InvalidRequest for text of no form that there is."""
    if text == "chain" or text.startswith("sequoia:"):
        return _OPEN
    Shape.parse(text)
    return frozenset()


def chain(depth: int) -> Shape:
    """One child per node."""
    return complete(1, depth)


def complete(width: int, depth: int) -> Shape:
    """Every node above `depth` has `width` children. Raises InvalidRequest above MOST_NODES."""
    nodes = 1
    for _ in range(depth):
        nodes = nodes * width + 1
        if nodes > MOST_NODES:
            raise InvalidRequest(f"a tree of width {width} and depth {depth} has more than {MOST_NODES} nodes; take less of one of the two")
    return Shape(tuple((node - 1) // width for node in range(nodes)))


def sequoia(acceptance: Sequence[float], budget: int, depth: int) -> Shape:
    """The tree of at most `budget` nodes and this depth with the largest expected number of accepted tokens.

    Args: `acceptance[i]` is the measured probability that, of the children of a node, the i-th drawn one is accepted. At most one is,
    so they sum to at most 1. They need not fall: a rule that accepts late prefers later children.

    Exact, by dynamic programming (Chen et al. 2024, section 4.1): the expected number is the sum over nodes of the product of
    `acceptance` along the node's path, so an i-th child with s nodes below and including it is worth `acceptance[i]` times the best
    tree of s nodes that is one level less deep, and siblings share what is left. Raises InvalidRequest.
    """
    if not all(0 <= p <= 1 for p in acceptance) or not 0 < sum(acceptance) <= 1 + 1e-6:
        given = ", ".join(f"{p:g}" for p in acceptance)
        raise InvalidRequest(f"acceptance is {given}; of the children of a node at most one is accepted, so these must sum to at most 1")
    if budget > MOST_NODES:
        raise InvalidRequest(f"budget is {budget}; a drawn tree has at most {MOST_NODES} nodes")
    worth = np.minimum(np.arange(budget + 1.0), 1)  # of the best tree of each size, its root counting 1; with no level below it
    shares = []
    for _ in range(min(depth, budget - 1)):
        deeper, share = _level(acceptance, worth)
        shares.append(share)
        if np.array_equal(deeper, worth):
            break
        worth = deeper
    return _grown(shares, budget)


def _level(acceptance: Sequence[float], worth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From the worth of the best trees of each size, that of trees one level deeper, and (children, nodes left) how many of the
    nodes left the i-th child takes; 0 is none, and ends the family."""
    share = np.zeros((len(acceptance), len(worth) - 1), dtype=int)
    later = np.zeros(len(worth) - 1)  # worth of the later siblings, by the nodes left for them
    for child in reversed(range(len(acceptance))):
        best = np.zeros_like(later)
        for left in range(1, len(later)):
            sizes = acceptance[child] * worth[1 : left + 1] + later[left - 1 :: -1]  # 1, 2, ... nodes for this child
            best[left] = sizes.max()
            share[child, left] = 1 + sizes.argmax() if best[left] > 0 else 0
        later = best
    return np.concatenate([[0], 1 + later]), share


def _grown(shares: list[np.ndarray], budget: int) -> Shape:
    """The tree that these shares plan, breadth by breadth."""
    parents, planned = [-1], [(len(shares), budget)]  # levels below a node, and how many nodes it may be with all below it
    for node, (levels, size) in enumerate(planned):  # which grows meanwhile
        left = size - 1
        for share in shares[levels - 1] if levels else ():
            taken = int(share[left])
            if taken == 0:
                break
            parents.append(node)
            planned.append((levels - 1, taken))
            left -= taken
    return Shape(tuple(parents))


def _numbers(text: str, listed: str) -> list[float]:
    try:
        return [float(number) for number in listed.split(",")]
    except ValueError:
        raise InvalidRequest(f"shape {text!r} is none; the forms are {FORMS}") from None


def _count(text: str, number: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,8}", number):
        raise InvalidRequest(f"shape {text!r} is none; the forms are {FORMS}")
    return int(number)
