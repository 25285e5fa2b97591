"""`auto` against fixed methods on recorded drafts, where nothing but its decisions makes a difference.

    python benchmarks/adaptive.py record --model MODEL [--draft-model DRAFT] --prompts spec_bench.jsonl --limit 4 --out FILE.pt
    python benchmarks/adaptive.py replay FILE.pt --orders 24 [--batch-size 4] [--costs COSTS.json]

`record` has the target answer some prompts of each task, asks the draft model, or without one the target's head, at every place of the
answers, and keeps its drafts with the forwards they took, and what forwards cost here. `replay` decodes the answers again on a clock that
these costs move, or those of another machine, with noise and drift: fixed methods, and `auto` from nothing, one group of requests after
another, in several orders. It prints seconds of the best fixed method over those of `auto`, by task, and in each quarter of a process.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from recorded import Costs, Recorded, Row, Weather, World

from paceline.bench import suites
from paceline.bench.run import encode_all
from paceline.clock import Clock as Forwards
from paceline.cost import TYPICAL, CostCurve, cost_curve, measure_cost_curve, quick_cost_curve
from paceline.draft import Draft, Siblings
from paceline.drafters.auto import BUDGET, AutoDrafter
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.drafters.earlier import Earlier
from paceline.drafters.jetspec import JetSpecDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.part import GUESS_MODEL, GUESS_WEIGHT, MEASURED, Known, Mean, Part, Steps
from paceline.drafters.shapes import BUDGET as ALONE
from paceline.drafters.shapes import DEPTH
from paceline.heads.decode import draft_seconds, ready_head
from paceline.live_cost import LiveCosts
from paceline.replay import Text
from paceline.sequence import Sequence as Request
from paceline.table import merged
from paceline.targets.load import load, load_pair
from paceline.tree import Tree
from paceline.tune.policies import price
from paceline.tune.replay import answers, counted

SEQUENCES = (1, 2, 3, 4, 8)  # at once, for which costs are recorded
HEAD_BUDGET = 24  # of the head alone


class Asked:
    """Asks a drafter in every round and keeps its drafts and their forwards; proposes none, so that every place is seen."""

    siblings = Siblings.FIXED

    def __init__(self, drafter: Any) -> None:
        self.drafter, self.found = drafter, dict[int, tuple[Draft, int]]()
        self.target_layer_ids = drafter.target_layer_ids

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        with Forwards().watching(getattr(self.drafter, "model", None)) as forwards:
            drafts = self.drafter.propose(seqs)
        self.found[len(seqs[0].tokens)] = drafts[0], max(forwards.forwards, 1)
        return [Draft(Tree.chain([seq.root])) for seq in seqs]


def record(options: argparse.Namespace) -> None:
    if options.draft_model:
        target, model = load_pair(options.model, options.draft_model, dtype=options.dtype)
    else:
        target, model = load(options.model, dtype=options.dtype), None

    def drafter() -> Any:
        return (
            DraftModelDrafter(model, target.vocab_size, budget=BUDGET) if model else JetSpecDrafter(ready_head(target, None), budget=BUDGET)
        )

    layer_ids = drafter().target_layer_ids
    prompts = suites.choose(suites.read(options.prompts), options.limit)
    named = dict(zip((p.id for p in prompts), encode_all(target, prompts), strict=True))
    texts = answers(target, named, options.max_new_tokens, layer_ids)
    rows = []
    for prompt, text in zip(prompts, texts, strict=True):
        asked = Asked(drafter())
        counted(asked, [text], layer_ids)
        bare = Text(text.key, text.domain, text.tokens, text.prompt_length)
        rows.append(Row(prompt.task.split("/")[1], bare, asked.found))
        print(f"{len(rows)} of {len(texts)} texts", flush=True)
    costs = _target_costs(target) | (_model_costs(model, drafter(), texts) if model else _head_costs(drafter(), texts, layer_ids))
    torch.save({"drafter": "draft_model" if model else "jetspec", "rows": rows, "costs": costs}, options.out)


def _target_costs(target: Any) -> dict[str, Any]:
    target_costs = {1: _points(cost_curve(target))}
    target_costs |= {n: _points(measure_cost_curve(target, (1, 2, 4, 6, 8), batch=n)) for n in SEQUENCES[1:]}
    return {"target": target_costs, "target_first": _points(quick_cost_curve(target))}


def _model_costs(model: Any, drafter: Any, texts: Sequence[Text]) -> dict[str, Any]:
    """A forward runs up to two nodes of each sequence."""
    curves = {"forward": cost_curve(model), "forward_first": quick_cost_curve(model)}
    forwards = {name: {n: found(2 * n) for n in SEQUENCES} for name, found in curves.items()}
    return {**forwards, "read": price(drafter, texts, ()).catch_up, "read_first": curves["forward_first"](24) / 24}


def _head_costs(drafter: Any, texts: Sequence[Text], layer_ids: Sequence[int]) -> dict[str, Any]:
    found = price(drafter, texts, layer_ids)
    first = {n: draft_seconds(drafter.head, n) for n in MEASURED}
    return {"forward": found.seconds, "forward_first": first, "read": found.catch_up, "read_first": 0.0}


def _points(found: CostCurve) -> dict[int, float]:
    return dict(zip(found.sizes, found.seconds, strict=True))


class Process:
    """One process with `auto`: what requests show is there for later ones."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.earlier = world, name, Earlier()
        self.costs = LiveCosts({1: world.costs.target_first})
        self.lookup, self.dear = Known({1: 0.0}), Known(catch_up=world.costs.read_first)
        if name == "draft_model":
            self.dear.gains = [Mean(tokens, GUESS_WEIGHT) for tokens in GUESS_MODEL]

    def drafter(self) -> AutoDrafter:
        recorded, forward = Recorded(self.world, BUDGET), self.world.costs.forward_first
        grows = self.name == "draft_model"
        dear = Part(self.name, recorded, self.dear, measure=lambda count: (DEPTH if grows else 1) * forward(count))
        if grows:
            dear.steps = Steps(recorded, forward)
        parts = [Part("lookup", LookupDrafter(), self.lookup), dear]
        return AutoDrafter(parts, self.costs, self.earlier, clock=self.world.clock)


