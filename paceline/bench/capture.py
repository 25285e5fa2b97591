"""What a rule really saw and did: a rule that remembers its decisions, put into the decode loop in place of the original.

Each decision is reduced at once to a few numbers and a folded row, since full rows of a large vocabulary would not fit.

Axes: V vocabulary.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..rules.walk import Node, Rule, Step
from ..sampling import Rng
from .laws import Laws, Vector, child_places, fold

FINE = 4092  # tokens of a captured row; a vocabulary that is larger is folded to them


@dataclass(frozen=True)
class Visit:
    """One decision. `place` is that of the emitted token in the target's law, see `Laws.place`; -1 if it cannot come."""

    place: float
    drafted: bool  # whether the emitted token is one that is drafted too often
    share: float  # what the target's law says of that
    child: int | None  # which child was taken, from 0; None for a token of the rule's own
    child_places: list[float]
    laws: Laws | None  # folded; None at a leaf, where nothing is to be decided


@dataclass
class Recorder:
    """Wraps a rule's decisions. `rng` is the audit's own, so that decoding draws what it would draw without it."""

    original: Rule
    rng: np.random.Generator
    visits: list[Visit] = field(default_factory=list)

    @property
    def rule(self) -> Rule:
        return dataclasses.replace(self.original, decide=self._decide)

    def _decide(self, node: Node, rng: Rng) -> Step:
        step = self.original.decide(node, rng)
        laws = laws_at(node)
        possible = laws.p[step.token] > 0
        self.visits.append(
            Visit(
                place=laws.place(step.token, self.rng.random()) if possible else -1.0,
                drafted=bool(laws.drafted[step.token]),
                share=float(laws.p[laws.drafted].sum()),
                child=None if step.child is None else node.children.index(step.child),
                child_places=child_places(laws, self.rng),
                laws=fold(laws, FINE) if laws.children else None,
            )
        )
        return step


def laws_at(node: Node) -> Laws:
    """The laws around a node of a draft, normalised in float64."""
    draft = node.draft
    row = draft.probs(node.index) if draft.rows is not None and draft.rows[node.index] >= 0 else None
    children = tuple(node.token(c) for c in node.children)
    return Laws(_law(node.target_probs.row(node.index)), None if row is None else _law(row), draft.siblings, children)


def _law(row: Any) -> Vector:
    law: Vector = (row.double() / row.double().sum()).cpu().numpy()
    return law
