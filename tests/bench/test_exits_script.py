"""What `benchmarks/exits.py` keeps between runs, and what it makes of its counts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from paceline import methods
from paceline.cost import CostCurve
from paceline.heads import exit_outlook
from paceline.heads.exit_cost import Bounds, Costs, speedup

from ..drafters.climbing import LAYERS, Scripted, deep, drafter
from ..matrix import PROMPTS

FILE = Path(__file__).parents[2] / "benchmarks" / "exits.py"
COSTS = Costs(30, 60.0, 1.0, CostCurve((1, 2, 4), (1.8, 1.9, 2.0)), 0.8, CostCurve((1, 2, 4), (5.0, 6.0, 7.0)))


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("exits_script", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(tokens: int, seconds: float, **more):
    return {"output": [1] * tokens, "tokens": tokens, "rounds": tokens, "drafts": 0, "layers": 6 * tokens, "seconds": seconds} | more


def test_a_run_that_was_cut_short_goes_on_with_its_costs_and_whole_prompts_only(script, tmp_path):
    file = tmp_path / "rows.jsonl"
    journal = script.Journal(file)
    assert journal.costs is None
    journal.add({"costs": script.as_record(COSTS), "bounds": vars(Bounds(0.5, 9, 2, 1.03))})
    for name in ("none", "chosen", "none"):
        journal.add({"setting": name, **row(4, 1.0)})
    again = script.Journal(file)
    assert (again.costs, again.chosen) == (COSTS, Bounds(0.5, 9, 2, 1.03))
    assert {name: len(rows) for name, rows in again.whole().items()} == {"none": 1, "chosen": 1}


def test_speed_is_tokens_over_processor_time_beside_plain_decoding(script):
    plain = [row(4, 9.0, cpu=2.0), row(8, 9.0, cpu=4.0)]
    mine = [row(4, 9.0, cpu=1.0, rounds=2, drafts=3), row(8, 3.0, cpu=2.0, rounds=4, drafts=6)]
    found = script.summary(mine, plain, 6)
    assert (found["speedup"], found["speedup_by_the_wall"]) == (2.0, 1.5)
    assert (found["mean_acceptance_length"], found["acceptance_rate"]) == (2.0, pytest.approx(0.6667))


def test_the_agreement_needed_is_where_the_model_reaches_the_speed():
    need = exit_outlook.needed(1.0, 9, 0.6, 2, COSTS)
    assert speedup([(9, 0.6, 0.6 * need)], 2, COSTS) >= 1 > speedup([(9, 0.6, 0.6 * (need - 0.01))], 2, COSTS)
    assert exit_outlook.needed(3.0, 9, 0.3, 1, COSTS) is None


def test_a_decode_behind_a_cached_prompt_counts_layers_and_leaves_the_prompt(script):
    target = deep()
    tokens = list(PROMPTS["short"])
    slot = target.cache.open()
    target.prefill([slot], [tokens[:-1]])
    built = drafter(target, (2,), width=1, kind=Scripted)
    built.gate = lambda token, depth: True
    plain = script.decode(target, methods.build("none", target)[0], tokens, 9, slot)
    mine = script.decode(target, built, tokens, 9, slot)
    assert mine["output"] == plain["output"]
    assert plain["layers"] == LAYERS * plain["rounds"]
    assert mine["layers"] == LAYERS * mine["rounds"] + 2 * mine["drafts"], json.dumps(mine)
