"""What RCSD-style training brings: mean acceptance length on held-out prompts of three domains, greedy and at temperature 1.

A head is left as it is, trained further by distillation, and by preference on the same texts for the same steps; and once each without
the anchor and the mask, with soft labels, another beta, the overlap term, more rounds, and by policy gradient. These learn from the same
recorded rounds of all domains (those with more rounds: from their own); two more pass through the domains in turn, with replay and without.
All heads are judged on the same texts of the target: at temperature 0 and 1 by replaying a tree of 24 nodes (which is what decoding with
`match` accepts), and at temperature 1 also by the expected length of a chain that is drawn from the head and verified by rejection.
Intervals are 95 % over prompts, paired with the control's and with those of the head as it was.

    python benchmarks/rcsd.py --from-run RUN --prompts chat=mt_bench.jsonl math=gsm8k.jsonl code=mbpp.jsonl --work DIR --out FILE.json

`--from-run` is the folder of a `paceline train jetspec` run, whose prompts, answers and features are used. Run the same command again after
an interruption: answers, trained heads and measured rows are in `--work`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.bench import environment, suites
from paceline.heads import formats
from paceline.heads.jetspec import JetSpecHead
from paceline.heads.shipped import head_folder
from paceline.methods import Options, build
from paceline.replay import Text, replay
from paceline.targets.load import load
from paceline.train.anchors import draw
from paceline.train.answers import AnswerFile
from paceline.train.batches import make_batch
from paceline.train.disk import put_text
from paceline.train.examples import Example, from_answers
from paceline.train.features import Tapped, Taps, packs
from paceline.train.prompts import Row
from paceline.train.rcsd.course import train_rcsd
from paceline.train.rcsd.head_lab import quick_copy
from paceline.train.rcsd.recipe import RcsdRecipe
from paceline.train.rcsd.sampled import expected_kept
from paceline.train.recipe import Answers
from paceline.train.regenerate import Regenerator
from paceline.train.setup import Options as RunOptions
from paceline.train.teacher import Teacher

BUDGET, BLOCKS = 24, 16
CONTROL, UNTOUCHED = "distilled", "untouched"
DOMAINS = {
    "chat": ["instruct/dolly", "instruct/self_instruct", "instruct/roleplay"],
    "math": ["gsm8k", "math"],
    "code": ["instruct/code", "mbpp"],
}
Judged = list[tuple[Example, Tapped]]


def variants(chosen: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What each row's recipe says beyond the common one."""
    turns = {"protocol": "domains", "steps": max(1, chosen.steps // len(chosen.domains))}
    return {
        CONTROL: {"preference": {"objective": "distill"}},
        "distilled, HASS's likeliest tokens": {"distillation": {"depth_weights": "exponential", "top_weight": 1.0}}
        | {"preference": {"objective": "distill"}},
        "rcsd": {},
        "rcsd, beta 0.5": {"preference": {"beta": 0.5}},
        "rcsd, without anchor": {"preference": {"anchor": 0.0}},
        "rcsd, without mask": {"preference": {"mask": "none"}},
        "rcsd, without preference": {"preference": {"pref": 0.0}},
        "rcsd, soft labels": {"preference": {"soft": True}},
        "rcsd, overlap": {"preference": {"overlap": 1.0}},
        "rcsd, three rounds": {"continual": {"rounds": 3, "steps": max(1, chosen.steps // 3)}},
        "policy gradient": {"preference": {"objective": "pg"}},
        "rcsd, domains in turn": {"continual": turns},
        "rcsd, domains in turn, without replay": {"continual": turns | {"replay": 0.0}},
    }


def recipe(chosen: argparse.Namespace, own: dict[str, Any], records: Path) -> RcsdRecipe:
    """`records` are the first round's, once they are there, of variants that have one round of all domains."""
    shared = "continual" not in own and records.is_dir()
    common = {
        "model": chosen.model,
        "dtype": "float32",
        "data": {"from_run": str(chosen.from_run)},
        "head": None if chosen.head is None else str(chosen.head),
        "records": str(records) if shared else None,
        "optimizer": {"lr": chosen.lr, "batch_size": chosen.batch_size, "anchors": chosen.anchors, "warmup": 0.1},
        "continual": {"domains": chosen.domains, "steps": chosen.steps} | own.get("continual", {}),
        "preference": own.get("preference", {}),
        "distillation": own.get("distillation", {"depth_weights": "exponential"}),
        "gate": {"retries": 0, "enforce": False},
        "evaluation": {"budget": BUDGET},
    }
    return RcsdRecipe.model_validate(common)


def answers(target: Any, chosen: argparse.Namespace, taps: Taps, temperature: float) -> Judged:
    """The target's answers to the held-out prompts, as many of each domain, with their features in float32."""
    rows = [Row(p.id, domain, p.turns[:1]) for domain, prompts in held_out(chosen) for p in prompts]
    file = AnswerFile(chosen.work / f"held-out-{temperature:g}.jsonl", f"{target.name} {temperature} {chosen.max_new_tokens}")
    settings = Answers(temperatures=[temperature], max_new_tokens=chosen.max_new_tokens, batch_size=24, on_long_prompt="skip")
    Regenerator(target, settings, seed=1, say=say).run(rows, file)
    wanted = {row.id for row in rows}
    examples = [e for e in from_answers(file.answers.values(), 4096) if e.key in wanted and e.trainable]
    return [pair for pack in packs(examples, 2048) for pair in zip(pack, taps.read([e.tokens for e in pack]), strict=True)]


def held_out(chosen: argparse.Namespace) -> Iterator[tuple[str, list[suites.Prompt]]]:
    """Prompts of each domain, evenly from its files."""
    for domain, files in chosen.prompts.items():
        if domain not in chosen.domains:
            raise SystemExit(f"domain {domain!r} is not trained; use {', '.join(chosen.domains)}")
        each = [suites.read(Path(p)) for p in files]
        share = -(-chosen.limit // len(each))
        yield domain, [p for prompts in each for p in prompts[:: max(1, len(prompts) // share)][:share]]


def measure(target: Any, head: JetSpecHead, greedy: Judged, sampled: Judged, teacher: Teacher) -> dict[str, Any]:
    """Raw counts of one head, by prompt, so that rows can be paired."""
    return {
        "greedy": counts(target, head, greedy),
        "sampled": counts(target, head, sampled),
        "expected": {e.key: expected(head, e, t, teacher) for e, t in sampled},
    }


def counts(target: Any, head: JetSpecHead, judged: Judged) -> dict[str, list[int]]:
    """Tokens and rounds of each prompt with a tree of `BUDGET` nodes."""
    drafter, _ = build("jetspec", target, Options(budget=BUDGET, head=quick_copy(head, target)))
    found: dict[str, list[int]] = {e.key: [0, 0] for e, _ in judged}
    for text, round_ in replay(drafter, (Text(e.key, e.task, e.tokens, e.prompt_length, t.features) for e, t in judged), 32):
        found[text.key][0] += len(round_.tokens)
        found[text.key][1] += 1
    return found


def expected(head: JetSpecHead, example: Example, tapped: Tapped, teacher: Teacher) -> list[float]:
    """Expected tokens of a round of a drawn chain, summed over some blocks, and their number."""
    batch = make_batch([example], [tapped], [draw(example, BLOCKS, seed=0, epoch=0)], depth=head.config.depth)
    kept = expected_kept(head, batch, teacher)
    return [float(kept.sum() + len(kept)), len(kept)]


def row(name: str, found: dict[str, dict[str, Any]], domains: dict[str, str]) -> dict[str, Any]:
    """Means with intervals, by domain, and against the control (itself before there is one) and the head as it was."""
    figures: dict[str, Any] = {"variant": name}
    for kind, counted in found[name].items():
        keys = sorted(counted)
        compared = found[name], found.get(CONTROL, found[name]), found[UNTOUCHED]
        own, control, start = (np.array([each[kind][k] for k in keys], dtype=float) for each in compared)
        by_domain = {d: ratio(own[[domains[k] == d for k in keys]]) for d in dict.fromkeys(domains.values())}
        figures[kind] = {"mean": ratio(own), "interval": bootstrap(own), "by_domain": by_domain}
        figures[kind] |= {"against_control": against(own, control), "against_untouched": against(own, start)}
    return figures


def ratio(pairs: np.ndarray) -> float:
    """Tokens over rounds of (prompts, 2)."""
    return round(float(pairs[:, 0].sum() / pairs[:, 1].sum()), 4)


def resampled(pairs: np.ndarray) -> np.ndarray:
    """Ratios over prompts drawn again and again; the same prompts for every row."""
    picks = np.random.default_rng(0).integers(len(pairs), size=(4000, len(pairs)))
    sums = pairs[picks].sum(1)
    return np.asarray(sums[:, 0] / sums[:, 1])


def bootstrap(pairs: np.ndarray) -> list[float]:
    return [round(float(x), 4) for x in np.quantile(resampled(pairs), [0.025, 0.975])]


def against(own: np.ndarray, control: np.ndarray) -> list[float]:
    """The ratio to the control, with its interval over prompts."""
    quantiles = np.quantile(resampled(own) / resampled(control), [0.025, 0.975])
    return [round(float(x), 4) for x in (ratio(own) / ratio(control), *quantiles)]


def every_row(
    chosen: argparse.Namespace, target: Any, start: Path, judged: tuple[Judged, Judged]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any] | None]]:
    """Train and measure each variant: its name, its counts, and what its training said of itself."""
    teacher, records = Teacher(target, None), chosen.work / CONTROL / "stages" / "00-mixed" / "records"
    for name, own in ({UNTOUCHED: None} | variants(chosen)).items():
        if chosen.only and name not in (UNTOUCHED, CONTROL, *chosen.only):
            continue
        folder, rounds, began = chosen.work / name.replace(", ", "-").replace(" ", "-"), None, time.perf_counter()
        if own is not None:
            with torch.enable_grad():
                train_rcsd(recipe(chosen, own, records if name != CONTROL else chosen.work / "none"), folder, RunOptions(say=say))
            rounds = formats.read(folder / "head").card["rcsd"]
        trained, counted = time.perf_counter(), folder / "counts.json"
        if not counted.exists():
            head = formats.load(start if own is None else folder / "head", target, torch.float32)
            put_text(counted, json.dumps(measure(target, head, *judged, teacher)))
        say(f"{name}: {trained - began:.0f} s of training, {time.perf_counter() - trained:.0f} s of judging")
        yield name, json.loads(counted.read_text()), rounds


def say(message: str) -> None:
    print(message, flush=True)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--head", type=Path, help="folder; the default is the shipped one")
    options.add_argument("--from-run", type=Path, required=True)
    options.add_argument("--prompts", nargs="+", type=named, required=True, help="DOMAIN=FILE[,FILE]")
    options.add_argument(
        "--domains", nargs="+", type=named, default=list(DOMAINS.items()), help="DOMAIN=TASK[,TASK] of the training prompts"
    )
    options.add_argument("--limit", type=int, default=24, help="held-out prompts per domain")
    options.add_argument("--max-new-tokens", type=int, default=80)
    options.add_argument("--steps", type=int, default=72, help="of each variant")
    options.add_argument("--batch-size", type=int, default=4)
    options.add_argument("--anchors", type=int, default=32, help="rounds of a text in a step")
    options.add_argument("--lr", type=float, default=1e-4)
    options.add_argument("--only", nargs="+", help="variants besides the control")
    options.add_argument("--work", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    chosen = options.parse_args(words)
    chosen.prompts, chosen.domains = dict(chosen.prompts), dict(chosen.domains)
    return chosen


def named(word: str) -> tuple[str, list[str]]:
    """`NAME=A,B` as a name and its parts."""
    name, _, parts = word.partition("=")
    return name, parts.split(",")


def main() -> None:
    chosen = parse()
    target = load(chosen.model, dtype="float32")
    start = head_folder(chosen.head, target.name)
    taps = Taps(target, formats.load(start, target).config.target_layer_ids)
    judged = answers(target, chosen, taps, 0.0), answers(target, chosen, taps, 1.0)
    domains = {e.key: e.task for each in judged for e, _ in each}
    found, report = dict[str, Any](), {"courses": dict[str, Any]()}
    for name, counted, rounds in every_row(chosen, target, start, judged):
        found[name] = counted
        report["courses"] |= {name: rounds} if rounds else {}
        report |= {
            "rows": [row(n, found, domains) for n in found],
            "settings": {k: environment.scrub(str(v)) for k, v in vars(chosen).items() if k not in ("work", "out", "only")},
            "prompts": {d: list(domains.values()).count(d) for d in chosen.prompts},
            **environment.provenance(environment.typed_as("python", "benchmarks/rcsd.py"), target.device),
        }
        put_text(chosen.out, json.dumps(report) + "\n")
        say(f"== {name}: " + ", ".join(f"{kind} {report['rows'][-1][kind]['mean']:.3f}" for kind in counted))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
