"""The tests of the audit, on data made for them: rarely wrong about what is right, and as strong as they say about what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.bench.lawtest import POWER, cells, pooled, share, uniform

LEVEL, TRIALS, ROWS, EACH = 1e-3, 120, 12, 120
rng = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test begins with the same generator, whichever ran before it."""
    monkeypatch.setitem(globals(), "rng", np.random.default_rng(8))


def halves(count: int, shift: float) -> list[float]:
    """Places whose distribution function is off by `shift` at one half, and nowhere by more."""
    return list(rng.random(count) / 2 + 0.5 * (rng.random(count) >= 0.5 + shift))


def uniform_at(shift_of):
    return [uniform("u", halves(400, shift_of), LEVEL).fails(LEVEL) for _ in range(TRIALS)]


EXPECTED = np.concatenate([np.full(300, 0.02), np.full(300, 0.5), rng.random(300)])


def share_at(shift: float):
    """Tokens drawn with a probability that is larger by `shift` on average."""
    law = EXPECTED + shift * 2 * (1 - EXPECTED) / (2 * (1 - EXPECTED)).mean()
    return [share("s", int((rng.random(len(law)) < law).sum()), EXPECTED, LEVEL).fails(LEVEL) for _ in range(TRIALS)]


LAWS = [np.sort(rng.dirichlet(np.ones(12))) for _ in range(ROWS)]
KEYS = [np.arange(12.0)] * ROWS


def cells_at(shift: float):
    """Each law with `shift` of its mass moved from one half of its tokens to the other, in proportion: the shift that is hardest to see."""
    found = []
    moved = []
    for law in LAWS:
        below = np.cumsum(law) <= 0.5
        sizes = np.where(below, shift / law[below].sum(), -shift / law[~below].sum())
        moved.append(law * (1 + sizes))
    for _ in range(TRIALS):
        counts = [rng.multinomial(EACH, law / law.sum()) for law in moved]
        found.append(cells("c", counts, LAWS, KEYS, LEVEL).fails(LEVEL))
    return found


def detects(make) -> float:
    found = make().detects
    assert found is not None
    return found


DETECTS = {
    "uniform": (uniform_at, lambda: uniform("u", halves(400, 0), LEVEL)),
    "share": (share_at, lambda: share("s", 400, EXPECTED, LEVEL)),
    "cells": (cells_at, lambda: cells("c", [rng.multinomial(EACH, law) for law in LAWS], LAWS, KEYS, LEVEL)),
}
every_test = pytest.mark.parametrize("test", DETECTS)


@every_test
def test_a_shift_as_large_as_stated_is_found_as_often_as_stated(test):
    at, finding = DETECTS[test]
    size = detects(finding)
    found = np.mean(at(size))
    assert found > POWER - 3 * np.sqrt(POWER * (1 - POWER) / TRIALS), f"a shift of {size:.3f} is found in {found:.3f} of the trials"


@every_test
def test_the_stated_size_is_not_far_beyond_what_is_found(test):
    at, finding = DETECTS[test]
    size = detects(finding)
    found = np.mean(at(size / 2))
    assert found < 0.8, f"a shift of {size / 2:.3f}, half of what is stated, is found in {found:.3f} of the trials"


@every_test
def test_what_is_right_rarely_fails(test):
    found = np.sum(DETECTS[test][0](0.0))
    assert found <= 2, f"{found} of {TRIALS} at level {LEVEL}"


@every_test
def test_a_p_value_of_right_data_is_below_a_twentieth_in_a_twentieth_of_the_trials(test):
    makers = {
        "uniform": lambda: uniform("u", halves(400, 0), LEVEL),
        "share": lambda: share("s", int((rng.random(len(EXPECTED)) < EXPECTED).sum()), EXPECTED, LEVEL),
        "cells": DETECTS["cells"][1],
    }
    found = np.mean([makers[test]().p_value < 0.05 for _ in range(TRIALS)])
    assert 0.01 < found < 0.11, f"{found:.3f} of {TRIALS} p-values are below 0.05"


def test_small_cells_are_taken_together_with_their_neighbours():
    expected = np.array([1.0, 30, 4, 4, 4, 2, 15, 1])
    observed, sizes = pooled(np.arange(8), expected, np.arange(8.0))
    assert sizes.tolist() == [31, 12, 18], sizes
    assert observed.tolist() == [1, 9, 18], observed


def test_a_token_that_cannot_come_fails_whatever_the_rest():
    assert uniform("u", [*halves(100, 0), -1.0], LEVEL).p_value == 0
    assert cells("c", [np.array([50, 50, 1])], [np.array([0.5, 0.5, 0])], [np.arange(3.0)], LEVEL).p_value == 0


def test_too_little_is_not_tested():
    assert share("s", 3, np.full(10, 0.3), LEVEL).p_value is None
    assert cells("c", [np.array([5, 5])], [np.array([0.5, 0.5])], [np.arange(2.0)], LEVEL).detects is None
    assert uniform("u", [0.5], LEVEL).p_value is None
