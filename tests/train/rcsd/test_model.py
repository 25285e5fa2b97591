"""A draft model as the learner: its rows, its terms in closed form, adapters, and what nothing may touch (spec 9)."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from paceline import engine, methods
from paceline.record.origin import model_hash, origin
from paceline.record.recorder import read_records, recorder_for
from paceline.replay import Text, replay
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence as Request
from paceline.targets.load import load
from paceline.train.distill import Distillation, forward_kl
from paceline.train.features import Taps
from paceline.train.rcsd.losses import policy_gradient, total_variation
from paceline.train.rcsd.model import Learner
from paceline.train.rcsd.model_objective import DraftObjective
from paceline.train.rcsd.model_rows import make_rows
from paceline.train.rcsd.recipe import Preference
from paceline.train.recipe import Objective
from paceline.train.teacher import Teacher

from ...cli.conftest import save_model
from ..conftest import sequences
from .rounds import drafted, record

ALONE = {"anchor": 0.0, "stay": 0.0}


@pytest.fixture(scope="session")
def draft_folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("draft"), seed=3, noise=0.05)


@pytest.fixture
def learn(draft_folder):
    """A new learner: `learn(trained=True, rank=2)`."""

    def make(**settings):
        return Learner(load(draft_folder, dtype="float32", device="cpu", weights="plain"), **settings)

    return make


@pytest.fixture
def taps(teacher_target):
    return Taps(teacher_target, ())


def rows(taps, text, **settings):
    (tapped,) = taps.read([text.tokens])
    return make_rows(text, text.rounds, tapped.hidden, **settings)


def objective(target, reference, **settings):
    law = Teacher(target, None)
    return DraftObjective(Preference(**settings), Distillation(Objective(), law), law, reference, target.vocab_size)


def gradients(learner, made, batch):
    learner.zero_grad()
    loss, sums = made(learner, batch)
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in learner.named_parameters() if p.grad is not None}, sums


@pytest.fixture
def text(teacher_target):
    (e,) = sequences(teacher_target, 1)
    return record(e, drafted(e, 3, 0), drafted(e, 4, 1, above=9), drafted(e, 6, 2, tail=()))


def test_every_word_that_a_round_brought_is_a_place_and_the_first_refusal_ends_it(taps, text):
    found = rows(taps, text)
    assert found.places.tolist() == [3, 4, 5, 6, 7, 8]
    assert found.labels.tolist() == list(text.tokens[4:10])
    assert found.refused.tolist() == [7, 9, 7, -1, -1, -1], "refused: the draft's first word, its first choice above an accepted one"
    assert found.accepted.tolist() == [False, True, False, True, True, False]
    assert found.depths.tolist() == [0, 0, 1, 0, 1, 2]
    assert len(found.tokens) == 9, "the text as far as the last place"


def test_places_beyond_what_the_draft_model_can_read_are_left_out(taps, text):
    assert rows(taps, text, limit=6).places.tolist() == [3, 4, 5]


def test_what_was_drafted_behind_the_first_refusal_changes_nothing(taps, teacher_target, learn, text):
    made = objective(teacher_target, learn(), overlap=1.0, soft=True)
    others = dataclasses.replace(text, rounds=(drafted(text, 3, 0, tail=(7, 200, 201)), *text.rounds[1:]))
    learner = learn(trained=True)
    one, two = (gradients(learner, made, rows(taps, t, replayed=True)) for t in (text, others))
    assert one[0] == two[0], f"loss {one[0]} and {two[0]}"
    assert all(torch.equal(one[1][n], two[1][n]) for n in one[1])


def test_the_law_at_a_place_is_that_of_drafting(teacher_target, learn, text):
    """A chain in the drafting context, by the drafter's own forward and cache, against one forward over the text."""
    learner, seen = learn(), []
    drafting = learner.drafting()
    drafter, _ = methods.build(
        "draft_model", teacher_target, methods.Options(draft_model=drafting, shape="chain", num_speculative_tokens=3)
    )
    verify = drafting.verify
    drafting.verify = lambda *given: seen.append(verify(*given)) or seen[-1]
    next(replay(drafter, [Text("t", "d", text.tokens, text.prompt_length)]))
    ours = learner.logits(torch.tensor(text.tokens), torch.tensor([text.prompt_length - 1]))
    assert torch.allclose(seen[0].logits[-1:].float(), ours, atol=1e-4), f"off by {(seen[0].logits[-1:] - ours).abs().max()}"


