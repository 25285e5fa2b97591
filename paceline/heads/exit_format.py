"""Exit heads on disk: a folder with config.json and model.safetensors, and a card. What is borrowed of the target is not in it.

Beside the heads' own tensors there is, for a reduced vocabulary, `ids` (Vd,), its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..errors import CheckpointMismatch
from .belongs import check_belongs
from .exit import ExitHeads
from .exit_config import ExitConfig
from .files import CARD, WEIGHTS, read_json, replace_file, write_json
from .shipped import CONFIG

IDS = "ids"


def save(heads: ExitHeads, folder: str | Path, *, dtype: torch.dtype = torch.bfloat16, card: Mapping[str, Any] | None = None) -> None:
    """Write heads to a folder, each file whole or not at all. `card` is what is known about them, for card.json."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.detach().to("cpu", dtype).contiguous() for k, v in heads.state_dict().items()}
    if heads.ids is not None:
        tensors[IDS] = heads.ids.cpu()
    replace_file(folder / WEIGHTS, lambda file: save_file(dict(sorted(tensors.items())), file, metadata={"format": "pt"}))
    if card is not None:
        replace_file(folder / CARD, lambda file: write_json(file, card))
    replace_file(folder / CONFIG, lambda file: write_json(file, heads.config.as_dict()))  # last: without it a folder holds no heads


def read(folder: str | Path) -> tuple[ExitConfig, dict[str, torch.Tensor]]:
    """What lies in a folder. Raises CheckpointMismatch if that are no exit heads."""
    folder = Path(folder)
    config = ExitConfig.from_dict(read_json(folder / CONFIG))
    try:
        return config, load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CheckpointMismatch(f"{folder / WEIGHTS} cannot be read ({str(error).splitlines()[0]}); get the exit heads again") from None


def load(folder: str | Path, target: Any) -> ExitHeads:
    """Heads for this target (an HFTarget), in its type. Raises CheckpointMismatch if they are another's, or incomplete."""
    config, tensors = read(folder)
    check_belongs(config, target)
    ids = tensors.pop(IDS, None)
    if not _fits(ids, config):
        raise CheckpointMismatch(f"the exit heads' tokens do not fit their config.json ({config.draft_vocab_size}); get the heads again")
    heads = ExitHeads.for_target(target, config, ids)
    try:
        heads.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointMismatch(f"the exit heads in {folder} do not fit their config.json ({reason}); get them again") from None
    return heads.eval().requires_grad_(False)


def _fits(ids: torch.Tensor | None, config: ExitConfig) -> bool:
    if ids is None or config.draft_vocab_size is None:
        return ids is None and config.draft_vocab_size is None
    return len(ids) == config.draft_vocab_size and int(ids.min()) >= 0 and int(ids.max()) < config.vocab_size
