"""Counts over the stream of rounds. Pooled figures; a reader that wants means per request keeps one of these for each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .engine import Round


@dataclass
class Stats:
    """What was proposed and what was kept.

    mean_acceptance_length = 1 + accepted / rounds, which counts the target's own token of each round.
    acceptance_rate = accepted / depth offered, where a tree offers its depth, not its nodes.
    acceptance_at(i) = rounds that kept at least i drafted tokens / rounds.
    """

    rounds: int = 0
    tokens: int = 0
    accepted: int = 0
    depth_offered: int = 0
    nodes: int = 0
    histogram: Counter[int] = field(default_factory=Counter)  # drafted tokens kept -> rounds

    def add(self, round_: Round) -> None:
        self.rounds += 1
        self.tokens += len(round_.tokens)
        self.accepted += round_.num_accepted
        self.depth_offered += max(round_.draft.tree.depth)
        self.nodes += len(round_.draft.tree)
        self.histogram[round_.num_accepted] += 1

    @property
    def mean_acceptance_length(self) -> float:
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.depth_offered if self.depth_offered else 0.0

    def acceptance_at(self, depth: int) -> float:
        return sum(n for kept, n in self.histogram.items() if kept >= depth) / self.rounds if self.rounds else 0.0