def test_a_model_that_is_its_reference_loses_log_2_for_each_pair_by_its_depth(taps, teacher_target, learn, text):
    loss, _, sums = gradients(learn(trained=True), objective(teacher_target, learn(), **ALONE), rows(taps, text))
    assert loss == pytest.approx((1 + 1 + 0.8) * math.log(2), rel=1e-5)
    assert float(sums["weight"]) == 3, "the loss is per round"


def test_the_gradient_by_the_logits_is_half_beta_between_chosen_and_refused(taps, teacher_target, learn, text):
    learner, batch = learn(trained=True), rows(taps, dataclasses.replace(text, rounds=text.rounds[:1]))
    logits = learner.logits(batch.tokens, batch.places).detach().requires_grad_()
    terms = objective(teacher_target, learn(), beta=0.4, **ALONE)._preferred(batch, logits)
    (gradient,) = torch.autograd.grad(terms["pref"][1], logits)
    want = torch.zeros_like(gradient)
    want[0, text.tokens[4]], want[0, 7] = -0.2, 0.2
    assert torch.allclose(gradient, want, atol=1e-6), f"at most {(gradient - want).abs().max()} off"


def test_each_term_is_what_its_formula_says(taps, teacher_target, learn, text):
    learner, reference, batch = learn(trained=True), learn(), rows(taps, text, replayed=True)
    with torch.no_grad():
        for p in learner.parameters():
            p += 0.02 * torch.randn_like(p)
        _, sums = objective(teacher_target, reference, overlap=1.0, beta=1.0)(learner, batch)
        own, old = (x.logits(batch.tokens, batch.places).log_softmax(-1) for x in (learner, reference))
    law = Teacher(teacher_target, None)(batch.hidden)
    want = {
        "anchor": forward_kl(law, own, 1.0).sum(),
        "overlap": total_variation(law, own).sum(),
        "stay": (old.exp() * (old - own)).sum(),
        "pref": sum(
            -(0.8**d) * torch.nn.functional.logsigmoid((own - old)[i, batch.labels[i]] - (own - old)[i, batch.refused[i]])
            for i, d in ((0, 0), (1, 0), (2, 1))
        ),
    }
    got = {name: sums["mean/" + name] for name in want}
    assert all(float(got[n]) == pytest.approx(float(want[n]), rel=1e-4) for n in want), f"{got} and {want}"


def test_the_policy_gradient_rewards_what_was_accepted_and_not_the_first_refusal(taps, teacher_target, learn, text):
    learner, batch = learn(trained=True), rows(taps, text)
    _, sums = objective(teacher_target, learn(), objective="pg")(learner, batch)
    logps = learner.logits(batch.tokens, batch.places).log_softmax(-1)
    logps = logps.detach()
    won = logps[[1, 3, 4], batch.labels[[1, 3, 4]]]
    lost = logps[[0, 2], batch.refused[[0, 2]]]
    want = policy_gradient(torch.cat([won, lost]), torch.tensor([1.0, 1, 1, 0, 0])).sum()
    assert float(sums["mean/reward"]) == pytest.approx(float(want), rel=1e-4)
    assert float(sums["mean/likelihood"]) == pytest.approx(-float(won.sum()), rel=1e-4)


def test_a_draft_model_that_is_the_target_has_nothing_to_learn(taps, teacher_target, model, text):
    """So the target's law is taken at the place before the word, as the draft model's is."""
    learner = Learner(load(model, dtype="float32", device="cpu", weights="plain"))
    _, sums = objective(teacher_target, learner, objective="distill")(learner, rows(taps, text))
    assert abs(float(sums["mean/anchor"])) < 1e-3, f"divergence {float(sums['mean/anchor'])}"


