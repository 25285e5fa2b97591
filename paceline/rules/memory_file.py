"""A memory on disk: pairs of ids and numbers as safetensors, no text, with the models that it belongs to."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ..errors import CheckpointMismatch, InvalidRequest, PacelineError
from ..origin import Origin
from .memory import MOST, Memory, unpack

SCHEMA = "paceline-csd-1"
Tensors = dict[str, torch.Tensor]


def save(memory: Memory, file: Path, used: dict[str, Any] | None = None) -> None:
    """Write a memory, whole or not at all. `used` are settings of the calibration, for people. Raises PacelineError."""
    keys = sorted(memory.counts)
    tensors = {
        "keys": torch.tensor(keys, dtype=torch.int64),
        "counts": torch.tensor([memory.counts[k] for k in keys], dtype=torch.int64),
        "weights": torch.tensor([memory.weights[k] for k in keys], dtype=torch.float64),
    }
    header = {
        "total": memory.total,
        "calibrated": memory.calibrated,
        "origin": None if memory.origin is None else memory.origin.as_dict(),
        "domain": memory.domain,
        "used": used or {},
        "date": datetime.now(UTC).date().isoformat(),
        "checksum": checksum(tensors),
    }
    write_whole(file, lambda part: save_file(tensors, part, {"schema": SCHEMA, "header": json.dumps(header)}))


def write_whole(file: Path, write: Any) -> None:
    """Let `write` make a file beside `file`, bring it to the disk and move it there. Raises PacelineError."""
    part = file.with_name(f".{file.name}.part")
    try:
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
        write(part)
        with part.open("rb") as made:
            os.fsync(made.fileno())
        os.replace(part, file)
    except Exception as error:  # safetensors has errors of its own for a full disk
        part.unlink(missing_ok=True)
        raise PacelineError(f"cannot write {file} ({getattr(error, 'strerror', None) or error}); make room, or give another name") from None


def checksum(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].numpy().tobytes())
    return digest.hexdigest()[:16]


def load(file: str | os.PathLike[str]) -> Memory:
    """Read a memory. Raises InvalidRequest if there is none, CheckpointMismatch if it is damaged or of another kind."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise InvalidRequest(f"there is no memory {file}; make one with paceline calibrate csd, or name another file")
    try:
        with safe_open(path, "pt") as opened:
            about: dict[str, str] = opened.metadata() or {}
            tensors: Tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
        header: dict[str, Any] = json.loads(about["header"]) if about.get("schema") == SCHEMA else {}
    except Exception as error:  # whatever a broken file makes of itself
        raise _damaged(file, f"it cannot be read: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from None
    if not header:
        raise _damaged(file, f"its schema is {about.get('schema')!r} and not {SCHEMA!r}")
    try:
        return _checked(file, header, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise _damaged(file, f"its header or tensors are incomplete ({error})") from None


def _damaged(file: str | os.PathLike[str], why: str) -> CheckpointMismatch:
    return CheckpointMismatch(f"{file} is no memory that can be used, {why}; make it again with paceline calibrate csd")


def _checked(file: str | os.PathLike[str], header: dict[str, Any], tensors: Tensors) -> Memory:
    if header["checksum"] != checksum(tensors):
        raise _damaged(file, "its checksum is not that of its counts")
    keys, counts, weights = (tensors[name].tolist() for name in ("keys", "counts", "weights"))
    origin = None if header["origin"] is None else Origin.from_dict(header["origin"])
    vocab = origin.vocab_size if origin else MOST
    if len(set(keys)) < len(keys) or not len(keys) == len(counts) == len(weights):
        raise _damaged(file, "its pairs are not as many as its counts, or are there twice")
    for key, count, weight in zip(keys, counts, weights, strict=True):
        if key < 0 or max(unpack(key)) >= vocab or not 1 <= count <= MOST or not 0 <= weight <= count:
            raise _damaged(file, f"pair {unpack(key)} has count {count} and weight {weight}, for {vocab} tokens")
    total, calibrated = float(header["total"]), int(header["calibrated"])
    if not sum(weights) <= total * (1 + 1e-9) < float("inf") or calibrated < 0:
        raise _damaged(file, f"it has a total of {total} and {calibrated} calibrated rejections for weights of {sum(weights)}")
    both = dict(zip(keys, counts, strict=True)), dict(zip(keys, weights, strict=True))
    return Memory(*both, total, calibrated, origin, str(header["domain"]))
