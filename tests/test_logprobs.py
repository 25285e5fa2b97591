"""Log-probabilities are those of a plain forward over the finished text, before any processing."""

from __future__ import annotations

import pytest
import torch

from paceline import engine
from paceline.rules.match import match

from . import matrix, tiny
from .drafts import Planted

PROMPT = matrix.PROMPTS["short"]


@torch.no_grad()
def forced(seq) -> torch.Tensor:
    """(tokens, V) log-probabilities of a teacher-forced forward of the plain model."""
    logits = tiny.plain("llama")(torch.tensor([seq.tokens]), use_cache=False).logits[0]
    return torch.log_softmax(logits[seq.prompt_length - 1 : -1], -1)


def check(seq, count: int) -> None:
    want = forced(seq)
    assert [p.token for p in seq.logprobs] == seq.output, f"{len(seq.logprobs)} log-probabilities for {len(seq.output)} tokens"
    for place, (got, row) in enumerate(zip(seq.logprobs, want, strict=True)):
        error = abs(got.logprob - float(row[got.token]))
        assert error < 1e-4, f"token {place}: {got.logprob:.5f}, a plain forward gives {float(row[got.token]):.5f}"
        best = row.topk(count).values.tolist()
        assert [value for _, value in got.top] == pytest.approx(best, abs=1e-4), f"alternatives of token {place}"


@pytest.mark.parametrize("row", matrix.ROWS)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_logprobs_equal_a_teacher_forced_forward(row, count):
    target = tiny.target()
    (seq,) = engine.generate(target, *matrix.method(row, target), [matrix.request(PROMPT, 30, logprobs=count)])
    check(seq, count)


@pytest.mark.parametrize("row", ["planted", "draft_model/rejection"])
def test_logprobs_of_a_sampled_text_are_raw(row):
    target = tiny.target()
    seq = matrix.request(PROMPT, 30, logprobs=2, seed=1, repetition_penalty=1.5, **matrix.SAMPLED)
    engine.generate(target, *matrix.method(row, target), [seq])
    check(seq, 2)


@pytest.mark.parametrize("offset", range(7))
def test_logprobs_are_cut_where_a_stop_falls_inside_an_accepted_path(offset):
    target, eos = tiny.target(), matrix.answer("llama", PROMPT, 40)[offset]
    seq = matrix.request(PROMPT, 30, eos=eos, logprobs=1)
    engine.generate(target, Planted(keep=lambda seq: 7), match, [seq])
    check(seq, 1)


def test_alternatives_are_at_most_the_vocabulary():
    target = tiny.target()
    (seq,) = engine.generate(target, *matrix.method("none", target), [matrix.request(PROMPT, 3, logprobs=500)])
    assert [len(p.top) for p in seq.logprobs] == [tiny.VOCAB] * 3


def test_logprobs_are_not_kept_unless_asked_for():
    target = tiny.target()
    (seq,) = engine.generate(target, *matrix.method("none", target), [matrix.request(PROMPT, 3)])
    assert seq.logprobs == []


def test_a_second_turn_has_its_own_logprobs():
    target = tiny.target()
    seq = matrix.request(PROMPT, 10, logprobs=1)
    drafter, rule = matrix.method("planted", target)
    list(engine.rounds(target, drafter, rule, [seq]))
    engine.next_turn(target, seq, [*seq.tokens, 4], seq.params)
    engine.generate(target, drafter, rule, [seq])
    check(seq, 1)
