"""The laws around one decision: what a rule sees at a node, small enough to be decided thousands of times.

Axes: V vocabulary, or cells of a folded one; K children; M redraws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..draft import Siblings

Vector = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Tokens = npt.NDArray[np.int64]
_EDGES = (0.0, 0.5, 1.0, 2.0, np.inf)  # of p / q: what is folded into one cell is over- or under-drafted alike


@dataclass(frozen=True, eq=False)
class Laws:
    """One node: the target's law `p` (V,), the draft's row `q` (V,) or None, and the children, as token ids.

    `children` are those of this draft if they are FIXED or there is no row, and the same for every redraw; else only their number
    counts.
    """

    p: Vector
    q: Vector | None
    siblings: Siblings
    children: tuple[int, ...] = ()

    @property
    def drawn(self) -> bool:
        """Whether the children are draws from `q`, so that they may differ from redraw to redraw."""
        return self.siblings is not Siblings.FIXED and self.q is not None

    @cached_property
    def order(self) -> Vector:
        """(V,) a key for each token, smallest for those that a faulty rule would emit too often: p / q, or 0 for FIXED children.

        It depends on nothing that is random at this node, which is what makes `place` exact.
        """
        if not self.children:
            return np.ones_like(self.p)
        if self.drawn:
            return ratio(self.p, self.q)
        key = np.ones_like(self.p)
        key[list(self.children)] = 0
        return key

    @cached_property
    def drafted(self) -> Mask:
        """(V,) the tokens that are drafted more often than they should be emitted: q > p, or FIXED children."""
        return self.order < 1

    def place(self, token: int, v: float) -> float:
        """P(tokens before `token`) + v p(token) in this order: uniform if `token` is drawn from p and v from [0, 1)."""
        return _place(self.p, self.order, token, v)


def ratio(p: Vector, q: Vector | None) -> Vector:
    """(V,) p / q, infinite where q is 0."""
    assert q is not None, "these laws have no draft row"
    with np.errstate(over="ignore"):
        return np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0)


def _place(law: Vector, key: Vector, token: int, v: float) -> float:
    ties = np.flatnonzero(key == key[token])
    return float(law[key < key[token]].sum() + law[ties[ties < token]].sum() + v * law[token])


def child_places(laws: Laws, rng: np.random.Generator) -> list[float]:
    """The place of each drawn child in the law that it should come from, the likeliest tokens first; -1 for one that cannot come.

    Uniform and independent if the children are what their siblings' kind says.
    """
    if not laws.drawn:
        return []
    assert laws.q is not None
    left, places = laws.q.copy(), []
    for index, child in enumerate(laws.children):
        certain = laws.siblings is Siblings.TOP_AND_DRAW and index < len(laws.children) - 1
        if not certain:
            places.append(_place(left / left.sum(), -left, child, rng.random()) if left[child] > 0 else -1.0)
        if laws.siblings is not Siblings.IID:
            left[child] = 0
            if not left.any():
                break
    return places


def fold(laws: Laws, keep: int) -> Laws:
    """The same node over fewer tokens: the `keep` likeliest by max(p, q) and the FIXED children stay, the others are put together by p / q.

    Any such folding is again a pair of laws, so a lossless rule is lossless on it. A vocabulary that is small enough stays as it is.
    """
    if len(laws.p) <= keep + len(_EDGES) - 1:
        return laws
    q = np.zeros_like(laws.p) if laws.q is None else laws.q
    stays = np.zeros(len(laws.p), dtype=bool)
    stays[np.argpartition(np.maximum(laws.p, q), -keep)[-keep:]] = True
    if not laws.drawn:
        stays[list(laws.children)] = True
    kept = np.flatnonzero(stays)
    bins = np.digitize(ratio(laws.p, q), _EDGES[1:-1])
    bins[stays] = -1
    groups = [bins == b for b in range(len(_EDGES) - 1)]
    p, q = (np.concatenate([x[kept], [x[g].sum() for g in groups]]) for x in (laws.p, q))
    used = p + q > 0
    used[: len(kept)] = True
    cell = {int(token): place for place, token in enumerate(kept)}
    children = tuple(range(len(laws.children))) if laws.drawn else tuple(cell[c] for c in laws.children)
    return replace(laws, p=p[used], q=None if laws.q is None else q[used], children=children)


def redraw(laws: Laws, count: int, rng: np.random.Generator) -> Tokens:
    """(M, K) children as a drafter of this kind would draw them, in order. Fewer than K where q has no more tokens to draw."""
    if not laws.drawn:
        return np.tile(np.array(laws.children, dtype=np.int64), (count, 1))
    assert laws.q is not None
    width = len(laws.children)
    if laws.siblings is Siblings.IID:
        return rng.choice(len(laws.q), size=(count, width), p=laws.q / laws.q.sum())
    width = min(width, int(np.count_nonzero(laws.q)))
    with np.errstate(divide="ignore"):
        scores = np.log(laws.q) + rng.gumbel(size=(count, len(laws.q)))  # in falling order they are draws without replacement
    if laws.siblings is Siblings.TOP_AND_DRAW:
        scores[:, likeliest(laws.q, width - 1)] = np.inf
    best = np.argsort(-scores, axis=1, kind="stable")[:, :width]
    if laws.siblings is Siblings.TOP_AND_DRAW:
        best[:, : width - 1] = likeliest(laws.q, width - 1)
    return best


def likeliest(law: Vector, count: int) -> Tokens:
    """The `count` likeliest tokens, in order."""
    return np.argsort(-law, kind="stable")[:count]
