"""The controls of lossy rules: they act by lot, as often as they are told, and obey the guards of what they are controls of."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from paceline.errors import InvalidRequest
from paceline.rules import ledger
from paceline.rules.control import Coin, Lot
from paceline.rules.csd import random_rescue
from paceline.rules.csd_config import RANDOM_PRESETS as RESCUES
from paceline.rules.csd_config import RandomRescueConfig
from paceline.rules.easd import random_veto
from paceline.rules.easd_config import RANDOM_PRESETS as VETOES
from paceline.rules.easd_config import RandomVetoConfig
from paceline.rules.match import match
from paceline.tree import Tree

from .. import tiny
from .lossy import context, decide, decode, margins

RESCUE = replace(RESCUES["published"], rate=0.2)
VETO = replace(VETOES["published"], rate=0.2)
SHARP, FLAT = [9.0, 4.0, 3.0, *[0.0] * 13], [1.1, 1.0, *[0.9] * 14]


def told(seq, rule):
    return ledger.summaries(seq)[rule]


def dues(rate, seed=0, prompt=(1, 2, 3), length=4000):
    lot = Lot(rate, seed, SimpleNamespace(tokens=list(prompt), prompt_length=len(prompt), ledgers={}))
    lot.waits(len(prompt) + length - 1, 0)
    return lot.due


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 1.0])
def test_as_many_positions_are_due_as_the_rate_says(rate):
    found, wanted = sum(dues(rate, seed) for seed in range(20)), 20 * 4000 * rate
    assert abs(found - wanted) <= 4 * (wanted * (1 - rate)) ** 0.5, f"{found} due, {wanted} wanted"


def test_what_is_due_depends_on_prompt_and_seed():
    assert len({dues(0.3, seed) for seed in range(5)}) > 1
    assert len({dues(0.3, prompt=(1, 2, i)) for i in range(5)}) > 1
    assert dues(0.3) == dues(0.3)


def test_one_that_finds_no_opportunity_waits_for_the_next():
    lot = Lot(1.0, 0, context(prompt_length=2))
    assert [lot.waits(position, acted=acted) for position, acted in ((2, 0), (2, 1), (9, 1), (9, 7), (9, 8))] == [
        True,
        False,
        True,
        True,
        False,
    ]


def test_vetoes_are_about_as_many_of_the_tokens_as_the_rate_says():
    seqs = decode(random_veto(match, VETO), ("short", "long"), count=150, noise=0.02)
    acted, tokens = sum(told(s, "random_veto")["altered"] for s in seqs), sum(len(s.output) for s in seqs)
    assert 0.12 <= acted / tokens <= 0.25, f"{acted} acts in {tokens} tokens: {[told(s, 'random_veto') for s in seqs]}"


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_rescues_are_about_as_many_of_the_rejections_as_the_rate_says(rate):
    seqs = decode(random_rescue(match, replace(RESCUE, rate=rate)), ("short", "long"), count=200, noise=0.15)
    acted = sum(told(s, "random_rescue")["altered"] for s in seqs)
    seen = acted + sum(sum(told(s, "random_rescue")["refused"].values()) for s in seqs)
    assert seen > 60
    assert abs(acted - rate * seen) <= 3 * (seen * rate * (1 - rate)) ** 0.5, f"{acted} of {seen}"


def test_where_a_coin_falls_depends_on_prompt_seed_and_position_alone():
    def falls(seed=0, prompt=(1, 2, 3), more=()):
        coin = Coin(0.5, seed, SimpleNamespace(tokens=[*prompt, *more], prompt_length=len(prompt), ledgers={}))
        return [coin.falls(position) for position in range(60)]

    assert falls() == falls(more=(7, 8)) != falls(seed=1)
    assert falls() != falls(prompt=(1, 2, 4))
    assert 15 < sum(falls()) < 45


def test_a_veto_by_lot_gives_the_runner_up_and_nothing_else_changes():
    (seq,) = decode(random_veto(match, VETO), count=60, noise=0.02)
    with torch.no_grad():
        logits = tiny.plain("llama")(torch.tensor([seq.tokens]), use_cache=False).logits[0]
    places = told(seq, "random_veto")["positions"]
    assert places, "nothing was tested"
    assert [i for i, margin in enumerate(margins(seq)) if margin > 1e-4] == places
    for at in places:
        row = logits[seq.prompt_length + at - 1]
        assert seq.output[at] == int(row.topk(2).indices[1]), f"token {at}"


def test_a_rescue_by_lot_costs_what_its_ledger_says():
    (seq,) = decode(random_rescue(match, RESCUE), count=60, noise=0.15)
    assert told(seq, "random_rescue")["nats"] == pytest.approx(sum(margins(seq)), abs=1e-3)
    assert told(seq, "random_rescue")["altered"] > 3


def test_it_looks_at_neither_entropy_nor_overlap():
    tree, of = Tree.chain((5, 0)), context()
    always = random_veto(match, replace(VETO, rate=1.0))
    verdict, _ = decide(always, [SHARP, SHARP], tree, of, beliefs=[FLAT, SHARP])
    assert verdict == ([0], 1), "a sure target and an unsure draft"


def test_it_obeys_the_guards_of_the_veto():
    guarded = random_veto(match, RandomVetoConfig(rate=1.0))
    verdict, of = decide(guarded, [SHARP, SHARP], Tree.chain((5, 0)), beliefs=[FLAT, SHARP])
    assert (verdict.path, dict(of.ledgers["random_veto"].seen)["guard:likely"]) == ([0, 1], 1)


def test_it_obeys_the_guards_of_the_rescue():
    guarded = random_rescue(match, RandomRescueConfig(rate=1.0, streak=1))
    tree = Tree.chain((5, 1, 2, 3))
    verdict, of = decide(guarded, [SHARP] * 4, tree)
    assert (len(verdict.path), of.ledgers["random_rescue"].events[-1].refusal) == (2, "guard:streak")


SHADOWS = [(random_rescue(match, replace(RESCUE, mode="shadow")), 0.15), (random_veto(match, replace(VETO, mode="shadow")), 0.02)]


@pytest.mark.parametrize(("rule", "noise"), SHADOWS, ids=["rescue", "veto"])
def test_in_shadow_nothing_changes(rule, noise):
    plain, (seq,) = decode(match, count=60)[0].output, decode(rule, count=60, noise=noise)
    assert rule.lossless
    assert seq.output == plain
    assert told(seq, rule.name)["would_alter"] > 0


@pytest.mark.parametrize("made", [RandomRescueConfig, RandomVetoConfig])
@pytest.mark.parametrize(("name", "value"), [("rate", 0), ("rate", 1.5), ("rate", float("nan")), ("seed", -1), ("seed", 0.5)])
def test_settings_out_of_range_are_refused_by_name(made, name, value):
    with pytest.raises(InvalidRequest, match=name):
        made(**{name: value})
