"""The cost curve of a target."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from paceline.cost import ROWS, TYPICAL, CostCurve, cost_curve, measure_cost_curve, quick_cost_curve

from . import tiny

CURVE = CostCurve((1, 4, 8), (1.0, 1.0, 3.0))


@pytest.mark.parametrize(("nodes", "seconds"), [(1, 1.0), (3, 1.0), (4, 1.0), (6, 2.0), (8, 3.0), (10, 4.0), (0, 1.0)])
def test_between_and_beyond_the_points_the_curve_is_straight(nodes, seconds):
    assert CURVE(nodes) == seconds


def test_a_smaller_forward_never_costs_more_than_a_larger_one():
    assert CostCurve((1, 2, 4), (5.0, 2.0, 3.0)).seconds == (2.0, 2.0, 3.0)


def test_something_may_be_added_to_every_round():
    assert CURVE.plus(0.5)(6) == 2.5


def test_a_measured_curve_has_the_sizes_asked_for_and_leaves_no_slot_behind():
    target = tiny.target()
    curve = measure_cost_curve(target, (1, 3, 100))
    assert (curve.sizes == tuple(sorted({1, 3, 100, *ROWS})), all(0 < s < 30 for s in curve.seconds), target.cache.nbytes) == (
        True,
        True,
        0,
    )


def test_a_curve_is_measured_with_these_numbers_of_nodes(monkeypatch):
    target, sizes = tiny.target(), []
    run = target.full
    monkeypatch.setattr(target, "full", lambda **given: sizes.append(given["input_ids"].shape[1]) or run(**given))
    measure_cost_curve(target, (2, 7))
    assert sizes[:4] == [2, 7, 2, 7], f"nodes per forward: {sizes}"


def test_a_target_is_measured_once():
    target = tiny.target()
    assert cost_curve(target) is cost_curve(target)
    assert cost_curve(tiny.target()) is not cost_curve(target)


def test_a_quick_curve_takes_no_longer_than_it_may():
    target, seconds = tiny.target(), itertools.count()
    curve = quick_cost_curve(target, seconds=0.0, clock=lambda: next(seconds))
    assert (curve.sizes, target.cache.nbytes) == ((1, 2, 4, 6, 8, 12, 16, 24, 32, 64), 0)
    assert curve.seconds[-1] == pytest.approx(curve.seconds[0] * TYPICAL["cpu"](64))


def blocks(rows: int) -> float:
    return 1.0 + -(-rows // 6)


@pytest.fixture
def in_blocks(monkeypatch):
    """Whatever is timed: products by blocks of six rows, forwards 28 times that; how many rows forwards had."""
    forwards = []

    def seconds(run):
        rows = run.args[0] if isinstance(run, partial) else forwards.append(len(run())) or forwards[-1]
        return blocks(rows) * (1 if isinstance(run, partial) else 28)

    monkeypatch.setattr("paceline.cost.seconds_of", seconds)
    return forwards


def test_single_layers_tell_where_a_curve_has_steps(in_blocks):
    curve = measure_cost_curve(tiny.target(), (1, 8, 24))
    assert set(in_blocks) == {1, 8, 24}
    assert [curve(n) for n in range(1, 25)] == pytest.approx([28 * blocks(n) for n in range(1, 25)])


def test_a_quick_curve_knows_the_steps_after_one_forward(in_blocks):
    ticks = itertools.count()
    curve = quick_cost_curve(tiny.target(), seconds=2.5, clock=lambda: next(ticks))
    assert in_blocks == [1, 1], "one to warm up, and one that counts"
    assert [curve(n) for n in (1, 6, 7, 12, 13, 64)] == [28 * blocks(n) for n in (1, 6, 7, 12, 13, 64)]


def test_forwards_count_for_more_than_layers(in_blocks, monkeypatch):
    target = tiny.target()
    monkeypatch.setattr(target, "multiply", lambda rows, layer: torch.ones(1))
    monkeypatch.setattr("paceline.cost.seconds_of", lambda run: 1.0 if isinstance(run, partial) else float(len(run())))
    curve = measure_cost_curve(target, (1, 9))
    assert (curve(1), curve(5), curve(9), curve(20)) == (1.0, 5.0, 9.0, 9.0)


def test_a_model_without_linear_layers_is_timed_by_its_forwards():
    target = tiny.target("gpt2")
    assert len(target.multiply(1, 0)) == 0
    assert measure_cost_curve(target, (1, 3)).sizes == (1, 3)


def test_a_curve_of_a_batch_is_over_all_its_nodes():
    target = tiny.target()
    assert measure_cost_curve(target, (1, 30), batch=4).sizes == tuple(sorted({4, 120, *ROWS}))
    assert target.cache.nbytes == 0
