"""From costs and acceptance to tokens per second, and from those to a choice with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any

import numpy as np

from ..cost import CostCurve

WORTH = 1.03  # a smaller speed-up than this is within what can be measured, and not worth a drafter


@dataclass(frozen=True)
class Line:
    """One candidate, measured. Speeds are expected ones, by batch size, the prompt left out."""

    method: str
    budget: int | None  # nodes; None where nothing is drafted
    mean_acceptance_length: float
    nodes_per_round: float
    draft_seconds: dict[int, float]
    forward_seconds: dict[int, float]
    tokens_per_second: dict[int, float]
    speedup: dict[int, float]  # over plain decoding

    @property
    def options(self) -> str:
        """How to ask for it on the command line."""
        return f"--method {self.method}" + ("" if self.budget is None else f" --budget {self.budget}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def line(
    method: str,
    budget: int | None,
    *,
    length: float,
    nodes: Mapping[int, int],
    drafting: Mapping[int, float],
    cost: Mapping[int, CostCurve],
) -> Line:
    """What a candidate is expected to bring: a round of B sequences gives B times the mean acceptance length, and takes the drafting
    (seconds by B) and a forward over the nodes of B drafts. `nodes` counts rounds by their nodes."""
    forward = {b: _mean_seconds(curve, nodes, b) for b, curve in cost.items()}
    speed = {b: b * length / (forward[b] + drafting[b]) for b in cost}
    ratio = {b: speed[b] * curve(b) / b for b, curve in cost.items()}
    rounds = sum(nodes.values())
    mean = sum(n * times for n, times in nodes.items()) / rounds if rounds else 1.0
    return Line(method, budget, length, mean, dict(drafting), forward, speed, ratio)


def _mean_seconds(curve: CostCurve, nodes: Mapping[int, int], batch: int) -> float:
    """Seconds of a forward over `batch` drafts, on average over which ones meet: costs rise in steps and ever more steeply, so that the
    forward over the mean number of nodes takes less."""
    one = np.bincount(list(nodes), list(nodes.values())) if nodes else np.array([0.0, 1.0])
    one = one / one.sum()
    together = reduce(np.convolve, [one] * batch)
    return float(sum(share * curve(n) for n, share in enumerate(together) if share))


def plain(cost: Mapping[int, CostCurve]) -> Line:
    """No draft."""
    return line("none", None, length=1.0, nodes={1: 1}, drafting=dict.fromkeys(cost, 0.0), cost=cost)


@dataclass(frozen=True)
class Choice:
    """For one batch size: what to use, the best that was found, and why."""

    batch_size: int
    line: Line
    best: Line | None
    reason: str


def choose(lines: Sequence[Line], cost: Mapping[int, CostCurve], batch: int) -> Choice:
    """The candidate with the most tokens per second, or none, with the reason."""
    base, drafting = plain(cost), [x for x in lines if x.budget is not None]
    if not drafting:
        return Choice(batch, base, None, "do not speculate: there is nothing to draft with")
    best = max(drafting, key=lambda x: x.speedup[batch])
    seconds, one = best.forward_seconds[batch] + best.draft_seconds[batch], cost[batch](batch)
    told = (
        f"a round of {best.method} brings {best.mean_acceptance_length:.2f} tokens for {best.nodes_per_round:.1f} nodes "
        f"and takes {seconds / one:.2f} plain rounds ({1000 * seconds:.0f} ms, {1000 * best.draft_seconds[batch]:.0f} of them drafting)"
    )
    if best.speedup[batch] < WORTH:
        return Choice(batch, base, best, f"do not speculate: even at its best, {told}")
    return Choice(batch, best, best, f"{told}: {best.speedup[batch]:.2f} times plain decoding")
