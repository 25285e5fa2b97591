"""SpecBound: the target drafts for itself (arXiv 2604.12247). An early layer's confident reading of a token is the draft of it.

A token climbs the target's layers; at each exit layer its head may say what comes next. If that is confident enough by a threshold
that is annealed over depth, it becomes a draft and climbs in turn. Two bounds end this: a token that reaches the depth bound without an
exit is difficult, and the width bounds the drafts. Layers that a token has skipped are run when a later one needs them (catch-up: a
layer's cache has no holes), or by verification, which goes on from what is done (`HeadStart`).

Axes: N nodes, n rows of one call, H hidden size, V vocabulary, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise

import torch

from ..draft import Draft, HeadStart, Siblings, law
from ..errors import InvalidRequest
from ..heads.exit import Exits, fires, temperature
from ..heads.exit_cost import Bounds
from ..sampling import process, truncate
from ..sequence import Sequence as Request
from ..targets.base import LayeredTarget
from ..tree import Tree
from .sampled import stated


@dataclass
class Climb:
    """One sequence's draft so far. The last token is the one that climbs."""

    seq: Request
    most: int  # drafts
    tokens: list[int] = field(init=False)
    done: list[int] = field(default_factory=lambda: [0])  # layers that each token has been through, never ascending
    hidden: list[torch.Tensor] = field(default_factory=list)  # (H,) of each token that has been through any
    logits: list[torch.Tensor] = field(default_factory=list)  # (V,) of each drawn draft

    def __post_init__(self) -> None:
        self.tokens = [self.seq.root]

    @property
    def slot(self) -> int:
        assert self.seq.slot is not None, "the loop gives a sequence its slot before it asks for a draft"
        return self.seq.slot

    def together(self, depth: int) -> list[int]:
        """The tokens at this depth: the climbing one and those before it that wait there."""
        return [i for i, done in enumerate(self.done) if done == depth]

    def rise(self, places: Sequence[int], depth: int, rows: torch.Tensor) -> None:
        """These tokens are now at this depth, with hidden states (n, H)."""
        for place, row in zip(places, rows, strict=True):
            self.done[place] = depth
            self.hidden[place : place + 1] = [row]

    def add(self, token: int) -> None:
        self.tokens.append(token)
        self.done.append(0)

    @property
    def ended(self) -> bool:
        """Whether the last draft is the last that is wanted."""
        ends = self.seq.eos_token_ids.union(self.seq.params.stop_token_ids)
        return len(self.tokens) > self.most or self.tokens[-1] in ends

    def draft(self, siblings: Siblings) -> Draft:
        tree = Tree.chain(self.tokens)
        if not self.hidden:
            return Draft(tree, siblings)
        unread = [torch.zeros_like(self.hidden[0])] * (len(tree) - len(self.hidden))
        start = HeadStart(tuple(self.done), torch.stack([*self.hidden, *unread]))
        if not self.logits:
            return Draft(tree, siblings, head_start=start)
        rows = (*range(len(self.logits)), *[-1] * (len(tree) - len(self.logits)))
        return Draft(tree, siblings, torch.stack(self.logits), rows, start)


