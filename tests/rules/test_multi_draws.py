"""Rules for several candidates with real random numbers: two tokens of a tree of depth 2, against the exact law by chi-square.

300 draws over 16 pairs have the power to see the printed rule, whose first token is off by 0.27 in total variation: it must fail at a
p-value a thousand times below the level. Smaller errors are for the exact checks of the other tests.
"""

from __future__ import annotations

from collections import Counter

import pytest
from scipy.stats import chisquare

from paceline.rules import multi
from paceline.sampling import Random, SamplingParams

from .exact import World, sampled_tree, table
from .several import IID, PRINTED, WOR

DRAWS, LEVEL = 300, 1e-4
TREE = (-1, 0, 0, 1, 2)  # two children, one below each


def p_value(rule, kind) -> float:
    """Of Pearson's chi-square over the pairs of tokens."""
    world = World(table(4, 1), table(4, 2), SamplingParams(temperature=3.0))
    propose = sampled_tree(world, TREE, kind)
    seen = Counter(world.emitted(rule, propose, 2, Random(seed)) for seed in range(DRAWS))
    first = world.law(())
    want = {(a, b): float(first[a] * world.law((a,))[b]) for a in range(4) for b in range(4)}
    assert min(want.values()) * DRAWS > 4, "a pair is too rare to count"
    return float(chisquare([seen[pair] for pair in want], [prob * DRAWS for prob in want.values()]).pvalue)


@pytest.mark.parametrize(("rule", "kind"), [(multi.ramp, IID), (multi.ramp_wor, WOR)], ids=["ramp", "ramp_wor"])
def test_two_drawn_tokens_have_the_targets_joint_law(rule, kind):
    found = p_value(rule, kind)
    assert found > LEVEL, f"{rule.name}: p = {found:.2e} over {DRAWS} draws"


def test_the_printed_rule_fails_the_same_test():
    found = p_value(*PRINTED)
    assert found < LEVEL / 1000, f"the test has no power: p = {found:.2e}"
