"""What exit heads and their bounds are worth: agreement by layer, calibration, layers per token, ablations, and the cost model's answer.

By prompt, plain decoding and each setting take turns behind the same cached prompt, and their layers are counted; each decode is kept in a
journal beside the report, so that the same command goes on where it stopped. The text must be the plain one each time: in float32 it is.
After --minutes no further prompt begins, and the report is about those that were decoded. Speed is by processor time, which others who use
the same cores disturb less, and by the wall.

    python benchmarks/exits.py --model smollm2 --exits FOLDER --prompts spec_bench.jsonl --limit 4 --out FILE.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from paceline import api, engine, methods
from paceline.bench import environment, suites
from paceline.cost import CostCurve
from paceline.drafters.specbound import SpecBoundDrafter
from paceline.heads.exit import ExitHeads, LogitLens
from paceline.heads.exit_config import ExitConfig
from paceline.heads.exit_cost import WORTH, Bounds, Costs, best_bounds, expected, speedup
from paceline.heads.exit_outlook import would_win
from paceline.heads.exit_ready import exit_costs, quicken, ready_exits
from paceline.rules.match import match
from paceline.sampling import SamplingParams
from paceline.stats import Stats
from paceline.targets.load import load
from paceline.train.exits_fit import ANNEALINGS, Readings, figures, fit_annealing, profile, read_exits
from paceline.tree import Tree

WIDE = 16  # stands for no width bound
ROWS = (1, 2, 4)
Row = dict[str, Any]


def settings(exits: Any, untrained: Any, chosen: Bounds, layers: int) -> dict[str, dict[str, Any]]:
    """Name -> what the drafter is told: as chosen, and with one part off each."""
    told = {"exits": exits, "bounds": chosen, "annealing": exits.config.annealing}
    return {
        "chosen": told,
        "no annealing": told | {"annealing": 0.0},
        "no depth bound": told | {"bounds": dataclasses.replace(chosen, depth=layers)},
        "no width bound": told | {"bounds": dataclasses.replace(chosen, width=WIDE)},
        "untrained heads": told | {"exits": untrained},
        "as published": told | {"bounds": Bounds(0.8, round(0.625 * layers), 8), "annealing": 0.5},
        "heads that never exit": told | {"bounds": dataclasses.replace(chosen, threshold=2.0)},
        "no drafts": told | {"bounds": dataclasses.replace(chosen, width=0)},
    }


class Layers:
    """Counts the decoder layers that run, prompts left out."""

    def __init__(self, target: Any) -> None:
        self.count, self._run, self._full = 0, target.runner.run, target.full
        self.target = target

    def __enter__(self) -> Layers:
        target, run, full = self.target, self._run, self._full

        def counted(span: range, *given: Any) -> Any:
            self.count += len(span)
            return run(span, *given)

        def counted_full(**given: Any) -> Any:
            self.count += target.num_layers
            return full(**given)

        target.runner.run, target.full = counted, counted_full
        return self

    def __exit__(self, *_: Any) -> None:
        del self.target.runner.run
        self.target.full = self._full


def decode(target: Any, drafter: Any, tokens: Sequence[int], max_new_tokens: int, slot: int) -> Row:
    """What comes after a prompt that the slot holds already: output, rounds, layers, seconds by the wall and of the processor."""
    target.cache.truncate(slot, len(tokens) - 1)
    seq, stats = api.request(target, tokens, SamplingParams(max_new_tokens=max_new_tokens)), Stats()
    seq.slot = slot
    drafts, began, cpu = 0, time.perf_counter(), time.process_time()
    with Layers(target) as layers:
        for round_ in engine.rounds(target, drafter, match, [seq]):
            stats.add(round_)
            drafts += len(round_.draft.tree) - 1
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    counts = {"tokens": stats.tokens, "rounds": stats.rounds, "drafts": drafts, "layers": layers.count}
    return {"output": seq.output, **counts, "seconds": seconds, "cpu": cpu}


def states(target: Any, rows: Sequence[Row], depths: Sequence[int]) -> Iterator[tuple[list[torch.Tensor], torch.Tensor]]:
    """States of the exit layers at each position of the plain answers, and the target's own tokens there."""
    for row in rows:
        slot = target.cache.open()
        target.prefill([slot], [row["prompt"][:-1]])
        tree = Tree.chain([row["prompt"][-1], *row["output"][:-1]])
        found, done, hidden = [], 0, None
        for depth in depths:
            hidden, done = target.layers(range(done, depth), [tree], [slot], hidden), depth
            found.append(hidden)
        target.cache.free(slot)
        yield found, torch.tensor(row["output"], device=target.device)


