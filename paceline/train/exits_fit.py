"""What exits are worth on held-out text: agreement by layer, calibration, annealing strength, and the shares from which bounds follow.

Axes: R rows, K exit layers, A annealing strengths, F free temperatures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..heads.exit import Exits, temperature
from ..heads.exit_cost import Profile

ANNEALINGS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)
_FREE = tuple(0.5 * 1.1**i for i in range(22))  # temperatures from 0.5 to 3.7
_BINS = 15


@dataclass(frozen=True)
class Readings:
    """What exits said at R positions, and whether they were right."""

    layers: tuple[int, ...]  # (K,)
    confidence: torch.Tensor  # (R, K, A + F) by annealing strength, then by free temperature
    right: torch.Tensor  # (R, K) bool: the token is the target's

    def annealed(self, annealing: float) -> torch.Tensor:
        """(R, K)."""
        return self.confidence[:, :, ANNEALINGS.index(annealing)]


@torch.no_grad()
def read_exits(exits: Exits, layers: int, parts: Iterable[tuple[list[torch.Tensor], torch.Tensor]]) -> Readings:
    """Ask exits of a target with so many layers. Each part is (K of (R, H) states, (R,) the target's tokens).

    An exit that prefers what its vocabulary lacks is never confident.
    """
    depths = exits.config.layers
    confidence, right = [], []
    for states, best in parts:
        found = [exits.logits(depth, hidden).float() for depth, hidden in zip(depths, states, strict=True)]
        said = torch.stack([tokens(logits, exits.ids) for logits in found], 1)  # (R, K)
        sure = torch.stack([_confidence(logits, _heats(depth, layers)) for depth, logits in zip(depths, found, strict=True)], 1)
        confidence.append(sure * (said >= 0)[..., None])
        right.append(said == best[:, None])
    return Readings(depths, torch.cat(confidence).cpu(), torch.cat(right).cpu())


def tokens(logits: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
    """(R,) the likeliest token of an exit's logits; -1 where that is none of its vocabulary."""
    best = logits.argmax(-1)
    return best if ids is None else torch.cat([ids, ids.new_tensor([-1])])[best]


def _heats(depth: int, layers: int) -> list[float]:
    return [*(temperature(depth, layers, a) for a in ANNEALINGS), *_FREE]


def _confidence(logits: torch.Tensor, heats: list[float]) -> torch.Tensor:
    """(R, V) -> (R, A + F) the largest probability at each temperature."""
    below = logits - logits.amax(-1, keepdim=True)
    return torch.stack([1 / (below / heat).exp().sum(-1) for heat in heats], -1)


def calibration_error(confidence: torch.Tensor, right: torch.Tensor) -> float:
    """Expected calibration error: over equal bins of confidence, the mean distance of confidence and accuracy."""
    bins = (confidence * _BINS).long().clamp(max=_BINS - 1).flatten()
    gap = torch.zeros(_BINS, dtype=torch.float64).index_add_(0, bins, (confidence.double() - right.double()).flatten())
    return float(gap.abs().sum() / confidence.numel())


def fit_annealing(readings: Readings) -> float:
    """The strength with the least calibration error over all exit layers."""
    return min(ANNEALINGS, key=lambda a: calibration_error(readings.annealed(a), readings.right))


def profile(readings: Readings, annealing: float) -> Profile:
    """The shares of positions that exit at each layer, and are right there."""
    confidence = readings.annealed(annealing)
    exits, right = [], []
    for threshold in THRESHOLDS:
        sure = confidence >= threshold
        first = sure & (sure.cumsum(1) == 1)
        exits.append(tuple(round(x, 5) for x in first.double().mean(0).tolist()))
        right.append(tuple(round(x, 5) for x in (first & readings.right).double().mean(0).tolist()))
    return Profile(readings.layers, THRESHOLDS, tuple(exits), tuple(right))


def figures(readings: Readings, annealing: float) -> dict[str, Any]:
    """For the card: agreement by layer, and calibration errors with and without annealing and with a free temperature for each layer."""
    free = readings.confidence[:, :, len(ANNEALINGS) :]
    errors = [[calibration_error(free[:, k, f], readings.right[:, k]) for f in range(len(_FREE))] for k in range(len(readings.layers))]
    return {
        "positions": len(readings.right),
        "agreement": {str(d): round(x, 4) for d, x in zip(readings.layers, readings.right.double().mean(0).tolist(), strict=True)},
        "calibration_error": {
            "by_annealing": {str(a): round(calibration_error(readings.annealed(a), readings.right), 4) for a in ANNEALINGS},
            "fitted_annealing": annealing,
            "free_temperatures": [round(_FREE[min(range(len(_FREE)), key=own.__getitem__)], 3) for own in errors],
            "free": round(sum(map(min, errors)) / len(errors), 4),
        },
    }
