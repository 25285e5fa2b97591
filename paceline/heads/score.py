"""A head's logits as scores that a tree can be grown from: calibrated log-probabilities of a shortlist, on the host.

Axes: B sequences, D depths, Vd draft vocabulary, M shortlisted tokens, P parents, C children.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .jetspec import JetSpecHead

Table = list[list[list[float]]]


def shortlists(
    head: JetSpecHead, anchors: torch.Tensor, logits: torch.Tensor, *, tokens: int, children: int
) -> Iterator[tuple[list[list[int]], Table, list[list[list[int]]]]]:
    """The likeliest `tokens` of each depth, and how likely each is after each parent, for anchors (B,) and logits (B, D, Vd).

    Yields for each sequence the target ids (D, M), and for the children of each parent, (D, P, C) each, their log-probabilities,
    descending, and their places among the M. P is M where the Markov term tells parents apart, and C is `children` there; else P is 1 and
    C is M. The first depth, whose parent is known, is corrected over the whole draft vocabulary; deeper ones over the shortlist, and what
    that leaves out keeps its mass.
    """
    depths = logits.shape[1]
    logits = logits.float()
    if head.config.markov_rank:
        logits = torch.cat([logits[:, :1] + head.markov(anchors).float()[:, None], logits[:, 1:]], 1)
    heat = torch.tensor(head.config.temperatures[:depths] or [1.0] * depths, device=logits.device)[:, None]
    logits = logits / heat
    mass = logits.logsumexp(-1, keepdim=True)  # (B, D, 1)
    best = logits.topk(min(tokens, logits.shape[2]), -1)  # (B, D, M), descending
    ids = head.draft_vocab_ids[best.indices].tolist()
    logps: list[Table] = (best.values - mass)[:, :, None].tolist()
    places = [[[list(range(best.values.shape[2]))]] * depths for _ in logps]
    if head.config.markov_rank and depths > 1:
        further = _conditional(head, best.indices, best.values, mass, heat).topk(min(children, best.values.shape[2]), -1)
        for b, (scores, picks) in enumerate(zip(further.values.tolist(), further.indices.tolist(), strict=True)):
            logps[b][1:], places[b][1:] = scores, picks
    return zip(ids, logps, places, strict=True)


def _conditional(head: JetSpecHead, rows: torch.Tensor, values: torch.Tensor, mass: torch.Tensor, heat: torch.Tensor) -> torch.Tensor:
    """Log-probability of every shortlisted token after every shortlisted token of the depth before, (B, D - 1, M parents, M).

    `rows` and `values` (B, D, M) are the shortlist's draft rows and logits; `mass` (B, D, 1) the logarithm of all exponentials.
    """
    scores = values[:, 1:, None] + head.markov_table(rows[:, :-1], rows[:, 1:]).float() / heat[1:, :, None]
    inside = (values - mass).exp().sum(-1, keepdim=True)  # (B, D, 1)
    outside = (mass + (1 - inside).clamp(min=1e-6).log())[:, 1:, None]  # (B, D - 1, 1, 1)
    return scores - torch.logaddexp(scores.logsumexp(-1, keepdim=True), outside)
