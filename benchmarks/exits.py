"""What exit heads and their bounds are worth: agreement by layer, calibration, layers per token, ablations, and the cost model's answer.

The target answers all prompts once. Then, by prompt, each setting decodes for real and its layers are counted; a prompt that is done is
kept in the report, so that the same command goes on where it stopped. The text must be the plain one each time: in float32 it is.

    python benchmarks/exits.py --model smollm2 --exits FOLDER --prompts spec_bench.jsonl --limit 4 --out FILE.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from paceline import api, engine, methods
from paceline.bench import environment, suites
from paceline.drafters.specbound import SpecBoundDrafter
from paceline.heads.exit import ExitHeads, LogitLens
from paceline.heads.exit_config import ExitConfig
from paceline.heads.exit_cost import Bounds, Costs, Profile, best_bounds, speedup
from paceline.heads.exit_ready import exit_costs, ready_exits
from paceline.rules.match import match
from paceline.sampling import SamplingParams
from paceline.stats import Stats
from paceline.targets.load import load
from paceline.train.exits_fit import ANNEALINGS, figures, fit_annealing, read_exits
from paceline.tree import Tree

WIDE = 32  # stands for no width bound


def settings(exits: Any, chosen: Bounds, layers: int) -> dict[str, dict[str, Any]]:
    """Name -> what the drafter is told: as chosen, and with one part off each."""
    annealing = exits.config.annealing
    return {
        "chosen": {"bounds": chosen, "annealing": annealing},
        "no annealing": {"bounds": chosen, "annealing": 0.0},
        "annealing 0.5": {"bounds": chosen, "annealing": 0.5},
        "no depth bound": {"bounds": dataclasses.replace(chosen, depth=layers), "annealing": annealing},
        "no width bound": {"bounds": dataclasses.replace(chosen, width=WIDE), "annealing": annealing},
        "as published": {"bounds": Bounds(0.8, round(0.625 * layers), 8), "annealing": 0.5},
        "never": {"bounds": dataclasses.replace(chosen, threshold=2.0), "annealing": annealing},
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


def decode(target: Any, drafter: Any, tokens: Sequence[int], max_new_tokens: int) -> dict[str, Any]:
    """One prompt: its output, rounds, layers and seconds."""
    seq, stats = api.request(target, tokens, SamplingParams(max_new_tokens=max_new_tokens)), Stats()
    began = time.perf_counter()
    with Layers(target) as layers:
        for round_ in engine.stream(target, drafter, match, [seq]):
            stats.add(round_)
    seconds = time.perf_counter() - began
    return {"output": seq.output, "tokens": stats.tokens, "rounds": stats.rounds, "layers": layers.count, "seconds": seconds}


def states(target: Any, rows: Sequence[dict[str, Any]], depths: Sequence[int]) -> Iterator[tuple[list[torch.Tensor], torch.Tensor]]:
    """States of the exit layers at each position of the plain answers, and the target's own tokens there."""
    for row in rows:
        tree, slot = Tree.chain([*row["prompt"], *row["output"]][:-1]), target.cache.open()
        found, done = [], 0
        hidden = None
        for depth in (*depths, target.num_layers):
            hidden = target.layers(range(done, depth), [tree], [slot], hidden)
            done = depth
            found.append(hidden[len(row["prompt"]) - 1 :])
        target.cache.free(slot)
        yield found[:-1], torch.tensor(row["output"], device=hidden.device)


