"""A head made ready for decoding: packed weights on a CPU, and the output matrix in its quickest form."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..cost import seconds_of
from ..targets.pack import can_pack, pack
from .belongs import check_belongs
from .borrow import output_layer
from .formats import load
from .jetspec import Context, JetSpecHead
from .shipped import head_folder

_ready: WeakKeyDictionary[Any, dict[Path, JetSpecHead]] = WeakKeyDictionary()  # by target
_seconds: WeakKeyDictionary[JetSpecHead, dict[int, float]] = WeakKeyDictionary()  # by number of sequences


def ready_head(target: Any, head: str | Path | JetSpecHead | None) -> JetSpecHead:
    """A head for decoding with this target (an HFTarget): an object, a folder, or None for the one that is shipped with the target.

    A folder is read once per target. Raises InvalidRequest where none is shipped, CheckpointMismatch for another target's head.
    """
    if isinstance(head, JetSpecHead):
        check_belongs(head.config, target)
        return head
    folder, known = head_folder(head, target.name), _ready.setdefault(target, {})
    if folder not in known:
        known[folder] = quicken(load(folder, target), target)
    return known[folder]


@torch.no_grad()
def quicken(head: JetSpecHead, target: Any) -> JetSpecHead:
    """Pack a head's linear layers in place where that is possible; it cannot be trained or saved afterwards.

    Its output layer becomes the target's own, or for a reduced vocabulary a packed copy of its rows.
    """
    packs = can_pack(head.dtype, head.embed_weight.device)
    if head.borrows_output and head.config.draft_vocab_size is None and head.dtype == target.dtype:
        head.output = output_layer(target)  # never as a module of the head: packing would take the target's weight away
    elif packs:
        rows, hidden = head.output_weight.shape
        linear = nn.Linear(hidden, rows, bias=False, dtype=head.dtype)
        linear.weight.copy_(head.output_weight)
        head.output = pack(nn.Sequential(linear), head.dtype).forward
        head.output_weight = head.output_weight[:0].clone()
    if packs:
        pack(head, head.dtype)
    return head


@torch.inference_mode()
def draft_seconds(head: JetSpecHead, sequences: int = 1) -> float:
    """The time of one draft for so many sequences behind short contexts, the least of a few; measured once."""
    known = _seconds.setdefault(head, {})
    if sequences not in known:
        contexts, anchors = [Context() for _ in range(sequences)], torch.zeros(sequences, dtype=torch.long, device=head.embed_weight.device)
        rows = torch.zeros(64, head.config.hidden_size, dtype=head.dtype, device=anchors.device)
        for context in contexts:
            context.append(head.context_kv(rows, torch.arange(len(rows), device=anchors.device)), rows[-1])
        known[sequences] = seconds_of(lambda: head.draft(anchors, contexts), times=4)
    return known[sequences]
