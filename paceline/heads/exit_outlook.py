"""Where drafting by early exit would win, and how often its drafts would have to be right: the cost model with other costs than these."""

from __future__ import annotations

import dataclasses
from typing import Any

from .exit_cost import Costs, Profile, best_bounds, speedup


def would_win(shares: Profile, costs: Costs) -> dict[str, Any]:
    """The cost model with these exits here and with other costs, and how often drafts would have to be right for a speed of 1 and 1.2."""
    one, layer = costs.layer(1), costs.layer
    cases = {
        "here": costs,
        "free heads": dataclasses.replace(costs, head=0.0),
        "free further rows": dataclasses.replace(costs, layer=lambda rows: layer(1), tail=lambda rows: costs.tail(1)),
        "all free but the layers": Costs(costs.layers, costs.plain, 0.0, lambda rows: layer(1), 0.0, lambda rows: costs.tail(1)),
        "twice the layers": dataclasses.replace(costs, layers=2 * costs.layers, plain=costs.plain + costs.layers * one),
        "an output layer of 0.65 layers": dataclasses.replace(
            costs, tail=lambda rows: 0.65 * layer(rows), plain=costs.plain - costs.tail(1) + 0.65 * one
        ),
    }
    depths = sorted({*shares.layers, *(max(1, round(costs.layers * part)) for part in (0.1, 0.2, 0.3, 0.5))})
    return {
        "best": {name: dataclasses.asdict(best_bounds(shares, case)) for name, case in cases.items()},
        "agreement_needed": [
            {"depth": d, "exits": e, "width": w, "for_1.0": needed(1.0, d, e, w, costs), "for_1.2": needed(1.2, d, e, w, costs)}
            for d in depths
            for e in (0.3, 0.6, 0.9)
            for w in (1, 2, 4, 8)
        ],
    }


def needed(speed: float, depth: int, exits: float, width: int, costs: Costs) -> float | None:
    """The share of drafts that must be right for this speed, where so many positions exit at this depth; None if all are too few."""
    for hundredths in range(101):
        if speedup([(depth, exits, exits * hundredths / 100)], width, costs) >= speed:
            return hundredths / 100
    return None
