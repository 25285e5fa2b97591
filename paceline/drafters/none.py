"""No draft: every tree is its root, so the loop decodes plainly. The baseline of every comparison."""

from __future__ import annotations

from collections.abc import Sequence

from ..draft import Draft, Siblings
from ..sequence import Sequence as Request
from ..tree import Tree


class NoDrafter:
    """Proposes nothing."""

    siblings = Siblings.FIXED
    target_layer_ids: tuple[int, ...] = ()

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        return [Draft(Tree.chain([seq.root])) for seq in seqs]
