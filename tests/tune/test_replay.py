"""The replay over known text takes the rounds of decoding."""

from __future__ import annotations

import pytest

from paceline import engine, methods
from paceline.rules.match import match
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence as Request
from paceline.tune.policies import Clock, Fixed, Price, Remembered, price
from paceline.tune.replay import answers, counted

from .. import matrix, tiny
from ..heads.small import taught_head

COUNT = 24
NAMES = ("none", "lookup", "draft_model", "jetspec")


def layers() -> tuple[int, ...]:
    return taught_head().config.target_layer_ids


@pytest.fixture(scope="module")
def texts():
    return answers(tiny.target(), matrix.PROMPTS, COUNT, layers(), batch_size=2)


def build(name: str):
    """The drafter, untrimmed."""
    told = {"none": {}, "draft_model": {"draft_model": tiny.draft()}, "jetspec": {"head": taught_head()}}.get(name, {})
    return methods.build(name, tiny.target(), methods.Options(**told, budget=None if name == "none" else 8))[0]


def test_the_texts_are_the_targets_own_with_their_features(texts):
    for text, prompt in zip(texts, matrix.PROMPTS.values(), strict=True):
        matrix.expect(text.tokens, matrix.plain(prompt, COUNT), f"answer to {text.key}")
        assert text.features.shape[0] == len(text.tokens) - 1, f"{text.features.shape} features of {len(text.tokens)} tokens"


@pytest.mark.parametrize("name", NAMES)
def test_a_replay_takes_the_rounds_of_decoding(texts, name):
    target = tiny.target()
    seqs = [Request(p, SamplingParams(max_new_tokens=COUNT), max_length=target.max_length) for p in matrix.PROMPTS.values()]
    kept = {id(s): [] for s in seqs}
    for round_ in engine.stream(target, build(name), match, seqs):
        kept[id(round_.sequence)].append(len(round_.tokens) - 1)
    assert counted(build(name), texts, layers()).kept == [kept[id(s)] for s in seqs]


def test_nothing_is_left_in_the_cache_after_the_answers():
    target = tiny.target()
    answers(target, matrix.PROMPTS, 4, batch_size=1)
    assert target.cache.nbytes == 0


def test_each_place_is_asked_about_once(texts):
    clock, asked = Clock(), []
    remembered = Remembered(build("lookup"), Price({1: 0.5}, 0.0), clock)
    inside = remembered.drafter.propose
    remembered.drafter.propose = lambda seqs: asked.extend((s.slot, len(s.tokens)) for s in seqs) or inside(seqs)
    counts = [counted(Fixed([remembered], 8), texts, layers()) for _ in range(2)]
    assert len(asked) == len(set(asked)) == counts[0].rounds
    assert counts[0].kept == counts[1].kept


def test_the_clock_moves_by_the_price_of_a_draft(texts):
    clock = Clock()
    counted(Remembered(build("lookup"), Price({1: 0.5}, 0.0), clock), texts[:1], layers())
    rounds = counted(build("lookup"), texts[:1], layers()).rounds
    assert clock.now == pytest.approx(0.5 * rounds)


def test_a_smaller_budget_keeps_the_likeliest_nodes(texts):
    known = [Remembered(build(name), Price({1: 0.0}, 0.0), Clock()) for name in ("lookup", "jetspec")]
    lengths = [counted(Fixed(known, budget), texts, layers()) for budget in (2, 4, 16)]
    assert all(max(c.nodes) <= b and c.nodes.total() == c.rounds for c, b in zip(lengths, (2, 4, 16), strict=True))
    figures = [round(c.mean_acceptance_length, 3) for c in lengths]
    assert figures == sorted(figures), f"mean acceptance lengths {figures}"
    assert figures[2] > figures[0], f"mean acceptance lengths {figures}"


def test_a_price_is_measured_for_one_and_for_several_sequences(texts):
    more = [*texts, texts[0]]
    found = price(build("draft_model"), more, layers())
    assert set(found.seconds) == {1, 4}
    assert all(0 < s < 30 for s in found.seconds.values()), found
