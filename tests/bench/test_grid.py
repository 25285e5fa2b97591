"""Several budgets, temperatures and batch sizes in one run: which rows there are, and what each is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from paceline.bench.grid import Grid
from paceline.bench.run import jobs
from paceline.bench.runs import Decoded, MethodRun
from paceline.bench.settings import Settings
from paceline.errors import InvalidRequest

from .conftest import lined_up
from .test_run import Named, line, measure

Make = Callable[..., Settings]


def test_each_combination_is_a_run_and_budgets_are_for_methods_that_have_one(settings: Make) -> None:
    found = lined_up(settings(methods=("none", "lookup")), budgets=(4, 8), temperatures=(0.0, 1.0), batch_sizes=(1, 2))
    names = [f"{method} T={t} batch={n}" for t in (0, 1) for n in (1, 2) for method in ("none", "lookup budget=4", "lookup budget=8")]
    assert [r.name for r in found.runs] == names
    told = [(r.budget, r.temperature, r.batch_size) for r in found.runs]
    assert told == [(b, t, n) for t in (0.0, 1.0) for n in (1, 2) for b in (None, 4, 8)]


def test_what_is_the_same_for_all_is_in_no_name(settings: Make) -> None:
    found = lined_up(settings(methods=("none", "lookup")), budgets=(4,), temperatures=(1.0,), batch_sizes=(2,))
    assert [(r.name, r.budget, r.batch_size) for r in found.runs] == [("none", None, 2), ("lookup", 4, 2)]


def test_each_run_drafts_with_its_own_budget_and_is_compared_with_its_own_plain_decoding(settings: Make) -> None:
    found = measure(settings(methods=("none", "lookup")), budgets=(2, 6), temperatures=(0.0, 1.0))
    nodes = {b: line(found, f"lookup budget={b} T=0")["nodes_per_round"] for b in (2, 6)}
    assert 1 < nodes[2] <= 2
    assert nodes[2] < nodes[6] <= 6, nodes
    assert {r["run"]: r["baseline"] for r in found["runs"]} == {r["run"]: f"none T={r['temperature']:g}" for r in found["runs"]}
    for run in found["runs"]:
        ratio = run["tokens_per_second"] / line(found, run["baseline"])["tokens_per_second"]
        assert run["speedup_vs_none"] == pytest.approx(ratio), run["run"]


def test_greedy_rows_are_compared_and_sampled_ones_are_not(settings: Make) -> None:
    found = measure(settings(methods=("none", "lookup"), seed=3, temperature=1.0), temperatures=(0.0, 1.0))
    assert {r["run"]: (r["identical"], r["reference"]) for r in found["runs"]} == {
        "none T=0": (3, "none T=0"), "lookup T=0": (3, "none T=0"), "none T=1": (None, None), "lookup T=1": (None, None),
    }  # fmt: skip


def test_a_report_tells_lists_and_single_values(settings: Make) -> None:
    told = Grid(settings(methods=("lookup",), peers=()), (4, 8), (0.0,), (1, 2)).told()
    assert told == {
        "budgets": [4, 8], "temperatures": [0.0], "batch_sizes": [1, 2], "budget": None, "temperature": 0.0, "batch_size": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("axes", "complaint"),
    [
        ({"budgets": (4, 4)}, "budgets gives 4 twice"),
        ({"temperatures": ()}, "temperatures is empty"),
        ({"temperatures": (0.0, -1.0)}, "temperature is -1.0"),
        ({"batch_sizes": (1, 0)}, "batch_size is 0"),
        ({"budgets": (4, 0)}, "budget is 0"),
    ],
)
def test_combinations_that_cannot_be_are_refused(settings: Make, axes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        Grid(settings(), **axes)


def test_a_seed_without_a_temperature_has_no_effect(settings: Make) -> None:
    chosen = settings(temperature=1.0, seed=7)
    assert [c.seed for c in Grid(chosen, (), (0.0, 1.0)).cells()] == [None, 7]
    with pytest.raises(InvalidRequest, match="seed has no effect"):
        Grid(chosen, (), (0.0,))


def test_within_a_group_runs_that_decode_one_by_one_take_turns() -> None:
    planned = [(j.run.name, j.members) for j in jobs([Named("batch", 2), Named("a"), Named("b")], 2, 2, 1)]  # type: ignore[list-item]
    assert planned == [("batch", (0, 1)), ("a", (0,)), ("b", (0,)), ("a", (1,)), ("b", (1,))]


def test_a_batch_gives_each_row_its_own_text_and_is_compared_with_batch_1(settings: Make, draft_model: str) -> None:
    names = ("none", "lookup", "draft_model")
    chosen = settings(methods=names, peers=("transformers",), draft_model=draft_model)
    found = measure(chosen, batch_sizes=(1, 2))
    everyone = (*names, "transformers")
    assert [r["run"] for r in found["runs"]] == [f"{n} batch={b}" for b in (1, 2) for n in names] + [
        f"transformers batch={b}" for b in (1, 2)
    ]
    for name in everyone:
        batch, single = line(found, f"{name} batch=2"), line(found, f"{name} batch=1")
        assert (batch["identical_to_batch1"], batch["identical"], batch["of"]) == (3, 3, 3)
        assert batch["speedup_vs_batch1"] == pytest.approx(batch["tokens_per_second"] / single["tokens_per_second"])
        assert batch["target_forwards"] < single["target_forwards"]
        assert batch["baseline"] == "none batch=2"
        assert batch["speedup_vs_none"] == pytest.approx(batch["tokens_per_second"] / line(found, "none batch=2")["tokens_per_second"])
    assert line(found, "none batch=1")["speedup_vs_none"] == 1.0


def test_a_batched_row_that_differs_from_batch_1_is_listed(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = settings(methods=("none",))
    right = MethodRun.decode

    def spoiled(self: MethodRun, prompts: Sequence[list[int]], limits: Sequence[int]) -> Decoded:
        found = right(self, prompts, limits)
        if self.batch_size == 3:
            found.outputs[1][2] ^= 1
        return found

    monkeypatch.setattr(MethodRun, "decode", spoiled)
    found = measure(chosen, batch_sizes=(1, 3))
    assert line(found, "none batch=3")["identical_to_batch1"] == 2
    assert {(d["prompt"], d["position"], d["reference"]) for d in found["differences"]} == {("bird", 2, "none batch=1")}


def test_batches_by_task_keep_tasks_apart_and_let_them_take_turns() -> None:
    tasks = [*"abab", *"aaaaaa"]
    planned = list(jobs([Named("batch", 2)], len(tasks), 2, 1, tasks))  # type: ignore[list-item]
    assert [j.members for j in planned] == [(0, 2, 4, 5, 6, 7), (1, 3), (8, 9)], "three batches of task a, all of b, the rest of a"
    assert [j.group for j in planned] == [0, 1, 2]