def _fixed(world: World, name: str) -> dict[str, Callable[[], Any]]:
    """Methods that always do the same, as `table.py` builds them."""

    def alone() -> Recorded:
        if name == "draft_model":
            return Recorded(world, ALONE)
        return Recorded(world, HEAD_BUDGET, cost=world.costs.target[1].plus(world.costs.forward_first(1)))

    def lookup() -> LookupDrafter:
        return LookupDrafter(cost=TYPICAL["cpu"])

    return {"none": NoDrafter, "lookup": lookup, name: alone, f"lookup+{name}": lambda: merged([lookup(), alone()], None)}


def _groups(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """Rows of one task that are decoded in one call."""
    tasks = sorted({row.task for row in rows})
    own = {task: [row for row in rows if row.task == task] for task in tasks}
    return [own[task][start : start + size] for task in tasks for start in range(0, len(own[task]), size)]


def replayed(options: argparse.Namespace) -> None:
    found = torch.load(options.file, weights_only=False)
    told = json.loads(options.costs.read_text()) if options.costs else {}
    world = World(found["rows"], Costs.of(found["costs"] | told))
    groups, name = _groups(found["rows"], 1 if options.batch_size == 1 else 2 * options.batch_size), found["drafter"]
    alone = {method: [world.decode(make(), group, options.batch_size) for group in groups] for method, make in _fixed(world, name).items()}
    spent, quarters = [0.0] * len(groups), [[0.0, 0.0] for _ in range(4)]
    tasks = sorted({group[0].task for group in groups})
    of = {task: [i for i, group in enumerate(groups) if task in (group[0].task, "all")] for task in ("all", *tasks)}
    best = {task: min((sum(alone[method][i] for i in of[task]), method) for method in alone) for task in of}
    own = [alone[best[group[0].task][1]][i] for i, group in enumerate(groups)]  # of the best method for the task
    for seed in range(options.orders):
        lots = random.Random(seed)
        world.weather = Weather(lots, options.noise, options.drift)
        process, order = Process(world, name), lots.sample(range(len(groups)), len(groups))
        for place, i in enumerate(order):
            seconds = world.decode(process.drafter(), groups[i], options.batch_size)
            spent[i] += seconds / options.orders
            quarter = quarters[4 * place // len(order)]
            quarter[0], quarter[1] = quarter[0] + own[i], quarter[1] + seconds
    for task in of:
        seconds, method = best[task]
        plain, ours = sum(alone["none"][i] for i in of[task]), sum(spent[i] for i in of[task])
        ratios = "  ".join(f"{m} {plain / sum(alone[m][i] for i in of[task]):.2f}" for m in alone)
        print(f"{task:16} {ratios}  auto {plain / ours:.2f}  over {method} {seconds / ours:.3f}")
    print("best by task over auto, by quarter of a process: " + " ".join(f"{a / b:.3f}" for a, b in quarters if b))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record")
    recording.set_defaults(run=record)
    recording.add_argument("--model", required=True)
    recording.add_argument("--draft-model", help="without one the head that is shipped for the model drafts")
    recording.add_argument("--dtype", default="auto")
    recording.add_argument("--prompts", type=Path, required=True)
    recording.add_argument("--limit", type=int, default=4, help="prompts of each task")
    recording.add_argument("--max-new-tokens", type=int, default=64)
    recording.add_argument("--out", type=Path, required=True)
    replaying = commands.add_parser("replay")
    replaying.set_defaults(run=replayed)
    replaying.add_argument("file", type=Path)
    replaying.add_argument("--orders", type=int, default=24)
    replaying.add_argument("--batch-size", type=int, default=1, help="requests of one task that are decoded at once")
    replaying.add_argument("--costs", type=Path, help="a JSON file with costs of another machine, see `recorded.Costs`")
    replaying.add_argument("--noise", type=float, default=0.08, help="standard deviation of a forward's seconds, relative")
    replaying.add_argument("--drift", type=float, default=0.0, help="the same of what all forwards of some seconds take")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
