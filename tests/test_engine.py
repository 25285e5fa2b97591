"""The loop when something goes wrong inside a round, and what it gives back."""

from __future__ import annotations

import pytest

from paceline import engine
from paceline.rules.match import match
from paceline.targets.kv import SlotCache

from . import matrix, tiny
from .drafts import Planted
from .matrix import PROMPTS
from .targets.test_features import Reading


class Pressed(Exception):
    """Ctrl-C, in the middle of a round."""


def in_the_rule(patch, call: int):
    """Break off when the rule is asked for the so-many-th time."""
    calls = iter(range(1000))

    def rule(draft, probs, rng):
        if next(calls) == call:
            raise Pressed
        return match(draft, probs, rng)

    rule.needs, rule.chain_only, rule.reads_beliefs = match.needs, False, False
    return rule


def in_the_commit(patch, call: int):
    """Break off between taking the tokens and committing their rows; two commits belong to the prompts."""
    calls, commit = iter(range(1000)), SlotCache.commit

    def pressed(self, slot, path):
        if next(calls) == call + 2:
            raise Pressed
        commit(self, slot, path)

    patch.setattr(SlotCache, "commit", pressed)
    return match


@pytest.mark.parametrize("drafter", [Planted(), Reading(0)], ids=["planted", "with features"])
@pytest.mark.parametrize("call", [0, 1, 4, 5])
@pytest.mark.parametrize("place", [in_the_rule, in_the_commit])
def test_sequences_go_on_after_a_round_that_was_broken_off(place, call, drafter):
    target, seqs = tiny.target(), [matrix.request(PROMPTS["short"]), matrix.request(PROMPTS["long"])]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Pressed):
        for _ in engine.rounds(target, drafter, place(patch, call), seqs):
            pass
    for _ in engine.rounds(target, drafter, match, seqs):
        pass
    for seq, name in zip(seqs, ("short", "long"), strict=True):
        matrix.expect(seq.tokens, matrix.plain(PROMPTS[name], 40), f"{name} prompt, {place.__name__} {call}")


@pytest.mark.parametrize("rounds", [1, 3, None])
def test_a_stream_gives_all_memory_back_also_when_its_reader_leaves(rounds):
    target, seqs = tiny.target(), [matrix.request(p) for p in PROMPTS.values()]
    reader = engine.stream(target, Planted(), match, seqs)
    for _, _ in zip(range(rounds or 1000), reader, strict=False):
        pass
    reader.close()
    assert target.cache.nbytes == 0, f"{target.cache.nbytes} bytes are still held"


@pytest.mark.parametrize("row", ["none", "lookup", "draft_model", "lookup+draft_model"])
def test_memory_is_flat_over_200_requests(row):
    target, draft = tiny.target(), tiny.draft()
    held = set()
    for i in range(200):
        drafter, rule = matrix.method(row, target, draft)
        engine.generate(target, drafter, rule, [matrix.request((i % 61, 3), 2)])
        del drafter
        held.add((target.cache.nbytes, draft.cache.nbytes))
    assert held == {(0, 0)}, f"bytes of target and draft after a request: {sorted(held)[-3:]}"


def test_a_slot_that_was_given_back_is_opened_again_for_the_same_sequence():
    target, seq = tiny.target(), matrix.request(PROMPTS["short"])
    next(engine.rounds(target, Planted(), match, [seq]))
    engine.release(target, seq)
    engine.generate(target, Planted(), match, [seq])
    matrix.expect(seq.tokens, matrix.plain(PROMPTS["short"], 40), "released in the middle")


def test_a_round_tells_what_it_did():
    target, seq = tiny.target(), matrix.request(PROMPTS["short"], 40)
    for r in engine.rounds(target, Planted(), match, [seq]):
        spelled = [r.draft.tree.tokens[n] for n in r.path[1:]][: r.num_accepted]
        assert (len(r.tokens), r.tokens[: r.num_accepted]) == (r.num_accepted + 1, spelled), f"{r}"


def test_no_sequences_are_no_rounds():
    assert list(engine.rounds(tiny.target(), Planted(), match, [])) == []


def test_as_one_sequence_ends_the_next_one_joins():
    target, drafter = tiny.target(), Planted()
    lengths = [3, 9, 5, 1, 7]
    seqs = [matrix.request(PROMPTS["short"], count=n) for n in lengths]
    live: list[int] = []
    for _ in engine.stream(target, drafter, match, seqs, batch_size=2):
        live.append(sum(s.slot is not None for s in seqs))
    assert (max(live), live[0]) == (2, 2), f"slots in use after each round: {live}"
    assert [len(s.output) for s in seqs] == lengths


def test_a_sequence_that_ends_gives_its_memory_back_at_once():
    target = tiny.target()
    seqs = [matrix.request(PROMPTS["short"], count=n) for n in (1, 20)]
    rounds = engine.stream(target, Planted(), match, seqs)
    for round_ in rounds:
        if round_.sequence is seqs[1]:
            break
    assert seqs[0].finish_reason == "length"
    assert (seqs[0].slot, seqs[1].slot is None) == (None, False)
    rounds.close()
    assert target.cache.nbytes == 0


def test_a_batch_that_is_refilled_gives_each_prompt_its_own_text():
    prompts = [PROMPTS["short"], PROMPTS["long"], PROMPTS["short"], PROMPTS["long"]]
    seqs = [matrix.request(p, count=n) for p, n in zip(prompts, (4, 12, 30, 40), strict=True)]
    engine.generate(tiny.target(), Planted(), match, seqs, batch_size=2)
    for seq, prompt in zip(seqs, prompts, strict=True):
        matrix.expect(seq.tokens, matrix.plain(prompt, len(seq.output)), f"{len(seq.output)} tokens in a refilled batch")
