"""Heads for other servers: what their layouts have no place for is folded in, or left out only when asked.

A trained mask vector becomes a row of an embedding that goes with the head, in the place of a token that never occurs. A reduced draft
vocabulary brings its rows of the output matrix. A Markov term has no public layout, nor have slots that start with the last context row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import InvalidRequest
from .belongs import check_belongs
from .borrow import embedding_weight, output_rows
from .formats import EMBEDDING, OUTPUT, Stored, vocabulary_maps, write

LAYOUTS = ("dflash", "speculators")
MASK = "mask_embedding"


@dataclass(frozen=True)
class Private:
    """A part of a head that no public layout holds: the option that leaves it out, the setting that has it, and that setting's value
    without it."""

    option: str
    what: str
    setting: str
    without: int | bool
    tensors: tuple[str, ...]


PRIVATE = (
    Private("--without-markov", "a Markov term", "markov_rank", 0, ("markov_prev", "markov_next")),
    Private("--without-last-row", "slots that start with the last context row", "last_feature", False, ("last_proj.weight",)),
)


def leave_out(stored: Stored, layout: str, without: Collection[str] = ()) -> tuple[Stored, list[str]]:
    """The head without the parts that this layout cannot hold, and a note of each. `without` are the options of those parts (see PRIVATE).

    Raises InvalidRequest for one that the head has and no option leaves out, and for an option of one that it does not have.
    """
    if layout not in LAYOUTS:
        raise InvalidRequest(f"layout {layout!r} is unknown; use {' or '.join(LAYOUTS)}")
    config, tensors, notes = stored.config, stored.tensors, list[str]()
    for part in PRIVATE:
        if not getattr(config, part.setting):
            if part.option in without:
                raise InvalidRequest(f"{part.option} has no effect: the head does not have {part.what}; leave it out")
            continue
        if part.option not in without:
            raise InvalidRequest(
                f"the head has {part.what}, which {layout} cannot hold; export with {part.option} (its acceptance will be lower), "
                f"or train a head with head.{part.setting} {str(part.without).lower()}"
            )
        tensors = {k: v for k, v in tensors.items() if k not in part.tensors}
        config = replace(config, **{part.setting: part.without}, temperatures=())  # type: ignore[arg-type]
        notes.append(f"left out: {part.what}; measure acceptance again")
    return replace(stored, config=config, tensors=tensors), notes


def export(stored: Stored, folder: Path, layout: str, *, target: Any = None, mask_token_id: int | None = None) -> list[str]:
    """Write a head, whose private parts are gone (see `leave_out`), in a public layout; returns what another server must know. `target`
    (an HFTarget) lends the rows that go along.

    Raises InvalidRequest where something must be given first.
    """
    leave_out(stored, layout)  # raises if there still is one
    config, tensors, notes = stored.config, dict(stored.tensors), list[str]()
    if MASK in tensors or (stored.ids is not None and OUTPUT not in stored.brought):
        if target is None:
            raise InvalidRequest("the head goes out with rows of its target's matrices; name the target with --model")
        check_belongs(config, target)
    if stored.ids is not None:
        tensors |= _vocabulary(stored, target)
    row = stored.mask_row if mask_token_id is None else mask_token_id
    if MASK in tensors:
        tensors[EMBEDDING] = _with_mask(target, tensors.pop(MASK), row)
        config = replace(config, mask_token_id=row)
        notes.append(f"{EMBEDDING} is the target's with the trained mask in row {row}")
    elif mask_token_id is not None:
        raise InvalidRequest(f"--mask-token-id has no effect: the head's mask is token {config.mask_token_id}; leave it out")
    write(folder, config, tensors, layout=layout, card=stored.card or None)
    return notes


def _vocabulary(stored: Stored, target: Any) -> dict[str, torch.Tensor]:
    """The maps of a reduced vocabulary, and its rows of the output matrix."""
    assert stored.ids is not None
    rows = stored.brought.get(OUTPUT)
    if rows is None:
        rows = output_rows(target, stored.ids).to("cpu", stored.tensors["fc.weight"].dtype)
    return {**vocabulary_maps(stored.ids, stored.config.vocab_size), OUTPUT: rows}


def _with_mask(target: Any, mask: torch.Tensor, row: int | None) -> torch.Tensor:
    """(V, H) the target's embedding with the mask vector in this row."""
    weight = embedding_weight(target)[: target.vocab_size]
    if row is None or not 0 <= row < len(weight):
        raise InvalidRequest(
            f"the head has a trained mask vector, which needs the row of a token that never occurs in text, and --mask-token-id is {row}; "
            f"give one from 0 to {len(weight) - 1}"
        )
    weight = weight.to("cpu", mask.dtype, copy=True)
    weight[row] = mask
    return weight
