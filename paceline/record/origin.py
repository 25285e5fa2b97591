"""Whose records these are: the target, its tokenizer, and what drafted, compared before anything is added or learnt."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import CheckpointMismatch, InvalidRequest
from ..heads.borrow import embedding_weight
from ..heads.fingerprint import differs, fingerprint, same_target, tokenizer_hash
from ..heads.jetspec import JetSpecHead
from ..targets.hf import HFTarget
from ..train.disk import put_text

ABOUT, FORMAT, _ROWS = "about.json", 1, 64


@dataclass(frozen=True)
class Origin:
    """`fingerprint` are numbers of the target's matrices; `head` is a hash of the head or draft model, or nothing for another drafter."""

    target: str
    tokenizer: str
    fingerprint: tuple[float, ...]
    head: str
    format: int = FORMAT


def origin(target: HFTarget, mark: str) -> Origin:
    """Of rounds of this target, and of a drafter that is known by this mark."""
    return Origin(target.name, tokenizer_hash(target.vocabulary), fingerprint(target), mark)


def mark_of(drafter: Any) -> str:
    """What a drafter's records are known by: a hash of its head or draft model, nothing for others and for merged ones."""
    head, model = getattr(drafter, "head", None), getattr(drafter, "model", None)
    if isinstance(head, JetSpecHead):
        return head_hash(head)
    return model_hash(model) if isinstance(model, HFTarget) else ""


def model_hash(model: HFTarget) -> str:
    """16 hexadecimal digits of some rows of a model's embedding in bfloat16: the same for a model that is packed or rounded for drafting.

    Adapters leave the embedding as it is, so models that differ by them alone have one hash; what they draft tells them apart.
    """
    weight = embedding_weight(model)
    rows = weight[torch.linspace(0, len(weight) - 1, _ROWS).round().long().to(weight.device)]
    return hashlib.sha256(rows.to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes()).hexdigest()[:16]


def head_hash(head: JetSpecHead) -> str:
    """16 hexadecimal digits of a head's norms, mask and Markov term in bfloat16: the same for a head in float32, or packed for decoding."""
    digest = hashlib.sha256()
    for name, module in head.named_modules():
        if not isinstance(module, nn.Linear):
            for own, parameter in module.named_parameters(recurse=False):
                digest.update(f"{name}.{own}".encode())
                digest.update(parameter.detach().to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def settle(folder: Path, ours: Origin) -> None:
    """Mark a folder as holding records of this origin, or see that it does."""
    if (folder / ABOUT).exists():
        check(folder, ours)
    elif folder.is_dir() and any(folder.iterdir()):
        raise InvalidRequest(f"{folder} is not empty and holds no records; name another folder")
    else:
        put_text(folder / ABOUT, json.dumps(asdict(ours), indent=2) + "\n")


def check(folder: Path, ours: Origin) -> None:
    """Raise CheckpointMismatch, with both values, unless the records there are of this origin; InvalidRequest if there are none."""
    theirs = _read(folder)
    remedy = "use the one that they were made with, or record anew in another folder"
    if theirs.tokenizer != ours.tokenizer:
        raise CheckpointMismatch(
            f"the records in {folder} were made with tokenizer {theirs.tokenizer} and this target has {ours.tokenizer}; {remedy}"
        )
    if not same_target(theirs.fingerprint, ours.fingerprint):
        off = differs(theirs.fingerprint, ours.fingerprint)
        raise CheckpointMismatch(
            f"the records in {folder} were made with target {theirs.target}, whose fingerprint is off by {off:.1%} from that of "
            f"{ours.target}; {remedy}"
        )
    if theirs.head != ours.head:
        raise CheckpointMismatch(
            f"the records in {folder} were made with drafter {theirs.head or 'none'} and this one is {ours.head or 'none'}; {remedy}"
        )


def _read(folder: Path) -> Origin:
    try:
        values: Any = json.loads((folder / ABOUT).read_text())
        found = Origin(**{**values, "fingerprint": tuple(values["fingerprint"])})
    except OSError as error:
        raise InvalidRequest(f"{folder} holds no records ({error.strerror}: {ABOUT}); name a folder that --record wrote") from None
    except (ValueError, TypeError, KeyError):
        raise InvalidRequest(f"{folder / ABOUT} does not say whose records these are; record anew in another folder") from None
    if found.format != FORMAT:
        raise InvalidRequest(f"the records in {folder} are of format {found.format}, and this version reads {FORMAT}; record anew")
    return found
