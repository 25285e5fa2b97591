"""The target's bigrams over the training text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..heads.bigrams import Bigrams
from .examples import Example
from .features import Tapped
from .teacher import Teacher

_ENOUGH, _BEFORE = 200_000, 100  # positions; tokens of each prompt that are read too


@torch.no_grad()
def collect(table: Bigrams, examples: Sequence[Example], read: Callable[[Sequence[Example]], list[Tapped]], teacher: Teacher | None) -> int:
    """Add the laws of examples, in an order by lot that is always the same, until there are enough. Returns the number of positions.

    Without a teacher, whose laws are over the draft vocabulary, the tokens that came stand for them.
    """
    done = 0
    for index in torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)).tolist():
        if done >= _ENOUGH:
            break
        example = examples[index]
        start = max(0, example.prompt_length - 1 - _BEFORE)
        tokens = torch.tensor(example.tokens)
        if teacher is None:
            table.add_pairs(tokens[start:-1], tokens[start + 1 :])
        else:
            (tapped,) = read([example])
            table.add(tokens[start:-1], teacher(tapped.hidden[start:]).softmax(-1))
        done += len(example) - 1 - start
    return done
