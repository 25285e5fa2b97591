"""CSD in the loop with tiny models: what is kept, what it cost, and that requests do not meet in the default memory."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paceline.rules import ledger
from paceline.rules.csd import csd
from paceline.rules.csd_config import PUBLISHED, SAFE
from paceline.rules.match import match
from paceline.rules.memory import Memory, SharedMemory, unpack
from paceline.rules.rejection import rejection

from .. import matrix, tiny
from .lossy import decode, everything, margins

TAU = 0.2
GATE = replace(PUBLISHED, tau=TAU, tests="gate")
LEARNING = replace(PUBLISHED, tau=1e-6, min_count=0)  # a pair seen once, in an earlier round of the same request
LONG = 120


def report(seq):
    return ledger.summaries(seq)["csd"]


@pytest.fixture(scope="module")
def rescued():
    (seq,) = decode(csd(match, config=GATE), count=LONG)
    assert report(seq)["altered"] > 5, f"{report(seq)['altered']} rescues test little"
    return seq


def test_every_token_is_the_targets_own_on_what_came_before_or_a_rescue_within_the_gate(rescued):
    kept = set(report(rescued)["positions"])
    for place, margin in enumerate(margins(rescued)):
        assert margin < 1e-4 or place in kept, f"token {place} was no rescue, and the target prefers another by {margin:.4f}"
        assert margin <= -math.log(TAU) + 1e-4, f"token {place} costs {margin:.4f} nats, above {-math.log(TAU):.4f}"


def test_the_nats_are_the_margins_given_up_and_within_their_bound(rescued):
    found, spent = report(rescued), sum(margins(rescued))
    assert found["nats"] == pytest.approx(spent, abs=1e-3), f"{found['nats']} in the ledger, {spent} recomputed"
    assert found["nats"] <= found["altered"] * -math.log(TAU) + 1e-9


def test_every_refusal_has_its_reason(rescued):
    assert set(report(rescued)["refused"]) == {"gate"}


STRICT = {
    "empty": csd(match, Memory(), replace(PUBLISHED, min_count=math.inf)),
    "ties only": csd(match, everything(tiny.VOCAB), replace(PUBLISHED, tau=1.0)),
    "shadow": csd(match, None, replace(GATE, mode="shadow")),
}


@pytest.mark.parametrize("name", STRICT)
def test_the_strict_settings_give_the_targets_own_text(name):
    (seq,) = decode(STRICT[name])
    matrix.expect(seq.tokens, matrix.plain(matrix.PROMPTS["short"], 40), name)


@pytest.mark.parametrize("base", [match, rejection], ids=lambda r: r.name)
@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_off_and_shadow_draw_what_the_base_rule_draws(base, mode):
    texts = []
    for rule in (base, csd(base, None, replace(GATE, mode=mode))):
        target = tiny.target()
        drafter = matrix.method(f"draft_model/{base.name}" if base is rejection else "draft_model", target)[0]
        seq = matrix.request(matrix.PROMPTS["short"], 40, temperature=1.0, seed=3)
        texts.append(matrix.engine.generate(target, drafter, rule, [seq])[0].tokens)
    matrix.expect(texts[1], texts[0], f"{base.name}, {mode}")


def test_shadow_foresees_the_first_rescue():
    shadow, on = (decode(csd(match, None, replace(GATE, mode=mode)), count=LONG)[0] for mode in ("shadow", "on"))
    foreseen, first = report(shadow)["positions"][0], report(on)["positions"][0]
    assert foreseen == first, f"{foreseen} and {first}"


PROMPTS = ("short", "long", "one", "short")


def test_a_request_decodes_the_same_alone_in_a_batch_and_after_other_traffic():
    rule = csd(match, None, LEARNING)
    alone = {name: decode(rule, [name], LONG)[0].tokens for name in set(PROMPTS)}
    batch = [seq.tokens for seq in decode(rule, PROMPTS, LONG)]
    assert batch == [alone[name] for name in PROMPTS]
    seqs = decode(csd(match, None, LEARNING), ["short"], LONG)
    assert seqs[0].tokens == alone["short"], "a new rule, without traffic before"
    assert report(seqs[0])["altered"] > 0, "nothing was rescued, which tests little"


def test_counts_of_one_request_enable_no_pair_for_another():
    memory = Memory()
    rule = csd(match, memory, LEARNING)
    for _ in range(2):
        decode(rule, ["short"], 60)
    assert memory == Memory()
    (seq,) = decode(rule, ["short"], 60)
    first = next(e for e in seq.ledgers["csd"].events)
    assert first.refusal == "frequency", "the first pair of a request was enabled by earlier ones"


def test_a_pair_counts_from_the_next_round_on():
    (seq,) = decode(csd(match, None, LEARNING), ["short"], LONG)
    seen: set[tuple[int, int]] = set()
    for event in seq.ledgers["csd"].events:
        if event.refusal is None:
            assert (event.drafted, event.target) in seen, f"{event} was rescued before the pair had been seen"
        seen.add((event.drafted, event.target))


def test_a_shared_memory_learns_after_enough_different_requests():
    shared = SharedMemory(Memory(), distinct=3)
    rule, known = csd(match, shared, replace(PUBLISHED, min_count=4)), []
    for _ in range(3):
        (seq,) = decode(rule, ["short"], 30)
        ledger.close(seq)
        ledger.close(seq)  # a second time counts nothing
        known.append(len(shared.snapshot.counts))
    assert known[:2] == [0, 0]
    assert known[2] > 0
    pairs = {(e.drafted, e.target) for e in seq.ledgers["csd"].events}
    assert {unpack(k) for k in shared.snapshot.counts} <= pairs


def test_a_request_keeps_the_snapshot_that_it_began_with():
    shared = SharedMemory(Memory(), distinct=1)
    seq = decode(csd(match, shared, SAFE), ["short"], 30)[0]
    before = seq.ledgers["csd"].memory
    shared.add({1: 100})
    assert seq.ledgers["csd"].memory is before
    assert shared.snapshot is not before


def test_a_new_turn_begins_a_new_ledger():
    (seq,) = decode(csd(match, None, GATE))
    seq.restart(seq.tokens, seq.params)
    assert seq.ledgers == {}


def test_the_pooled_report_adds_up():
    seqs = decode(csd(match, None, GATE), ["short", "long"], 60)
    pooled = ledger.pooled([ledger.summaries(s) for s in seqs])["csd"]
    assert pooled["altered"] == sum(report(s)["altered"] for s in seqs)
    assert (pooled["requests"], pooled["mode"]) == (2, "on")
