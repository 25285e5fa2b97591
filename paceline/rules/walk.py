"""The acceptance seam: a rule is a decision at one node, repeated from the root down.

Pairing decides whether decoding is lossless. Rejection with the draft's probabilities is right only for children that were really
drawn from them: with top-k children its emitted law was off by up to 0.70 in total variation (exact enumeration over 600 random
pairs, vocabulary 5). So a rule says which kinds of siblings it needs, and `check_pairing` refuses the others before the first token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..draft import Draft, Drafter, Siblings
from ..errors import IncompatibleRule
from ..sampling import Rng, TargetProbs


class Verdict(NamedTuple):
    """Accepted nodes from the root down, and the next token."""

    path: list[int]
    token: int


class Step(NamedTuple):
    """A decision at one node: go on to `child`, or stop with `token`."""

    child: int | None
    token: int


@dataclass(frozen=True)
class Node:
    """One node of a draft, with the laws around it."""

    draft: Draft
    target_probs: TargetProbs
    index: int
    vetoed: bool = False  # an outer rule forbids what was drafted here, so an inner one must not rescue it

    @property
    def children(self) -> tuple[int, ...]:
        return self.draft.tree.children(self.index)

    def token(self, child: int) -> int:
        return self.draft.tree.tokens[child]

    @property
    def position(self) -> int:
        """Where in the sequence the token after this node will stand."""
        return len(self.target_probs.context.tokens) + self.draft.tree.depth[self.index]


Decide = Callable[[Node, Rng], Step]


def look_up(node: Node, rng: Rng) -> Step:
    """What rule match does: draw from the target's law, and go on to the child that holds the token."""
    token = node.target_probs.draw(node.index, rng)
    return Step(next((c for c in node.children if node.token(c) == token), None), token)


@dataclass(frozen=True)
class Rule:
    """How drafted tokens are accepted, for one sequence.

    `needs` are the kinds of siblings for which the rule is what it says; `chain_only` rules want at most one child per node. A
    greedy request has a point mass for a law: there a lossless rule is target match, which keeps whichever child holds that token. A
    rule that is something else there says so with `greedy`. `reads_beliefs` rules need to know what the draft thought, also where the
    request is greedy.
    """

    name: str
    decide: Decide
    needs: frozenset[Siblings]
    lossless: bool
    chain_only: bool = False
    greedy: Decide = look_up
    reads_beliefs: bool = False

    def __call__(self, draft: Draft, target_probs: TargetProbs, rng: Rng) -> Verdict:
        if target_probs.greedy:
            return walk(draft, target_probs, self.greedy, rng)
        if draft.siblings not in self.needs:
            raise IncompatibleRule(f"rule {self.name} cannot verify {draft.siblings.value} children; use rule match")
        return walk(draft, target_probs, self.decide, rng)


def walk(draft: Draft, target_probs: TargetProbs, decide: Decide, rng: Rng) -> Verdict:
    """Follow `decide` from the root until it returns a token instead of a child."""
    path = [0]
    while True:
        step = decide(Node(draft, target_probs, path[-1]), rng)
        if step.child is None:
            return Verdict(path, step.token)
        path.append(step.child)


def check_pairing(drafter: Drafter, rule: Rule) -> None:
    """Raise IncompatibleRule unless the rule can verify what the drafter proposes."""
    if drafter.siblings not in rule.needs:
        wanted = " or ".join(sorted(s.value for s in rule.needs))
        raise IncompatibleRule(
            f"rule {rule.name} needs children drawn {wanted}, and {type(drafter).__name__} proposes {drafter.siblings.value} ones; "
            "use rule match, or a drafter that samples (draft_model)"
        )
    if rule.reads_beliefs and not getattr(drafter, "keeps_beliefs", False):
        raise IncompatibleRule(
            f"rule {rule.name} compares the draft's own probabilities with the target's, and {type(drafter).__name__} hands none over; "
            "use rule match, or build drafter and rule together with drafter draft_model"
        )


def check_draft(draft: Draft, rule: Rule) -> None:
    """The same for one draft, should a drafter not do as it declared. Fixed children are right for greedy requests."""
    if draft.siblings not in rule.needs | {Siblings.FIXED}:
        raise IncompatibleRule(f"rule {rule.name} cannot verify {draft.siblings.value} children; use rule match")
    if rule.chain_only and not draft.tree.is_chain:
        raise IncompatibleRule(f"rule {rule.name} verifies chains only; draft one candidate per position, or use rule match")
    if rule.reads_beliefs and draft.beliefs is None and len(draft.tree) > 1:
        raise IncompatibleRule(
            f"rule {rule.name} got a draft without the draft's own probabilities; use rule match, or drafter draft_model"
        )
