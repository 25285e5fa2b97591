"""Does a method at temperature 0 give plain decoding's tokens? And where it does not, could rounding alone have done it?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..methods import Options, build
from ..sampling import SamplingParams
from ..sequence import Sequence as Request
from ..targets.hf import HFTarget
from .capture import decode
from .compare import Outputs, compare, target_logits

Difference = dict[str, Any]

# Two forwards over different numbers of rows round each of the two logits once, which is up to two steps of the dtype between them;
# the hidden states before them differ as well, and for SmolLM2 and Qwen2.5-1.5B in bfloat16 that came to one or two steps more.
# In float32 the sums inside a forward have no more digits than their result, so their rounding counts by the width of the model.
NEAR_TIE_STEPS = {torch.float32: 64, torch.bfloat16: 4, torch.float16: 4}


def step(logit: float, dtype: torch.dtype) -> float:
    """The distance from this logit to the next larger one that the dtype can hold."""
    return float(torch.finfo(dtype).eps) * 2.0 ** math.floor(math.log2(max(abs(logit), torch.finfo(dtype).tiny)))


def greedy_equality(
    target: HFTarget, method: str, options: Options, prompts: dict[str, list[int]], *, max_new_tokens: int, advance: Callable[[int], Any]
) -> dict[str, Any]:
    """Decode all prompts greedily with `none` and with the method.

    Returns greedy_identical, of, near_ties and failures (numbers of prompts) and the differences, each with its logit margin and what
    a margin may be. A difference is a near tie if logit(reference token) - logit(token) is at most NEAR_TIE_STEPS steps of the dtype
    at the larger logit.
    """
    params = SamplingParams(max_new_tokens=max_new_tokens)

    def outputs(name: str, own: Options) -> Outputs:
        seqs = [request(target, tokens, params) for tokens in prompts.values()]
        decode(target, *build(name, target, own), seqs, advance)
        return {prompt: [seq.output] for prompt, seq in zip(prompts, seqs, strict=True)}

    plain, ours = outputs("none", Options()), outputs(method, options)
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


def request(target: HFTarget, tokens: list[int], params: SamplingParams) -> Request:
    """A prompt for the loop, cut to the context's room."""
    return Request(tokens, params, eos_token_ids=target.eos_token_ids, max_length=target.max_length)
