"""JetSpec: one forward of a head over the target's features drafts a whole tree (arXiv 2606.18394).

The head's scores of each depth become a tree, likeliest node first (`grow.py`), cut where a further node is not worth its time.

Axes: B sequences, D depths, T cached tokens, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ..draft import Draft, Siblings
from ..errors import InvalidRequest
from ..heads.jetspec import Context, JetSpecHead
from ..heads.score import shortlists
from ..sequence import Sequence as Request
from ..sequence import common_prefix
from ..tree import Tree
from .grow import BUILDERS, Pace, Scores, share

SHORTLIST, CHILDREN = 32, 8  # tokens per depth that may enter a tree; children that a Markov term is scored for, below the first depth


@dataclass
class _State:
    """What the head knows of one sequence: the tokens whose features are in its context."""

    tokens: list[int] = field(default_factory=list)
    context: Context = field(default_factory=Context)


class JetSpecDrafter:
    """Drafts with a head that keeps its own context per sequence and brings itself up to date with each.

    Args:
        head: a JetSpec head of the target (`heads.decode.ready_head`).
        num_speculative_tokens: depth of the tree; None is all that the head drafts. Raises InvalidRequest for more.
        budget: nodes of the tree, the root included.
        builder: `best_first`, `all_children` (as published) or `chain`.
        cost: the time of a round by its number of nodes. The budget is then the most that a sequence gets: a batch shares its nodes,
            likely ones first, as long as one more is worth its time. None: each sequence gets its budget.
    """

    siblings = Siblings.FIXED

    def __init__(
        self,
        head: JetSpecHead,
        num_speculative_tokens: int | None = None,
        budget: int = 24,
        *,
        builder: str = "best_first",
        cost: Callable[[int], float] | None = None,
    ) -> None:
        deepest = head.config.depth
        if num_speculative_tokens is not None and num_speculative_tokens > deepest:
            raise InvalidRequest(f"num_speculative_tokens is {num_speculative_tokens}, and this head drafts at most {deepest}")
        if builder not in BUILDERS:
            raise InvalidRequest(f"builder {builder!r} is unknown; use {', '.join(BUILDERS)}")
        self.head, self.budget = head, budget
        self.cost, self._pace = cost, Pace()
        self.depth = num_speculative_tokens or deepest
        self.target_layer_ids = head.config.target_layer_ids
        self._grow = BUILDERS[builder]
        self._states: dict[int, _State] = {}  # by the target's slot

    @torch.inference_mode()
    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        states = [self._state(seq) for seq in seqs]
        depths = [min(self.depth, seq.room - 1, self.budget - 1) for seq in seqs]
        live = [i for i, depth in enumerate(depths) if depth > 0]
        drafts = [Draft(Tree.chain([seq.root]), scores=(0.0,)) for seq in seqs]
        if live:
            self._catch_up([(seqs[i], states[i]) for i in live])
            scored = self._score([(seqs[i], states[i]) for i in live], max(depths))
            for i, scores in zip(live, scored, strict=True):
                grown = self._grow(seqs[i].root, scores.cut(depths[i]), self.budget)
                drafts[i] = Draft(grown.tree(), scores=tuple(grown.scores))
        return drafts if self.cost is None else share(drafts, self.cost, self._pace)

    def _state(self, seq: Request) -> _State:
        """What is known of this sequence, less what it has taken back, or what another sequence left in its slot."""
        assert seq.slot is not None, "the loop gives a sequence its slot before it asks for a draft"
        state = self._states.setdefault(seq.slot, _State())
        known = len(state.tokens)
        if not (known < len(seq.tokens) and seq.tokens[:known] == state.tokens):
            shared = common_prefix(state.tokens, seq.tokens[:-1])
            kept = max(0, shared - 1)  # the last row is made again: its features are needed
            state.context.truncate(kept)
            del state.tokens[kept:]
        return state

    def _catch_up(self, behind: Sequence[tuple[Request, _State]]) -> None:
        """Turn the features that are new since the last draft into the head's own keys and values, of all sequences at once."""
        behind = [(seq, state) for seq, state in behind if len(state.tokens) < len(seq.tokens) - 1]
        if not behind:
            return
        rows = torch.cat([seq.features_from(len(state.tokens), self.target_layer_ids) for seq, state in behind])
        spans = [range(len(state.tokens), len(seq.tokens) - 1) for seq, state in behind]
        places = torch.tensor([place for span in spans for place in span], device=rows.device)
        sizes = [len(span) for span in spans]
        fused = self.head.fuse(rows)
        parts = [(torch.split(key, sizes, 1), torch.split(value, sizes, 1)) for key, value in self.head.context_kv(fused, places)]
        for i, ((seq, state), own) in enumerate(zip(behind, torch.split(fused, sizes), strict=True)):
            state.context.append([(keys[i], values[i]) for keys, values in parts], own[-1])
            state.tokens += seq.tokens[len(state.tokens) : -1]

    def _score(self, live: Sequence[tuple[Request, _State]], depth: int) -> list[Scores]:
        anchors = torch.tensor([seq.root for seq, _ in live], device=self.head.embed_weight.device)
        logits = self.head.draft(anchors, [state.context for _, state in live], depth)
        return [Scores(*lists) for lists in shortlists(self.head, anchors, logits, tokens=SHORTLIST, children=CHILDREN)]
