"""Drafting with a small model whose context or vocabulary is not the target's, and the law that sampled chains are drawn from."""

from __future__ import annotations

import pytest
import torch

from paceline import engine
from paceline.draft import Siblings
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.drafters.shapes import chain
from paceline.rules.match import match
from paceline.rules.rejection import rejection
from paceline.sampling import Random, process, truncate
from paceline.targets.hf import HFTarget
from paceline.tree import Tree

from .. import matrix, tiny
from ..oracle import answer
from .small import DEEP, LONG, SHORT, changed, draft, logits

# contexts and vocabularies


def test_a_context_shorter_than_the_targets_does_not_change_the_text():
    target, own = tiny.target(), DraftModelDrafter(changed(max_position_embeddings=32), tiny.VOCAB)
    (seq,) = engine.generate(target, own, match, [matrix.request(SHORT, 64)])
    matrix.expect(seq.output, answer("llama", SHORT, 64), "64 tokens with a draft model of 32")


def test_a_short_context_is_never_exceeded_and_drafting_goes_on(monkeypatch):
    target, model, seen = tiny.target(), changed(max_position_embeddings=32), []
    for name in ("full", "base"):
        run = getattr(model, name)
        monkeypatch.setattr(model, name, lambda run=run, **given: seen.append(int(given["position_ids"].max())) or run(**given))
    own = DraftModelDrafter(model, tiny.VOCAB)
    kept = [r.num_accepted for r in engine.stream(target, own, match, [matrix.request(SHORT, 64)])]
    assert (max(seen) < 32, sum(kept[len(kept) // 2 :]) > 0) == (True, True), f"last position {max(seen)}, accepted per round {kept}"


def test_a_draft_deeper_than_the_context_allows_is_cut():
    model = HFTarget(tiny.build(tiny.config("gpt2", n_positions=32, max_position_embeddings=None)))
    _, made = draft(LONG, model=model, num_speculative_tokens=20, budget=21, width=1, **DEEP)
    assert 0 < max(made.tree.depth) <= 16, f"depth {max(made.tree.depth)} behind 16 tokens of context, with room for 32"


def test_a_short_prompt_takes_the_slot_of_a_text_that_outgrew_the_context():
    target, own = tiny.target(), DraftModelDrafter(changed(max_position_embeddings=32), tiny.VOCAB)
    engine.generate(target, own, match, [matrix.request(LONG, 12)])
    (seq,) = engine.generate(target, own, match, [matrix.request(SHORT, 12)])
    matrix.expect(seq.output, answer("llama", SHORT, 40)[:12], "the second sequence")


def test_ids_beyond_the_targets_vocabulary_are_never_proposed():
    model = changed(lambda w: torch.cat([w, 10 * w[:4], -10 * w[:4]]), vocab_size=tiny.VOCAB + 8)
    best = int(model.verify([Tree.chain(LONG)], [model.cache.open()]).logits[-1].argmax())
    _, made = draft(LONG, model=model, budget=16, width=4, **DEEP)
    assert (best >= tiny.VOCAB, max(made.tree.tokens) < tiny.VOCAB) == (True, True), f"likeliest {best}, drafted {made.tree.tokens}"


@pytest.mark.parametrize("prompt", [LONG, (3,), (1, 2)], ids=["unreadable ids in the prompt", "one", "two"])
@pytest.mark.parametrize("siblings", [Siblings.FIXED, Siblings.WITHOUT_REPLACEMENT])
def test_a_smaller_vocabulary_does_not_change_the_text(siblings, prompt):
    target, model = tiny.target(), changed(lambda w: w[: tiny.VOCAB - 8], vocab_size=tiny.VOCAB - 8)
    own = DraftModelDrafter(model, tiny.VOCAB, siblings=siblings)
    (seq,) = engine.generate(target, own, match if siblings is Siblings.FIXED else rejection, [matrix.request(prompt)])
    matrix.expect(seq.output, answer("llama", tuple(prompt), 40), f"8 ids that the draft model cannot read, {siblings.value} children")


# laws and penalties

SAMPLED = {"siblings": Siblings.WITHOUT_REPLACEMENT, "num_speculative_tokens": 5}
LAWS = {
    "temperature": {"temperature": 0.8},
    "top-k and top-p": {"temperature": 1.5, "top_k": 10, "top_p": 0.9},
    "penalties": {"temperature": 1.5, "repetition_penalty": 1.4, "frequency_penalty": 0.7, "logit_bias": {7: 6.0}},
}


@pytest.mark.parametrize("params", LAWS.values(), ids=LAWS)
def test_the_rows_of_a_sampled_chain_are_the_law_it_was_drawn_from(params):
    seq, made = draft(LONG, **SAMPLED, params={**params, "seed": 5})
    for node in range(5):
        path = list(made.tree.tokens[1 : node + 1])
        law = torch.softmax(truncate(process(logits([*seq.tokens, *path]), seq, path), seq.params), -1)
        difference = float((made.probs(node) - law).abs().max())
        assert difference < 5e-4, f"node {node}: the law differs by up to {difference}, which is more than rounding to half precision"


@pytest.mark.parametrize("params", LAWS.values(), ids=LAWS)
def test_a_sampled_chain_is_drawn_with_the_requests_own_random_numbers(params):
    _, made = draft(LONG, **SAMPLED, params={**params, "seed": 5})
    rng = Random(5)
    assert made.tree == Tree.chain([LONG[-1], *(rng.pick(made.probs(node)) for node in range(5))])


def test_the_last_node_of_a_sampled_chain_has_no_law():
    _, made = draft(LONG, **SAMPLED, params={"temperature": 1.0, "seed": 5})
    with pytest.raises(AssertionError, match="node 5 has no draft row"):
        made.probs(5)


@pytest.mark.parametrize("settings", [{"width": 1, **DEEP}, {"shape": chain(4)}], ids=["grown", "shaped"])
def test_penalties_count_the_drafted_tokens(settings):
    # 7 leads by half a penalty, falls behind once it is there, and leads again when 8 is there too
    params = {"logit_bias": {7: 1000.0, 8: 999.5}, "frequency_penalty": 1.0}
    zeros = changed(lambda w: w * 1e-6)
    _, made = draft(SHORT, model=zeros, num_speculative_tokens=4, budget=5, params=params, **settings)
    assert made.tree.tokens[1:] == (7, 8, 7, 8)


def test_a_banned_token_is_not_drafted():
    _, free = draft(LONG, budget=8, **DEEP)
    banned = free.tree.tokens[1]
    _, made = draft(LONG, budget=8, **DEEP, params={"bad_words": ((banned,),)})
    assert banned not in made.tree.tokens[1:]


def test_a_callers_processor_is_not_shown_guesses():
    seen = []
    draft(LONG, params={"processors": (lambda ids, scores: seen.append(ids) or scores,)})
    assert seen == []
