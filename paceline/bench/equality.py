"""Does a method at temperature 0 give plain decoding's tokens? And where it does not, could rounding alone have done it?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..targets.hf import HFTarget
from .compare import Outputs, compare, target_logits

Difference = dict[str, Any]

# Two forwards over different numbers of rows round each of the two logits once, which is up to two steps of the dtype between them;
# the hidden states before them differ as well, and for SmolLM2 and Qwen2.5-1.5B in bfloat16 that came to one or two steps more.
# In float32 the sums inside a forward have no more digits than their result, so their rounding counts by the width of the model.
NEAR_TIE_STEPS = {torch.float32: 64, torch.bfloat16: 4, torch.float16: 4}


def step(logit: float, dtype: torch.dtype) -> float:
    """The distance from this logit to the next larger one that the dtype can hold."""
    return float(torch.finfo(dtype).eps) * 2.0 ** math.floor(math.log2(max(abs(logit), torch.finfo(dtype).tiny)))


def equality(target: HFTarget, plain: Outputs, ours: Outputs, prompts: dict[str, list[int]]) -> dict[str, Any]:
    """Compare greedy outputs of `none` and of a method, by prompt.

    Returns greedy_identical, of, near_ties and greedy_failures (numbers of prompts) and the differences, each with its logit margin
    and what a margin may be. A difference is a near tie if logit(reference token) - logit(token) is at most NEAR_TIE_STEPS steps of
    the dtype at the larger logit.
    """
    heights: list[float] = []
    logits = target_logits(target)

    def watched(tokens: Sequence[int]) -> torch.Tensor:
        row = logits(tokens)
        heights.append(float(row.max()))
        return row

    same, differences = compare(plain, ours, prompts, watched)
    differences = judged(differences, heights, target.dtype)
    ties = sum(d["near_tie"] for d in differences)
    counts = {"greedy_identical": same, "of": len(prompts), "near_ties": ties, "greedy_failures": len(differences) - ties}
    return {**counts, "differences": differences}


def judged(differences: Sequence[Difference], heights: Sequence[float], dtype: torch.dtype) -> list[Difference]:
    """The differences with `allowed_margin` and `near_tie`; `heights` are the largest logits at those that have a margin, in order."""
    made, measured = [], iter(heights)
    for difference in differences:
        margin = difference["logit_margin"]
        allowed = None if margin is None else NEAR_TIE_STEPS[dtype] * step(next(measured), dtype)
        made.append(difference | {"allowed_margin": allowed, "near_tie": allowed is not None and abs(margin) <= allowed})
    return made
