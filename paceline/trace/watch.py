"""A rule that remembers what it was shown in its last walk."""

from __future__ import annotations

import dataclasses

from ..rules.walk import Decide, Node, Rule, Step
from ..sampling import Rng, TargetProbs


class Watch:
    """Put `rule` into the loop in place of the original, for one sequence at a time; it decides and draws the same. `laws` are the
    target's after the nodes of the last draft."""

    def __init__(self, original: Rule) -> None:
        self.laws: TargetProbs | None = None
        self.rule = dataclasses.replace(original, decide=self._watched(original.decide), greedy=self._watched(original.greedy))

    def _watched(self, decide: Decide) -> Decide:
        def watched(node: Node, rng: Rng) -> Step:
            self.laws = node.target_probs
            return decide(node, rng)

        return watched
