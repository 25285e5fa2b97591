"""What a rule accepts, what any lossless rule could, and how far its tokens are from the target's law.

Axes: V vocabulary, K children, R rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ..draft import Siblings
from ..errors import InvalidRequest
from ..rules import multi, transport
from ..rules.walk import Rule
from .laws import Laws, Vector, fold, redraw
from .replay import Replay
from .verdict import Advance

MOST_REDRAWS = 1000  # of the children of one row, for its acceptance
EXACT_SHARE = 500  # one row in so many replays has its total variation computed, by up to 512 emitted laws
EXACT_CELLS = {1: 64, 2: 20, 3: 8}  # children -> cells of a row whose children are enumerated: at most 512 ways to draw them
KEYS = ("acceptance", "acceptance_error", "bound", "share_of_bound", "acceptance_by_child", "total_variation", "total_variation_error")
Report = dict[str, Any]


def price(rule: Rule, rows: Sequence[Laws], replays: Sequence[Replay], rng: np.random.Generator, advance: Advance) -> Report:
    """All of it, None without rows. `rows` are the laws with as many tokens as were kept, `replays` those of the same rows, folded."""
    if not rows:
        return dict.fromkeys(KEYS)
    accepted = []
    for laws, replayed in zip(rows, replays, strict=True):
        accepted.append(_acceptance(rule, laws, replayed, rng))
        advance("acceptance", len(accepted), len(rows))
    means, variances = np.array(accepted).T
    acceptance, bound = float(means.mean()), _bound(rows)
    error = math.sqrt(float(variances.sum())) / len(rows)
    shares = acceptance, error, bound, acceptance / bound if bound else None, acceptance_by_child(replays)
    exact = exact_variation(rule, rows[:: math.ceil(EXACT_SHARE * len(rows) / sum(len(r.tokens) for r in replays))], advance)
    return dict(zip(KEYS, (*shares, *(variation(replays) if exact is None else (exact, 0.0))), strict=True))


def _tensors(laws: Laws) -> tuple[torch.Tensor, torch.Tensor]:
    assert laws.q is not None
    return torch.from_numpy(laws.p), torch.from_numpy(laws.q)


def _bound(rows: Sequence[Laws]) -> float | None:
    """Mean over rows; None for more children than the bound is known for."""
    try:
        return float(np.mean([_most(laws) for laws in rows]))
    except InvalidRequest:
        return None


def _most(laws: Laws) -> float:
    if laws.drawn:
        return transport.bound(laws.siblings, *_tensors(laws), len(laws.children))
    return transport.bound_fixed(torch.from_numpy(laws.p), laws.children)


def exactly(rule: Rule, laws: Laws, children: Sequence[int]) -> tuple[float, Vector] | None:
    """Acceptance and emitted law (V,) given these children; None for a rule whose law is not known in closed form."""
    if rule.name == "match":
        return float(laws.p[list(set(children))].sum()), laws.p
    if laws.q is None:
        return None
    known = multi.rrs if rule.name == "rejection" else rule  # for one child they are the same
    try:
        law: Vector = multi.emitted(known, *_tensors(laws), children).numpy()
        return multi.acceptance(known, *_tensors(laws), children), law
    except InvalidRequest:
        return None


def _acceptance(rule: Rule, laws: Laws, replayed: Replay, rng: np.random.Generator) -> tuple[float, float]:
    """Mean over children drawn half as often as in the replays, and the variance of that mean; from the replays themselves where the
    rule's acceptance is not known in closed form."""
    drawn = redraw(laws, min(MOST_REDRAWS, max(2, len(replayed.tokens) // 2)) if laws.drawn else 1, rng).tolist()
    found = [e[0] for children in drawn if (e := exactly(rule, laws, children)) is not None] or replayed.taken >= 0
    return float(np.mean(found)), float(np.var(found)) / len(found)


def acceptance_by_child(replays: Sequence[Replay]) -> list[float]:
    """How often the first, second, ... child was taken, of all decisions: at nodes of one width, what shape sequoia wants to know."""
    width, taken = max(len(r.laws.children) for r in replays), np.concatenate([r.taken for r in replays])
    return [float(np.mean(taken == place)) for place in range(width)]


def exact_variation(rule: Rule, rows: Sequence[Laws], advance: Advance) -> float | None:
    """Mean over rows of the total variation between emitted and target law, all children enumerated, on rows folded to EXACT_CELLS.

    None if a node has more children than that, or the rule's law is not known in closed form.
    """
    found = []
    for done, laws in enumerate(rows, 1):
        cells = EXACT_CELLS.get(len(laws.children) if laws.drawn else 1)
        if cells is None:
            return None
        folded = fold(laws, cells - 4)
        law = np.zeros_like(folded.p)
        for children, probability in ways(folded):
            given = exactly(rule, folded, children)
            if given is None:
                return None
            law += probability * given[1]
        found.append(float(np.abs(law - folded.p).sum()) / 2)
        advance("total variation", done, len(rows))
    return float(np.mean(found))


def ways(laws: Laws) -> Iterator[tuple[tuple[int, ...], float]]:
    """All children that may be drawn, in order, with their probability."""
    if not laws.drawn:
        yield laws.children, 1.0
        return
    assert laws.q is not None
    yield from _ways(laws, laws.q / laws.q.sum(), ())


def _ways(laws: Laws, left: Vector, head: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], float]]:
    if len(head) == len(laws.children) or not left.any():
        yield head, 1.0
        return
    top = laws.siblings is Siblings.TOP_AND_DRAW and len(head) < min(len(laws.children), len(head) + int(np.count_nonzero(left))) - 1
    for token in [int(left.argmax())] if top else np.flatnonzero(left).tolist():
        rest = left.copy()
        if laws.siblings is not Siblings.IID:
            rest[token] = 0
            rest /= rest.sum() or 1.0
        for tail, probability in _ways(laws, rest, (*head, token)):
            yield tail, probability * (1.0 if top else float(left[token]))


def variation(replays: Sequence[Replay]) -> tuple[float, float]:
    """A lower estimate of the total variation between emitted and target law, mean over rows, and its standard error.

    TV = max over sets A of P_emitted(A) - p(A). One half of a row's tokens chooses A, the other half measures it, and the other way
    round: so the mean for a lossless rule is 0, where the plain sum of |differences| would add up noise. A begins as the drafted
    tokens and is changed where the counts of the first half speak against that by a standard deviation.
    """
    excess, noise = np.array([_half(r, *order) for r in replays for order in ((0, 1), (1, 0))]).T
    return max(0.0, float(excess.mean())), math.sqrt(float(noise.sum())) / len(excess)


def _half(one: Replay, chooser: int, judge: int) -> tuple[float, float]:
    """Of one half: what lies in the set beyond its probability, and the variance of that."""
    p, size = one.laws.p, len(one.laws.p)
    seen, judged = (np.bincount(one.tokens[half::2], minlength=size) for half in (chooser, judge))
    expected = p * seen.sum()
    chosen = seen - expected > np.where(one.laws.drafted, -1, 1) * np.sqrt(expected)
    inside = float(p[chosen].sum())
    return float(judged[chosen].sum() / judged.sum()) - inside, inside * (1 - inside) / judged.sum()
