"""Which target a head belongs to: a hash of the vocabulary, and some numbers from the two matrices that the head borrows.

The numbers are compared with a tolerance, so that the same target in bfloat16, float32 or a mild quantisation is still the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from .borrow import embedding_weight, output_rows

_ROWS, _TOLERANCE = 16, 0.03


def tokenizer_hash(vocabulary: Mapping[str, int]) -> str:
    """16 hexadecimal digits, or nothing for a target without a tokenizer."""
    if not vocabulary:
        return ""
    text = json.dumps(sorted(vocabulary.items(), key=lambda item: (item[1], item[0])), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(target: Any) -> tuple[float, ...]:
    """A number for each of some rows of the embedding and of the output matrix: its sum under fixed signs."""
    embedding = embedding_weight(target)
    ids = torch.linspace(0, target.vocab_size - 1, _ROWS).round().long().to(embedding.device)
    rows = torch.cat([embedding[ids], output_rows(target, ids)]).detach().double().cpu()  # (2 _ROWS, H)
    index = torch.arange(rows.shape[1])
    signs = 1.0 - 2.0 * (index // 3 % 2).double()
    sums = rows @ signs
    return tuple(float(f"{x:.4g}") for x in sums.tolist())


def differs(ours: tuple[float, ...], theirs: tuple[float, ...]) -> float:
    """Root mean square difference relative to the size of the numbers; 0 for equal ones."""
    a, b = torch.tensor(ours, dtype=torch.float64), torch.tensor(theirs, dtype=torch.float64)
    if a.shape != b.shape:
        return 1.0
    return float((a - b).norm() / b.norm().clamp(min=1e-12))


def same_target(ours: tuple[float, ...], theirs: tuple[float, ...]) -> bool:
    return differs(ours, theirs) < _TOLERANCE
