"""Picks from a request's own random numbers: the inverse of the distribution function, found in blocks."""

from __future__ import annotations

import pytest
import torch

from paceline.sampling import Random


def probabilities(size: int) -> torch.Tensor:
    """Random ones, not normalised, half of them zero."""
    made = torch.rand(size, generator=torch.Generator().manual_seed(size))
    made[::2] = 0
    return made


@pytest.mark.parametrize("size", [2, 511, 512, 513, 1024, 3001])
def test_a_pick_is_where_the_running_sum_passes_one_uniform_number(size):
    probs = probabilities(size)
    sums = probs.double().cumsum(0)
    for seed in range(60):
        point = torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * sums[-1]
        want = int((sums <= point).sum())
        assert Random(seed).pick(probs) == want, f"seed {seed}: the sum passes {float(point)} at {want} of {size}"


@pytest.mark.parametrize("index", [0, 511, 512, 700, 1299])
def test_the_only_possible_token_is_picked_wherever_it_is(index):
    probs = torch.zeros(1300)
    probs[index] = 1e-30
    assert {Random(seed).pick(probs) for seed in range(20)} == {index}


def test_a_pick_takes_one_random_number_whatever_is_picked_from():
    first, second = Random(3), Random(3)
    first.pick(probabilities(3001))
    second.pick(torch.ones(2))
    assert first.pick(probabilities(999)) == second.pick(probabilities(999))


def test_picks_come_as_often_as_they_should():
    probs = torch.zeros(1300)
    probs[[3, 600, 601, 1299]] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    rng, count = Random(0), 4000
    picked = [rng.pick(probs) for _ in range(count)]
    for index in (3, 600, 601, 1299):
        share, want = picked.count(index) / count, float(probs[index]) / 10
        assert share == pytest.approx(want, abs=5 * (want * (1 - want) / count) ** 0.5), f"token {index} came in {share}, not in {want}"


@pytest.mark.parametrize("probs", [torch.zeros(5), torch.tensor([0.5, torch.nan])], ids=["zero", "not a number"])
def test_nothing_is_picked_where_nothing_can_be(probs):
    with pytest.raises(AssertionError, match="no token can be drawn"):
        Random(0).pick(probs)


def test_a_pick_does_not_change_the_probabilities():
    probs = probabilities(700)
    before = probs.clone()
    Random(0).pick(probs)
    assert torch.equal(probs, before)
