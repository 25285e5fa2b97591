"""EASD in the loop with tiny models: which tokens change and into what, and what the drafter hands over for it."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch

from paceline import engine, methods
from paceline.draft import Siblings
from paceline.drafters.draft_model import BestFirstGrowth, DraftModelDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.shapes import Shape
from paceline.errors import IncompatibleRule
from paceline.rules import ledger
from paceline.rules.csd import csd
from paceline.rules.csd_config import PUBLISHED as RESCUE
from paceline.rules.easd import easd, outlook
from paceline.rules.easd_config import PUBLISHED
from paceline.rules.match import match
from paceline.rules.rejection import rejection
from paceline.tree import Tree

from .. import matrix, tiny
from ..drafts import Scripted
from .lossy import decode, margins

LOOSE = replace(PUBLISHED, tau_target=1.0, tau_draft=1.0, n=6, tau_overlap=0.5)  # tiny models are sharp


@cache
def noisy():
    """The draft model with its own attention."""
    model = copy.deepcopy(tiny.plain("llama"))
    model.load_state_dict(tiny.noisy("llama").state_dict())
    return model


def report(seq, rule="easd"):
    return ledger.summaries(seq)[rule]


@pytest.fixture(scope="module")
def flipped():
    (seq,) = decode(easd(match, LOOSE), count=100, noise=0.02)
    assert report(seq)["altered"] > 3, f"{report(seq)} tests little"
    return seq


@torch.no_grad()
def rows(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def test_every_changed_token_is_the_runner_up_where_all_three_conditions_hold(flipped):
    target, draft = rows(tiny.plain("llama"), flipped.tokens), rows(noisy(), flipped.tokens)
    changed = report(flipped)["positions"]
    for place, margin in enumerate(margins(flipped)):
        at = flipped.prompt_length + place
        if place not in changed:
            assert margin < 1e-4, f"token {place} was not reported, and the target prefers another by {margin:.4f}"
            continue
        top, second = target[at - 1].topk(2).indices.tolist()
        found = outlook(target[at - 1], draft[at - 1], LOOSE.n)
        assert flipped.tokens[at] == second, f"token {place} is not the second choice"
        assert top == int(draft[at - 1].argmax()), f"token {place}: the draft had not proposed the target's token"
        assert min(found.target, found.draft) > 1.0, f"token {place}: {found}"
        assert found.shared >= 3, f"token {place}: {found}"


def test_the_nats_are_the_margins_given_up(flipped):
    assert report(flipped)["nats"] == pytest.approx(sum(margins(flipped)), abs=1e-3)


NEVER = {
    "thresholds of infinity": easd(match, replace(LOOSE, tau_target=float("inf"))),
    "shadow": easd(match, replace(LOOSE, mode="shadow")),
    "a budget of nothing": easd(match, replace(LOOSE, max_nats=0.0)),
}


@pytest.mark.parametrize("name", NEVER)
def test_without_a_veto_the_text_is_the_targets_own(name):
    (seq,) = decode(NEVER[name])
    matrix.expect(seq.tokens, matrix.plain(matrix.PROMPTS["short"], 40), name)


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_sampled_off_and_shadow_draw_what_the_base_rule_draws(mode):
    texts = []
    for rule in (rejection, easd(rejection, replace(LOOSE, mode=mode))):
        target, seq = tiny.target(), matrix.request(matrix.PROMPTS["short"], 40, temperature=1.0, seed=3)
        drafter = DraftModelDrafter(tiny.draft(), tiny.VOCAB, siblings=Siblings.WITHOUT_REPLACEMENT, keeps_beliefs=rule.reads_beliefs)
        texts.append(engine.generate(target, drafter, rule, [seq])[0].tokens)
    matrix.expect(texts[1], texts[0], mode)


def test_no_vetoed_token_is_emitted_at_its_position_and_none_is_counted_by_csd():
    both = easd(csd(match, config=replace(RESCUE, tests="gate")), LOOSE)
    (seq,) = decode(both, count=100)
    vetoes = {e.position: e.drafted for e in seq.ledgers["easd"].events if e.refusal is None}
    divergences = {e.position for e in seq.ledgers["csd"].events}
    assert vetoes, "nothing was vetoed, which tests little"
    assert divergences, "nothing was rescued, which tests little"
    assert not [p for p, x in vetoes.items() if p < len(seq.tokens) and seq.tokens[p] == x]
    assert not vetoes.keys() & divergences


@pytest.mark.parametrize("shape", [None, "chain:3", "2x2"])
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_draft_model_hands_over_what_it_thought_at_every_parent(shape, temperature):
    settings = {"temperature": temperature, "seed": 1, "top_k": 5} if temperature else {}
    target, seq = tiny.target(), matrix.request(matrix.PROMPTS["short"], 20, **settings)
    siblings = Siblings.WITHOUT_REPLACEMENT if shape and temperature else Siblings.FIXED
    made = None if shape is None else Shape.parse(shape)
    drafter = DraftModelDrafter(tiny.draft(), tiny.VOCAB, siblings=siblings, shape=made, keeps_beliefs=True)
    for count, round_ in enumerate(engine.rounds(target, drafter, match, [seq])):
        draft, before = round_.draft, seq.tokens[: len(seq.tokens) - len(round_.tokens)]
        for node in range(len(draft.tree)):
            if draft.tree.children(node):
                path = [draft.tree.tokens[n] for n in draft.tree.path(node)[1:]]
                want = rows(noisy(), [*before, *path])[-1]
                assert torch.allclose(draft.beliefs[node], want, atol=1e-4), f"round {count}, node {node}"
        if count == 3:
            return


def test_beliefs_stay_with_their_nodes_where_others_are_dropped():
    growth = BestFirstGrowth(matrix.request((1, 2)), [2], 3, budget=5, width=2, goes_on=lambda scores, best: True)
    growth.keep_beliefs()
    laws = [[[0.5, 0.4, 0.05, 0.05]], [[0.25] * 4, [0.97, 0.01, 0.01, 0.01]], [[0.01, 0.97, 0.01, 0.01], [0.25] * 4]]
    for rows in laws:
        growth.expand(torch.tensor(rows).log())
    draft = growth.draft()
    assert (draft.tree.tokens, draft.tree.parents) == ((2, 0, 1, 0, 1), (-1, 0, 0, 2, 3)), "two nodes were dropped before the fourth"
    assert draft.beliefs[3].exp().tolist() == pytest.approx(laws[2][0])


def test_a_rule_that_asks_for_nothing_gets_no_beliefs():
    target, seq = tiny.target(), matrix.request(matrix.PROMPTS["short"], 5)
    drafter, rule = methods.build("draft_model", target, methods.Options(draft_model=tiny.draft()))
    assert next(engine.rounds(target, drafter, rule, [seq])).draft.beliefs is None


@pytest.mark.parametrize("drafter", [LookupDrafter(), Scripted(lambda seq: [1])], ids=["lookup", "scripted"])
def test_a_drafter_without_a_distribution_is_refused_with_the_reason(drafter):
    with pytest.raises(
        IncompatibleRule, match=r"the draft's own probabilities with the target's, and (LookupDrafter|Scripted) hands none over"
    ):
        next(engine.rounds(tiny.target(), drafter, easd(match), [matrix.request((1, 2, 3))]))


def test_a_draft_that_forgets_its_beliefs_is_refused():
    drafter = Scripted(lambda seq: Tree.chain([seq.root, 1]))
    drafter.keeps_beliefs = True
    with pytest.raises(IncompatibleRule, match="without the draft's own probabilities"):
        next(engine.rounds(tiny.target(), drafter, easd(match), [matrix.request((1, 2, 3))]))
