"""`auto` against fixed methods on recorded drafts, where nothing but its decisions makes a difference.

    python benchmarks/adaptive.py record --model MODEL --draft-model DRAFT --prompts spec_bench.jsonl --limit 4 --out FILE.pt
    python benchmarks/adaptive.py replay FILE.pt --orders 24

`record` has the target answer some prompts of each task, asks the draft model at every place of the answers, and keeps its drafts with the
forwards they took, and what forwards of both models cost here. `replay` decodes the answers again on a clock that these costs move, with
noise: `lookup` and `draft_model` alone, and `auto` from nothing, one request after another, in several orders. It prints seconds of the
best fixed method over those of `auto`, by task, and in each quarter of a process.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.bench import suites
from paceline.bench.run import encode_all
from paceline.clock import Clock as Forwards
from paceline.cost import CostCurve, LiveCosts, cost_curve, quick_cost_curve
from paceline.draft import Draft, Siblings
from paceline.drafters.auto import BUDGET, AutoDrafter
from paceline.drafters.draft_growth import Further
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.drafters.earlier import Earlier
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.part import GUESS_MODEL, GUESS_WEIGHT, Known, Mean, Part, Steps
from paceline.drafters.shapes import BUDGET as ALONE
from paceline.drafters.shapes import DEPTH
from paceline.drafters.union import Union
from paceline.replay import Text
from paceline.sequence import Sequence as Request
from paceline.targets.load import load_pair
from paceline.tree import Tree
from paceline.tune.policies import Clock
from paceline.tune.replay import answers, counted


class Asked:
    """Asks the draft model in every round and keeps its drafts, their forwards and seconds; proposes none, so that every place is seen."""

    siblings, target_layer_ids = Siblings.FIXED, ()

    def __init__(self, drafter: DraftModelDrafter) -> None:
        self.drafter, self.found = drafter, dict[int, tuple[Draft, int, float]]()

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        began = time.perf_counter()
        with Forwards().watching(self.drafter.model) as forwards:
            drafts = self.drafter.propose(seqs)
        self.found[len(seqs[0].tokens)] = drafts[0], forwards.forwards, time.perf_counter() - began
        return [Draft(Tree.chain([seq.root])) for seq in seqs]


def record(options: argparse.Namespace) -> None:
    target, model = load_pair(options.model, options.draft_model, dtype=options.dtype)
    assert model is not None
    prompts = suites.choose(suites.read(options.prompts), options.limit)
    texts = answers(target, dict(zip((p.id for p in prompts), encode_all(target, prompts), strict=True)), options.max_new_tokens)
    rows = []
    for prompt, text in zip(prompts, texts, strict=True):
        asked = Asked(DraftModelDrafter(model, target.vocab_size, budget=BUDGET))
        counted(asked, [text])
        rows.append((prompt.task.split("/")[1], text, asked.found))
        print(f"{len(rows)} of {len(texts)} texts", flush=True)
    costs = {"target": cost_curve(target), "quick": quick_cost_curve(target), "draft": cost_curve(model), "rough": quick_cost_curve(model)}
    torch.save({"rows": rows, **costs}, options.out)


@dataclass
class World:
    """A recording, and a clock that its costs move."""

    rows: list[tuple[str, Text, dict[int, tuple[Draft, int, float]]]]
    target: CostCurve  # what forwards take
    quick: CostCurve  # what `auto` thinks of that at first
    draft: CostCurve
    rough: CostCurve
    noise: Callable[[], float] = lambda: 1.0

    def __post_init__(self) -> None:
        self.clock = Clock()
        first = [
            (seconds, forwards, text.prompt_length) for _, text, found in self.rows for _, forwards, seconds in list(found.values())[:1]
        ]
        self.reads = max(0.0, sum(s - f * self.draft(2) for s, f, _ in first) / sum(n for _, _, n in first))  # seconds a token

    def decode(self, drafter: Any, index: int) -> float:
        """Seconds of one answer."""
        began = self.clock.now

        def verified(drafts: list[Draft]) -> None:
            self.clock.now += self.target(sum(len(d.tree) for d in drafts)) * self.noise()

        counted(drafter, [self.rows[index][1]], first_slot=index, after=verified)
        return self.clock.now - began


class Recorded:
    """The draft model as it was recorded, told of a budget: its tree is no deeper than that allows."""

    siblings, target_layer_ids = Siblings.FIXED, ()

    def __init__(self, world: World, budget: int) -> None:
        self.world, self.budget, self._read = world, budget, set[int]()
        self.goes_on: Further | None = None

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        (seq,) = seqs
        world, index = self.world, seq.slot or 0
        draft, forwards, _ = world.rows[index][2][len(seq.tokens)]
        tree, scores = draft.tree, draft.scores or ()
        depth = self._depth(tree, scores, min(forwards, self.budget - 1))
        world.clock.now += depth * world.draft(2) * world.noise()
        if index not in self._read:
            world.clock.now += len(seq.tokens) * world.reads
            self._read.add(index)
        kept = sum(d <= depth for d in tree.depth)  # shallow nodes come first
        union = Union(tree.tokens[0])
        union.add(Draft(Tree(tree.tokens[:kept], tree.parents[:kept]), scores=scores[:kept]))
        return [union.likeliest(self.budget)]

    def _depth(self, tree: Tree, scores: Sequence[float], forwards: int) -> int:
        """Where it would have stopped."""
        for depth in range(1, forwards if self.goes_on else 0):
            shallow = sum(d <= depth for d in tree.depth)
            best = max((s for s, d in zip(scores, tree.depth, strict=True) if d == depth), default=-math.inf)
            if not self.goes_on(scores[:shallow], best):
                return depth
        return forwards


class Process:
    """One process with `auto`: what requests show is there for later ones."""

    def __init__(self, world: World) -> None:
        self.world, self.costs, self.earlier = world, LiveCosts({1: world.quick}), Earlier()
        guess = [Mean(tokens, GUESS_WEIGHT) for tokens in GUESS_MODEL]
        self.known = {"lookup": Known({1: 0.0}), "draft_model": Known(catch_up=world.rough(24) / 24, gains=guess)}
        self.known["draft_model"].seconds[1] = DEPTH * world.rough(2)

    def decode(self, index: int) -> float:
        drafters = {"lookup": LookupDrafter(), "draft_model": Recorded(self.world, BUDGET)}
        parts = [Part(name, drafter, self.known[name]) for name, drafter in drafters.items()]
        parts[1].steps = Steps(drafters["draft_model"], lambda count: self.world.rough(2 * count))
        return self.world.decode(AutoDrafter(parts, self.costs, self.earlier, clock=self.world.clock), index)


def replayed(options: argparse.Namespace) -> None:
    world = World(**torch.load(options.file, weights_only=False))
    fixed = {"none": NoDrafter, "lookup": LookupDrafter, "draft_model": lambda: Recorded(world, ALONE)}
    alone = {name: [world.decode(make(), i) for i in range(len(world.rows))] for name, make in fixed.items()}
    spent, by_quarter = [0.0] * len(world.rows), [[0.0, 0.0] for _ in range(4)]
    tasks = sorted({task for task, _, _ in world.rows})
    of = {task: [i for i, row in enumerate(world.rows) if task in (row[0], "all")] for task in tasks} | {
        "all": list(range(len(world.rows)))
    }
    best = {task: min((sum(alone[name][i] for i in of[task]), name) for name in fixed) for task in of}
    own = {i: alone[best[world.rows[i][0]][1]][i] for i in of["all"]}  # of the best method for the task
    for seed in range(options.orders):
        lots = random.Random(seed)
        world.noise = lambda lots=lots: max(0.5, lots.gauss(1.0, options.noise))
        process, order = Process(world), lots.sample(of["all"], len(of["all"]))
        for place, index in enumerate(order):
            seconds = process.decode(index)
            spent[index] += seconds / options.orders
            quarter = by_quarter[4 * place // len(order)]
            quarter[0], quarter[1] = quarter[0] + own[index], quarter[1] + seconds
    for task in ("all", *tasks):
        seconds, name = best[task]
        plain, ours = sum(alone["none"][i] for i in of[task]), sum(spent[i] for i in of[task])
        print(
            f"{task:16} none 1.00  " + "  ".join(f"{n} {plain / sum(alone[n][i] for i in of[task]):.2f}" for n in list(fixed)[1:]), end=""
        )
        print(f"  auto {plain / ours:.2f}  over {name} {seconds / ours:.3f}")
    print("best by task over auto, by quarter of a process: " + " ".join(f"{a / b:.3f}" for a, b in by_quarter))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record")
    recording.set_defaults(run=record)
    for name in ("--model", "--draft-model"):
        recording.add_argument(name, required=True)
    recording.add_argument("--dtype", default="auto")
    recording.add_argument("--prompts", type=Path, required=True)
    recording.add_argument("--limit", type=int, default=4, help="prompts of each task")
    recording.add_argument("--max-new-tokens", type=int, default=64)
    recording.add_argument("--out", type=Path, required=True)
    replaying = commands.add_parser("replay")
    replaying.set_defaults(run=replayed)
    replaying.add_argument("file", type=Path)
    replaying.add_argument("--orders", type=int, default=24)
    replaying.add_argument("--noise", type=float, default=0.08, help="standard deviation of a round's seconds, relative")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
