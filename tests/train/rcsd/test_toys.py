"""Training on toys that are small enough to know the answer (spec 9, tests 6 to 8)."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
import torch

from paceline import engine, methods
from paceline.record.texts import record_round
from paceline.replay import Text, replay
from paceline.rules.match import match
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence as Request
from paceline.targets.load import load
from paceline.train import loop
from paceline.train.checkpoint import Checkpoints
from paceline.train.examples import Example
from paceline.train.features import Taps
from paceline.train.rcsd.batches import Mix, blocks_of
from paceline.train.rcsd.gate import acceptance, judge
from paceline.train.rcsd.losses import preference, total_variation
from paceline.train.rcsd.objective import Preferred
from paceline.train.rcsd.recipe import Preference
from paceline.train.recipe import Optimizer

from ..conftest import new_head
from .rounds import record
from .test_objective import preferred

PLACES, WORDS = 3, 5


def expected_length(rates):
    """1 + sum_j prod_{i<=j} a_i, the expected tokens of a round of a chain whose places are kept at these rates."""
    return float(1 + torch.cumprod(rates, 0).sum())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_expected_length_of_a_tabular_chain_rises_in_every_round(temperature):
    torch.manual_seed(1)
    target = torch.softmax(2 * torch.randn(PLACES, WORDS), -1)
    if not temperature:
        target = torch.nn.functional.one_hot(target.argmax(-1), WORDS).float()
    logits = torch.randn(PLACES, WORDS, requires_grad=True)

    def rates():
        return torch.minimum(target, logits.softmax(-1)).sum(-1)

    found = [expected_length(rates().detach())]
    for _ in range(3):
        reference = logits.detach().log_softmax(-1)
        refused, wanted = (reference.exp() - target).clamp(min=0), (target - reference.exp()).clamp(min=0)
        mass = wanted[:, :, None] / wanted.sum(-1)[:, None, None].clamp(min=1e-9) * refused[:, None]
        reached = torch.cumprod(torch.cat([torch.ones(1), rates().detach()[:-1]]), 0)
        for _ in range(30):
            ratio = logits.log_softmax(-1) - reference
            loss = (reached[:, None, None] * mass * preference(ratio[:, :, None] - ratio[:, None], 0.5)).sum()
            if temperature:
                loss = loss + (reached * total_variation(target.clamp(min=1e-9).log(), logits)).sum()
            (gradient,) = torch.autograd.grad(loss, logits)
            with torch.no_grad():
                logits -= 0.5 * gradient
        found.append(expected_length(rates().detach()))
    assert all(b > a for a, b in pairwise(found)), f"expected lengths {found}"


# --- a small head and two domains


def spoken(target, domain, words, count=3, length=12):
    """What the target says to a few prompts made of these tokens."""
    drafter, _ = methods.build("none", target)
    seqs = [Request([words[(i * 3 + j) % len(words)] for j in range(4)], SamplingParams(max_new_tokens=length)) for i in range(count)]
    engine.generate(target, drafter, match, seqs)
    return [Example(f"{domain}{i}", domain, tuple(s.tokens), s.prompt_length) for i, s in enumerate(seqs)]


class World:
    """A target, two domains of its own texts, and a head that learns one after the other."""

    def __init__(self, target, taps, folder):
        self.target, self.folder = target, folder
        self.examples = {"a": spoken(target, "a", [5, 6, 7, 8, 9]), "b": spoken(target, "b", [205, 210, 215, 222, 231])}
        every = [e for group in self.examples.values() for e in group]
        self.tapped = {e.key: t for e, t in zip(every, taps.read([e.tokens for e in every]), strict=True)}

    def drafter(self, head):
        return methods.build("jetspec", self.target, methods.Options(budget=8, head=head))[0]

    def texts(self, domain):
        return [Text(e.key, e.task, e.tokens, e.prompt_length, self.tapped[e.key].features) for e in self.examples[domain]]

    def rounds(self, head, domain):
        """On-policy records."""
        drafter, found = self.drafter(head), {e.key: [] for e in self.examples[domain]}
        for text, round_ in replay(drafter, self.texts(domain)):
            found[text.key].append(record_round(round_))
        return [dataclasses.replace(record(e, *found[e.key]), domain=domain) for e in self.examples[domain]]

    def train(self, head, current, earlier, *, steps=20, share=0.5, objective=None, **settings):
        reference = frozen_copy(self.target, head)
        mix = Mix(
            current, earlier, blocks_of(lambda m: [self.tapped[e.key] for e in m], 3), share, batch_size=4, micro_batch=4, rounds=12, seed=0
        )
        checkpoints = Checkpoints(self.folder / str(len(list(self.folder.iterdir()))), 1)
        run = loop.Run(mix.step, steps, Optimizer(lr=1e-2), checkpoints, checkpoints.folder / "log.jsonl")
        loop.train(head.requires_grad_(True), objective or preferred(self.target, reference, **settings), run)
        return head.requires_grad_(False)

    def lengths(self, head):
        texts = [t for domain in self.examples for t in self.texts(domain)]
        return {d: s.mean_acceptance_length for d, s in acceptance(self.drafter(head), texts)[1].items()}


def frozen_copy(target, head):
    copy = new_head(target)
    copy.load_state_dict(head.state_dict())
    return copy.requires_grad_(False)


@pytest.fixture(scope="module")
def world(model, tmp_path_factory):
    target = load(model, dtype="float32", device="cpu", weights="plain")
    return World(target, Taps(target, (0, 1)), tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def taught(world):
    """Knows domain a."""
    head = new_head(world.target)
    return world.train(head, world.rounds(head, "a"), [], steps=30)


@pytest.fixture
def learnt_a(world, taught):
    return frozen_copy(world.target, taught)


@pytest.mark.slow
def test_replay_keeps_what_fine_tuning_alone_forgets(world, learnt_a):
    start, rounds_a = world.lengths(learnt_a), world.rounds(learnt_a, "a")
    after = {}
    for share in (0.0, 0.5):
        head = frozen_copy(world.target, learnt_a)
        after[share] = world.lengths(world.train(head, world.rounds(head, "b"), rounds_a if share else [], share=share))
    for share, lengths in after.items():
        assert lengths["b"] > start["b"], f"share {share}: domain b went from {start['b']} to {lengths['b']}"
    kept = {share: lengths["a"] / start["a"] - 1 for share, lengths in after.items()}
    assert kept[0.0] < -0.03, f"without replay domain a changed by {kept[0.0]:.1%}: nothing was forgotten, so the test shows nothing"
    assert kept[0.5] >= -0.01, f"with replay domain a changed by {kept[0.5]:.1%}"


@pytest.mark.slow
def test_the_gate_refuses_a_round_whose_pairs_were_swapped(world, learnt_a):
    class Poisoned(Preferred):
        def __call__(self, head, batch):
            tokens = batch.blocks.tokens.clone()
            return super().__call__(head, swapped(batch, tokens))

    def swapped(batch, tokens):
        """What was refused in place of what the target said."""
        for b, a, k in (batch.refused >= 0).nonzero().tolist():
            tokens[b, int(batch.blocks.anchors[b, a]) + k + 1] = batch.refused[b, a, k]
        refused = torch.where(batch.refused >= 0, batch.labels, batch.refused)
        return dataclasses.replace(batch, blocks=dataclasses.replace(batch.blocks, tokens=tokens), refused=refused)

    before = world.lengths(learnt_a)
    reference = frozen_copy(world.target, learnt_a)
    plain = preferred(world.target, reference)
    poison = Poisoned(Preference(anchor=0.0, beta=1.0), plain.distillation, plain.teacher, reference)
    head = world.train(learnt_a, world.rounds(learnt_a, "b"), world.rounds(learnt_a, "a"), objective=poison)
    verdict = judge(before, world.lengths(head), ["b"], ["a"], 0.01)
    assert not verdict.passed, verdict.reason


def test_text_stays_the_targets_own_with_heads_that_change_between_rounds(world, learnt_a):
    heads = [new_head(world.target, seed=5), learnt_a]
    example = world.examples["a"][0]
    seq = Request(example.tokens[: example.prompt_length], SamplingParams(max_new_tokens=12))
    for number in range(12):
        drafter, _ = methods.build("jetspec", world.target, methods.Options(budget=8, head=heads[number % 2]))
        if next(engine.rounds(world.target, drafter, match, [seq])).finish_reason:
            break
    engine.release(world.target, seq)
    assert tuple(seq.tokens) == example.tokens
