"""Which texts come when, what is replayed, and what is deployed."""

from __future__ import annotations

from collections import Counter

import pytest

from paceline.errors import InvalidRequest
from paceline.record.texts import RoundRecord, TextRecord
from paceline.train.examples import Example
from paceline.train.rcsd.batches import Mix, blocks_of
from paceline.train.rcsd.gate import judge, transfer
from paceline.train.rcsd.recipe import Continual
from paceline.train.rcsd.stages import by_domain, domain_of, next_stage, reservoir

from .rounds import texts_of


def examples(**counts):
    return [Example(f"{task}{i}", task, (1, 2, 3, 4), 1) for task, count in counts.items() for i in range(count)]


def test_a_domain_is_that_of_the_longest_beginning_of_the_task():
    groups = {"chat": ["instruct/"], "code": ["instruct/code", "mbpp"]}
    assert [domain_of(t, groups) for t in ("instruct/dolly", "instruct/code", "mbpp", "gsm8k")] == ["chat", "code", "code", None]
    assert domain_of("gsm8k", {}) == "gsm8k"


def test_tasks_without_a_domain_are_left_out_and_a_domain_without_texts_is_an_error():
    found = by_domain(examples(gsm8k=2, math=1, poems=3), Continual(domains={"math": ["gsm8k", "math"]}))
    assert {d: len(g) for d, g in found.items()} == {"math": 3}
    with pytest.raises(InvalidRequest, match="domain code has no text"):
        by_domain(examples(math=1), Continual(domains={"math": ["math"], "code": ["mbpp"]}))


def stages(groups, settings, batch_size=2):
    done, used = [], 0
    while (stage := next_stage(groups, settings, len(done), used, batch_size)) is not None:
        done.append(stage)
        used += 3
    return done


def test_domains_come_one_after_the_other_with_other_texts_in_each_round():
    groups = by_domain(examples(a=6, b=6), Continual())
    found = stages(groups, Continual(protocol="domains", rounds=2, steps=1))
    assert [s.name for s in found] == ["a", "a", "b", "b"]
    assert [[e.key for e in s.texts] for s in found[:2]] == [["a0", "a1"], ["a2", "a3"]]


def test_mixed_rounds_hold_texts_of_every_domain():
    groups = by_domain(examples(a=6, b=6), Continual())
    (only,) = stages(groups, Continual(steps=2))
    assert Counter(e.task for e in only.texts) == {"a": 2, "b": 2}


def test_an_online_stream_goes_on_behind_what_was_used_and_ends():
    groups = by_domain(examples(a=4, b=3), Continual())
    found = stages(groups, Continual(protocol="online", update_every=10))
    assert [len(s.texts) for s in found] == [7, 4, 1]
    assert found[0].texts[3:] == found[1].texts
    assert {s.most for s in found} == {10}


def recorded(domain, count, rounds):
    return [TextRecord(f"{domain}{i}", domain, 0.0, 1, (1, 2, 3), (RoundRecord(0, 1, (1,), (-1,), (0,)),) * rounds) for i in range(count)]


def test_the_reservoir_is_bounded_and_balanced_over_domains():
    kept = reservoir([recorded("a", 50, 4), recorded("b", 5, 4)], size=40, seed=0)
    assert Counter(t.domain for t in kept) == {"a": 5, "b": 5}


def test_the_reservoir_keeps_the_latest_rounds_of_a_text():
    (kept,) = reservoir([recorded("a", 1, 4), recorded("a", 1, 2)], size=40, seed=0)
    assert len(kept.rounds) == 2


def test_a_batch_holds_its_share_of_earlier_texts(teacher_target, taps):
    new, old = texts_of(teacher_target, 3), texts_of(teacher_target, 3)
    mix = Mix(
        new, old, blocks_of(lambda found: taps.read([e.tokens for e in found]), 3), 0.25, batch_size=4, micro_batch=1, rounds=2, seed=0
    )
    replayed = [bool(batch.replayed) for batch in mix.step(0)]
    assert sorted(replayed) == [False, False, False, True]
    assert all(int(batch.blocks.valid.sum()) == 2 for batch in mix.step(0)), "two rounds of each text"


def test_a_step_is_the_same_whenever_it_is_asked_for(teacher_target, taps):
    texts = texts_of(teacher_target, 3)
    mix = Mix(
        texts, [], blocks_of(lambda found: taps.read([e.tokens for e in found]), 3), 0.25, batch_size=2, micro_batch=1, rounds=2, seed=0
    )
    one, two, other = mix.step(5), mix.step(5), mix.step(6)
    anchors = [[b.blocks.anchors.tolist() for b in step] for step in (one, two, other)]
    assert anchors[0] == anchors[1] != anchors[2]


# --- the gate


@pytest.mark.parametrize(
    ("after", "passed", "reason"),
    [
        ({"new": 1.6, "old": 1.99}, True, "new went from 1.5000 to 1.6000"),
        ({"new": 1.5, "old": 2.1}, False, "must gain"),
        ({"new": 1.6, "old": 1.98}, False, "old fell from 2.0000 to 1.9800"),
    ],
    ids=["gain", "no gain", "forgets"],
)
def test_the_gate_asks_for_a_gain_and_for_no_loss_of_one_percent(after, passed, reason):
    verdict = judge({"new": 1.5, "old": 2.0}, after, ["new"], ["old"], 0.01)
    assert (verdict.passed, reason in verdict.reason) == (passed, True), verdict


def test_texts_of_no_judged_domain_are_judged_by_all_and_without_judges_nothing_passes():
    assert judge({"a": 2.0, "b": 1.0}, {"a": 2.2, "b": 0.9}, ["elsewhere"], [], 0.01).passed
    assert not judge({"a": 2.0, "b": 1.0}, {"a": 1.9, "b": 1.0}, ["elsewhere"], [], 0.01).passed
    assert not judge({}, {}, ["elsewhere"], [], 0.01).passed


def test_transfer_counts_what_was_forgotten_and_what_was_learnt_ahead():
    start = {"a": 1.0, "b": 2.0, "c": 3.0}
    course = [
        (["a"], {"a": 2.0, "b": 2.5, "c": 3.0}),
        (["b"], {"a": 1.8, "b": 3.0, "c": 3.1}),
        (["c"], {"a": 1.7, "b": 2.9, "c": 4.0}),
    ]
    got = transfer(start, course)
    assert got["backward_transfer"] == pytest.approx(((1.7 - 2.0) + (2.9 - 3.0)) / 2)
    assert got["forward_transfer"] == pytest.approx(((2.5 - 2.0) + (3.1 - 3.0)) / 2)
    assert got["final_mean"] == pytest.approx((1.7 + 2.9 + 4.0) / 3, abs=1e-4)
    assert transfer(start, [])["backward_transfer"] is None