def on_text(target: Any, exits: Any, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Agreement by layer and calibration on the plain answers."""
    readings = read_exits(exits, target.num_layers, states(target, rows, exits.config.layers))
    fitted = exits.config.annealing if exits.config.annealing in ANNEALINGS else fit_annealing(readings)
    return figures(readings, fitted)


def summary(rows: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]], layers: int) -> dict[str, Any]:
    """Pooled figures of a setting."""
    total = {key: sum(row[key] for row in rows) for key in ("tokens", "rounds", "layers", "seconds")}
    return {
        "mean_acceptance_length": round(total["tokens"] / total["rounds"], 4),
        "tokens_per_full_depth": round(total["tokens"] * layers / total["layers"], 4),
        "layers_per_token": round(total["layers"] / total["tokens"], 3),
        "speedup": round(sum(row["seconds"] for row in plain) / total["seconds"], 4),
        "identical": sum(a["output"] == b["output"] for a, b in zip(rows, plain, strict=True)),
        "prompts": len(rows),
        "by_task": {
            task: round(sum(r["tokens"] for r in rows if r["task"] == task) / sum(r["rounds"] for r in rows if r["task"] == task), 4)
            for task in sorted({r["task"] for r in rows})
        },
    }


def would_win(profile: Profile, costs: Costs, layers: int) -> dict[str, Any]:
    """The cost model here, and with other inputs: free heads, free verification of further tokens, twice the depth at these shares."""
    free = dataclasses.replace(costs, head=0.0)
    flat = dataclasses.replace(costs, verify=lambda nodes: costs.verify(1))
    unit = costs.layer * layers
    cases = {"here": costs, "free heads": free, "free further tokens": flat, "both": dataclasses.replace(flat, head=0.0)}
    grid = [
        {"depth": d, "agreement_there": a, "width": w, "speedup": round(speedup([(d, 0.9, 0.9 * a)], w, costs), 3)}
        for d in profile.layers
        for a in (0.8, 0.9, 0.95, 1.0)
        for w in (1, 2, 4, 8)
    ]
    return {
        "best": {name: dataclasses.asdict(best_bounds(profile, case)) for name, case in cases.items()},
        "layer_seconds": costs.layer,
        "head_in_layers": round(costs.head / costs.layer, 3),
        "forward_in_layers": round(costs.verify(1) / costs.layer, 3),
        "verify_by_nodes": {n: round(costs.verify(n) / costs.verify(1), 3) for n in (1, 2, 4, 8)},
        "layers_share_of_forward": round(unit / costs.verify(1), 3),
        "if_nine_in_ten_exit": grid,
    }


def read_rows(file: Path) -> dict[str, list[dict[str, Any]]]:
    """What an interrupted run has measured, by setting."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        row = json.loads(line)
        found.setdefault(row.pop("setting"), []).append(row)
    return found


def measure(
    target: Any, exits: Any, chosen: Bounds, prompts: Sequence[Any], options: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    """Decode every prompt plainly and with every setting, in turns; rows go to a journal beside the report."""
    journal = options.out.with_suffix(".rows.jsonl")
    rows = read_rows(journal)
    drafters = {"none": methods.build("none", target)[0]}
    drafters |= {name: SpecBoundDrafter(target, exits, **told) for name, told in settings(exits, chosen, target.num_layers).items()}
    decode(target, drafters["chosen"], api.encode(target, prompts[0].turns[0]), 8)  # warms up
    with journal.open("a") as out:
        for number, prompt in enumerate(prompts):
            tokens = api.encode(target, prompt.turns[0])
            for name, drafter in drafters.items():
                if number < len(rows.setdefault(name, [])):
                    continue
                row = {"id": prompt.id, "task": prompt.group, "prompt": tokens, **decode(target, drafter, tokens, options.max_new_tokens)}
                out.write(json.dumps({"setting": name, **row}) + "\n")
                out.flush()
                rows[name].append(row)
            print(number + 1, "of", len(prompts), prompt.id, flush=True)
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--exits", help="folder of trained heads; the default is what is shipped")
    options.add_argument("--prompts", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--limit", type=int, default=4, help="prompts per task")
    options.add_argument("--max-new-tokens", type=int, default=96)
    told = options.parse_args()
    target = load(told.model, dtype="float32")
    exits = ready_exits(target, told.exits)
    if exits.config.profile is None:
        raise SystemExit("these exits were trained without held-out text, so there is no profile to choose bounds from")
    costs = exit_costs(target, exits)
    chosen = best_bounds(exits.config.profile, costs, threshold=exits.config.threshold)
    prompts = suites.choose(suites.read(told.prompts), told.limit)
    rows = measure(target, exits, chosen, prompts, told)
    config = ExitConfig.for_target(target, exits.config.layers, exits.config.draft_vocab_size)
    report = {
        "bounds": dataclasses.asdict(chosen),
        "text": {
            "logit lens": on_text(target, LogitLens(target, ExitConfig.for_target(target, exits.config.layers)), rows["none"]),
            "untrained": on_text(target, ExitHeads.for_target(target, config, exits.ids), rows["none"]),
            "trained": on_text(target, exits, rows["none"]),
        },
        "settings": {name: summary(own, rows["none"], target.num_layers) for name, own in rows.items()},
        "cost_model": would_win(exits.config.profile, costs, target.num_layers),
        "options": {k: environment.scrub(str(v)) for k, v in vars(told).items()},
        "dtype": "float32",
        "prompts": [p.id for p in prompts],
        **environment.provenance(environment.typed_as("python", "benchmarks/exits.py"), target.device),
    }
    told.out.write_text(json.dumps(report, indent=1) + "\n")
    for name, line in report["settings"].items():
        print(name, {k: line[k] for k in ("mean_acceptance_length", "tokens_per_full_depth", "speedup", "identical")})


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
