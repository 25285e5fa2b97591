"""The losses of RCSD-style training as functions of log-probabilities; what they mean is in docs/methods/rcsd.md.

Axes: P pairs, R slots, Vd draft vocabulary.
"""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid


def preference(margin: torch.Tensor, beta: float, odds: torch.Tensor | None = None) -> torch.Tensor:
    """-log sigmoid(beta margin) for margins (P,) -> (P,): the loss of DPO (Rafailov et al. 2023).

    The margin is by how much more than the reference the head prefers the chosen token. `odds` (P,) in 0 to 1 are soft labels: how
    often the chosen token is the right one of the two; None is always.
    """
    right = -logsigmoid(beta * margin)
    return right if odds is None else odds * right - (1 - odds) * logsigmoid(-beta * margin)


def total_variation(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """1 - sum_v min(p, q) for logits (R, Vd) of both -> (R,): how often a draw from q is refused by speculative sampling."""
    return 1 - torch.minimum(target.softmax(-1), draft.softmax(-1)).sum(-1)


def divergence(reference: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """KL(reference || draft) for logits (R, Vd) of both -> (R,)."""
    q, p = draft.log_softmax(-1), reference.log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def policy_gradient(logps: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
    """-(r - b) log q(action) for log-probabilities and rewards (R,) -> (R,), with the mean reward as the baseline b."""
    return -(rewards - rewards.mean()) * logps
