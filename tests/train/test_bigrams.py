"""Which positions of the training text the Markov term begins from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.heads.bigrams import Bigrams
from paceline.train import bigrams
from paceline.train.examples import Example
from paceline.train.features import Taps
from paceline.train.teacher import Teacher

from .. import tiny

IDS = torch.arange(0, tiny.VOCAB, 2)
COUNTS = torch.ones(tiny.VOCAB)
TEXTS = [Example("a", "t", (2, 4, 6, 8, 10, 12), 3), Example("b", "t", (4, 4, 20, 6, 8), 2)]


def collected(examples: Any, teacher: Any, read: Any = None) -> tuple[int, Bigrams]:
    table = Bigrams(IDS, COUNTS)
    return bigrams.collect(table, examples, read or (lambda e: pytest.fail("read")), teacher), table


def test_without_a_teacher_the_tokens_that_came_are_counted() -> None:
    done, table = collected(TEXTS, None)
    want = Bigrams(IDS, COUNTS)
    for text in TEXTS:
        want.add_pairs(torch.tensor(text.tokens[:-1]), torch.tensor(text.tokens[1:]))
    assert done == 9
    assert all(torch.equal(a, b) for a, b in zip(table.table(), want.table(), strict=True))


def test_with_a_teacher_its_laws_over_the_draft_vocabulary_are_taken() -> None:
    target = tiny.target()
    taps, teacher = Taps(target, [0]), Teacher(target, IDS)
    _, table = collected(TEXTS[:1], teacher, lambda members: taps.read([e.tokens for e in members]))
    with torch.no_grad():
        logits = tiny.plain("llama")(torch.tensor([TEXTS[0].tokens]), use_cache=False).logits[0, :, IDS]
    want = Bigrams(IDS, COUNTS)
    want.add(torch.tensor(TEXTS[0].tokens[:-1]), logits[:-1].softmax(-1))
    assert torch.allclose(table.table()[0], want.table()[0], atol=1e-4)


def test_far_parts_of_prompts_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bigrams, "_BEFORE", 1)
    done, table = collected(TEXTS[:1], None)
    want = Bigrams(IDS, COUNTS)
    want.add_pairs(torch.tensor([4, 6, 8, 10]), torch.tensor([6, 8, 10, 12]))
    assert done == 4
    assert torch.equal(table.table()[0], want.table()[0])


def test_enough_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bigrams, "_ENOUGH", 3)
    assert collected(TEXTS * 5, None)[0] <= 5
