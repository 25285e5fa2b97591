"""Do lossless runs give the reference's tokens? And where they do not, how close was the decision?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..sequence import common_prefix
from ..targets.hf import HFTarget
from ..tree import Tree

Logits = Callable[[Sequence[int]], torch.Tensor]  # token ids -> (V,) float32 logits of the reference model
Outputs = dict[str, list[list[int]]]  # prompt id -> output ids, one per repeat


def first_difference(reference: Sequence[int], output: Sequence[int]) -> int | None:
    """The first position where two outputs differ, one being shorter included; None if they are equal."""
    at = common_prefix(reference, output)
    return at if at < max(len(reference), len(output)) else None


def compare(reference: Outputs, outputs: Outputs, prompts: dict[str, list[int]], logits: Logits) -> tuple[int, list[dict[str, Any]]]:
    """How many prompts have the reference's tokens in every repeat, and a record of the first difference of each other one.

    logit_margin = logit(reference's token) - logit(our token), after the common prefix fed to the reference model in one forward.
    It is None where one output simply ends before the other.
    """
    differences = []
    for prompt, versions in outputs.items():
        expected = reference[prompt][0]
        places = [(first_difference(expected, v), v) for v in versions]
        found = next(((at, v) for at, v in places if at is not None), None)
        if found:
            at, output = found
            ours, theirs = (x[at] if at < len(x) else None for x in (output, expected))
            record = {"prompt": prompt, "position": at, "reference_token": theirs, "token": ours, "logit_margin": None}
            if ours is not None and theirs is not None:
                row = logits([*prompts[prompt], *expected[:at]])
                record["logit_margin"] = float(row[theirs] - row[ours])
            differences.append(record)
    return len(outputs) - len(differences), differences


def target_logits(target: HFTarget) -> Logits:
    """The reference is our own target."""

    def logits(tokens: Sequence[int]) -> torch.Tensor:
        slot = target.cache.open(len(tokens))
        try:
            target.prefill([slot], [tokens[:-1]])
            return target.verify([Tree.chain(tokens[-1:])], [slot]).logits[0].float()
        finally:
            target.cache.free(slot)

    return logits
