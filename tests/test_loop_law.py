"""The joint law of two tokens by the real loop and the real draft-model drafter, exactly: both models are tables in float64, and every
random choice of drafter and rule is explored.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from paceline import engine, methods
from paceline.draft import Siblings
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.sampling import truncate

from .drafters import table
from .rules.exact import outcomes
from .rules.exact import table as logits

VOCAB, EXACT, VISIBLE = 3, 1e-12, 1e-3
RULES = {name: entry.build() for name, entry in methods.RULES.items()}
LOSSLESS = [name for name, rule in RULES.items() if rule.lossless and not methods.RULES[name].wraps]
TARGET, DRAFT = logits(VOCAB, 5), logits(VOCAB, 6)
CASES = {
    "two children": ("2x1", {}),
    "two levels": ("2x2", {"top_k": 2}),
    "warm and cut": ("2x1", {"temperature": 1.8, "top_p": 0.9}),
    "children below the second child": ("sequoia:0.2,0.6", {"top_k": 2, "presence_penalty": 0.7}),
}


def method(rule: str, shape: str) -> tuple:
    """Name and options; a rule of chains gets a chain."""
    return f"draft_model/{rule}", "chain:2" if RULES[rule].chain_only else shape


def emitted(rng, build, settings) -> tuple[int, ...]:
    """The first two tokens of a new request."""
    target, model = table.TableModel(TARGET), table.TableModel(DRAFT)
    drafter, rule = build(target, model)
    seq = table.request(3, **settings)
    seq.rng = rng
    for _ in engine.rounds(target, drafter, rule, [seq]):
        if len(seq.output) > 1:
            break
    return tuple(seq.output[:2])


def plain(settings) -> dict[tuple[int, ...], float]:
    """The law of two tokens without a draft, by hand."""
    seq, law = table.request(3, **settings), {}

    def after(*path):
        row = TARGET((*table.PROMPT, *path)) - torch.tensor(
            [seq.params.presence_penalty * (t in path) for t in range(VOCAB)], dtype=torch.float64
        )
        return torch.softmax(truncate(row, seq.params), -1).tolist()

    for first, p in enumerate(after()):
        law |= {(first, second): p * q for second, q in enumerate(after(first))}
    return law


def error(build, settings) -> float:
    """Total variation between what is emitted and plain decoding."""
    law = defaultdict(float, {pair: -p for pair, p in plain(settings).items()})
    for tokens, prob in outcomes(lambda rng: emitted(rng, build, settings)):
        law[tokens] += prob
    return sum(map(abs, law.values())) / 2


LONG = [("two levels", rule) for rule in LOSSLESS if Siblings.IID in RULES[rule].needs]  # draws that repeat have most outcomes


@pytest.mark.parametrize(("case", "rule"), [pair for pair in itertools.product(CASES, LOSSLESS) if pair not in LONG])
def test_two_tokens_have_the_exact_joint_law(case, rule):
    shape, settings = CASES[case]
    name, shape = method(rule, shape)

    def build(target, model):
        sizes = {"budget": 5, "num_speculative_tokens": 2} if shape.startswith("sequoia") else {}
        return methods.build(name, target, methods.Options(draft_model=model, shape=shape, **sizes))

    off = error(build, settings)
    assert off < EXACT, f"{name} in shape {shape}: the joint law is off by {off:.2e} in total variation"


# negative controls


class WrongTemperature(DraftModelDrafter):
    """Says that its draws came from a warmer law than they did."""

    def propose(self, seqs):
        return [d if d.logits is None else replace(d, logits=d.logits * 0.6) for d in super().propose(seqs)]


@pytest.mark.parametrize("rule", [name for name in LOSSLESS if name not in ("match", "naive")])
def test_a_draft_that_states_another_temperature_fails_the_same_test(rule):
    def build(target, model):
        drafter, built = methods.build(method(rule, "2x1")[0], target, methods.Options(draft_model=model, shape=method(rule, "2x1")[1]))
        return WrongTemperature(model, VOCAB, siblings=drafter.siblings, shape=drafter.shape), built

    assert error(build, {}) > VISIBLE


@pytest.mark.parametrize("rule", [name for name in RULES if name not in LOSSLESS and not methods.RULES[name].wraps])
def test_a_lossy_rule_fails_the_same_test(rule):
    def build(target, model):
        return methods.build(f"draft_model/{rule}", target, methods.Options(draft_model=model, shape="2x1"))

    assert error(build, {}) > VISIBLE
