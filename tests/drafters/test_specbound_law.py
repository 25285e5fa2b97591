"""The law of sampled tokens when a target drafts for itself: exactly, over all random choices, and by drawing."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
import torch
from scipy.stats import chi2

from paceline import engine
from paceline.draft import Siblings
from paceline.drafters.specbound import SpecBoundDrafter
from paceline.rules.match import match
from paceline.rules.rejection import rejection
from paceline.rules.walk import Rule, Step
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence as Request
from paceline.targets.hf import HFTarget
from paceline.tree import Tree

from .. import tiny
from ..rules.exact import outcomes
from .climbing import drafter

VOCAB, PROMPT, TOKENS = 3, (2, 1, 1, 0), 2
EXACT, VISIBLE, DRAWS = 1e-9, 1e-3, 1000
PARAMS = {"temperature": 1.2, "max_new_tokens": TOKENS + 1}
LAW = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1}


def target(vocab: int = VOCAB, dtype: torch.dtype = torch.float64) -> HFTarget:
    """A small soft world with three layers."""
    made = HFTarget(tiny.build(tiny.config("llama", **{**LAW, "vocab_size": vocab}, initializer_range=0.3), seed=3).to(dtype))
    _ = made.runner
    return made


def plain(world: HFTarget, tokens: int = TOKENS) -> dict[tuple[int, ...], float]:
    """The law of the first tokens without a draft."""
    law = {(): 1.0}
    for _ in range(tokens):
        longer = {}
        for path, p in law.items():
            row = _after(world, (*PROMPT, *path))
            longer |= {(*path, t): p * float(q) for t, q in enumerate(torch.softmax(row / PARAMS["temperature"], -1))}
        law = longer
    return law


@torch.inference_mode()
def _after(world: HFTarget, tokens) -> torch.Tensor:
    slot = world.cache.open()
    row = world.verify([Tree.chain(tokens)], [slot]).logits[-1].double()
    world.cache.free(slot)
    return row


class Gated(SpecBoundDrafter):
    """Exits at layer 1 or 2, or not at all, by the token that climbs: a function of the prefix."""

    def climb(self, climbs):
        self.tops = [climb.tokens[-1] for climb in climbs]
        return super().climb(climbs)

    def _fires(self, logits, depth):
        leaves = [depth >= 1 + token % 3 for token in self.tops]
        self.tops = [token for token, gone in zip(self.tops, leaves, strict=True) if not gone]
        return leaves


class WithoutCatchUp(Gated):
    """Lets the tokens that lag behind miss the layers that they are taken along to."""

    def _run(self, span, climbs):
        for climb in climbs:
            for place in climb.together(span.start)[:-1]:
                climb.hidden[place] = torch.zeros_like(climb.hidden[place])
        super()._run(span, climbs)


def _accept_or_redraw(node, rng):
    """Rejection without its correction: what follows a refusal is drawn from the target's whole law."""
    if not node.children:
        return Step(None, node.target_probs.draw(node.index, rng))
    (child,) = node.children
    token, p = node.token(child), node.target_probs.row(node.index)
    if rng.coin(float(p[token]) / float(node.draft.probs(node.index)[token])):
        return Step(child, token)
    return Step(None, rng.pick(p))


uncorrected = Rule("uncorrected", _accept_or_redraw, needs=rejection.needs, lossless=True, chain_only=True)


def drawing(world: HFTarget, kind=Gated, siblings=Siblings.WITHOUT_REPLACEMENT) -> SpecBoundDrafter:
    return drafter(world, (1, 2), width=2, kind=kind, siblings=siblings)


def error(kind, rule, siblings=Siblings.WITHOUT_REPLACEMENT) -> float:
    """Total variation between what is emitted and plain decoding, over every random choice of drafter and rule."""
    world = target()
    built = drawing(world, kind, siblings)
    law = defaultdict(float, {tokens: -p for tokens, p in plain(world).items()})
    seq = Request(PROMPT, SamplingParams(**PARAMS, seed=0))

    def emitted(rng) -> tuple[int, ...]:
        engine.next_turn(world, seq, PROMPT, SamplingParams(**PARAMS))
        seq.rng = rng
        for _ in engine.rounds(world, built, rule, [seq]):
            if len(seq.output) >= TOKENS:
                break
        return tuple(seq.output[:TOKENS])

    for tokens, prob in outcomes(emitted):
        law[tokens] += prob
    return sum(map(abs, law.values())) / 2


@pytest.mark.parametrize(
    ("rule", "siblings"), [(rejection, Siblings.WITHOUT_REPLACEMENT), (match, Siblings.FIXED)], ids=["rejection", "match"]
)
def test_two_tokens_have_the_exact_joint_law(rule, siblings):
    off = error(Gated, rule, siblings)
    assert off < EXACT, f"rule {rule.name}: the joint law is off by {off:.2e} in total variation"


@pytest.mark.parametrize(("kind", "rule"), [(WithoutCatchUp, rejection), (Gated, uncorrected)], ids=["no catch-up", "no correction"])
def test_a_broken_draft_fails_the_same_test(kind, rule):
    off = error(kind, rule)
    assert off > VISIBLE, f"off by {off:.2e} only, so the test above sees nothing"


def p_value(kind, rule, draws: int) -> float:
    """Of Pearson's chi-square for three tokens over four, in batches."""
    world = target(4, torch.float32)
    exact, seen = plain(world, 3), Counter()
    built, batch = drawing(world, kind), 100
    params = [SamplingParams(temperature=PARAMS["temperature"], max_new_tokens=4, seed=seed) for seed in range(draws)]
    seqs = [Request(PROMPT, params[0]) for _ in range(batch)]
    for part in _batches(params, batch):
        for seq, own in zip(seqs, part, strict=True):
            engine.next_turn(world, seq, PROMPT, own)
        for _ in engine.rounds(world, built, rule, seqs):
            if min(len(s.output) for s in seqs) >= 3:
                break
        seen.update(tuple(s.output[:3]) for s in seqs)
    statistic = sum((seen[cell] - draws * p) ** 2 / (draws * p) for cell, p in exact.items())
    return float(chi2.sf(statistic, len(exact) - 1))


def _batches(items, size):
    return (items[start : start + size] for start in range(0, len(items), size))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rule", "passes"),
    [(Gated, rejection, True), (WithoutCatchUp, rejection, False), (Gated, uncorrected, False)],
    ids=["as it is", "no catch-up", "no correction"],
)
def test_three_drawn_tokens_pass_a_chi_square_test_and_broken_ones_do_not(kind, rule, passes):
    p = p_value(kind, rule, DRAWS)
    assert (p > 1e-3) is passes, f"p = {p:.2e} over {DRAWS} draws"
