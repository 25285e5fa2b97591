"""What rules for several candidates do at one node, averaged over all ways to draw the children. No sampling.

Axes: V vocabulary, k children.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from paceline.draft import Siblings
from paceline.rules import multi
from paceline.rules.resispec import resispec_printed
from paceline.rules.walk import Rule

IID, WOR, TOP = Siblings.IID, Siblings.WITHOUT_REPLACEMENT, Siblings.TOP_AND_DRAW
LOSSLESS = [multi.naive, multi.rrs, multi.rrs_wor, multi.k_seq, multi.ramp, multi.ramp_wor, multi.greedy_draft]
PAIRS = [(rule, kind) for rule in LOSSLESS for kind in Siblings if kind in rule.needs]
NAMES = [f"{rule.name}, {kind.value}" for rule, kind in PAIRS]
PRINTED = (resispec_printed, IID)


def vector(*probs: float) -> torch.Tensor:
    return torch.tensor(probs, dtype=torch.float64)


def random_law(vocab: int, seed: int, spread: float = 1.5, near: torch.Tensor | None = None) -> torch.Tensor:
    """(V,) softmax of Gaussian logits, or of `near`'s logits and Gaussian noise."""
    noise = spread * torch.randn(vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.softmax(noise if near is None else near.log() + noise, 0)


def ways(siblings: Siblings, q: torch.Tensor, k: int) -> Iterator[tuple[list[int], float]]:
    """Every list of k children in draw order, with its probability; fewer children if q has no more tokens to draw."""
    if not k or not float(q.sum()) > 0:
        yield [], 1.0
        return
    top = siblings is TOP and k > 1 and int((q > 0).sum()) > 1
    for token in [int(q.argmax())] if top else q.nonzero().flatten().tolist():
        left = q if siblings is IID else multi.without(q, [token])
        for others, prob in ways(siblings, left, k - 1):
            yield [token, *others], prob * (1.0 if top else float(q[token] / q.sum()))


def accepted(rule: Rule, siblings: Siblings, p: torch.Tensor, q: torch.Tensor, k: int) -> float:
    """The probability that a node ends in one of its children."""
    return math.fsum(prob * multi.acceptance(rule, p, q, tokens) for tokens, prob in ways(siblings, q, k))


def emitted(rule: Rule, siblings: Siblings, p: torch.Tensor, q: torch.Tensor, k: int) -> torch.Tensor:
    """(V,) the law of the emitted token."""
    return sum((prob * multi.emitted(rule, p, q, tokens) for tokens, prob in ways(siblings, q, k)), torch.zeros_like(p))


def variation(law: torch.Tensor, p: torch.Tensor) -> float:
    """Total variation."""
    return float((law - p).abs().sum()) / 2
