"""A start for the Markov term: the target's own bigrams, as far as its rank allows.

What the target says after a token alone is a table of log-probabilities. Less the mean of each row and column (the slots' logits say what
is likely anyway), and with frequent tokens counting more, its best low-rank approximation is a truncated singular value decomposition.
For SmolLM2 and 8192 tokens rank 64 holds 96 % of the table.

Axes: V draft vocabulary, R rank.
"""

from __future__ import annotations

from typing import Any

import torch

from ..tree import Tree
from .jetspec import JetSpecHead

_LARGEST = 8192  # tokens of the table: more are left at nothing
_CHUNK, _RARE, _EXTRA = 256, 2.0, 16  # tokens per forward; what a token counts at least; spare columns of the decomposition


@torch.no_grad()
def start_from_bigrams(head: JetSpecHead, target: Any, counts: torch.Tensor, first: int) -> float:
    """Set the Markov term. Returns the share of the table's (weighted) squares that its rank holds.

    Args:
        head: with `markov_rank` above 0.
        target: an HFTarget; it is asked for what follows `first` and one token, for every token of the table.
        counts: (vocabulary of the target,) how often each token is said.
        first: the token that the target's texts begin with.
    """
    ids = head.draft_vocab_ids
    often = counts.to(ids.device)[ids].float() + _RARE
    rows = often.topk(min(_LARGEST, len(ids))).indices.sort().values  # draft rows
    often, rank = often[rows], head.config.markov_rank
    table = _after_each(target, first, ids[rows])
    table -= (often[:, None] * table).sum(0) / often.sum()
    table -= (often * table).sum(1, keepdim=True) / often.sum()
    weight = often.sqrt()
    table *= weight[:, None] * weight
    kept = min(rank, len(rows))
    u, s, v = torch.svd_lowrank(table, q=min(kept + _EXTRA, len(rows)), niter=2)
    root = s[:kept].sqrt()
    for parameter, side in ((head.markov_prev, u), (head.markov_next, v)):
        parameter.zero_()
        parameter[rows, :kept] = (side[:, :kept] * root / weight[:, None]).to(parameter.dtype)
    return float(s[:kept].square().sum() / table.square().sum())


def _after_each(target: Any, first: int, ids: torch.Tensor) -> torch.Tensor:
    """(V, V) log-probabilities over these ids after `first` and each of them."""
    slot = target.cache.open(_CHUNK + 1)
    found = []
    try:
        for part in torch.split(ids, _CHUNK):
            tree = Tree((first, *part.tolist()), (-1, *[0] * len(part)))
            found.append(target.verify([tree], [slot]).logits[1:, ids].float().log_softmax(-1))
            target.cache.truncate(slot, 0)
    finally:
        target.cache.free(slot)
    return torch.cat(found).to(ids.device)
