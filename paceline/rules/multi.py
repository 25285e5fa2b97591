"""Several sampled candidates at one node: one exact frame, and the rules that are a plan within it.

Stage i tests child X_i, drawn from q_i, against the residual law R_i, where R_1 = p:

    accept X_i = x with probability A_i(x) / q_i(x)
    else go on with R_(i+1) = (R_i - A_i) / (1 - |A_i|); when no child is left, draw from it

The accepted sub-measure A_i, with 0 <= A_i <= min(q_i, R_i), may depend on R_i, q_i, the rejected children and how many are left, but
not on X_i. Then the law is p: if what follows stage i has the law R_(i+1), stage i emits y with probability
A_i(y) + (1 - |A_i|) R_(i+1)(y) = R_i(y). A_i is `Stage.accepted` for two numbers; a planner chooses them, and however roughly it
does that, it changes how much is accepted and never the law.

Membership: if the final draw equals a child, go on at that child. That is free, as the token is emitted in any case, and the subtree
below was drawn without knowing of it.

Axes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from ..draft import Siblings
from ..errors import InvalidRequest
from ..sampling import Rng
from . import ramp as plans
from .ramp import Overlap, Stage
from .walk import Node, Rule, Step


class Trial(NamedTuple):
    """Child number `child` is tested, and accepted with probability `prob`. `mass` is the normaliser |R - A| of the residual law that
    it is tested against: 1 at first, and 0 if the residual underflowed."""

    child: int
    prob: float
    mass: float


class Rest(NamedTuple):
    """All children are rejected: the token is drawn from `law` (V,), whose normaliser was `mass`."""

    law: torch.Tensor
    mass: float


Trials = Callable[[torch.Tensor, torch.Tensor, Sequence[int]], Iterator[Trial | Rest]]  # p (V,), q (V,), tokens in draw order
Plan = Callable[[Overlap, int], list[Stage]]  # how p and q overlap, the number of candidates -> a stage for each


@dataclass(eq=False)
class Decision:
    """A rule's decision at one node, made of trials. `underflows` counts residuals without mass, which only rounding can bring about."""

    trials: Trials
    underflows: int = 0

    def __call__(self, node: Node, rng: Rng) -> Step:
        children = node.children
        if not children:
            return Step(None, node.target_probs.draw(node.index, rng))
        tokens = [node.token(c) for c in children]
        for trial in self.trials(node.target_probs.row(node.index), node.draft.probs(node.index), tokens):
            self.underflows += trial.mass == 0
            if isinstance(trial, Rest):
                token = rng.pick(trial.law)
                return Step(children[tokens.index(token)] if token in tokens else None, token)
            if rng.coin(trial.prob):
                return Step(children[trial.child], tokens[trial.child])
        raise AssertionError("the last trial is the rest")


def sequential(
    p: torch.Tensor, q: torch.Tensor, tokens: Sequence[int], *, plan: Plan | None = None, replace: bool = True
) -> Iterator[Trial | Rest]:
    """The frame. Nothing of stage i + 1 is computed before stage i has rejected.

    Residual and draft law are kept unnormalised, with their masses. Without a plan every stage accepts all that it can. With `replace`
    the first plan serves all stages; else q loses each rejected token, and what remains is planned anew.
    """
    residual, total, drawable, mass = p, _mass(p), _mass(q), 1.0
    gone: list[int] = []  # cannot be drawn again
    overlap, stages = None, [Stage()] * len(tokens)
    for i, token in enumerate(tokens):
        left = len(tokens) - i
        drawn = q * (total / drawable if drawable > _tiny(q) else 0.0)  # the law of this draw, with the mass of the residual
        drawn[gone] = 0
        if plan and i == 0 and left > 1:
            overlap = Overlap.of(residual, drawn)
        if plan and overlap and (i == 0 or not replace):
            stages[i:] = plan(overlap, left) if left > 1 else [Stage()]
        chance, held = float(drawn[token]), residual[token]
        yield Trial(i, float(stages[i].accepted(held, drawn[token])) / chance if chance > 0 else 0.0, mass)
        residual, rest = _rejected(residual, drawn, stages[i])
        mass = rest / total
        if not replace and left > 1:
            overlap = overlap.after(stages[i], float(held) / chance, chance / total, mass) if overlap and chance > 0 else None
            gone.append(token)
            drawable -= float(q[token])
            drawable = drawable if drawable > 0.01 else _mass(without(q, gone))  # before the difference loses digits
        total = rest or 1.0
    yield Rest(residual / total, mass)