class SpecBoundDrafter:
    """Drafts with the target's own early layers. Keeps nothing between rounds.

    Args:
        target: whose layers are run; the loop must verify with the same one.
        exits: reads early layers (`heads.exit`).
        bounds: the threshold of the exit rule (one above 1 never fires); the depth bound, layers that a token climbs at most while
            drafting; the width bound, tokens of a draft.
        layers: where a token may exit, None wherever the exits can read.
        annealing: of the exit rule; None is what the exits were fitted to.
        siblings: FIXED proposes the likeliest token; another kind draws it from the exit's law, with the request's own settings.

    Raises InvalidRequest for bounds that leave no exit layer.
    """

    target_layer_ids: tuple[int, ...] = ()

    def __init__(
        self,
        target: LayeredTarget,
        exits: Exits,
        bounds: Bounds,
        *,
        layers: Sequence[int] | None = None,
        annealing: float | None = None,
        siblings: Siblings = Siblings.FIXED,
    ) -> None:
        config, self.layers = exits.config, tuple(layers or exits.config.layers)
        self.target, self.exits, self.bounds, self.siblings = target, exits, bounds, siblings
        self.annealing = config.annealing if annealing is None else annealing
        if strange := sorted(set(self.layers) - set(config.layers)):
            raise InvalidRequest(f"there is no exit head at layer {strange[0]}; these exits read {', '.join(map(str, config.layers))}")
        if not self.layers[0] <= bounds.depth <= target.num_layers:
            raise InvalidRequest(
                f"the exit depth is {bounds.depth}; the first exit is after {self.layers[0]} of {target.num_layers} layers, so it must be "
                "between these"
            )
        stops = {0, bounds.depth, *(layer for layer in self.layers if layer <= bounds.depth)}
        self.spans = [range(a, b) for a, b in pairwise(sorted(stops))]

    @torch.inference_mode()
    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        climbs = [Climb(seq, min(self.bounds.width, seq.room - 1)) for seq in seqs]
        live = [climb for climb in climbs if climb.most > 0]
        while live:
            live = [climb for climb in self.climb(live) if not climb.ended]
        return [climb.draft(Siblings.FIXED if climb.seq.params.greedy else self.siblings) for climb in climbs]

    def climb(self, climbs: list[Climb]) -> list[Climb]:
        """Take the last token of each up to its exit, and add what it proposes. Returns those that proposed; the others are difficult."""
        proposed = []
        for span in self.spans:
            self._run(span, climbs)
            if span.stop not in self.layers:
                break  # the depth bound, without a head
            logits = self.exits.logits(span.stop, torch.stack([climb.hidden[-1] for climb in climbs]))
            leaves = self._fires(logits, span.stop)
            proposed += [climb for climb, row in compress(zip(climbs, logits, strict=True), leaves) if self._add(climb, row)]
            climbs = list(compress(climbs, (not left for left in leaves)))
            if not climbs:
                break
        return proposed

    def _run(self, span: range, climbs: Sequence[Climb]) -> None:
        """Layers of the span on each climbing token, together with those before it that lag behind there."""
        groups = [climb.together(span.start) for climb in climbs]
        rows = [climb.hidden[place] for climb, group in zip(climbs, groups, strict=True) for place in group] if span.start else []
        trees, slots = [Tree.chain(climb.tokens) for climb in climbs], [climb.slot for climb in climbs]
        hidden = self.target.layers(span, trees, slots, torch.stack(rows) if rows else None)
        for climb, group, own in zip(climbs, groups, torch.split(hidden, [len(group) for group in groups]), strict=True):
            climb.rise(group, span.stop, own)

    def _fires(self, logits: torch.Tensor, depth: int) -> list[bool]:
        """Of (n, R) logits at this depth, which are confident enough, and of a token that the exit knows."""
        leaves = fires(logits, temperature(depth, self.target.num_layers, self.annealing), self.bounds.threshold)
        if self.exits.ids is not None:
            leaves &= logits.argmax(-1) < len(self.exits.ids)
        found: list[bool] = leaves.tolist()
        return found

    def _add(self, climb: Climb, row: torch.Tensor) -> bool:
        """Propose a token by (R,) logits of an exit; False where all are banned. Whether one exits never depends on the token drawn."""
        seq = climb.seq
        if self.exits.ids is not None:
            row = row.new_full((self.target.vocab_size,), -torch.inf).index_copy_(0, self.exits.ids, row[:-1])
        row = process(row, seq, climb.tokens[1:], custom=False)
        if not bool(row.max().isfinite()):
            return False
        if seq.params.greedy or self.siblings is Siblings.FIXED:
            climb.add(int(row.argmax()))
            return True
        row = stated(truncate(row, seq.params))
        climb.logits.append(row)
        climb.add(seq.rng.pick(law(row)))
        return True
