"""EASD's decisions: the trigger and its direction, what replaces a vetoed token, guards, and its law under sampling."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import replace

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from paceline.draft import Draft, Siblings
from paceline.errors import InvalidRequest
from paceline.rules.csd import csd
from paceline.rules.csd_config import PUBLISHED as RESCUE
from paceline.rules.easd import easd, outlook
from paceline.rules.easd_config import PUBLISHED, SAFE, EasdConfig
from paceline.rules.match import match
from paceline.rules.rejection import rejection
from paceline.rules.spelling import Spelling
from paceline.sampling import SamplingParams
from paceline.tree import Tree

from .exact import ROOT, World, outcomes, table
from .lossy import SAMPLED, context, decide, everything

V = 16
FLAT = [1.5, 1.2, *(1.0 - i / 100 for i in range(10)), *[0.0] * 4]  # token 0, then token 1; 2.7 nats
SHARP = [9.0, 4.0, *[0.0] * 14]
OTHER = [*[0.0] * 8, *[1.0] * 8]  # as unsure, about other tokens
ROWS = [FLAT, SHARP]
CHAIN = Tree.chain((20, 0))
LOOSE = replace(PUBLISHED, n=8, tau_overlap=0.5)


def vetoed(target=FLAT, draft=FLAT, tree=CHAIN, config=LOOSE, of=None, **given):
    rows = [target] + [SHARP] * (len(tree) - 1)
    return decide(easd(match, config, **given), rows, tree, of, beliefs=[draft] + [SHARP] * (len(tree) - 1))


def watch(of):
    return of.ledgers["easd"]


def test_uncertain_agreement_is_vetoed_and_the_second_choice_ends_the_block():
    verdict, of = vetoed()
    assert verdict == ([0], 1)
    assert watch(of).spent == pytest.approx(0.3), "ln(p1 / p2) nats"


@pytest.mark.parametrize(
    ("target", "draft"),
    [(SHARP, FLAT), (FLAT, SHARP), (SHARP, SHARP), (FLAT, OTHER)],
    ids=["a sure target", "a sure draft", "both sure", "no overlap"],
)
def test_all_three_conditions_are_needed(target, draft):
    verdict, of = vetoed(target, draft)
    assert verdict.path == [0, 1], f"{dict(watch(of).seen)}"
    assert watch(of).spent == 0


@pytest.mark.parametrize(("share", "fires"), [(1.0, False), (0.75, True), (0.7500001, False), (0.74, True)])
def test_overlap_is_counted_in_whole_ids(share, fires):
    config = replace(PUBLISHED, n=8, tau_overlap=share)
    target = [2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3, *[0.5] * 8]
    draft = [2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 0.4, 0.3, 1.4, 1.3, *[0.5] * 6]  # 6 of the 8 likeliest are shared
    verdict, of = vetoed(target, draft, config=config)
    assert outlook(torch.tensor(target), torch.tensor(draft), 8).shared == 6
    assert (len(verdict.path) == 1) is fires, f"{dict(watch(of).seen)}"


def test_a_trigger_on_a_token_that_is_rejected_anyway_changes_nothing():
    verdict, of = vetoed(tree=Tree.chain((20, 3)))
    assert verdict == ([0], 0)
    assert (watch(of).events, watch(of).seen["no-op"]) == ([], 1)


def test_a_node_of_a_tree_says_what_that_of_a_chain_says():
    for first, second in ((0, 1), (1, 0), (3, 0)):
        tree, (chain, _) = Tree((20, first, second), (-1, 0, 0)), vetoed(tree=Tree.chain((20, first)))
        verdict, _ = vetoed(tree=tree)
        said = [tree.tokens[n] for n in verdict.path[1:]] + [verdict.token]
        told = [first] * (len(chain.path) - 1) + [chain.token]
        assert said[0] == told[0], f"children {first}, {second}: {said} and not {told}"


def test_a_token_behind_the_root_is_vetoed_too():
    verdict, of = decide(easd(match, LOOSE), [SHARP, FLAT, SHARP], Tree.chain((20, 0, 0)), beliefs=[SHARP, FLAT, SHARP])
    assert verdict == ([0, 1], 1)
    assert watch(of).acted == [5]


def test_where_one_token_is_legal_there_is_no_veto():
    banned = tuple((i,) for i in range(1, V))
    config = replace(LOOSE, tau_target=0.0, tau_draft=0.0, tau_overlap=0.0)
    for params in (SamplingParams(bad_words=banned), SamplingParams(temperature=1.0, top_k=1)):
        verdict, of = vetoed(config=config, of=context(params=params))
        assert verdict.path == [0, 1], f"{params}: {watch(of).events}"


GUARDS = {
    "likely": ({"target": [9.0, 8.0, *FLAT[2:]], "config": replace(LOOSE, tau_target=0.1, max_top=0.5)}, "guard:likely"),
    "ratio": ({"config": replace(LOOSE, min_ratio=0.8)}, "guard:ratio"),
    "special": ({"config": replace(LOOSE, guards=True), "spelling": Spelling(frozenset([0]))}, "guard:special"),
    "special replacement": ({"config": replace(LOOSE, guards=True), "spelling": Spelling(frozenset([1]))}, "guard:special"),
    "surface": (
        {"config": replace(LOOSE, guards=True), "spelling": Spelling(decode=[" Word", "word", *"x" * 14].__getitem__)},
        "guard:surface",
    ),
    "copied": ({"config": replace(LOOSE, guards=True), "of": (9, 5, 6, 7, 0, 9, 5, 6, 7)}, "guard:copied"),
    "budget": ({"config": replace(LOOSE, max_nats=0.2)}, "budget"),
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_blocks_a_veto_with_its_reason(name):
    given, reason = GUARDS[name]
    given = {**given, "of": context(given["of"]) if "of" in given else None}
    verdict, of = vetoed(**given)
    assert verdict.path == [0, 1], f"{verdict}"
    assert reason in {*watch(of).seen, *(e.refusal for e in watch(of).events)}


SPREAD = [3.0, 2.5, *[2.0] * 14]  # p1 0.14, p2 / p1 0.6
AHEAD = [3.0, 1.0, *[0.5] * 14]  # p1 0.39, p2 / p1 0.14
PLACES = [(SPREAD, CHAIN, 1), (AHEAD, CHAIN, 0), (SHARP, CHAIN, 0), (SPREAD, Tree.chain((20, 3)), 0)]


@pytest.mark.parametrize(("target", "tree", "places"), PLACES, ids=["open", "ratio", "likely", "a draft that is rejected anyway"])
@pytest.mark.parametrize("tau", [0.1, 9.0], ids=["unsure", "sure"])
def test_open_places_are_those_where_a_veto_could_change_something(target, tree, places, tau):
    config = replace(LOOSE, max_top=0.5, min_ratio=0.3, tau_target=tau)
    _, of = vetoed(target, tree=tree, config=config)
    assert watch(of).seen["open"] == places, f"{dict(watch(of).seen)}"


def test_flips_keep_a_distance():
    of, flips = context(), []
    for _ in range(20):
        verdict, _ = vetoed(config=replace(LOOSE, cooldown=8), of=of)
        of.tokens += [0] * (len(verdict.path) - 1) + [verdict.token]
    flips = watch(of).acted
    gaps = [b - a for a, b in itertools.pairwise(flips)]
    assert min(gaps) >= 8, f"flips at {flips}"
    assert len(flips) > 2


def test_shadow_counts_and_changes_nothing():
    verdict, of = vetoed(config=replace(LOOSE, mode="shadow"))
    of.tokens += [0]
    found = watch(of).summary(of)
    assert verdict.path == [0, 1]
    assert (found["altered"], found["would_alter"], found["nats"]) == (0, 1, pytest.approx(0.3))


def test_a_veto_beats_a_rescue():
    both = easd(csd(match, everything(V), RESCUE), LOOSE)
    verdict, of = decide(both, ROWS, Tree.chain((20, 1)), beliefs=[FLAT, SHARP])
    assert verdict == ([0], 0), "token 1 is vetoed, so it is not rescued"
    assert "csd" not in of.ledgers, f"a vetoed pair was counted: {of.ledgers['csd'].events}"
    alone, _ = decide(csd(match, everything(V), RESCUE), ROWS, Tree.chain((20, 1)))
    assert alone.path == [0, 1], "without the veto it would have been rescued"


def test_where_nothing_is_vetoed_a_rescue_goes_on_as_before():
    both = easd(csd(match, everything(V), RESCUE), LOOSE)
    verdict, _ = decide(both, ROWS, Tree.chain((20, 1)), beliefs=[SHARP, SHARP])
    assert verdict.path == [0, 1]


def test_a_veto_in_shadow_lets_a_rescue_happen():
    both = easd(csd(match, everything(V), RESCUE), replace(LOOSE, mode="shadow"))
    verdict, _ = decide(both, ROWS, Tree.chain((20, 1)), beliefs=[FLAT, SHARP])
    assert verdict.path == [0, 1]


@hypothesis.given(st.lists(st.floats(-8, 8), min_size=4, max_size=12))
def test_entropies_are_those_of_the_definition(row):
    logits = torch.tensor(row, dtype=torch.float64)
    p = torch.softmax(logits, -1)
    want = -float(torch.special.xlogy(p, p).sum())
    assert outlook(logits, logits, 3).target == pytest.approx(want, abs=1e-9)


def test_banned_tokens_count_for_nothing():
    row = torch.tensor([0.0, 0.0, -math.inf, -math.inf])
    found = outlook(row, row, 2)
    assert (found.target, found.shared, found.top, found.ratio) == pytest.approx((math.log(2), 2, 0.5, 1.0))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("tau_target", -1.0), ("tau_draft", math.nan), ("n", 0), ("n", 2.5), ("tau_overlap", 1.2), ("max_top", -0.1), ("cooldown", -1),
     ("mode", "often"), ("max_nats_per_1k", -3), ("guards", 1)],
)  # fmt: skip
def test_a_threshold_out_of_range_is_refused_by_name(setting, value):
    with pytest.raises(InvalidRequest, match=f"{setting} is"):
        EasdConfig(**{setting: value})


def test_only_the_active_rule_is_declared_lossy():
    declared = [easd(match, replace(SAFE, mode=mode)).lossless for mode in ("off", "shadow", "on")]
    assert declared == [True, True, False]


# sampled, exactly

ALWAYS = replace(PUBLISHED, tau_target=0.0, tau_draft=0.0, n=1, tau_overlap=0.0)


def first_law(world: World, rule) -> list[float]:
    """The law of the first token, one candidate drawn from the draft."""

    def experiment(rng) -> int:
        belief = world.draft_logits(())
        tree = Tree.chain((ROOT, rng.pick(torch.softmax(belief, -1))))
        draft = Draft(tree, Siblings.IID, belief[None], (0, -1), beliefs=(belief, belief))
        path, token = rule(draft, world.laws((), tree), rng)
        return tree.tokens[path[1]] if len(path) > 1 else token

    law = defaultdict(float)
    for token, prob in outcomes(experiment):
        law[token] += prob
    return [law[i] for i in range(4)]


@pytest.mark.parametrize("base", [match, rejection], ids=lambda r: r.name)
def test_sampled_a_veto_gives_the_law_of_the_formula_within_its_bound(base):
    for seed in range(30):
        world = World(table(4, seed), table(4, seed + 100))
        p, q = world.law(()).tolist(), torch.softmax(world.draft_logits(()), -1).tolist()
        want = [sum(q[x] * p[y] / (1 - p[x]) for x in range(4) if x != y) for y in range(4)]
        law = first_law(world, easd(base, ALWAYS))
        assert law == pytest.approx(want, abs=1e-12)
        off, bound = sum(abs(a - b) for a, b in zip(law, p, strict=True)) / 2, sum(a * b for a, b in zip(q, p, strict=True))
        assert off <= bound + 1e-12, f"total variation {off:.4f}, bound {bound:.4f}"


@pytest.mark.parametrize("config", [replace(ALWAYS, tau_target=math.inf), replace(ALWAYS, mode="shadow")], ids=["never", "shadow"])
def test_sampled_without_a_trigger_the_law_is_the_targets(config):
    world = World(table(4, 1), table(4, 101))
    assert first_law(world, easd(rejection, config)) == pytest.approx(world.law(()).tolist(), abs=1e-12)


def test_sampled_a_veto_is_priced_by_the_mass_it_moves():
    class Last:
        def pick(self, probs):
            return int(probs.nonzero()[-1])

    _, of = decide(easd(match, LOOSE), ROWS, CHAIN, context(params=SAMPLED), beliefs=[FLAT, SHARP], rng=Last())
    (event,) = watch(of).events
    mass = float(torch.softmax(torch.tensor(FLAT, dtype=torch.float64), -1)[0])
    assert (event.moved, event.nats) == pytest.approx((mass, -math.log(1 - mass)))
