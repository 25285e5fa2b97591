"""`benchmarks/adaptive.py`: decoding recorded drafts on a clock."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import re
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from paceline.draft import Draft
from paceline.drafters.none import NoDrafter
from paceline.replay import Text
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence as Request
from paceline.tree import Tree

FOLDER = Path(__file__).parents[2] / "benchmarks"
PLAIN = {str(batch): {"1": 1.0, "4": 1.0 + 0.1 * batch, "64": 16.0} for batch in (1, 2)}
COSTS = {
    "target": PLAIN,
    "target_first": PLAIN["1"],
    "forward": {"1": 0.1, "2": 0.15},
    "forward_first": {"1": 0.1},
    "read": 0.01,
    "read_first": 0.01,
}


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    found = SimpleNamespace()
    for name in ("recorded", "adaptive"):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(__import__("sys").modules, name, module)
        spec.loader.exec_module(module)
        setattr(found, name, module)
    return found


def row(scripts, number: int, answer: int, *, forwards: int = 3, right: int = 3):
    """An answer without repetition, and at each of its places a chain of three, right as far as said."""
    lots = random.Random(number)
    tokens = lots.sample(range(10_000), 4 + answer)
    text, places = Text(str(number), "", tokens, 4), {}
    for place in range(4, len(tokens)):
        chain = tokens[place - 1 : place + right]
        chain += [20_000] * (4 - len(chain))
        places[place] = Draft(Tree.chain(chain), scores=tuple(depth * math.log(0.9) for depth in range(4))), forwards
    return scripts.recorded.Row("task", text, places)


def world(scripts, *rows):
    return scripts.recorded.World(rows, scripts.recorded.Costs.of(COSTS))


def asked(scripts, drafter, row):
    seq = Request(row.text.tokens[:4], SamplingParams(max_new_tokens=20))
    return drafter.propose([seq])[0]


def test_a_round_takes_what_so_many_sequences_and_nodes_cost(scripts):
    rows = [row(scripts, 0, answer=3), row(scripts, 1, answer=5)]
    took = world(scripts, *rows).decode(NoDrafter(), rows, batch_size=2)
    assert took == pytest.approx(3 * (1 + 0.2 / 3) + 2 * 1.0), "three rounds of two, then two of one"


def test_long_texts_make_rounds_slower_where_costs_say_so(scripts):
    one = row(scripts, 0, answer=3)
    costs = scripts.recorded.Costs.of(COSTS | {"context": 0.5})
    took = scripts.recorded.World([one], costs).decode(NoDrafter(), [one], batch_size=1)
    assert took == pytest.approx(3 * 1.0 + 0.5 * (4 + 5 + 6)), "three rounds, on four tokens and more"


@pytest.mark.parametrize(("budget", "forwards", "nodes"), [(6, 3, 4), (3, 2, 3)])
def test_a_draft_model_takes_a_forward_for_each_depth_and_reads_the_prompt_once(scripts, budget, forwards, nodes):
    one = row(scripts, 0, answer=8)
    here = world(scripts, one)
    drafter = scripts.recorded.Recorded(here, budget)
    assert len(asked(scripts, drafter, one).tree) == nodes
    assert here.clock.now == pytest.approx(0.1 * forwards + 4 * 0.01)
    asked(scripts, drafter, one)
    assert here.clock.now == pytest.approx(2 * 0.1 * forwards + 4 * 0.01)


def test_a_draft_model_that_is_told_to_stop_ends_there(scripts):
    one = row(scripts, 0, answer=8)
    here = world(scripts, one)
    drafter = scripts.recorded.Recorded(here, 6)
    drafter.goes_on = lambda scores, best: len(scores) < 3
    assert len(asked(scripts, drafter, one).tree) == 3
    assert here.clock.now == pytest.approx(0.1 * 2 + 4 * 0.01)


def test_a_head_drafts_all_depths_in_one_forward(scripts):
    one = row(scripts, 0, answer=8, forwards=1)
    here = world(scripts, one)
    assert len(asked(scripts, scripts.recorded.Recorded(here, 6), one).tree) == 4
    assert here.clock.now == pytest.approx(0.1 + 4 * 0.01)


def test_drift_holds_for_a_while_and_noise_does_not(scripts):
    weather = scripts.recorded.Weather(random.Random(0), drift=0.2, holds=5.0)
    levels = [weather(0.01 * n) for n in range(3000)]
    assert 2 < len(set(levels)) < 30, f"{len(set(levels))} levels in 30 seconds"
    noisy = scripts.recorded.Weather(random.Random(0), noise=0.2)
    assert len({noisy(0.01 * n) for n in range(100)}) == 100


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize(("right", "least", "most"), [(3, 1.4, 3.0), (0, 0.95, 1.0)])
def test_a_replay_shows_what_auto_makes_of_good_drafts_and_of_bad_ones(scripts, tmp_path, capsys, batch_size, right, least, most):
    rows = [row(scripts, n, answer=60, right=right) for n in range(4)]
    torch.save({"drafter": "draft_model", "rows": rows, "costs": COSTS}, tmp_path / "drafts.pt")
    options = Namespace(file=tmp_path / "drafts.pt", orders=2, batch_size=batch_size, costs=None, noise=0.05, drift=0.0)
    scripts.adaptive.replayed(options)
    speedup = float(re.search(r"^all .* auto (\S+)", capsys.readouterr().out, re.MULTILINE)[1])
    assert least <= speedup <= most, f"auto {speedup:.2f}"


def test_costs_of_another_machine_take_the_place_of_those_recorded(scripts, tmp_path, capsys):
    torch.save({"drafter": "draft_model", "rows": [row(scripts, 0, answer=60)], "costs": COSTS}, tmp_path / "drafts.pt")
    (tmp_path / "costs.json").write_text(json.dumps({"forward": {"1": 5.0}}))
    options = Namespace(file=tmp_path / "drafts.pt", orders=1, batch_size=1, costs=tmp_path / "costs.json", noise=0.0, drift=0.0)
    scripts.adaptive.replayed(options)
    assert float(re.search(r"^all .* draft_model (\S+)", capsys.readouterr().out, re.MULTILINE)[1]) < 0.3
