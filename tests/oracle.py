"""The oracle: recompute the full prefix for every token, on the original model with its own attention. Never optimise it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from . import tiny

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@torch.no_grad()
def oracle(
    model: Any,
    prompt: Sequence[int],
    count: int,
    processors: Sequence[Processor] = (),
    ended: Callable[[list[int]], bool] = lambda _: False,
) -> list[int]:
    """The prompt and up to `count` greedy tokens, with Transformers' processors applied; the last token is the one that `ended` it."""
    tokens = list(prompt)
    for _ in range(count):
        ids = torch.tensor([tokens])
        scores = model(ids, use_cache=False).logits[:, -1].float()
        for processor in processors:
            scores = processor(ids, scores)
        tokens.append(int(scores.argmax()))
        if ended(tokens):
            break
    return tokens


@cache
def answer(family: str, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The plain greedy continuation, without the prompt. Kept, since many tests ask for the same."""
    return tuple(oracle(tiny.plain(family), prompt, count)[len(prompt) :])
