"""Shares with their intervals, and two methods compared on the same problems: pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CONFIDENCE = 0.95
FORMULAS = {
    "accuracy": "correct / problems; an answer that cannot be found, does not run or takes too long is wrong",
    "interval": "Wilson 95% interval of the accuracy, for problems such as these",
    "difference": "accuracy of the method - accuracy of the first one, on the same problems",
    "difference_interval": "95% interval of the difference for paired answers (Agresti and Min 2005: half a problem added to each cell)",
    "p_value": "exact McNemar test: a binomial test of 1/2 on the problems that only one of the two gets right",
    "tokens_per_second": "tokens / wall seconds of the whole decode, prompt included, without grading",
    "tokens_per_round": "tokens / rounds, where a round is one target forward over one sequence's draft",
    "different": "texts (as tokens) that are not those of the first method",
    "cut_short": "answers that ended at the limit of new tokens, or of the context",
}


def wilson(correct: int, problems: int) -> list[float]:
    """Wilson's score interval of a share, [low, high]."""
    from scipy.stats import binomtest

    found = binomtest(correct, problems).proportion_ci(CONFIDENCE, method="wilson")
    return [float(found.low), float(found.high)]


def mcnemar(only_first: int, only_other: int) -> float:
    """Two-sided p-value of the exact test that either method is as likely to be the only right one; 1 if they never disagree."""
    from scipy.stats import binomtest

    discordant = only_first + only_other
    return float(binomtest(only_other, discordant, 0.5).pvalue) if discordant else 1.0


def difference_interval(only_first: int, only_other: int, problems: int) -> list[float]:
    """Interval of the difference of two paired shares, other - first.

    Source: Agresti and Min 2005, "Simple improved confidence intervals for comparing matched proportions", Wald with half an
    observation added to each of the four cells; plain Wald would have no width where the methods never disagree.
    """
    from scipy.stats import norm

    b, c, n = only_first + 0.5, only_other + 0.5, problems + 2
    middle = (c - b) / n
    half = float(norm.ppf((1 + CONFIDENCE) / 2)) * ((b + c) - (c - b) ** 2 / n) ** 0.5 / n
    return [max(-1.0, middle - half), min(1.0, middle + half)]


def paired(first: Sequence[bool], other: Sequence[bool]) -> dict[str, Any]:
    """The four counts of two methods on the same problems, the difference of their accuracies and whether it may be chance."""
    pairs = list(zip(first, other, strict=True))
    only_first, only_other = pairs.count((True, False)), pairs.count((False, True))
    return {
        "both": pairs.count((True, True)),
        "only_first": only_first,
        "only_this": only_other,
        "neither": pairs.count((False, False)),
        "difference": (only_other - only_first) / len(pairs),
        "difference_interval": difference_interval(only_first, only_other, len(pairs)),
        "p_value": mcnemar(only_first, only_other),
    }
