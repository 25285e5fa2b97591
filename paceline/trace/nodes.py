"""One draft as the page shows it: each node with what target and draft thought of it, and what became of it.

Axes: N nodes, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..draft import Draft
from ..engine import Round
from ..rules.ledger import Event

TOP = 5  # likeliest tokens that are shown after each node
Spell = Callable[[int], str]
Record = dict[str, Any]


def nodes(round_: Round, logits: torch.Tensor, events: Mapping[str, Sequence[Event]], length: int, spell: Spell) -> list[Record]:
    """A record per node. `logits` (N, V) are the target's, as they came; `events` are those of the round by lossy rule, and `length` the
    number of tokens before it."""
    draft = round_.draft
    rows = torch.log_softmax(logits.double(), -1)
    states = _states(round_, events, length)
    return [
        {
            "text": spell(draft.tree.tokens[node]),
            "token": draft.tree.tokens[node],
            "parent": draft.tree.parents[node],
            "depth": draft.tree.depth[node],
            "state": states[node],
            "entropy": _number(-(rows[node].exp() * rows[node].clamp(min=-1e4)).sum()),
            "top": [[spell(int(t)), _number(p.exp())] for p, t in zip(*rows[node].topk(min(TOP, rows.shape[1])), strict=True)],
            **_opinions(draft, node, rows),
        }
        for node in range(len(draft.tree))
    ]


def _opinions(draft: Draft, node: int, rows: torch.Tensor) -> Record:
    """What both thought of a node before it was read: p and its margin at temperature 1, and q as far as the drafter says."""
    parent, token = draft.tree.parents[node], draft.tree.tokens[node]
    if parent < 0:
        return {"p": None, "margin": None, "q": None, "q_is": None}
    row = rows[parent]
    return {"p": _number(row[token].exp()), "margin": _number(row.max() - row[token]), **_belief(draft, parent, node)}


def _belief(draft: Draft, parent: int, node: int) -> Record:
    token = draft.tree.tokens[node]
    if draft.rows is not None and draft.rows[parent] >= 0:
        return {"q": _number(draft.probs(parent)[token]), "q_is": "drawn from"}
    if draft.beliefs is not None and (belief := draft.beliefs[parent]) is not None:
        return {"q": _number(torch.softmax(belief.double(), -1)[token]), "q_is": "believed"}
    if draft.scores is not None:
        return {"q": _number(math.exp(draft.scores[node] - draft.scores[parent])), "q_is": "estimated"}
    return {"q": None, "q_is": None}


def _states(round_: Round, events: Mapping[str, Sequence[Event]], length: int) -> list[str]:
    """What became of each node: root, accepted, rescued, cut (accepted behind the end), vetoed, rejected, or unreached behind one."""
    tree, path = round_.draft.tree, round_.path
    acted = {(e.position, e.drafted) for found in events.values() for e in found if e.refusal is None}
    states = []
    for node in range(len(tree)):
        place = length + tree.depth[node] - 1, tree.tokens[node]
        if node in path:
            kept = path.index(node) <= len(round_.tokens)
            states.append("root" if node == 0 else "cut" if not kept else "rescued" if place in acted else "accepted")
        elif tree.parents[node] in path:
            states.append("vetoed" if place in acted else "rejected")
        else:
            states.append("unreached")
    return states


def next_token(round_: Round, events: Mapping[str, Sequence[Event]], length: int) -> str | None:
    """What the last token of a round is: a bonus behind the whole path, recovered after a rejection, or put in the place of a veto.
    None where the answer ended inside the path."""
    if len(round_.tokens) < len(round_.path):
        return None
    place = length + len(round_.path) - 1
    children = {round_.draft.tree.tokens[n] for n in round_.draft.tree.children(round_.path[-1])}
    if any(e.position == place and e.refusal is None and e.drafted in children for found in events.values() for e in found):
        return "vetoed"
    return "recovered" if children else "bonus"


def _number(value: Any) -> float | None:
    """Rounded for a page; None for what JSON cannot say."""
    number = float(value)
    return round(number, 5) if math.isfinite(number) else None
