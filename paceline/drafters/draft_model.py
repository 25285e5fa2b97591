"""A small model drafts for a large one (Leviathan et al. 2023): it draws a tree into a shape (`sampled`), or grows a tree of its
likeliest continuations.

The grown tree: each draft forward runs the few likeliest new nodes at once, which costs a memory-bound machine about as much as one,
and the nodes with the largest path probability fill the budget (as in EAGLE-2, Li et al. 2024). Drafting stops early when even the
likeliest path has become unlikely: a forward of the draft model must pay for itself.

Axes: M draft nodes, V vocabulary.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..draft import Draft, Siblings
from ..sampling import process
from ..sequence import Sequence as Request
from ..sequence import common_prefix
from ..targets.base import Cache, Target
from ..tree import Tree
from .draft_growth import Further, Growth
from .sampled import ShapedGrowth
from .shapes import BUDGET, DEPTH, Shape, chain


@dataclass
class _State:
    """What the draft model has seen of one sequence, from token `start` on: committed tokens, then a scratch tree after them."""

    slot: int
    start: int = 0
    tokens: list[int] = field(default_factory=list)
    scratch: Tree | None = None


class BestFirstGrowth(Growth):
    """Runs the `width` likeliest new nodes at a time, and keeps the likeliest `budget` nodes."""

    def __init__(self, seq: Request, fed: list[int], depth: int, *, budget: int, width: int, goes_on: Further) -> None:
        super().__init__(seq, fed, depth)
        self.budget, self.width, self.goes_on = budget, width, goes_on
        self.scores, self.depths = [0.0], [0]  # log-probability of the path

    def expand(self, rows: torch.Tensor) -> None:
        """Add the likeliest children of the nodes that ran, (M, V) logits, and choose what runs next."""
        if not self.seq.params.raw:
            processed = [process(r, self.seq, self.path_tokens(n), custom=False) for n, r in zip(self.running, rows, strict=True)]
            rows = torch.stack(processed)
        rows = rows.float()
        for node, row in zip(self.running, rows, strict=True):
            self.believe(node, row)
        best = rows.topk(min(self.width, rows.shape[1]))
        scores = (best.values - rows.logsumexp(-1, keepdim=True)).tolist()
        new = [
            self._add(node, token, score)
            for node, tokens, logps in zip(self.running, best.indices.tolist(), scores, strict=True)
            for token, score in zip(tokens, logps, strict=True)
            if score > -math.inf
        ]
        new.sort(key=lambda n: -self.scores[n])
        reached = self.depths[new[0]] if new else self.depth
        if reached >= self.depth or not self.goes_on(self.scores, self.scores[new[0]]):
            self.running = []
        else:
            floor = sorted(self.scores, reverse=True)[: self.budget][-1] if len(self.scores) > self.budget else -math.inf
            self.run_next([n for n in new[: self.width] if self.scores[n] >= floor])  # no child of the others can enter the tree

    def _add(self, parent: int, token: int, score: float) -> int:
        self.scores.append(self.scores[parent] + score)
        self.depths.append(self.depths[parent] + 1)
        return self.add(parent, token)

    def draft(self) -> Draft:
        """The likeliest `budget` nodes. A parent never scores below its child and comes first, so the choice is a tree."""
        chosen = sorted(range(len(self.tokens)), key=lambda n: (-self.scores[n], n))[: self.budget]
        chosen.sort()
        index = {-1: -1} | {node: i for i, node in enumerate(chosen)}
        tree = Tree(tuple(self.tokens[n] for n in chosen), tuple(index[self.parents[n]] for n in chosen))
        return Draft(tree, scores=tuple(self.scores[n] for n in chosen), beliefs=self.beliefs(chosen))


def _free(cache: Cache, states: dict[int, _State]) -> None:
    for state in states.values():
        cache.free(state.slot)


class DraftModelDrafter:
    """Drafts with a whole small model, which keeps its own cache and brings itself up to date with each sequence.

    Args:
        model: the draft model, with the target's tokenizer (`targets.load.check_same_tokenizer`).
        vocab_size: the target's; ids beyond it are never proposed.
        num_speculative_tokens: depth of the draft, if no shape says it.
        budget: nodes of the grown tree, the root included; with `width` 1 the tree is a chain.
        width: draft nodes per forward, and children per node, of the grown tree.
        stop_below: no further forward for the grown tree once its likeliest path has a smaller probability, unless `goes_on` is set.
        context: how many of the last tokens it reads at most; None is half of what it can hold. Whenever that is not enough it starts
            again with the last of them, so that its own context may be shorter than the target's.
        siblings: how children are chosen, as the rule needs it. Drawn ones follow the request's own settings. A greedy request has
            nothing to draw: it gets the likeliest children in the same shape.
        shape: of a drawn tree, None is a chain; also of a fixed one, which None lets grow.
        keeps_beliefs: whether drafts say what the draft model thought at each node, for a rule that reads that (`Draft.beliefs`).
    """

    target_layer_ids: tuple[int, ...] = ()

    def __init__(
        self,
        model: Target,
        vocab_size: int,
        num_speculative_tokens: int = DEPTH,
        budget: int = BUDGET,
        *,
        width: int = 2,
        stop_below: float = 0.3,
        context: int | None = None,
        siblings: Siblings = Siblings.FIXED,
        shape: Shape | None = None,
        keeps_beliefs: bool = False,
    ) -> None:
        self.model, self.vocab_size, self.siblings, self.keeps_beliefs = model, vocab_size, siblings, keeps_beliefs
        self.shape = shape if shape or siblings is Siblings.FIXED else chain(num_speculative_tokens)
        self.depth = self.shape.depth if self.shape else min(num_speculative_tokens, budget - 1)
        self.budget = len(self.shape) if self.shape else budget
        self.width, self.stop_below = width, stop_below
        self.context = min(context or 1 << 30, model.max_length // 2 if model.max_length else 1 << 30)
        self.goes_on: Further | None = None  # decides instead of `stop_below`, for who knows what forwards cost
        self._states: dict[int, _State] = {}  # by the target's slot
        weakref.finalize(self, _free, model.cache, self._states)  # its slots end with it

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        growths = [self._begin(seq) for seq in seqs]
        if self.keeps_beliefs:
            for growth in growths:
                growth.keep_beliefs()
        while live := [g for g in growths if g.running]:
            trees, states = [g.scratch() for g in live], [self._state(g.seq) for g in live]
            out = self.model.verify(trees, [s.slot for s in states])
            for i, (growth, state, tree) in enumerate(zip(live, states, trees, strict=True)):
                state.scratch = tree
                growth.expand(self._fit(out.logits[out.span(i)][-len(growth.running) :]))
        return [g.draft() for g in growths]

    def _fit(self, rows: torch.Tensor) -> torch.Tensor:
        """(M, V) logits over the target's vocabulary, however the draft model's own is padded."""
        missing = self.vocab_size - rows.shape[1]
        return torch.nn.functional.pad(rows, (0, missing), value=-math.inf) if missing > 0 else rows[:, : self.vocab_size]

    def _begin(self, seq: Request) -> Growth:
        """Bring the draft model's cache to what it should know of this sequence, and plan the first forward."""
        state = self._state(seq)
        self._reconcile(state, seq.tokens[state.start :])
        if not state.tokens:  # nothing in common, as when another sequence takes over the slot
            state.start = 0
        depth = min(self.depth, seq.room - 1)
        fed = seq.tokens[state.start + len(state.tokens) :]
        if len(fed) > self.context or self._too_long(len(seq.tokens) - state.start + depth):
            state.start = max(0, len(seq.tokens) - self.context)
            self._reconcile(state, [])
            fed = seq.tokens[state.start :]
            depth = min(depth, self.model.max_length - len(fed)) if self.model.max_length else depth
        if max(fed) >= self.model.vocab_size:  # a token that the draft model cannot read
            depth = 0
        if depth > 0 and len(fed) > self.depth + 2:  # a prompt: read it without computing logits
            self.model.prefill([state.slot], [fed[:-1]])
            state.tokens += fed[:-1]
            fed = fed[-1:]
        if self.shape is None:
            goes_on = self.goes_on or self._is_likely
            return BestFirstGrowth(seq, fed, depth, budget=self.budget, width=self.width, goes_on=goes_on)
        return ShapedGrowth(seq, fed, depth, shape=self.shape, siblings=Siblings.FIXED if seq.params.greedy else self.siblings)

    def _is_likely(self, scores: Sequence[float], best: float) -> bool:
        return math.exp(best) >= self.stop_below

    def _state(self, seq: Request) -> _State:
        assert seq.slot is not None, "the loop gives a sequence its slot before it asks for a draft"
        if seq.slot not in self._states:
            self._states[seq.slot] = _State(self.model.cache.open(min(len(seq.tokens), self.context) + seq.room + 64))
        return self._states[seq.slot]

    def _too_long(self, tokens: int) -> bool:
        return self.model.max_length is not None and tokens > self.model.max_length

    def _reconcile(self, state: _State, tokens: list[int]) -> None:
        """Keep what the cache has in common with `tokens`, all but the last of which may be cached; accepted drafts stay."""
        known = len(state.tokens)
        if known < len(tokens) and tokens[:known] == state.tokens:
            path = state.scratch.follow(tokens[known:-1]) if state.scratch else []
            self.model.cache.commit(state.slot, path)
            state.tokens += tokens[known : known + len(path)]
        else:
            shared = common_prefix(state.tokens, tokens[:-1])
            self.model.cache.truncate(state.slot, shared)
            del state.tokens[shared:]
        state.scratch = None