def _rejected(residual: torch.Tensor, drawn: torch.Tensor, stage: Stage) -> tuple[torch.Tensor, float]:
    """What a stage leaves of the residual, and its mass. If rounding left nothing of it: a point mass where the stage's cap is exceeded
    by most, and 0."""
    accepted = stage.accepted(residual, drawn)
    left = torch.sub(residual, accepted, out=accepted)
    mass = _mass(left)
    if mass > _tiny(left):
        return left, mass
    most = (residual * stage.share).sub_(drawn, alpha=1 + stage.late * stage.share).argmax()
    return torch.zeros_like(left).index_fill_(0, most, 1), 0.0


def without(law: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """The law (V,), not normalised, without these tokens."""
    law = law.clone()
    law[list(tokens)] = 0
    return law


def _mass(law: torch.Tensor) -> float:
    return float(law.sum(dtype=torch.float64))


def _tiny(law: torch.Tensor) -> float:
    return torch.finfo(law.dtype).tiny


def _trials(rule: Rule, p: torch.Tensor, q: torch.Tensor, tokens: Sequence[int]) -> Iterator[tuple[float, Trial | Rest]]:
    """The trials of a rule, each with the probability that it is reached."""
    if not isinstance(rule.decide, Decision):
        raise InvalidRequest(
            f"rule {rule.name} is not made of trials; naive and, for one candidate, rrs have the laws of match and rejection"
        )
    reached = 1.0
    for trial in rule.decide.trials(p, q, tokens) if tokens else (Rest(p, 1.0),):
        yield reached, trial
        if isinstance(trial, Trial):
            reached *= 1 - trial.prob
        if reached == 0:
            return


def acceptance(rule: Rule, p: torch.Tensor, q: torch.Tensor, tokens: Sequence[int]) -> float:
    """The probability that a node goes on at one of its children, membership included, given that these were drawn.

    Args: laws of target and draft (V,), the children's tokens in draw order. Raises InvalidRequest for a rule of another kind.
    """
    children = list(dict.fromkeys(tokens))
    return sum(
        reached * (trial.prob if isinstance(trial, Trial) else float(trial.law[children].sum(dtype=torch.float64)))
        for reached, trial in _trials(rule, p, q, tokens)
    )


def emitted(rule: Rule, p: torch.Tensor, q: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """(V,) float64, the law of the token that a node emits, given that these children were drawn; arguments as for `acceptance`."""
    law = torch.zeros(len(p), dtype=torch.float64, device=p.device)
    for reached, trial in _trials(rule, p, q, tokens):
        if isinstance(trial, Trial):
            law[tokens[trial.child]] += reached * trial.prob
        else:
            law += reached * trial.law
    return law


def _top_and_draw(p: torch.Tensor, q: torch.Tensor, tokens: Sequence[int]) -> Iterator[Trial | Rest]:
    """The drawn child first, which comes last; the likeliest ones by membership."""
    *top, drawn = tokens
    for trial in sequential(p, without(q, top), [drawn]):
        yield trial._replace(child=len(top)) if isinstance(trial, Trial) else trial


def _membership(p: torch.Tensor, q: torch.Tensor, tokens: Sequence[int]) -> Iterator[Trial | Rest]:
    yield Rest(p, 1.0)


def _rule(name: str, trials: Trials, *needs: Siblings) -> Rule:
    return Rule(name, Decision(trials), frozenset(needs), lossless=True)


_IID, _WOR = Siblings.IID, Siblings.WITHOUT_REPLACEMENT

naive = _rule("naive", _membership, _IID, _WOR)
rrs = _rule("rrs", sequential, _IID)
rrs_wor = _rule("rrs_wor", partial(sequential, replace=False), _WOR)
k_seq = _rule("k_seq", partial(sequential, plan=plans.k_seq), _IID)
ramp = _rule("ramp", partial(sequential, plan=plans.ramp), _IID)
ramp_wor = _rule("ramp_wor", partial(sequential, plan=plans.ramp, replace=False), _WOR)
greedy_draft = _rule("greedy_draft", _top_and_draw, Siblings.TOP_AND_DRAW)