def on_text(layers: int, exits: Any, texts: Sequence[tuple[list[torch.Tensor], torch.Tensor]]) -> tuple[dict[str, Any], Readings]:
    """Agreement by layer and calibration on the plain answers."""
    readings = read_exits(exits, layers, texts)
    fitted = exits.config.annealing if exits.config.annealing in ANNEALINGS else fit_annealing(readings)
    return figures(readings, fitted), readings


def summary(rows: Sequence[Row], plain: Sequence[Row], layers: int) -> dict[str, Any]:
    """Pooled figures of a setting, and the quartiles of its speed over the prompts."""
    total = {key: sum(row[key] for row in rows) for key in ("tokens", "rounds", "drafts", "layers")}
    by_prompt = [_over([row], [own], "cpu") for row, own in zip(rows, plain, strict=True)]
    return {
        "mean_acceptance_length": round(total["tokens"] / total["rounds"], 4),
        "drafts_per_round": round(total["drafts"] / total["rounds"], 4),
        "acceptance_rate": round((total["tokens"] - total["rounds"]) / total["drafts"], 4) if total["drafts"] else None,
        "tokens_per_full_depth": round(total["tokens"] * layers / total["layers"], 4),
        "speedup_by_the_wall": round(_over(rows, plain, "seconds"), 4),
        "speedup": round(_over(rows, plain, "cpu"), 4),
        "speedup_quartiles": [round(x, 4) for x in statistics.quantiles(by_prompt * 2, n=4, method="inclusive")],
        "identical": sum(a["output"] == b["output"] for a, b in zip(rows, plain, strict=True)),
        "prompts": len(rows),
    }


def _over(rows: Sequence[Row], plain: Sequence[Row], seconds: str) -> float:
    speeds = [sum(row["tokens"] for row in each) / sum(row[seconds] for row in each) for each in (rows, plain)]
    return float(speeds[0] / speeds[1])


def by_task(rows: Sequence[Row], plain: Sequence[Row], layers: int) -> dict[str, dict[str, Any]]:
    found = {}
    for task in sorted({row["task"] for row in rows}):
        pairs = [(a, b) for a, b in zip(rows, plain, strict=True) if a["task"] == task]
        own = summary([a for a, _ in pairs], [b for _, b in pairs], layers)
        found[task] = {k: own[k] for k in ("mean_acceptance_length", "tokens_per_full_depth", "speedup", "prompts")}
    return found


def foretold(readings: Readings, told: dict[str, dict[str, Any]], costs: Costs) -> dict[str, Any]:
    """What the cost model says of each setting, given what its exits do on these very texts."""
    found = {}
    for name, each in told.items():
        bounds = each["bounds"]
        if name in ("untrained heads", "heads that never exit"):
            continue
        shares = profile(readings, min(ANNEALINGS, key=lambda a: abs(a - each["annealing"]))).at(bounds.threshold, bounds.depth)
        tokens, _ = expected(shares, bounds.width, costs)
        found[name] = {"mean_acceptance_length": round(tokens, 4), "speedup": round(speedup(shares, bounds.width, costs), 4)}
    return found


def as_record(costs: Costs) -> dict[str, Any]:
    return {
        "layers": costs.layers, "plain": costs.plain, "call": costs.call, "head": costs.head,
        "layer": [costs.layer(n) for n in ROWS], "tail": [costs.tail(n) for n in ROWS],
    }  # fmt: skip


def of_record(found: dict[str, Any]) -> Costs:
    curves = {name: CostCurve(ROWS, tuple(found[name])) for name in ("layer", "tail")}
    return Costs(**{name: found[name] for name in ("layers", "plain", "call", "head")}, **curves)


class Journal:
    """What has been measured, by setting: costs and the bounds chosen by them first, then every decode."""

    def __init__(self, file: Path) -> None:
        self._file, self.rows = file, dict[str, list[Row]]()
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        first = next((line for line in lines if "costs" in line), None)
        self.costs, self.chosen = (of_record(first["costs"]), Bounds(**first["bounds"])) if first else (None, None)
        for line in lines:
            if "setting" in line:
                self.rows.setdefault(line.pop("setting"), []).append(line)

    def add(self, line: dict[str, Any]) -> None:
        with self._file.open("a") as out:
            out.write(json.dumps(line) + "\n")

    def whole(self) -> dict[str, list[Row]]:
        """Of each setting as many rows as all have."""
        count = min(map(len, self.rows.values()))
        return {name: rows[:count] for name, rows in self.rows.items()}


