"""Mean acceptance length of draft heads, tree builders and budgets, alone and merged with lookup, on the target's own greedy text.

The target answers all prompts once. A drafter is then asked at every place where decoding would ask it, and what its tree holds of the
known text is what greedy verification would accept: the counts are those of decoding, without its forwards. `--check N` decodes N prompts
for real and fails if the rounds differ; in float32 they do not.

    python benchmarks/heads.py --model smollm2 --heads shipped --prompts spec_bench.jsonl --limit 8 --out FILE.json

A head may be given more than once, as NAME=FOLDER; the first one is shown with every builder and budget, the others with the largest
budget of the shipped setting (24) only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence as Request
from paceline.targets.load import load
from paceline.train.regenerate import Recording

BUDGET = 24
BUDGETS = (8, 16, 24, 32, 64)
_BATCH = 24


@dataclass
class Text:
    """What the target says to a prompt, and the features of all tokens but the last."""

    id: str
    task: str
    prompt_length: int
    tokens: list[int]
    features: torch.Tensor


@dataclass
class Count:
    """Rounds by how many drafted tokens each kept, by prompt."""

    kept: list[list[int]] = field(default_factory=list)
    nodes: int = 0

    def figures(self, texts: Sequence[Text]) -> dict[str, Any]:
        rounds = np.array([len(k) for k in self.kept])
        tokens = np.array([sum(k) + len(k) for k in self.kept])
        every = np.array([n for k in self.kept for n in k])
        tasks = sorted({t.task for t in texts})
        own = {task: np.array([t.task == task for t in texts]) for task in tasks}
        return {
            "mean_acceptance_length": float(tokens.sum() / rounds.sum()),
            "interval": interval(tokens, rounds),
            "by_task": {task: round(float(tokens[own[task]].sum() / rounds[own[task]].sum()), 4) for task in tasks},
            "acceptance_at": [round(float((every >= d).mean()), 4) for d in range(1, int(every.max(initial=0)) + 1)],
            "nodes_per_round": round(self.nodes / max(int(rounds.sum()), 1), 2),
            "rounds": int(rounds.sum()),
            "tokens": int(tokens.sum()),
        }


def interval(tokens: np.ndarray, rounds: np.ndarray) -> list[float]:
    """Bootstrap 95 % interval of the pooled ratio, over prompts."""
    picks = np.random.default_rng(0).integers(len(tokens), size=(4000, len(tokens)))
    return [round(float(x), 4) for x in np.quantile(tokens[picks].sum(1) / rounds[picks].sum(1), [0.025, 0.975])]


def answer(target: Any, prompts: Sequence[suites.Prompt], max_new_tokens: int, layer_ids: Sequence[int]) -> list[Text]:
    """The target's greedy answers, with features of these layers."""
    drafter, rule = methods.build("none", target)
    params = SamplingParams(max_new_tokens=max_new_tokens)
    requests = {id(r): (p, r) for p in prompts if (r := api.request(target, p.turns[0], params))}
    found: dict[str, Text] = {}
    for round_ in _finished(target, Recording(drafter, layer_ids), rule, [r for _, r in requests.values()]):
        prompt, seq = requests[id(round_.sequence)]
        assert seq.features is not None
        found[prompt.id] = Text(prompt.id, prompt.group, seq.prompt_length, list(seq.tokens), seq.features.clone())
    return [found[p.id] for p in prompts]


def _finished(target: Any, drafter: Any, rule: Any, seqs: list[Request]) -> Iterator[engine.Round]:
    """The last round of each sequence, before its memory is given back."""
    waiting, live = list(seqs), []
    while waiting or live:
        live += [waiting.pop(0) for _ in range(min(_BATCH - len(live), len(waiting)))]
        for round_ in engine.rounds(target, drafter, rule, live):
            if round_.finish_reason:
                yield round_
                engine.release(target, round_.sequence)
                live.remove(round_.sequence)
                if waiting:
                    live.append(waiting.pop(0))


def replay(drafter: Any, texts: Sequence[Text], layer_ids: Sequence[int]) -> Count:
    """Ask a drafter wherever greedy decoding of these texts would."""
    count, seqs = Count([[] for _ in texts]), []
    for slot, text in enumerate(texts):
        seq = Request(text.tokens[: text.prompt_length], SamplingParams(max_new_tokens=len(text.tokens) - text.prompt_length))
        seq.slot = slot
        seq.keep_features(0, layer_ids)
        seqs.append(seq)
    while live := [i for i, seq in enumerate(seqs) if seq.finish_reason is None]:
        for i in live:
            seqs[i].add_features(texts[i].features[seqs[i].num_features : len(seqs[i].tokens) - 1])
        for i, draft in zip(live, drafter.propose([seqs[i] for i in live]), strict=True):
            known = len(seqs[i].tokens)
            path = draft.tree.follow([seqs[i].root, *texts[i].tokens[known:-1]])
            new = texts[i].tokens[known : known + len(path)]
            seqs[i].extend(new[:-1], new[-1])
            count.kept[i].append(len(new) - 1)
            count.nodes += len(draft.tree)
    return count


def check(target: Any, build: Any, texts: Sequence[Text], max_new_tokens: int, layer_ids: Sequence[int]) -> None:
    """Decode for real; the rounds must be those of the replay."""
    want = [len(k) for k in replay(build(), texts, layer_ids).kept]
    params = SamplingParams(max_new_tokens=max_new_tokens)
    seqs = [api.request(target, t.tokens[: t.prompt_length], params) for t in texts]
    owners = [r.sequence for r in engine.stream(target, build(), methods.build("none", target)[1], seqs, _BATCH)]
    got = [sum(o is s for o in owners) for s in seqs]
    assert got == want, f"decoding took {got} rounds, the replay {want}"
    assert [s.tokens for s in seqs] == [t.tokens for t in texts], "decoding with the head gave another text"


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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--heads", nargs="+", default=["shipped"], help="NAME=FOLDER, or `shipped`")
    options.add_argument("--prompts", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--limit", type=int, default=8, help="prompts per task")
    options.add_argument("--max-new-tokens", type=int, default=128)
    options.add_argument("--check", type=int, default=6, help="prompts to decode for real")
    chosen = options.parse_args()
    target = load(chosen.model, dtype="float32")
    heads = {n: ready_head(target, f or None) for n, _, f in (h.partition("=") for h in chosen.heads)}
    layer_ids = next(iter(heads.values())).config.target_layer_ids
    if any(h.config.target_layer_ids != layer_ids for h in heads.values()):
        raise SystemExit("the heads read other layers of the target; compare them in runs of their own")
    prompts = suites.choose(suites.read(chosen.prompts), chosen.limit)
    texts = answer(target, prompts, chosen.max_new_tokens, layer_ids)
    print(f"{len(texts)} texts, {sum(len(t.tokens) - t.prompt_length for t in texts)} tokens", flush=True)
    lines = []
    for number, (name, build) in enumerate(settings(heads)):
        if number == 0 and chosen.check:
            check(target, build, texts[: chosen.check], chosen.max_new_tokens, layer_ids)
        lines.append(name | replay(build(), texts, layer_ids).figures(texts))
        print(name, round(lines[-1]["mean_acceptance_length"], 3), lines[-1]["by_task"], flush=True)
    report = {
        "lines": lines,
        "settings": {k: environment.scrub(str(v)) for k, v in vars(chosen).items()},
        "dtype": "float32",
        "prompts": [t.id for t in texts],
        **environment.provenance(environment.typed_as("python", "benchmarks/heads.py"), target.device),
    }
    chosen.out.write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
