"""Mean acceptance length of draft heads, tree builders and budgets, alone and merged with lookup, on the target's own greedy text.

The target answers all prompts once. A drafter is then asked at every place where decoding would ask it, and what its tree holds of the
known text is what greedy verification would accept: the counts are those of decoding, without its forwards. `--check N` decodes N prompts
for real and fails if the text differs; in float32 it does not, in bfloat16 near-ties can be rounded otherwise.

    python benchmarks/heads.py --model smollm2 --heads shipped --prompts spec_bench.jsonl --limit 8 --out FILE.json

A head may be given more than once, as NAME=FOLDER; the first one is shown with every builder and budget, the others with the largest
budget of the shipped setting (24) only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline import api, engine, methods
from paceline.bench import environment, suites
from paceline.drafters.jetspec import JetSpecDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.merge import MergedDrafter
from paceline.heads.decode import ready_head
from paceline.heads.shipped import head_folder
from paceline.replay import Text
from paceline.sampling import SamplingParams
from paceline.targets.load import load
from paceline.tune.replay import BATCH, Count, answers, counted

BUDGET = 24
BUDGETS = (8, 16, 24, 32, 64)


def figures(count: Count, tasks: Sequence[str]) -> dict[str, Any]:
    """`tasks` are those of the texts."""
    rounds = np.array([len(k) for k in count.kept])
    tokens = np.array([sum(k) + len(k) for k in count.kept])
    every = np.array([n for k in count.kept for n in k])
    own = {task: np.array([t == task for t in tasks]) for task in sorted(set(tasks))}
    return {
        "mean_acceptance_length": count.mean_acceptance_length,
        "interval": interval(tokens, rounds),
        "by_task": {task: round(float(tokens[of].sum() / rounds[of].sum()), 4) for task, of in own.items()},
        "acceptance_at": [round(float((every >= d).mean()), 4) for d in range(1, int(every.max(initial=0)) + 1)],
        "nodes_per_round": round(count.nodes / max(count.rounds, 1), 2),
        "rounds": count.rounds,
        "tokens": count.tokens,
    }


def interval(tokens: np.ndarray, rounds: np.ndarray) -> list[float]:
    """Bootstrap 95 % interval of the pooled ratio, over prompts."""
    picks = np.random.default_rng(0).integers(len(tokens), size=(4000, len(tokens)))
    return [round(float(x), 4) for x in np.quantile(tokens[picks].sum(1) / rounds[picks].sum(1), [0.025, 0.975])]


def check(target: Any, build: Any, texts: Sequence[Text], max_new_tokens: int, layer_ids: Sequence[int]) -> dict[str, int]:
    """Decode for real: the texts must be the target's own, and the rounds those of the replay but for one in a hundred, where features that
    were computed in a tree are rounded otherwise and tip a near-tie of the head."""
    want = [len(k) for k in counted(build(), texts, layer_ids).kept]
    params = SamplingParams(max_new_tokens=max_new_tokens)
    seqs = [api.request(target, t.tokens[: t.prompt_length], params) for t in texts]
    owners = [r.sequence for r in engine.stream(target, build(), methods.build_rule("match"), seqs, BATCH)]
    got = [sum(o is s for o in owners) for s in seqs]
    assert [s.tokens for s in seqs] == [t.tokens for t in texts], "decoding with the head gave another text"
    assert sum(abs(g - w) for g, w in zip(got, want, strict=True)) <= sum(want) / 100, f"decoding took {got} rounds, the replay {want}"
    return {"texts": len(texts), "same_texts": len(texts), "rounds": sum(got), "rounds_of_the_replay": sum(want)}


def settings(heads: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """All that is compared: what it is called, and how to build it."""

    def jetspec(head: Any, budget: int, builder: str = "best_first") -> Any:
        return lambda: JetSpecDrafter(head, budget=budget, builder=builder)

    def merged(head: Any, budget: int) -> Any:
        return lambda: MergedDrafter([LookupDrafter(budget=budget), JetSpecDrafter(head, budget=budget)], budget)

    first, *others = heads.items()
    for budget in BUDGETS:
        for builder in ("best_first", "all_children"):
            yield {"head": first[0], "method": "jetspec", "builder": builder, "budget": budget}, jetspec(first[1], budget, builder)
        yield {"head": first[0], "method": "lookup+jetspec", "builder": "best_first", "budget": budget}, merged(first[1], budget)
    yield {"head": first[0], "method": "jetspec", "builder": "chain", "budget": BUDGET}, jetspec(first[1], BUDGET, "chain")
    yield {"head": None, "method": "lookup", "builder": None, "budget": BUDGET}, lambda: LookupDrafter(budget=BUDGET)
    for name, head in others:
        yield {"head": name, "method": "jetspec", "builder": "best_first", "budget": BUDGET}, jetspec(head, BUDGET)
        yield {"head": name, "method": "lookup+jetspec", "builder": "best_first", "budget": BUDGET}, merged(head, BUDGET)


def facts(head: Any, folder: Path) -> dict[str, Any]:
    """What a head is, and what it learnt from as its card says."""
    shape = {k: getattr(head.config, k) for k in ("depth", "draft_size", "markov_rank", "last_feature")}
    if not (file := folder / "card.json").exists():
        return shape | {"learns_prompts": False}
    card = json.loads(file.read_text())
    training = card["training"]
    return {
        "parameters": card["parameters"],
        **shape,
        **{k: card["data"][k] for k in ("answer_tokens", "answers_regenerated", "sequences")},
        "learns_prompts": training["recipe"]["data"]["learn_prompts"],
        "steps": training["steps"],
        "minutes": round(training["seconds"] / 60, 1),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--dtype", default="float32")
    options.add_argument("--heads", nargs="+", default=["shipped"], help="NAME=FOLDER, or `shipped`")
    options.add_argument("--prompts", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--limit", type=int, default=8, help="prompts per task")
    options.add_argument("--max-new-tokens", type=int, default=128)
    options.add_argument("--check", type=int, default=0, help="prompts to decode for real")
    chosen = options.parse_args()
    target = load(chosen.model, dtype=chosen.dtype)
    folders = {n: head_folder(f or None, target.name) for n, _, f in (h.partition("=") for h in chosen.heads)}
    heads = {name: ready_head(target, folder) for name, folder in folders.items()}
    layer_ids = next(iter(heads.values())).config.target_layer_ids
    if any(h.config.target_layer_ids != layer_ids for h in heads.values()):
        raise SystemExit("the heads read other layers of the target; compare them in runs of their own")
    prompts = suites.choose(suites.read(chosen.prompts), chosen.limit)
    encoded = {p.id: api.encode(target, p.turns[0]) for p in prompts}
    texts, tasks = answers(target, encoded, chosen.max_new_tokens, layer_ids), [p.group for p in prompts]
    print(f"{len(texts)} texts, {sum(len(t.tokens) - t.prompt_length for t in texts)} tokens", flush=True)
    lines, checked = [], None
    for number, (name, build) in enumerate(settings(heads)):
        if number == 0 and chosen.check:
            checked = check(target, build, texts[: chosen.check], chosen.max_new_tokens, layer_ids)
        lines.append(name | figures(counted(build(), texts, layer_ids), tasks))
        print(name, round(lines[-1]["mean_acceptance_length"], 3), lines[-1]["by_task"], flush=True)
    report = {
        "lines": lines,
        "heads": {name: facts(head, folders[name]) for name, head in heads.items()},
        "settings": {k: environment.scrub(str(v)) for k, v in vars(chosen).items()},
        "dtype": str(target.dtype).removeprefix("torch."),
        "checked": checked,
        "prompts": [t.key for t in texts],
        **environment.provenance(environment.typed_as("python", "benchmarks/heads.py"), target.device),
    }
    chosen.out.write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
