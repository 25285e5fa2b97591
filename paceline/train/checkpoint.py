"""Checkpoints: the head, the optimiser, random numbers and the place in the data, each whole on disk or absent; a bounded number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ..errors import CheckpointMismatch
from .disk import put, remove

_HEAD, _OPTIMIZER, _STATE = "head.safetensors", "optimizer.safetensors", "state.json"


@dataclass(frozen=True)
class Progress:
    """Steps done, and seconds of training over all runs. The step's number is also the place in the data (`batches.Plan`)."""

    step: int = 0
    elapsed: float = 0.0


class Checkpoints:
    """The latest `keep` of a run, in `folder/step-0000123`."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def all(self) -> list[Path]:
        return sorted(f for f in self.folder.glob("step-*") if (f / _STATE).is_file())

    def save(self, head: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> Path:
        """Write one, then delete the oldest. On a full disk the earlier ones stay."""
        path = self.folder / f"step-{progress.step:07d}"

        def write(scratch: Path) -> None:
            scratch.mkdir()
            save_file({k: v.detach().cpu().contiguous() for k, v in head.state_dict().items()}, scratch / _HEAD)
            save_file(_flat(optimizer, head), scratch / _OPTIMIZER)
            rng = torch.get_rng_state().numpy().tobytes().hex()
            (scratch / _STATE).write_text(json.dumps({**asdict(progress), "rng": rng}))

        put(path, write)
        for old in self.all()[: -self.keep]:
            remove(old)
        return path

    def load(self, head: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Restore the latest; a fresh start if there is none. Raises CheckpointMismatch for one of another head."""
        found = self.all()
        if not found:
            return Progress()
        path = found[-1]
        try:
            head.load_state_dict(load_file(path / _HEAD))
            _restore(optimizer, head, load_file(path / _OPTIMIZER))
            state: Any = json.loads((path / _STATE).read_text())
            torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["rng"]), dtype=torch.uint8))
            return Progress(state["step"], state["elapsed"])
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise CheckpointMismatch(
                f"checkpoint {path} does not fit this run ({reason}); delete it to go on from the one before"
            ) from None


def _names(head: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in head.named_parameters() if p.requires_grad}


def _flat(optimizer: torch.optim.Optimizer, head: nn.Module) -> dict[str, torch.Tensor]:
    """The optimiser's state by the names of the parameters."""
    return {
        f"{name}/{field}": torch.as_tensor(value).detach().cpu().contiguous()
        for name, parameter in _names(head).items()
        for field, value in optimizer.state.get(parameter, {}).items()
    }


def _restore(optimizer: torch.optim.Optimizer, head: nn.Module, flat: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in _names(head).items():
        fields = {k.rpartition("/")[2]: v for k, v in flat.items() if k.rpartition("/")[0] == name}
        optimizer.state[parameter] = {k: v.to(parameter.device) for k, v in fields.items()}