def measure(target: Any, drafters: dict[str, Any], prompts: Sequence[Any], journal: Journal, told: argparse.Namespace) -> None:
    """Decode every prompt plainly and with every setting, in turns."""
    began = time.monotonic()
    for number, prompt in enumerate(prompts):
        left = [name for name in drafters if number >= len(journal.rows.setdefault(name, []))]
        if not left:
            continue
        if told.minutes is not None and time.monotonic() - began > 60 * told.minutes:
            return
        tokens, slot = api.encode(target, prompt.turns[0]), target.cache.open()
        target.prefill([slot], [tokens[:-1]])
        decode(target, drafters["none"], tokens, 4, slot)  # warms up
        for name in sorted(left, key=lambda name: (list(drafters).index(name) - number) % len(drafters)):  # another one begins each time
            row = {"id": prompt.id, "task": prompt.group, "prompt": tokens}
            row |= decode(target, drafters[name], tokens, told.max_new_tokens, slot)
            journal.add({"setting": name, **row})
            journal.rows[name].append(row)
        target.cache.free(slot)
        print(number + 1, "of", len(prompts), prompt.id, flush=True)


def read_options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--exits", help="folder of trained heads; the default is what is shipped")
    options.add_argument("--prompts", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--limit", type=int, default=4, help="prompts per task")
    options.add_argument("--max-new-tokens", type=int, default=96)
    options.add_argument("--minutes", type=float, help="begin no prompt after so many")
    return options.parse_args()


def main() -> None:
    told = read_options()
    target = load(told.model, dtype="float32")
    exits = ready_exits(target, told.exits)
    if exits.config.profile is None:
        raise SystemExit("these exits were trained without held-out text, so there is no profile to choose bounds from")
    journal = Journal(told.out.with_suffix(".rows.jsonl"))
    if journal.costs is None:
        journal.costs = exit_costs(target, exits, clock=time.process_time)
        journal.chosen = best_bounds(exits.config.profile, journal.costs)
        journal.add({"costs": as_record(journal.costs), "bounds": dataclasses.asdict(journal.chosen)})
    costs, chosen, layers = journal.costs, journal.chosen, target.num_layers
    config = ExitConfig.for_target(target, exits.config.layers, exits.config.draft_vocab_size)
    untrained = quicken(ExitHeads.for_target(target, config, exits.ids))
    parts = settings(exits, untrained, chosen, layers)
    drafters = {"none": methods.build("none", target)[0]} | {name: SpecBoundDrafter(target, **each) for name, each in parts.items()}
    prompts = suites.choose(suites.read(told.prompts), told.limit)
    measure(target, drafters, prompts, journal, told)
    rows = journal.whole()
    plain = rows["none"]
    lens = LogitLens(target, ExitConfig.for_target(target, exits.config.layers))
    texts = list(states(target, plain, exits.config.layers))
    text, readings = on_text(layers, exits, texts)
    report = {
        "bounds": dataclasses.asdict(chosen),
        "drafts_unless_told": chosen.speedup >= WORTH,
        "text": {"logit lens": on_text(layers, lens, texts)[0], "untrained": on_text(layers, untrained, texts)[0], "trained": text},
        "settings": {name: summary(own, plain, layers) for name, own in rows.items()},
        "by_task": by_task(rows["chosen"], plain, layers),
        "cost_model": {
            "milliseconds": {k: v if k == "layers" else _milliseconds(v) for k, v in as_record(costs).items()},
            "foretold_from_these_texts": foretold(readings, parts, costs),
            **would_win(profile(readings, exits.config.annealing), costs),
        },
        "options": {k: environment.scrub(str(v)) for k, v in vars(told).items()},
        "dtype": "float32",
        "prompts": [row["id"] for row in plain],
        **environment.provenance(environment.typed_as("python", "benchmarks/exits.py"), target.device),
    }
    told.out.write_text(json.dumps(report, indent=1) + "\n")
    for name, line in report["settings"].items():
        print(name, {k: line[k] for k in ("mean_acceptance_length", "tokens_per_full_depth", "speedup", "identical")})


def _milliseconds(value: float | list[float]) -> float | list[float]:
    return [round(1e3 * x, 3) for x in value] if isinstance(value, list) else round(1e3 * value, 3)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
