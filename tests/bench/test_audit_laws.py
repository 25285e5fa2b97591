"""Audits of given laws: what is lossless passes, what is not fails, and the numbers are those of the specification."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paceline.bench.audit import audit_laws
from paceline.draft import Siblings
from paceline.errors import IncompatibleRule, InvalidRequest
from paceline.methods import RULES
from paceline.rules.walk import Rule, Step

P, Q = [0.4, 0.3, 0.3], [0.6, 0.3, 0.1]  # the three-token example of the printed rule's failure
DECISIONS = 1000


def rule(name: str) -> Rule:
    return RULES[name].build()


def audited(name: str, k: int, p=P, q=Q, **more):
    return audit_laws(rule(name), p, q, k, **{"replays": DECISIONS, **more})


def pairs(rows: int, vocab: int, seed: int = 0):
    """Laws like those of language models, and a draft that is near them."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(rows, vocab))
    return [np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (logits, logits + rng.normal(size=logits.shape))]


# acceptance (membership included) and bound of the specification's table, exact there
TABLE = [
    ("rejection", 1, 0.8, 0.8),
    ("rrs", 3, 0.838, 0.971),
    ("k_seq", 2, 0.84, 0.89),
    ("ramp", 2, 0.885714, 0.89),
    ("ramp_wor", 2, 0.976735, 0.992857),
    ("match", 2, 0.7, 0.7),
]


@pytest.mark.parametrize(("name", "k", "acceptance", "bound"), TABLE, ids=[f"{n} {k}" for n, k, *_ in TABLE])
def test_a_lossless_rule_passes_with_the_acceptance_and_the_bound_of_the_specification(name, k, acceptance, bound):
    made = audited(name, k, np.tile(P, (10, 1)), np.tile(Q, (10, 1)))
    assert made["lossless_tests"] == "passed", made["p_values"]
    assert made["bound"] == pytest.approx(bound, abs=1e-5)
    assert made["acceptance"] == pytest.approx(acceptance, abs=4 * made["acceptance_error"] + 1e-6)
    assert made["total_variation"] == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize(("k", "variation"), [(1, 0.115385), (2, 0.133603), (3, 0.142233)])
def test_the_printed_rule_fails_with_the_total_variation_of_the_specification(k, variation):
    made = audited("resispec_printed", k)
    assert made["lossless_tests"] == "failed", made["p_values"]
    assert made["total_variation"] == pytest.approx(variation, abs=1e-5)
    assert made["lossless"] is False


def test_a_share_of_the_bound_above_one_gives_the_printed_rule_away():
    made = audited("resispec_printed", 2, [0.7, 0.2, 0.1], [0.2, 0.5, 0.3])
    assert made["share_of_bound"] > 1.1, f"acceptance {made['acceptance']:.3f}, bound {made['bound']:.3f}"


def test_a_rule_that_lies_fails_though_it_claims_to_be_lossless():
    honest = rule("rejection")

    def decide(node, rng):
        step = honest.decide(node, rng)
        return Step(node.children[0], node.token(node.children[0])) if rng.coin(0.5) else step

    liar = Rule("liar", decide, honest.needs, lossless=True, chain_only=True)
    p, q = pairs(40, 30)
    half = 0.5 * np.mean(np.abs(p - q).sum(1)) / 2  # half of the tokens are plain draws from q
    made = audit_laws(liar, p, q, 1, replays=DECISIONS)
    assert made["lossless_tests"] == "failed", made["p_values"]
    assert made["acceptance"] > 0.5, "an unknown rule's acceptance is taken from the replays"
    assert made["total_variation"] == pytest.approx(half, abs=0.25 * half + 4 * made["total_variation_error"])


def test_an_unknown_rule_with_fixed_children_is_priced_by_its_replays():
    honest = rule("match")
    other = Rule("other", lambda node, rng: honest.decide(node, rng), honest.needs, lossless=True)
    made = audit_laws(other, *pairs(40, 30), 2, replays=DECISIONS)
    known = audit_laws(honest, *pairs(40, 30), 2, replays=DECISIONS)
    assert made["acceptance"] == pytest.approx(known["acceptance"], abs=4 * made["acceptance_error"])
    assert made["share_of_bound"] == pytest.approx(1, abs=0.1)
    assert known["share_of_bound"] == pytest.approx(1, abs=1e-9)


def test_a_sharp_draft_is_no_fault():
    p, q = pairs(40, 30)
    made = audit_laws(rule("rejection"), p, np.eye(30)[q.argmax(1)] * 0.9 + 0.1 * q, 1, replays=DECISIONS)
    assert made["lossless_tests"] == "passed", made["p_values"]
    assert made["control"]["fails"], made["control"]


def test_laws_without_choice_prove_nothing():
    made = audited("rejection", 1, [1.0, 0, 0], [1.0, 0, 0])
    assert made["lossless_tests"] == "inconclusive"
    assert any("control passed" in w for w in made["warnings"]), made["warnings"]
    assert any("small sample" in w for w in made["warnings"]), made["warnings"]


def test_one_law_may_be_given_without_rows_and_all_fits_strict_json():
    made = audited("rejection", 1)
    json.dumps(made, allow_nan=False)
    assert made["power"]["detects"]["replay_cells"]["n"] == DECISIONS


def test_acceptance_by_child_sums_to_the_acceptance():
    made = audited("rrs_wor", 2, *pairs(10, 20))
    by_child = made["acceptance_by_child"]
    assert len(by_child) == 2
    assert sum(by_child) == pytest.approx(made["acceptance"], abs=0.03), f"{by_child} of {made['acceptance']}"


def test_progress_is_told_to_the_end():
    heard = {}
    audited("rrs", 2, advance=lambda doing, done, of: heard.update({doing: (done, of)}))
    assert {"replaying decisions", "acceptance", "total variation"} <= set(heard), heard
    assert all(done == of for done, of in heard.values()), heard


# --- bad input

BAD = [
    (P, [0.6, 0.4], "p has shape"),
    ([0.4, 0.3, 0.2], Q, "sum 0.9"),
    ([0.4, 0.7, -0.1], Q, "smallest value -0.1"),
    ([0.4, float("nan"), 0.6], Q, "p, row 0: nan"),
    ([[0.4, 0.3, 0.3], [0.5, 0.5, 0.5]], [Q, Q], "p, row 1"),
    (["a", "b"], Q, "type"),
    ([], [], "shape"),
]


@pytest.mark.parametrize(("p", "q", "words"), BAD, ids=[w for *_, w in BAD])
def test_what_is_no_law_is_refused(p, q, words):
    with pytest.raises(InvalidRequest, match=words):
        audit_laws(rule("rejection"), p, q, 1)


def test_wrong_widths_and_kinds_of_children_are_refused():
    with pytest.raises(InvalidRequest, match="width is 0"):
        audit_laws(rule("rejection"), P, Q, 0)
    with pytest.raises(IncompatibleRule, match="width is 2"):
        audit_laws(rule("rejection"), P, Q, 2)
    with pytest.raises(IncompatibleRule, match="cannot verify fixed children"):
        audit_laws(rule("rrs"), P, Q, 2, siblings=Siblings.FIXED)
    with pytest.raises(InvalidRequest, match="replays is 5"):
        audit_laws(rule("rrs"), P, Q, 2, replays=5)
