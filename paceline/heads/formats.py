"""Heads on disk: a folder with config.json and model.safetensors, in a public layout (`layouts.py`), and a card.

Beside the head's own tensors there may be `d2t` (Vd,) and `t2d` (V,), the reduced draft vocabulary as offsets and as a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..errors import CheckpointMismatch
from . import layouts
from .belongs import check_belongs
from .config import JetSpecConfig
from .files import CARD as CARD
from .files import WEIGHTS as WEIGHTS
from .files import read_json, replace_file, write_json
from .jetspec import JetSpecHead
from .shipped import CONFIG

EMBEDDING, OUTPUT = "embed_tokens.weight", "lm_head.weight"  # the target's, which some layouts bring along
_IDLE = ("d2t", "t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # said otherwise, or of no use here
_NEAR = 0.03


@dataclass(frozen=True)
class Stored:
    """A head as it lies in its folder, before it meets its target. `ids` (Vd,) are the draft vocabulary's target ids, if reduced;
    `brought` are the embedding and output matrices if they came along, and `mask_row` is the place of a trained mask in the former."""

    config: JetSpecConfig
    tensors: dict[str, torch.Tensor]
    ids: torch.Tensor | None
    layout: str
    card: Mapping[str, Any]
    brought: Mapping[str, torch.Tensor]
    mask_row: int | None


def save(head: JetSpecHead, folder: str | Path, *, dtype: torch.dtype = torch.bfloat16, card: Mapping[str, Any] | None = None) -> None:
    """Write a head to a folder in the flat layout, each file whole or not at all. `card` is what is known about it, for card.json."""
    tensors = {k: v.detach().to("cpu", dtype).contiguous() for k, v in head.state_dict().items()}
    if head.config.draft_vocab_size is not None:
        tensors |= vocabulary_maps(head.draft_vocab_ids.cpu(), head.config.vocab_size)
    write(Path(folder), head.config, tensors, card=card)


def write(
    folder: Path,
    config: JetSpecConfig,
    tensors: Mapping[str, torch.Tensor],
    *,
    layout: str = "dflash",
    card: Mapping[str, Any] | None = None,
) -> None:
    """Write tensors and their configuration in this layout. The configuration comes last: without it a folder is no head."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = str(next(t.dtype for t in tensors.values() if t.is_floating_point())).removeprefix("torch.")
    replace_file(folder / WEIGHTS, lambda file: save_file(dict(sorted(tensors.items())), file, metadata={"format": "pt"}))
    if card is not None:
        replace_file(folder / CARD, lambda file: write_json(file, card))
    replace_file(folder / CONFIG, lambda file: write_json(file, layouts.write(config, layout, kind)))


def read(folder: str | Path) -> Stored:
    """What lies in a head's folder. Raises CheckpointMismatch if it is no head, is incomplete or does not agree with itself."""
    folder = Path(folder)
    config_json = read_json(folder / CONFIG)
    config = layouts.read(config_json)
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CheckpointMismatch(f"{folder / WEIGHTS} cannot be read ({str(error).splitlines()[0]}); get the head again") from None
    ids = _draft_ids(tensors, config)
    mask_row = config.mask_token_id
    brought = {name: tensors.pop(name) for name in (EMBEDDING, OUTPUT) if name in tensors}
    if mask_row is not None and EMBEDDING in brought:  # it may hold a trained mask, so its row counts, not the target's
        tensors["mask_embedding"] = brought[EMBEDDING][mask_row].clone()
        config = replace(config, mask_token_id=None)
    kept = {k: v for k, v in tensors.items() if k not in _IDLE}
    _check_tensors(config, kept, ids)
    card = read_json(folder / CARD) if (folder / CARD).is_file() else {}
    return Stored(config, kept, ids, layouts.layout_of(config_json), card, brought, mask_row)


def load(folder: str | Path, target: Any, dtype: torch.dtype | None = None) -> JetSpecHead:
    """A head for this target (an HFTarget), in the target's type unless one is given. Raises CheckpointMismatch if it is another's."""
    stored = read(folder)
    check_belongs(stored.config, target)
    return attach(stored, target, dtype)


def attach(stored: Stored, target: Any, dtype: torch.dtype | None = None) -> JetSpecHead:
    """The head on this target, whether it belongs to it or not. An output matrix that it brought is used; an embedding must be the
    target's."""
    head = JetSpecHead.for_target(target, stored.config, stored.ids)
    head.load_state_dict(stored.tensors)
    if (embedding := stored.brought.get(EMBEDDING)) is not None:
        _check_embedding(embedding, head.embed_weight, stored.mask_row)
    if (output := stored.brought.get(OUTPUT)) is not None:
        head.own_output(output.to(target.device, dtype or target.dtype))
    return head.to(target.device, dtype or target.dtype).eval().requires_grad_(False)


def vocabulary_maps(ids: torch.Tensor, vocab_size: int) -> dict[str, torch.Tensor]:
    """`d2t` (Vd,): target id less draft row; `t2d` (V,): whether a target token is in the draft vocabulary."""
    inside = torch.zeros(vocab_size, dtype=torch.bool)
    inside[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": inside}


def _draft_ids(tensors: Mapping[str, torch.Tensor], config: JetSpecConfig) -> torch.Tensor | None:
    if config.draft_vocab_size is None:
        return None
    offsets = tensors.get("d2t")
    if offsets is None or offsets.shape != (config.draft_vocab_size,):
        found = "is missing" if offsets is None else f"has shape {list(offsets.shape)}"
        raise CheckpointMismatch(f"the head drafts {config.draft_vocab_size} tokens and its map d2t {found}; get the head again")
    ids = offsets.long() + torch.arange(config.draft_vocab_size)
    if not (bool((ids >= 0).all()) and bool((ids < config.vocab_size).all())):
        raise CheckpointMismatch(f"the head's map d2t leads to tokens outside the vocabulary of {config.vocab_size}; get the head again")
    return ids


def _check_tensors(config: JetSpecConfig, tensors: Mapping[str, torch.Tensor], ids: torch.Tensor | None) -> None:
    """Raise CheckpointMismatch, naming the tensors, unless they are those that the configuration describes."""
    with torch.device("meta"):
        borrowed = torch.empty(config.vocab_size, config.hidden_size)
        wanted = JetSpecHead(config, borrowed, borrowed, ids).state_dict()
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise CheckpointMismatch(f"the head lacks {_listed(missing)}; get it again, or correct its config.json")
    if strange := sorted(tensors.keys() - wanted.keys()):
        raise CheckpointMismatch(
            f"the head has tensors that its config.json does not explain: {_listed(strange)}; it may be another kind of head"
        )
    for name, tensor in sorted(tensors.items()):
        if tensor.shape != wanted[name].shape:
            raise CheckpointMismatch(
                f"{name} of the head has shape {list(tensor.shape)}, and its config.json says {list(wanted[name].shape)}; "
                "they do not belong together"
            )


def _check_embedding(brought: torch.Tensor, own: torch.Tensor, mask_row: int | None) -> None:
    rows = torch.tensor([i for i in torch.linspace(0, len(brought) - 1, 64).long().tolist() if i != mask_row])
    ours, theirs = brought[rows].float(), own[rows.to(own.device)].float().cpu()
    if float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12)) > _NEAR:
        raise CheckpointMismatch("the head brings an embedding that is not the target's; use it with its own target")


def _listed(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
