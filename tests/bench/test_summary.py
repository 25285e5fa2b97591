"""The arithmetic, on rows small enough to check by hand."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.bench import summary


def row(group: int, tokens: int, seconds: float, *, run: str = "r", task: str = "t", repeat: int = 0, **fields: Any) -> dict[str, Any]:
    output = {"prompt": f"p{group}", "task": task, "tokens": [0] * tokens, **fields}
    base = {"repeat": repeat, "group": group, "run": run, "part": 0, "seconds": seconds, "outputs": [output]}
    costs = {"target_forwards": 4, "prefill_forwards": 1, "draft_forwards": 2, "target_seconds": 0.5, "draft_seconds": 0.25}
    return base | costs | {"peak_rss_mb": 10.0 + group, "cores_used_by_others": float(group)}


def test_a_speed_up_pools_tokens_and_seconds_over_the_prompts_that_both_ran() -> None:
    ours = [row(0, 10, 1.0), row(1, 30, 1.0), row(2, 1000, 0.1)]
    theirs = [row(0, 10, 2.0), row(1, 30, 6.0)]
    found = summary.speedup(ours, theirs)
    assert found["pooled"] == pytest.approx((40 / 2) / (40 / 8))
    assert found["median"] == pytest.approx((2 + 6) / 2)


def test_repeats_of_a_prompt_are_one_ratio() -> None:
    ours = [row(0, 10, 1.0), row(0, 10, 3.0, repeat=1)]
    theirs = [row(0, 10, 4.0), row(0, 10, 4.0, repeat=1)]
    found = summary.speedup(ours, theirs)
    assert found == {"pooled": pytest.approx(2.0), "median": pytest.approx(2.0), "interval": None}


def test_a_batch_is_compared_with_the_same_prompts_one_by_one() -> None:
    batch = row(0, 10, 2.0)
    batch["outputs"] = batch["outputs"] * 2
    singles = [row(0, 10, 3.0), row(0, 10, 5.0)]
    assert summary.speedup([batch], singles)["pooled"] == pytest.approx(8 / 2)


def test_prompts_of_one_group_are_paired_one_by_one_where_both_decoded_them_so() -> None:
    ours, theirs = [row(0, 10, 1.0), row(0, 10, 1.0)], [row(0, 10, 2.0), row(0, 10, 4.0)]
    for rows in (ours, theirs):
        rows[1]["outputs"][0]["prompt"] = "another"
    found = summary.speedup(ours, theirs)
    assert (found["pooled"], found["median"]) == (pytest.approx(3.0), pytest.approx(3.0))
    assert found["interval"] == [2.0, 4.0]


def test_without_a_common_prompt_there_is_no_speed_up() -> None:
    assert summary.speedup([row(0, 1, 1.0)], [row(1, 1, 1.0)]) == {"pooled": None, "median": None, "interval": None}


def test_the_interval_holds_the_median_lies_within_the_data_and_repeats() -> None:
    ratios = [1.0, 1.2, 1.4, 1.6, 5.0]
    low, high = summary.interval(ratios) or (0, 0)
    assert 1.0 <= low < 1.4 < high <= 5.0
    assert summary.interval(ratios) == [low, high]
    assert summary.interval([2.0] * 9) == [2.0, 2.0]


def test_counts_of_a_method_follow_their_formulas() -> None:
    first = row(0, 8, 1.0, rounds=4, accepted=4, depth_offered=8, nodes=12, histogram={"0": 2, "2": 2})
    second = row(1, 4, 1.0, rounds=4, accepted=0, depth_offered=0, nodes=4, histogram={"0": 4})
    found = summary.counts([first, second])
    assert (found["tokens"], found["seconds"], found["tokens_per_second"]) == (12, 2.0, 6.0)
    assert (found["target_forwards"], found["prefill_forwards"], found["tokens_per_forward"]) == (8, 2, 1.5)
    assert found["mean_acceptance_length"] == 1 + 4 / 8
    assert found["mean_acceptance_length_of_requests"] == ((1 + 4 / 4) + 1) / 2
    assert found["acceptance_rate"] == 4 / 8
    assert found["nodes_per_round"] == 16 / 8
    assert found["acceptance_by_depth"] == [2 / 8, 2 / 8]
    assert found["acceptance_histogram"] == {"0": 6, "2": 2}
    assert found["time_share"] == {"target": 0.5, "draft": 0.25, "other": 0.25}
    assert found["peak_rss_mb"] == 11.0


def test_the_load_of_others_is_weighted_by_time_and_unknown_if_a_row_lacks_it() -> None:
    rows = [row(0, 1, 3.0), row(1, 1, 1.0)]
    assert summary.counts(rows)["cores_used_by_others"] == 0.25
    rows[0]["cores_used_by_others"] = None
    assert summary.counts(rows)["cores_used_by_others"] is None


def test_a_method_that_offers_nothing_has_no_acceptance_rate() -> None:
    found = summary.counts([row(0, 4, 1.0, rounds=4, accepted=0, depth_offered=0, nodes=4, histogram={"0": 4})])
    assert found["acceptance_rate"] is None
    assert found["acceptance_by_depth"] == []


def test_a_peer_has_tokens_per_forward_as_its_acceptance_length() -> None:
    found = summary.counts([row(0, 8, 1.0), row(1, 4, 1.0)])
    assert found["mean_acceptance_length"] == 12 / 8
    assert found["mean_acceptance_length_of_requests"] == (8 / 4 + 4 / 4) / 2


def test_ratios_by_task_use_the_rows_of_that_task_only() -> None:
    ours = [row(0, 10, 1.0, task="a"), row(1, 10, 2.0, task="b")]
    theirs = [row(0, 10, 3.0, task="a"), row(1, 10, 1.0, task="b")]
    found = summary.by_task(ours, {"none": theirs, "transformers": []})
    assert found["a"] == {"tokens_per_second": 10.0, "speedup_vs_none": pytest.approx(3.0), "speedup_vs_transformers": None}
    assert found["b"]["speedup_vs_none"] == pytest.approx(0.5)
