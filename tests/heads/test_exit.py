"""Exit heads: the exit rule, what untrained heads read, and their folder."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from paceline import engine
from paceline.drafters.specbound import SpecBoundDrafter
from paceline.errors import CheckpointMismatch, InvalidRequest
from paceline.heads import exit_format, exit_ready
from paceline.heads.exit import ExitHeads, LogitLens, fires, temperature
from paceline.heads.exit_config import ExitConfig, default_layers
from paceline.heads.exit_cost import WORTH, Costs, Profile
from paceline.heads.exit_ready import choose_bounds, exit_costs, quicken, ready_exits
from paceline.heads.exit_settings import ExitSettings
from paceline.heads.shipped import exits_folder
from paceline.rules.match import match

from .. import tiny
from ..drafters.climbing import deep
from ..matrix import PROMPTS, request

LAYERS = (2, 4)
IDS = torch.tensor([0, 3, 7, 20, 44, 60])


def heads(target, ids=None) -> ExitHeads:
    return ExitHeads.for_target(target, ExitConfig.for_target(target, LAYERS, None if ids is None else len(ids)), ids)


@pytest.fixture(scope="module")
def target():
    return deep()


@pytest.fixture(scope="module")
def hidden():
    return torch.randn(5, 32, generator=torch.Generator().manual_seed(0))


# the rule


@pytest.mark.parametrize("heat", [1.0, 1.4, 2.5])
@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.3, 0.8])
def test_the_fast_test_is_the_direct_one(heat, threshold):
    logits = 3 * torch.randn(200, 17, generator=torch.Generator().manual_seed(1))
    want = torch.softmax(logits / heat, -1).amax(-1) >= threshold
    got = fires(logits, heat, threshold)
    assert torch.equal(got, want), f"{int((got != want).sum())} of 200 rows differ"


def test_more_annealing_never_makes_an_exit_likelier():
    logits = 4 * torch.randn(200, 17, generator=torch.Generator().manual_seed(2))
    counts = [int(fires(logits, temperature(2, 6, a), 0.6).sum()) for a in (0.0, 0.5, 1.0, 2.0)]
    assert counts == sorted(counts, reverse=True), f"exits {counts} at rising annealing"
    assert counts[0] > counts[-1], "annealing changed nothing"


def test_annealing_ends_at_the_last_layer():
    assert [temperature(d, 6, 0.5) for d in (0, 3, 6)] == [1.5, 1.25, 1.0]


def test_a_threshold_above_one_never_fires():
    assert not bool(fires(torch.tensor([[100.0, 0.0]]), 1.0, 1.01).any())


# what is read


def test_untrained_heads_read_what_the_logit_lens_reads(target, hidden):
    lens = LogitLens(target, ExitConfig.for_target(target, LAYERS))
    far = float((heads(target).logits(2, hidden) - lens.logits(2, hidden)).abs().max())
    assert far < 1e-5, f"logits are off by {far:.1e}"


def test_a_reduced_vocabulary_has_the_same_logits_and_one_column_for_the_rest(target, hidden):
    full, small = heads(target).logits(4, hidden), heads(target, IDS).logits(4, hidden)
    assert small.shape == (5, len(IDS) + 1)
    assert torch.allclose(small[:, :-1], full[:, IDS], atol=1e-5)
    others = full.index_fill(1, IDS, -torch.inf).logsumexp(-1)
    assert bool((small[:, -1] <= others + 1e-4).all()), "the start is a bound from below: the logarithm of a mean is above the mean"


def test_each_exit_layer_has_a_map_and_a_column_of_its_own(target, hidden):
    made = heads(target, IDS)
    before = [made.logits(depth, hidden) for depth in LAYERS]
    with torch.no_grad():
        made.others[1].bias += 1
        made.maps[1].weight *= 2
    after = [made.logits(depth, hidden) for depth in LAYERS]
    assert torch.equal(after[0], before[0]), "the other layer's head has changed"
    assert torch.allclose(after[1][:, :-1], 2 * before[1][:, :-1], atol=1e-4), "the map is not used"
    moved = after[1][:, -1] - 2 * (before[1][:, -1] - made.others[0].bias) - made.others[1].bias
    assert float(moved.detach().abs().max()) < 1e-4, f"the last column is off by {moved.tolist()}"


def test_packed_heads_read_the_same(target, hidden):
    want = heads(target, IDS).logits(2, hidden)
    far = float((quicken(heads(target, IDS)).logits(2, hidden) - want).abs().max())
    assert far < 1e-4, f"logits are off by {far:.1e}"


def test_gemma_caps_the_logits_of_its_exits_too(hidden):
    target = deep("gemma2")
    lens = LogitLens(target, ExitConfig.for_target(target, LAYERS))
    far = float((heads(target).logits(2, hidden) - lens.logits(2, hidden)).abs().max())
    assert far < 1e-4, f"logits are off by {far:.1e}"


@pytest.mark.parametrize(("count", "want"), [(32, (8, 12, 16, 20)), (30, (8, 11, 15, 19)), (6, (2, 3, 4)), (2, (1,)), (1, (1,))])
def test_default_exits_are_a_quarter_to_five_eighths_of_the_layers(count, want):
    assert default_layers(count) == want


@pytest.mark.parametrize("layers", [(0, 2), (2, 7), (3, 3), (4, 2)])
def test_layers_that_cannot_be_are_refused(target, layers):
    with pytest.raises(InvalidRequest, match="exit layers are"):
        ExitConfig.for_target(target, layers)


# the folder


@pytest.fixture
def folder(target, tmp_path):
    made = heads(target, IDS)
    with torch.no_grad():
        made.maps[1].weight += 0.1
    exit_format.save(made, tmp_path / "exits", dtype=torch.float32, card={"method": "specbound"})
    return tmp_path / "exits"


def test_heads_come_back_from_their_folder_as_they_were(target, folder, hidden):
    made = heads(target, IDS)
    with torch.no_grad():
        made.maps[1].weight += 0.1
    found = exit_format.load(folder, target)
    assert found.config == made.config
    assert torch.equal(found.logits(4, hidden), made.logits(4, hidden))


def test_nothing_of_the_target_is_saved(target, folder):
    _, tensors = exit_format.read(folder)
    assert sorted(tensors) == [
        "ids",
        *(f"maps.{i}.weight" for i in (0, 1)),
        *(f"others.{i}.{n}" for i in (0, 1) for n in ("bias", "weight")),
    ]


def test_heads_of_another_model_are_refused(folder):
    with pytest.raises(CheckpointMismatch, match="the head does not belong to"):
        exit_format.load(folder, deep("mistral"))


def test_heads_of_a_model_of_another_size_are_refused(folder):
    with pytest.raises(CheckpointMismatch, match="its number of target layers is 6 and the target's 2"):
        ready_exits(tiny.target(), folder)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "other"}, "holds no exit heads"),
        ({"layers": [4, 2]}, "must be different and ascending"),
        ({"colour": 1}, "unknown keys colour"),
        ({"draft_vocab_size": 5}, "tokens do not fit their config.json"),
    ],
)
def test_a_folder_that_does_not_agree_with_itself_is_refused(target, folder, change, complaint):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(CheckpointMismatch, match=complaint):
        exit_format.load(folder, target)


def test_a_folder_without_heads_is_named(tmp_path):
    with pytest.raises(CheckpointMismatch, match=r"holds no exit heads: it has no config\.json"):
        exits_folder(tmp_path, "smollm2")


def test_the_lens_reads_where_no_heads_are_shipped(target):
    assert isinstance(ready_exits(target, None), LogitLens)
    assert isinstance(ready_exits(target, "lens"), LogitLens)
    assert exits_folder("lens", "smollm2") is None


# bounds by cost


def profiled(target, shares: float, right: float) -> ExitHeads:
    found = heads(target)
    shape = Profile(LAYERS, (0.5,), ((shares, 0.0),), ((right, 0.0),))
    found.config = dataclasses.replace(found.config, profile=shape)
    return found


def costs(head: float) -> Costs:
    return Costs(6, 8.0, 0.0, lambda rows: 1.0, head, lambda rows: 2.0)


def test_where_no_drafts_pay_there_are_none_and_a_warning_says_so(target, monkeypatch, caplog):
    monkeypatch.setattr(exit_ready, "exit_costs", lambda *given: costs(head=9.0))
    found = choose_bounds(target, profiled(target, 0.5, 0.4), ExitSettings(), None)
    assert (found.width, found.speedup) == (0, 1.0), found
    assert "so specbound drafts nothing and decodes plainly" in caplog.text, caplog.text
    seq = request(PROMPTS["short"], 6)
    built = SpecBoundDrafter(target, heads(target), found)
    assert [len(r.draft.tree) for r in engine.stream(target, built, match, [seq])] == [1] * 6


@pytest.mark.parametrize(("told", "width"), [({"threshold": 0.5}, None), ({"depth": 4}, None), ({}, 2)])
def test_what_is_told_is_drafted_whether_or_not_it_pays(target, monkeypatch, caplog, told, width):
    monkeypatch.setattr(exit_ready, "exit_costs", lambda *given: costs(head=9.0))
    found = choose_bounds(target, profiled(target, 0.5, 0.4), ExitSettings(**told), width)
    assert found.width == (width or 1), found
    assert not caplog.text


def test_where_drafts_pay_the_quickest_are_chosen_whatever_the_heads_were_fitted_to(target, monkeypatch):
    monkeypatch.setattr(exit_ready, "exit_costs", lambda *given: costs(head=0.1))
    found = choose_bounds(target, profiled(target, 0.9, 0.9), ExitSettings(), None)
    assert (found.threshold, found.depth) == (0.5, 2), found
    assert found.speedup > WORTH


def test_a_speed_that_other_prompts_may_undo_is_not_worth_it(target, monkeypatch, caplog):
    monkeypatch.setattr(exit_ready, "exit_costs", lambda *given: costs(head=0.1))
    exits = profiled(target, 0.5, 0.22)
    told = choose_bounds(target, exits, ExitSettings(threshold=0.5), None)
    assert 1 < told.speedup < WORTH, told
    assert choose_bounds(target, exits, ExitSettings(), None).width == 0
    assert f"{told.speedup:.2f} times as quick" in caplog.text, caplog.text


@pytest.mark.parametrize("plain", [21, 42])
def test_costs_are_the_parts_of_rounds_scaled_to_a_plain_one(plain):
    """A clock that moves by one with each layer, by ten with a pass through the model, by three with a head and by five with the output."""
    own = deep()
    built, now = heads(own), [0.0]
    base, run, tail, read = own.runner._base, own.runner.run, own.runner.logits, built.logits

    def after(seconds, what, *given, **named):
        found = what(*given, **named)
        now[0] += seconds
        return found

    own.runner._base = lambda **given: after(10, base, **given)
    own.runner.run = lambda span, trees, slots, hidden=None: after(len(span), run, span, trees, slots, hidden)
    own.runner.logits = lambda hidden: after(4 + len(hidden), tail, hidden)
    built.logits = lambda depth, hidden: after(3, read, depth, hidden)
    full = own.full
    own.full = lambda **given: after(plain, full, **given)
    found = exit_costs(own, built, clock=lambda: now[0])
    got = (found.plain, found.call, found.head, found.layer(1), found.layer(4), found.tail(1), found.tail(4))
    k = plain / 21
    assert got == pytest.approx((plain, 10 * k, 3, k, k, 5 * k, 8 * k)), "plain, call, head, layer by 1 and 4 rows, tail by 1 and 4 rows"