def test_the_control_is_the_anchor_alone(taps, teacher_target, learn, text):
    batch = rows(taps, text)
    control = gradients(learn(trained=True), objective(teacher_target, learn(), objective="distill"), batch)
    anchor = gradients(learn(trained=True), objective(teacher_target, learn(), pref=0.0, anchor=1.0), batch)
    assert control[0] == pytest.approx(anchor[0], rel=1e-6)
    assert all(torch.allclose(control[1][n], anchor[1][n], atol=1e-6) for n in control[1])


def test_a_word_that_the_draft_model_does_not_know_is_no_label(taps, teacher_target, learn, text):
    made = dataclasses.replace(objective(teacher_target, learn(), **ALONE), size=max(text.tokens[4:10]))
    _, sums = made(learn(trained=True), rows(taps, text))
    known = [t < made.size for t in text.tokens[4:10]]
    assert known.count(False) >= 1
    assert float(sums["mean/right"]) <= known.count(True)
    assert torch.isfinite(sums["mean/pref"])


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize(
    "settings", [{"beta": 1.0, **ALONE}, {"overlap": 1.0, "soft": True}, {"objective": "pg"}], ids=["pref", "all", "pg"]
)
def test_the_gradient_is_that_of_finite_differences(taps, teacher_target, learn, text, rank, settings):
    learner, made = learn(trained=True, rank=rank), objective(teacher_target, learn(), **settings)
    with torch.no_grad():
        for p in learner.parameters():
            p += 0.02 * torch.randn_like(p)
    batch = rows(taps, text, replayed=True)
    _, grads, _ = gradients(learner, made, batch)
    norm, step, losses = math.sqrt(sum(float((g**2).sum()) for g in grads.values())), 1e-3, []
    with torch.no_grad():
        for sign in (1, -2):
            for n, p in learner.named_parameters():
                p += sign * step * grads[n] / norm
            losses.append(float(made(learner, batch)[0]))
    got = (losses[0] - losses[1]) / (2 * step)
    assert got == pytest.approx(norm, rel=0.02), f"finite difference {got}, gradient {norm}"


def test_adapters_change_nothing_at_first_and_are_all_that_is_trained(learn, text):
    plain, adapted = learn(trained=True), learn(trained=True, rank=2)
    tokens, places = torch.tensor(text.tokens), torch.arange(5)
    assert torch.equal(plain.logits(tokens, places), adapted.logits(tokens, places))
    assert {n.rsplit("/", 1)[1] for n, _ in adapted.named_parameters()} == {"up", "down"}
    assert len(list(adapted.named_parameters())) == 2 * 2 * 7, "two layers of seven matrices"
    assert len(list(plain.named_parameters())) > 7 * 2


@pytest.mark.parametrize("rank", [None, 2])
def test_a_saved_model_is_an_ordinary_folder_that_says_what_the_learner_says(learn, text, tmp_path, rank):
    from transformers import AutoModelForCausalLM

    learner = learn(trained=True, rank=rank)
    with torch.no_grad():
        for p in learner.parameters():
            p += 0.05 * torch.randn_like(p)
    tokens, places = torch.tensor(text.tokens), torch.arange(5)
    before = learner.logits(tokens, places).detach()
    learner.save(tmp_path / "saved")
    assert torch.allclose(before, learner.logits(tokens, places), atol=1e-4), "the learner itself is merged"
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")(tokens[None]).logits[0, :5]
    assert torch.allclose(before, theirs, atol=1e-4), f"off by {(before - theirs).abs().max()}"


@pytest.mark.parametrize("shape", ["chain", None])
def test_rounds_of_a_draft_model_are_recorded_with_its_hash(teacher_target, learn, tmp_path, shape):
    drafting = learn().drafting()
    drafter, rule = methods.build(
        "draft_model", teacher_target, methods.Options(draft_model=drafting, shape=shape, num_speculative_tokens=3)
    )
    recorder = recorder_for(tmp_path / "r", teacher_target, drafter, rule)
    seq = Request([5, 6, 7, 8], SamplingParams(max_new_tokens=12))
    for round_ in engine.stream(teacher_target, drafter, rule, [seq]):
        recorder.add(round_)
    (found,) = read_records(tmp_path / "r", origin(teacher_target, model_hash(drafting)))
    assert found.tokens == tuple(seq.tokens)
    assert found.rounds[0].tokens[0] == 8, "the root is the prompt's last token"
