"""Drafting with a small model: the shape of its drafts, and its cache."""

from __future__ import annotations

import pytest
import torch

from paceline import engine
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.rules.match import match
from paceline.targets.hf import HFTarget

from .. import matrix, tiny
from ..oracle import answer
from .small import DEEP, LONG, SHORT, Watched, draft, drafter, logits, small

# the shape of a draft


@pytest.mark.parametrize(("depth", "budget", "width"), [(6, 6, 2), (3, 12, 2), (4, 16, 4), (8, 5, 3), (1, 8, 3)])
def test_a_tree_keeps_to_its_budget_and_depth(depth, budget, width):
    _, made = draft(LONG, num_speculative_tokens=depth, budget=budget, width=width, **DEEP)
    size, deepest = len(made.tree), max(made.tree.depth)
    assert (size <= budget, deepest <= depth) == (True, True), f"{size} nodes of {budget}, depth {deepest} of {depth}"


@pytest.mark.parametrize(("depth", "budget", "width", "nodes"), [(6, 6, 2, 6), (3, 12, 2, 1 + 2 + 4 + 4), (1, 8, 3, 4)])
def test_a_tree_that_does_not_stop_early_uses_what_it_is_given(depth, budget, width, nodes):
    _, made = draft(LONG, num_speculative_tokens=depth, budget=budget, width=width, **DEEP)
    assert len(made.tree) == nodes


@pytest.mark.parametrize(("room", "depth"), [(1, 0), (2, 1), (4, 3), (40, 6)])
def test_no_path_is_deeper_than_the_room_less_the_targets_own_token(room, depth):
    _, made = draft(LONG, room, num_speculative_tokens=6, budget=8, width=1, **DEEP)
    assert max(made.tree.depth) == depth


@pytest.mark.parametrize(("depth", "budget", "nodes"), [(6, 8, 7), (6, 4, 4)])
def test_width_one_gives_a_chain(depth, budget, nodes):
    _, made = draft(LONG, num_speculative_tokens=depth, budget=budget, width=1, **DEEP)
    assert (made.tree.is_chain, len(made.tree)) == (True, nodes)


def test_scores_are_what_the_draft_model_gives_each_path():
    seq, made = draft(LONG, num_speculative_tokens=3, budget=7, width=2, **DEEP)
    for node in range(len(made.tree)):
        path, expected = [made.tree.tokens[n] for n in made.tree.path(node)][1:], 0.0
        for place, token in enumerate(path):
            expected += float(logits([*seq.tokens, *path[:place]]).log_softmax(-1)[token])
        assert made.scores[node] == pytest.approx(expected, abs=1e-3), f"path {path}"


def test_a_chain_is_the_draft_models_own_greedy_text():
    seq, made = draft(LONG, num_speculative_tokens=6, budget=7, width=1, **DEEP)
    tokens = list(seq.tokens)
    for _ in range(6):
        tokens.append(int(logits(tokens).argmax()))
    assert list(made.tree.tokens) == tokens[-7:]


@pytest.mark.parametrize("budget", [6, 8, 10])
def test_a_tree_holds_the_likeliest_nodes(budget):
    seq, made = draft(SHORT, num_speculative_tokens=2, budget=budget, width=4, **DEEP)
    law = torch.log_softmax(logits(seq.tokens), -1)
    scores = {(t,): float(law[t]) for t in law.topk(4).indices.tolist()}
    for (token,), score in list(scores.items()):
        law = torch.log_softmax(logits([*seq.tokens, token]), -1)
        scores |= {(token, t): score + float(law[t]) for t in law.topk(4).indices.tolist()}
    want = sorted(scores, key=scores.get, reverse=True)[: budget - 1]
    got = [tuple(made.tree.tokens[n] for n in made.tree.path(node)[1:]) for node in range(1, budget)]
    assert sorted(got) == sorted(want)


@pytest.mark.parametrize(("stop_below", "depth"), [(1.0, 1), (0.0, 6)])
def test_drafting_stops_when_the_likeliest_path_is_below_the_limit(stop_below, depth):
    _, made = draft(LONG, num_speculative_tokens=6, budget=7, width=1, stop_below=stop_below)
    assert max(made.tree.depth) == depth


def test_who_knows_what_forwards_cost_says_when_drafting_stops():
    told, seq = [], matrix.request(LONG, 40)
    seq.slot = 0
    drafting = DraftModelDrafter(small(), tiny.VOCAB, budget=7, width=1, stop_below=1.0)
    drafting.goes_on = lambda scores, best: told.append((len(scores), best == scores[-1])) or len(scores) < 4
    (made,) = drafting.propose([seq])
    assert (told, max(made.tree.depth)) == ([(2, True), (3, True), (4, True)], 3), "asked after each forward, with all nodes so far"


