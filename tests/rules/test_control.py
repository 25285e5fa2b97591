"""The controls of lossy rules: they act by lot, as often as they are told, and obey the guards of what they are controls of."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from paceline.errors import InvalidRequest
from paceline.rules import ledger
from paceline.rules.control import Coin
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


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_vetoes_are_about_as_many_of_the_open_places_as_the_rate_says(rate):
    rule = random_veto(match, replace(VETO, max_top=0.5, min_ratio=0.3, rate=rate))
    found = [told(s, "random_veto") for s in decode(rule, ("short", "long"), count=300, noise=0.02)]
    acted = sum(f["altered"] for f in found)
    scanned, places = (sum(f["seen"].get(name, 0) for f in found) for name in ("scanned", "open"))
    assert 60 < places < scanned, "some places are open, not all"
    assert abs(acted - rate * places) <= 3 * (places * rate * (1 - rate)) ** 0.5, f"{acted} of {places}"


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
    assert (verdict.path, dict(of.ledgers["random_veto"].seen)) == ([0, 1], {"scanned": 1, "triggered": 0, "guard:likely": 0}), "too sure"
    verdict, of = decide(guarded, [FLAT, SHARP], Tree.chain((5, 0)), context([7, 0, 8, 0]), beliefs=[FLAT, SHARP])
    assert (verdict.path, of.ledgers["random_veto"].seen["open"]) == ([0], 1)


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
