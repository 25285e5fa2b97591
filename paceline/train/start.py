"""Training that goes on from a head that is there: its weights, under the shape that the recipe asks for."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..errors import CheckpointMismatch
from ..heads import formats
from ..heads.config import JetSpecConfig
from ..heads.jetspec import JetSpecHead
from ..targets.hf import HFTarget


def ids_of(head: JetSpecHead) -> torch.Tensor | None:
    """(Vd,) the head's draft vocabulary as target ids, or None if it drafts all tokens."""
    return None if head.config.draft_vocab_size is None else head.draft_vocab_ids.cpu()


def read(folder: str | None, wanted: JetSpecConfig, target: HFTarget) -> JetSpecHead | None:
    """The head in a folder, in float32, or None without one.

    Raises CheckpointMismatch for a head of another target, or one that reads other layers or drafts another vocabulary than `wanted`.
    """
    if folder is None:
        return None
    head = formats.load(folder, target, torch.float32)
    for name in ("target_layer_ids", "draft_vocab_size"):
        new, old = getattr(wanted, name), getattr(head.config, name)
        if new != old:
            raise CheckpointMismatch(f"{folder} has {name} {old} and the recipe {new}; give the recipe the head's, or train a new head")
    return head


@torch.no_grad()
def go_on(head: JetSpecHead, before: JetSpecHead, folder: str, say: Callable[[str], None]) -> None:
    """Give a new head the weights of the one in `folder`. What only the old one has is left out, and said.

    Raises CheckpointMismatch if the new one has a tensor that the old one lacks or holds in another shape.
    """
    given, wanted = before.state_dict(), head.state_dict()
    wrong = [name for name, value in wanted.items() if name not in given or given[name].shape != value.shape]
    if wrong:
        raise CheckpointMismatch(f"{folder} cannot start this head: it has no {wrong[0]} of shape {list(wanted[wrong[0]].shape)}")
    head.load_state_dict({name: given[name] for name in wanted})
    idle = [name for name in given if name not in wanted]
    say(f"going on from {folder}" + (f", without its {', '.join(idle)}" if idle else ""))
