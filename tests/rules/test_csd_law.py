"""CSD under sampling, exactly: all outcomes are enumerated in float64. The price is the rescues, and the strict setting costs nothing."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache

import pytest

from paceline.draft import Siblings
from paceline.rules.csd import csd
from paceline.rules.csd_config import PUBLISHED
from paceline.rules.match import match
from paceline.rules.memory import Memory
from paceline.rules.multi import ramp, rrs, rrs_wor
from paceline.rules.rejection import rejection
from paceline.sampling import SamplingParams

from .exact import World, outcomes, sampled_tree, table, top_tree
from .lossy import everything

EXACT, VISIBLE = 1e-12, 1e-3
ONE, TWO = (-1, 0), (-1, 0, 0)
CONFIG = replace(PUBLISHED, tau=0.05)
SETTINGS = {
    "plain": SamplingParams(temperature=1.0),
    "cool": SamplingParams(temperature=0.6),
    "cut": SamplingParams(temperature=1.2, top_k=3),
    "penalised": SamplingParams(temperature=1.0, presence_penalty=0.8, top_p=0.9),
}
BASES = {
    "rejection, one drawn": (rejection, lambda w: sampled_tree(w, ONE, Siblings.IID)),
    "match, one likeliest": (match, lambda w: top_tree(w, ONE)),
    "match, two likeliest": (match, lambda w: top_tree(w, TWO)),
}
SEVERAL = {
    "match, one drawn": (match, lambda w: sampled_tree(w, ONE, Siblings.WITHOUT_REPLACEMENT)),
    "rrs": (rrs, lambda w: sampled_tree(w, TWO, Siblings.IID)),
    "rrs_wor": (rrs_wor, lambda w: sampled_tree(w, TWO, Siblings.WITHOUT_REPLACEMENT)),
    "ramp": (ramp, lambda w: sampled_tree(w, TWO, Siblings.IID)),
}


def price(world: World, rule, propose) -> tuple[float, float]:
    """Total variation of the first token's law from the target's, and the probability that it was rescued."""

    def experiment(rng):
        draft = propose((), rng)
        laws = world.laws((), draft.tree)
        path, token = rule(draft, laws, rng)
        book = laws.context.ledgers.get("csd")
        return draft.tree.tokens[path[1]] if len(path) > 1 else token, bool(book and book.acted and book.acted[0] == 1)

    law, rescued = defaultdict(float), 0.0
    for (token, was), prob in outcomes(experiment):
        law[token] += prob
        rescued += was * prob
    p = world.law(()).tolist()
    return sum(abs(law[i] - p[i]) for i in range(len(p))) / 2, rescued


@cache
def worlds(name: str) -> list[World]:
    return [World(table(4, seed), table(4, seed + 100), SETTINGS[name]) for seed in range(25)]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", BASES)
def test_the_total_variation_is_the_probability_of_a_rescue(name, settings):
    base, propose = BASES[name]
    rule, most = csd(base, everything(4), CONFIG), 0.0
    for world in worlds(settings):
        off, rescued = price(world, rule, propose(world))
        assert off == pytest.approx(rescued, abs=EXACT), f"total variation {off:.6f}, rescues {rescued:.6f}"
        most = max(most, rescued)
    assert most > 0.05, f"the most that was rescued is {most:.4f}, which tests little"


@pytest.mark.parametrize("name", SEVERAL)
def test_with_other_draws_rescues_bound_the_total_variation(name):
    base, propose = SEVERAL[name]
    rule, most = csd(base, everything(4), CONFIG), 0.0
    for world in worlds("plain")[:8]:
        off, rescued = price(world, rule, propose(world))
        assert off <= rescued + EXACT, f"total variation {off:.6f}, rescues {rescued:.6f}"
        most = max(most, off)
    assert most > VISIBLE, f"the most that the law is off is {most:.2e}"


STRICT = {
    "empty memory": (Memory(), CONFIG),
    "no count is enough": (everything(4), replace(CONFIG, min_count=float("inf"))),
    "ties only": (everything(4), replace(CONFIG, tau=1.0)),
    "shadow": (everything(4), replace(CONFIG, mode="shadow")),
}


@pytest.mark.parametrize("strict", STRICT)
@pytest.mark.parametrize("name", [*BASES, *SEVERAL])
def test_the_strict_settings_keep_the_targets_law(name, strict):
    base, propose = (BASES | SEVERAL)[name]
    rule = csd(base, *STRICT[strict])
    for world in worlds("plain")[:5]:
        off, rescued = price(world, rule, propose(world))
        assert off < EXACT, f"{name}, {strict}: off by {off:.3e}"
        assert rescued == 0 or strict == "shadow"


def test_the_distance_grows_with_the_gate():
    world = worlds("plain")[0]
    propose = sampled_tree(world, ONE, Siblings.IID)
    prices = [price(world, csd(rejection, everything(4), replace(CONFIG, tau=tau)), propose)[0] for tau in (1.0, 0.5, 0.2, 0.05, 1e-4)]
    assert prices == sorted(prices), f"by falling tau: {prices}"
    assert prices[-1] > prices[0] + VISIBLE


def test_no_rescued_token_is_overstated_by_more_than_the_overshoot_allows():
    kappa = 0.5
    rule = csd(rejection, everything(4), replace(PUBLISHED, tau=1e-4, overshoot=kappa))
    for world in worlds("plain")[:10]:
        law = defaultdict(float)
        propose = sampled_tree(world, ONE, Siblings.IID)
        for tokens, prob in outcomes(lambda rng, w=world, p=propose: w.emitted(rule, p, 1, rng)):
            law[tokens[0]] += prob
        ratios = [law[i] / p for i, p in enumerate(world.law(()).tolist())]
        assert max(ratios) <= 1 / kappa + EXACT, f"a token comes {max(ratios):.3f} times as often as the target says it"


def test_the_identity_is_not_met_by_every_rule():
    """Negative control: match forgets how likely the drawn child was, so its rescues overstate the distance."""
    base, propose = SEVERAL["match, one drawn"]
    gaps = [b - a for a, b in (price(w, csd(base, everything(4), CONFIG), propose(w)) for w in worlds("plain"))]
    assert max(gaps) > VISIBLE, f"the check sees only {max(gaps):.2e}"