# its cache


CHAIN = {"width": 1, **DEEP}
SETTINGS = {
    "default": {},
    "wide tree": {"num_speculative_tokens": 4, "budget": 12, "width": 3, **DEEP},
    "chain": CHAIN,
    "short chain": {"num_speculative_tokens": 2, **CHAIN},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_accepted_and_rejected_drafts_leave_the_cache_true(settings):
    target, watched = tiny.target(), Watched(drafter(**settings))
    (seq,) = engine.generate(target, watched, match, [matrix.request(LONG)])
    matrix.expect(seq.output, answer("llama", LONG, 40), f"draft_model {settings}")


@pytest.mark.parametrize(("name", "lengths"), [("chain", {0, 1, 2, 3, 4}), ("short chain", {0, 1, 2})])
def test_the_runs_above_accept_and_reject_at_every_place(name, lengths):
    target, own = tiny.target(), drafter(**SETTINGS[name])
    kept = [r.num_accepted for r in engine.stream(target, own, match, [matrix.request(LONG)])]
    assert lengths <= set(kept), f"{name}: accepted per round {kept}; some lengths are not tried"


def test_a_drafter_goes_on_after_rounds_without_it():
    target, watched, seq = tiny.target(), Watched(drafter()), matrix.request(LONG)
    for other in (watched, NoDrafter(), watched, Watched(drafter()), watched):
        for _, _round in zip(range(3), engine.rounds(target, other, match, [seq]), strict=False):
            pass
    assert len(watched.drafts) == 9
    matrix.expect(seq.output, answer("llama", LONG, 40)[: len(seq.output)], "three rounds of each drafter")


@pytest.mark.parametrize("prompts", [(LONG, SHORT), (SHORT, LONG), (SHORT, SHORT), (LONG, (*LONG[:30], *SHORT))])
def test_a_slot_serves_the_next_sequence(prompts):
    target, watched = tiny.target(), Watched(drafter())
    for prompt in prompts:
        (seq,) = engine.generate(target, watched, match, [matrix.request(prompt, 12)])
        matrix.expect(seq.output, answer("llama", prompt, 40)[:12], f"a prompt of {len(prompt)} in a slot used before")


def test_a_second_turn_reads_only_what_is_new(monkeypatch):
    target, watched = tiny.target(), Watched(drafter())
    seq = matrix.request(LONG, 12)
    list(engine.rounds(target, watched, match, [seq]))
    turn = [*seq.tokens, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    engine.next_turn(target, seq, turn, matrix.request(SHORT, 12).params)
    sizes = counted(watched.inner.model, monkeypatch)
    next(engine.rounds(target, watched, match, [seq]))
    assert sizes[0] < 20, f"the draft model read {sizes[0]} tokens for a turn of 10 after {len(turn) - 10}"


def counted(model: HFTarget, monkeypatch) -> list[int]:
    """The number of tokens of every forward of a model."""
    sizes = []
    for name in ("full", "base"):
        run = getattr(model, name)
        monkeypatch.setattr(model, name, lambda run=run, **given: sizes.append(given["input_ids"].shape[1]) or run(**given))
    return sizes


def test_the_prompt_is_read_once(monkeypatch):
    target, own = tiny.target(), drafter(width=2, **DEEP)
    sizes = counted(own.model, monkeypatch)
    list(engine.rounds(target, own, match, [matrix.request(LONG)]))
    assert (sizes[0], max(sizes[1:])) == (len(LONG) - 1, 2), f"tokens per draft forward: {sizes}"


def test_a_draft_of_depth_six_takes_six_forwards(monkeypatch):
    target, own = tiny.target(), drafter(num_speculative_tokens=6, budget=7, width=1, **DEEP)
    sizes = counted(own.model, monkeypatch)
    rounds = engine.rounds(target, own, match, [matrix.request(LONG)])
    next(rounds)
    before = len(sizes)
    next(rounds)
    assert (before, len(sizes) - before) == (7, 6), "the prompt and six, then six"


def test_its_memory_ends_with_it():
    target, model = tiny.target(), small()
    own = DraftModelDrafter(model, tiny.VOCAB)
    engine.generate(target, own, match, [matrix.request(SHORT, 4)])
    held = model.cache.nbytes
    del own
    assert (held > 0, model.cache.nbytes) == (True, 0), f"{held} bytes while it lived, {model.cache.nbytes} after"
