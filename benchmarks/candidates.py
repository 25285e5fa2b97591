"""Tokens per round and per second of the rules for several candidates, on one pair of models, in one run.

For each temperature, shape and kind of siblings one rule decodes all prompts, in one batch. Every tree that it verifies is also shown to
the other rules for such siblings: the probability that a rule goes on at each child is known exactly given the tree, so its expected
tokens per round need no draws of their own, and rules with equal trees are compared in pairs. All rules but the printed one emit the
target's law, so they would meet the same prefixes.

    python benchmarks/candidates.py --model models/qwen15 --draft-model models/qwen05 --prompts spec_bench.jsonl --out FILE.json

A run that is cut short goes on when the same command is given again (its rows are in FILE.json.rows).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline import api, engine
from paceline.bench import environment, suites
from paceline.draft import Draft, Siblings
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.drafters.shapes import Shape
from paceline.rules.match import match
from paceline.rules.multi import Rest, Trial, greedy_draft, k_seq, naive, ramp, ramp_wor, rrs, rrs_wor
from paceline.rules.resispec import resispec_printed
from paceline.rules.transport import bound
from paceline.rules.walk import Rule, Verdict
from paceline.sampling import Random, Rng, SamplingParams, TargetProbs
from paceline.targets.load import load, load_draft

TASKS = ("spec_bench/mt_bench", "spec_bench/math_reasoning", "spec_bench/qa")
SHAPES = {"chain": "chain:3", "2x2": "2x2", "3x2": "3x2", "2x3": "2x3"}
KINDS = {
    Siblings.WITHOUT_REPLACEMENT: (ramp_wor, rrs_wor, naive),
    Siblings.IID: (ramp, k_seq, rrs, resispec_printed),
    Siblings.TOP_AND_DRAW: (greedy_draft,),
    Siblings.FIXED: (match,),
}  # the first one decodes
ONE_CANDIDATE = {Siblings.WITHOUT_REPLACEMENT: (rrs_wor, naive), Siblings.FIXED: (match,)}  # the others are the same rule there


def descents(rule: Rule, p: torch.Tensor, q: torch.Tensor | None, tokens: list[int]) -> list[float]:
    """The probability that a rule goes on at each child, given these children."""
    if rule is match:
        return [float(p[t]) for t in tokens]
    found, reached = [0.0] * len(tokens), 1.0
    for trial in rule.decide.trials(p, q, tokens):  # type: ignore[attr-defined]
        if isinstance(trial, Rest):
            for token in set(tokens):
                found[tokens.index(token)] += reached * float(trial.law[token])
        elif isinstance(trial, Trial):
            found[trial.child] += reached * trial.prob
            reached *= 1 - trial.prob
    return found


@dataclass
class Watch:
    """A rule that shows each tree to all rules of its kind, and knows how long that took."""

    rules: tuple[Rule, ...]
    seconds: float = 0.0  # spent on watching
    deciding: dict[str, float] = field(default_factory=dict)  # seconds of each rule's own decisions
    rounds: list[dict[str, float]] = field(default_factory=list)  # expected tokens by rule
    roots: list[dict[str, float]] = field(default_factory=list)  # acceptance by rule at the root, and the bound

    def __post_init__(self) -> None:
        self.needs, self.chain_only, self.name, self.reads_beliefs = self.rules[0].needs, False, self.rules[0].name, False

    def __call__(self, draft: Draft, probs: TargetProbs, rng: Rng) -> Verdict:
        began = time.perf_counter()
        tree = draft.tree
        for node in range(len(tree)):
            probs.row(node)  # the rows are made once, before any rule is timed
        expected = dict.fromkeys((r.name for r in self.rules), 1.0)
        for rule in self.rules:
            reach = [1.0] * len(tree)
            for node in range(len(tree)):
                if not (children := tree.children(node)):
                    continue
                q = None if rule is match else draft.probs(node)
                down = descents(rule, probs.row(node), q, [tree.tokens[c] for c in children])
                for child, chance in zip(children, down, strict=True):
                    reach[child] = reach[node] * chance
                    expected[rule.name] += reach[child]
                if node == 0:
                    self._root(draft, probs, rule, sum(down))
            started = time.perf_counter()
            rule(draft, probs, Random(len(self.rounds)))
            self.deciding[rule.name] = self.deciding.get(rule.name, 0.0) + time.perf_counter() - started
        self.rounds.append(expected)
        self.seconds += time.perf_counter() - began
        return self.rules[0](draft, probs, rng)

    def _root(self, draft: Draft, probs: TargetProbs, rule: Rule, acceptance: float) -> None:
        if rule is self.rules[0]:
            children = draft.tree.children(0)
            p, fixed = probs.row(0), draft.siblings is Siblings.FIXED
            best = acceptance if fixed else bound(draft.siblings, p, draft.probs(0), len(children))
            self.roots.append({"bound": best})
        self.roots[-1][rule.name] = acceptance


def run(target: Any, seqs: list[Any], drafter: Any, rules: tuple[Rule, ...], params: list[SamplingParams]) -> dict[str, Any]:
    """One decode of all prompts. They are read by both models before the clock starts."""
    for reading in (True, False):
        for seq, each in zip(seqs, params, strict=True):
            engine.next_turn(target, seq, seq.tokens[: seq.prompt_length], each)
        if reading:
            engine.prefill(target, seqs)
            drafter.propose(seqs)
    watch = Watch(rules)
    owner: list[int] = []
    tokens, took = 0, 0.0
    decoding = engine.rounds(target, drafter, watch, seqs)  # type: ignore[arg-type]
    before = time.perf_counter()
    for round_ in decoding:
        took += time.perf_counter() - before
        tokens += len(round_.tokens)
        owner.append(seqs.index(round_.sequence))
        before = time.perf_counter()
    return {
        "tokens": tokens,
        "rounds": len(owner),
        "seconds": took - watch.seconds,
        "deciding": watch.deciding,
        "owner": owner,
        "expected": watch.rounds,
        "roots": watch.roots,
    }


def interval(values: np.ndarray, owner: np.ndarray) -> list[float]:
    """Bootstrap 95 % interval of the mean, over prompts."""
    rng, prompts = np.random.default_rng(0), np.unique(owner)
    sums, counts = (np.array([w[owner == p].sum() for p in prompts]) for w in (values, np.ones(len(values))))
    picks = rng.integers(len(prompts), size=(4000, len(prompts)))
    means = sums[picks].sum(1) / counts[picks].sum(1)
    return [float(x) for x in np.quantile(means, [0.025, 0.975])]


def summarise(row: dict[str, Any]) -> list[dict[str, Any]]:
    """One line per rule: tokens per round, share of the bound at the root, tokens per second."""
    names, owner = list(row["expected"][0]), np.array(row["owner"])
    values = {n: np.array([e[n] for e in row["expected"]]) for n in names}
    lines = []
    for name in names:
        deciding = row["deciding"][name] / row["rounds"]
        seconds = row["seconds"] / row["rounds"] - row["deciding"][names[0]] / row["rounds"] + deciding
        best = np.mean([r["bound"] for r in row["roots"]])
        line = {
            "temperature": row["temperature"],
            "shape": row["shape"],
            "siblings": row["siblings"],
            "rule": name,
            "lossless": name != resispec_printed.name,
            "tokens_per_round": float(values[name].mean()),
            "interval": interval(values[name], owner),
            "tokens_per_second": float(values[name].mean()) / seconds,
            "milliseconds_per_decision": 1000 * deciding,
            "acceptance": float(np.mean([r[name] for r in row["roots"]])),
            "bound": float(best),
            "share_of_bound": float(np.mean([r[name] for r in row["roots"]]) / best),
            "rounds": row["rounds"],
            "decoded": name == names[0],
            "tokens_per_round_as_decoded": row["tokens"] / row["rounds"] if name == names[0] else None,
        }
        for other in ("rrs_wor", "rrs"):
            if other in values and name != other:
                gain = values[name] - values[other]
                line[f"gain_over_{other}"] = float(gain.mean() / values[other].mean())
                line[f"gain_over_{other}_interval"] = [x / float(values[other].mean()) for x in interval(gain, owner)]
        lines.append(line)
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", required=True)
    options.add_argument("--draft-model", required=True)
    options.add_argument("--prompts", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--limit", type=int, default=8, help="prompts per task")
    options.add_argument("--max-new-tokens", type=int, default=24)
    options.add_argument("--temperatures", default="1.0,0.6")
    options.add_argument("--siblings", default=",".join(k.value for k in KINDS), help="kinds of siblings to draw")
    chosen = options.parse_args()
    journal = chosen.out.with_name(chosen.out.name + ".rows")
    rows = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    target, draft = load(chosen.model), load_draft(chosen.draft_model)
    prompts = [p for p in suites.choose(suites.read(chosen.prompts), chosen.limit) if p.group in TASKS]
    seqs = [api.request(target, p.turns[0], SamplingParams()) for p in prompts]
    for siblings, rules in ((s, r) for s, r in KINDS.items() if s.value in chosen.siblings.split(",")):
        for temperature in map(float, chosen.temperatures.split(",")):
            for shape in SHAPES:
                key = {"temperature": temperature, "shape": shape, "siblings": siblings.value}
                used = rules if shape != "chain" else ONE_CANDIDATE.get(siblings, ())
                if not used or any(key.items() <= row.items() for row in rows):
                    continue
                began = time.perf_counter()
                drafter = DraftModelDrafter(draft, target.vocab_size, siblings=siblings, shape=Shape.parse(SHAPES[shape]))
                settings = {"max_new_tokens": chosen.max_new_tokens, "temperature": temperature, "ignore_eos": True}
                params = [SamplingParams(seed=i, **settings) for i in range(len(seqs))]
                rows.append(key | run(target, seqs, drafter, used, params))
                with journal.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                for line in summarise(rows[-1]):
                    print(
                        f"{temperature} {shape} {line['rule']}: {line['tokens_per_round']:.3f} tokens per round, "
                        f"{line['tokens_per_second']:.2f} tokens/s, share {line['share_of_bound']:.3f}, "
                        f"{line['milliseconds_per_decision']:.1f} ms per decision ({time.perf_counter() - began:.0f} s)",
                        flush=True,
                    )
    report = {
        "lines": [line for row in rows for line in summarise(row)],
        "settings": {k: environment.scrub(str(v)) for k, v in vars(chosen).items()}
        | {"tasks": TASKS, "shapes": SHAPES, "batch_size": len(seqs)},
        "dtype": str(target.dtype).removeprefix("torch."),
        "prompts": [p.id for p in prompts],
        **environment.provenance(environment.typed_as("python", "benchmarks/candidates.py"), target.device),
    }
    chosen.out.write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
