"""A run's folder: its recipe, where and with what it was made, and what may not change when it goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..bench import environment
from ..errors import InvalidRequest
from .disk import put_text
from .read_recipe import as_yaml, read
from .recipe import Common

RECIPE, ABOUT = "recipe.yaml", "run.json"
_MAY_CHANGE = (
    "length",
    "continual.rounds",
    "checkpoints",
    "evaluation",
    "answers.batch_size",
    "answers.method",
    "answers.max_minutes",
    "features.shard_mb",
)


def open_folder(out: Path, recipe: Common, device: torch.device) -> None:
    """Make the folder of a run, or see that it holds the same one. Raises InvalidRequest naming what differs."""
    if out.exists() and not out.is_dir():
        raise InvalidRequest(f"--out {out} is a file; name a folder")
    if (out / RECIPE).exists():
        before = _flat(read(out / RECIPE, {}, type(recipe)).model_dump(mode="json"))
        now = _flat(recipe.model_dump(mode="json"))
        differing = [k for k in now if before.get(k) != now[k] and not any(k == m or k.startswith(m + ".") for m in _MAY_CHANGE)]
        if differing:
            key = differing[0]
            raise InvalidRequest(
                f"{out} holds a run with {key} = {before.get(key)!r}, and now it is {now[key]!r}; choose another --out, or delete it"
            )
    elif out.is_dir() and any(out.iterdir()):
        raise InvalidRequest(f"--out {out} is not empty and holds no run; choose another folder")
    put_text(out / RECIPE, as_yaml(recipe))
    put_text(out / ABOUT, json.dumps(about(device), indent=2) + "\n")


def about(device: torch.device) -> dict[str, Any]:
    """The command, commit, package versions and hardware of this process."""
    commit, modified = environment.commit()
    arguments = sys.argv[1:] if Path(sys.argv[0]).name.startswith(("paceline", "__main__")) else []
    return {
        "command": environment.scrub(" ".join(["paceline", *arguments])),
        "commit": commit,
        "modified": modified,
        "versions": environment.versions(),
        "hardware": environment.hardware(device),
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
