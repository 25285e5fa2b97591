"""Intervals and tests against their closed forms."""

from __future__ import annotations

from math import comb, sqrt

import pytest

from paceline.quality import score

Z = 1.959963984540054  # normal quantile of 0.975


@pytest.mark.parametrize(("correct", "problems"), [(0, 10), (10, 10), (7, 20), (61, 100), (1, 1)])
def test_the_interval_is_wilsons(correct: int, problems: int) -> None:
    p, n = correct / problems, problems
    middle, half = (p + Z**2 / (2 * n)) / (1 + Z**2 / n), Z / (1 + Z**2 / n) * sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    assert score.wilson(correct, problems) == pytest.approx([max(0.0, middle - half), min(1.0, middle + half)], abs=1e-12)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (0, 6), (3, 3), (2, 9), (14, 5)])
def test_mcnemar_is_the_exact_binomial_test_of_the_discordant_pairs(b: int, c: int) -> None:
    n = b + c
    tail = 2 * sum(comb(n, k) for k in range(min(b, c) + 1)) / 2**n if n else 1.0
    assert score.mcnemar(b, c) == pytest.approx(min(1.0, tail), abs=1e-12)


def test_the_interval_of_the_difference_is_walds_with_half_a_problem_in_each_cell() -> None:
    b, c, n = 2.5, 9.5, 102
    middle, half = (c - b) / n, Z * sqrt(b + c - (c - b) ** 2 / n) / n
    assert score.difference_interval(2, 9, 100) == pytest.approx([middle - half, middle + half], abs=1e-12)


def test_methods_that_never_disagree_still_have_an_interval() -> None:
    low, high = score.difference_interval(0, 0, 20)
    assert low == -high < 0, f"[{low}, {high}]"


def test_a_comparison_counts_its_four_cells() -> None:
    first, other = [True] * 5 + [False] * 5, [True] * 4 + [False] + [True] * 2 + [False] * 3
    found = score.paired(first, other)
    cells = [found[k] for k in ("both", "only_first", "only_this", "neither")]
    assert cells == [4, 1, 2, 3], found


def test_a_difference_is_positive_where_the_other_method_is_better() -> None:
    found = score.paired([False] * 8 + [True] * 2, [True] * 8 + [True] * 2)
    assert found["difference"] == pytest.approx(0.8)
    assert found["p_value"] == pytest.approx(2 / 2**8)


def test_answers_to_different_problems_are_not_compared() -> None:
    with pytest.raises(ValueError, match="shorter"):
        score.paired([True, False], [True])
