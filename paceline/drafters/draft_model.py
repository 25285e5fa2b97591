"""A small model drafts for a large one (Leviathan et al. 2023), as a chain of samples or as a tree of its likeliest continuations.

The tree is grown breadth by breadth: each draft forward runs the few likeliest new nodes at once, which costs a memory-bound machine
about as much as one, and the nodes with the largest path probability fill the budget (as in EAGLE-2, Li et al. 2024). Drafting
stops early when even the likeliest path has become unlikely: a forward of the draft model must pay for itself.

Axes: M draft nodes, V vocabulary.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..draft import Draft, Siblings
from ..sampling import process, truncate
from ..sequence import Sequence as Request
from ..sequence import common_prefix
from ..targets.base import Cache, Target
from ..tree import Tree


@dataclass
class _State:
    """What the draft model has seen of one sequence, from token `start` on: committed tokens, then a scratch tree after them."""

    slot: int
    start: int = 0
    tokens: list[int] = field(default_factory=list)
    scratch: Tree | None = None


@dataclass
class _Growth:
    """One draft under construction. Candidates are nodes of the draft; node 0 is the root. Those that ran have a scratch row."""

    seq: Request
    state: _State
    fed: list[int]  # known tokens that the draft model has not seen; the last one is the root
    depth: int  # how deep this draft may become
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=lambda: [-1])
    scores: list[float] = field(default_factory=lambda: [0.0])  # log-probability of the path
    depths: list[int] = field(default_factory=lambda: [0])
    ran: dict[int, int] = field(default_factory=dict)  # draft node -> scratch node
    running: list[int] = field(default_factory=lambda: [0])  # draft nodes in the next forward; empty when done
    logits: list[torch.Tensor] = field(default_factory=list)  # sampled drafts: the row that proposed each node's child

    def __post_init__(self) -> None:
        self.tokens.append(self.fed[-1])
        self.scratch_tokens, self.scratch_parents = list(self.fed), list(range(-1, len(self.fed) - 1))
        self.ran[0] = len(self.fed) - 1

    def add(self, parent: int, token: int, score: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(self.scores[parent] + score)
        self.depths.append(self.depths[parent] + 1)
        return len(self.tokens) - 1

    def run_next(self, nodes: list[int]) -> None:
        """Put these draft nodes into the next forward."""
        self.running = nodes
        for node in nodes:
            self.ran[node] = len(self.scratch_tokens)
            self.scratch_tokens.append(self.tokens[node])
            self.scratch_parents.append(self.ran[self.parents[node]])

    def path_tokens(self, node: int) -> list[int]:
        """Draft tokens from below the root down to `node`."""
        tokens = []
        while node:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def best(self, budget: int) -> Tree:
        """The likeliest `budget` nodes. A parent never scores below its child and comes first, so the choice is a tree."""
        chosen = sorted(range(len(self.tokens)), key=lambda n: (-self.scores[n], n))[:budget]
        chosen.sort()
        index = {-1: -1} | {node: i for i, node in enumerate(chosen)}
        return Tree(tuple(self.tokens[n] for n in chosen), tuple(index[self.parents[n]] for n in chosen))


def _free(cache: Cache, states: dict[int, _State]) -> None:
    for state in states.values():
        cache.free(state.slot)


class DraftModelDrafter:
    """Drafts with a whole small model, which keeps its own cache and brings itself up to date with each sequence.

    Args:
        model: the draft model, with the target's tokenizer (`targets.load.check_same_tokenizer`).
        vocab_size: the target's; ids beyond it are never proposed.
        num_speculative_tokens: depth of the draft.
        budget: nodes of the tree, the root included; with `width` 1 the tree is a chain.
        width: draft nodes per forward, and children per node.
        stop_below: no further forward once the likeliest path has a smaller probability.
        context: how many of the last tokens it reads at most; None is half of what it can hold. Whenever that is not enough it starts
            again with the last of them, so that its own context may be shorter than the target's.
        sampled: draw a chain from the draft model under the request's settings, as rule `rejection` needs.
    """

    target_layer_ids: tuple[int, ...] = ()

    def __init__(
        self,
        model: Target,
        vocab_size: int,
        num_speculative_tokens: int = 6,
        budget: int = 6,
        *,
        width: int = 2,
        stop_below: float = 0.3,
        context: int | None = None,
        sampled: bool = False,
    ) -> None:
        self.model, self.vocab_size = model, vocab_size
        self.depth, self.budget = num_speculative_tokens, budget
        self.width, self.stop_below, self.sampled = width, stop_below, sampled
        self.context = min(context or 1 << 30, model.max_length // 2 if model.max_length else 1 << 30)
        self.siblings = Siblings.WITHOUT_REPLACEMENT if sampled else Siblings.FIXED
        self._states: dict[int, _State] = {}  # by the target's slot
        weakref.finalize(self, _free, model.cache, self._states)  # its slots end with it

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        growths = [self._begin(seq) for seq in seqs]
        while live := [g for g in growths if g.running]:
            trees = [Tree(tuple(g.scratch_tokens), tuple(g.scratch_parents)) for g in live]
            out = self.model.verify(trees, [g.state.slot for g in live])
            for i, (growth, tree) in enumerate(zip(live, trees, strict=True)):
                growth.state.scratch = tree
                rows = self._fit(out.logits[out.span(i)][-len(growth.running) :])
                self._sample(growth, rows[0]) if self.sampled else self._expand(growth, rows)
        return [self._finish(g) for g in growths]

    def _fit(self, rows: torch.Tensor) -> torch.Tensor:
        """(M, V) logits over the target's vocabulary, however the draft model's own is padded."""
        missing = self.vocab_size - rows.shape[1]
        return torch.nn.functional.pad(rows, (0, missing), value=-math.inf) if missing > 0 else rows[:, : self.vocab_size]

    def _begin(self, seq: Request) -> _Growth:
        """Bring the draft model's cache to what it should know of this sequence, and plan the first forward."""
        state = self._state(seq)
        self._reconcile(state, seq.tokens[state.start :])
        if not state.tokens:  # nothing in common, as when another sequence takes over the slot
            state.start = 0
        depth = min(self.depth, seq.room - 1, self.budget - 1)
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
        growth = _Growth(seq, state, fed, depth)
        if depth <= 0:
            growth.running = []
        return growth

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

    def _expand(self, growth: _Growth, rows: torch.Tensor) -> None:
        """Add the likeliest children of the nodes that ran, (M, V) logits, and choose what runs next."""
        if not growth.seq.params.raw:
            processed = [process(r, growth.seq, growth.path_tokens(n), custom=False) for n, r in zip(growth.running, rows, strict=True)]
            rows = torch.stack(processed)
        rows = rows.float()
        best = rows.topk(min(self.width, rows.shape[1]))
        scores = (best.values - rows.logsumexp(-1, keepdim=True)).tolist()
        new = [
            growth.add(node, token, score)
            for node, tokens, logps in zip(growth.running, best.indices.tolist(), scores, strict=True)
            for token, score in zip(tokens, logps, strict=True)
            if score > -math.inf
        ]
        new.sort(key=lambda n: -growth.scores[n])
        reached = growth.depths[new[0]] if new else growth.depth
        if reached >= growth.depth or math.exp(growth.scores[new[0]]) < self.stop_below:
            growth.running = []
        else:
            floor = sorted(growth.scores, reverse=True)[: self.budget][-1] if len(growth.scores) > self.budget else -math.inf
            growth.run_next([n for n in new[: self.width] if growth.scores[n] >= floor])  # no child of the others can enter the tree

    def _sample(self, growth: _Growth, row: torch.Tensor) -> None:
        """Draw the next token of a chain from the draft's law, (V,) logits, under the request's own settings."""
        (node,) = growth.running
        params = growth.seq.params
        row = process(row, growth.seq, growth.path_tokens(node), custom=False)
        if params.greedy:
            token = int(row.argmax())
            law = torch.full_like(row, -math.inf, dtype=torch.float32)
            law[token] = 0
        else:
            law = truncate(row, params)
            token = growth.seq.rng.pick(torch.softmax(law, -1))
        growth.logits.append(law)
        child = growth.add(node, token, 0.0)
        if growth.depths[child] < growth.depth:
            growth.run_next([child])
        else:
            growth.running = []

    def _finish(self, growth: _Growth) -> Draft:
        if not self.sampled:
            return Draft(growth.best(self.budget))
        tree = Tree(tuple(growth.tokens), tuple(growth.parents))
        if not growth.logits:
            return Draft(tree, self.siblings)
        rows = (*range(len(growth.logits)), *[-1] * (len(tree) - len(growth.logits)))
        return Draft(tree, self.siblings, torch.stack(growth.logits), rows)
