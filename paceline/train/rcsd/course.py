"""RCSD-style training (docs/methods/rcsd.md): rounds of collecting on-policy, training with replay, and judging.

The folder of a run: `recipe.yaml`, `run.json`, answers and features as for every head, `start.json`, and in `stages/NN-NAME` a round's
records, checkpoints and logs, its head if it was deployed, and `result.json`, with which the round is done. `head/` is the last head that
was deployed. A run that was interrupted, also in the middle of a round, goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import InvalidRequest
from ...heads.jetspec import JetSpecHead
from ...methods import Options as MethodOptions
from ...methods import build
from ...record.pairs import check_pairs
from ...record.recorder import Recorder, all_records, read_records
from ...record.texts import TextRecord
from ...replay import replay
from .. import loop
from ..checkpoint import Checkpoints
from ..disk import put_text
from ..setup import Options
from ..step import Objective
from . import publish
from .batches import Mix
from .gate import Lengths, Verdict, judge, transfer
from .lab import Lab, open_lab
from .objective import Distilled, Preferred, Rewarded
from .recipe import RcsdRecipe
from .stages import Stage, domain_of, next_stage, reservoir

RESULT, START = "result.json", "start.json"
_RECORDS_MB, _GROUP = 4096, 16  # texts that are replayed at once


def train_rcsd(recipe: RcsdRecipe, out: Path, options: Options | None = None) -> Path:
    """Train a head further by rounds; returns the folder of the result. Raises a PacelineError that says what is wrong and what to do."""
    options = options or Options()
    lab = open_lab(recipe, out, options)
    if options.data_only:
        return out
    current, results = lab.start, list[dict[str, Any]]()
    start = _start(lab)
    while (stage := _next(lab, results)) is not None:
        folder = out / "stages" / f"{stage.number:02d}-{stage.name}"
        known = results[-1]["lengths"] if results else start
        result = _read(folder / RESULT) or run_stage(lab, stage, folder, current, known, results)
        results.append(result)
        if result["deployed"]:
            current = folder / "head"
    figures = transfer(start, [(r["domains"], r["lengths"]) for r in results])
    return publish.publish(lab, current, {"start": start, "rounds": results, **figures})


def _start(lab: Lab) -> Lengths:
    """What the first head is worth, measured once."""
    found = _read(lab.out / START)
    if found is None:
        lab.say("measuring the head on held-out texts")
        found = lab.lengths(lab.head(lab.start))
        put_text(lab.out / START, json.dumps(found) + "\n")
    return found


def _next(lab: Lab, results: Sequence[dict[str, Any]]) -> Stage | None:
    used = sum(r["texts"] for r in results)
    return next_stage(lab.texts, lab.recipe.continual, len(results), used, lab.recipe.optimizer.batch_size)


def run_stage(lab: Lab, stage: Stage, folder: Path, current: Path, before: Lengths, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One round: collect with the current head, train a copy of it, judge the copy."""
    reference = lab.head(current)
    given = lab.recipe.records if stage.number == 0 else None
    records = collect(lab, stage, folder / "records", reference) if given is None else recorded(lab, Path(given), reference)
    pairs = check_pairs(records, str(given or folder / "records"))
    earlier = _earlier(lab, records, results)
    domains = sorted({r.domain for r in records})
    before_these = {domain for r in results for domain in r["domains"]} - set(domains)
    settings = lab.recipe.gate
    after, verdict, attempts = before, Verdict(False, "not trained"), 0
    for attempt in range(1 + settings.retries):
        head = _trained(lab, folder / f"try-{attempt}", current, reference, records, earlier, 0.5**attempt)
        lab.calibrate(head)
        after, attempts = lab.lengths(head), attempt + 1
        verdict = judge(before, after, domains, before_these, settings.most_loss)
        lab.say(f"round {stage.number + 1}, {stage.name}: {'gained' if verdict.passed else 'refused'}: {verdict.reason}")
        if verdict.passed or not settings.enforce:
            break
    deployed = verdict.passed or not settings.enforce
    if deployed:
        lab.save(head, folder / "head")
    result = {
        "name": stage.name,
        "domains": domains,
        "texts": len(records) if given is None else 0,
        "verify_rounds": sum(len(r.rounds) for r in records),
        "pairs": pairs,
        "attempts": attempts,
        "passed": verdict.passed,
        "reason": verdict.reason,
        "deployed": deployed,
        "measured": after,
        "lengths": after if deployed else before,
    }
    put_text(folder / RESULT, json.dumps(result, indent=2) + "\n")
    return result


def collect(lab: Lab, stage: Stage, folder: Path, head: JetSpecHead) -> list[TextRecord]:
    """The rounds that decoding the stage's texts with this head takes. Texts that are recorded already are not asked for again."""
    drafter, rule = build("jetspec", lab.target, MethodOptions(budget=lab.recipe.evaluation.budget, head=head))
    origin = lab.origin(head)
    recorder = Recorder(folder, origin, rule, limit_mb=_RECORDS_MB)
    known = {text.key: text for text in read_records(folder, origin)}
    chosen, verified = list[TextRecord](), 0
    for start in range(0, len(stage.texts), _GROUP):
        if stage.most is not None and verified >= stage.most:
            break
        group = stage.texts[start : start + _GROUP]
        for text, round_ in replay(drafter, lab.as_texts(e for e in group if e.key not in known), _GROUP):
            if lab.options.stopped():
                raise KeyboardInterrupt
            if (finished := recorder.add(round_, text.domain, text.key)) is not None:
                known[text.key] = finished
        chosen += [known[e.key] for e in group]
        verified = sum(len(text.rounds) for text in chosen)
        lab.say(f"collected {verified} rounds of {len(chosen)} of {len(stage.texts)} texts")
    return chosen


def recorded(lab: Lab, folder: Path, head: JetSpecHead) -> list[TextRecord]:
    """The rounds that were recorded elsewhere with this head. Raises CheckpointMismatch if head or target are others."""
    texts = read_records(folder, lab.origin(head))
    lab.check_rows(texts, folder)
    return [replace(text, domain=domain_of(text.domain, lab.recipe.continual.domains) or text.domain) for text in texts]


def _earlier(lab: Lab, records: Sequence[TextRecord], results: Sequence[dict[str, Any]]) -> list[TextRecord]:
    """Replayed texts, those of this round left out."""
    if not lab.recipe.continual.replay:
        return []
    now = {text.key for text in records}
    folders = sorted((lab.out / "stages").glob("[0-9]*"))[: len(results)]
    given = lab.recipe.records
    past = [all_records(Path(given) if given and not number else f / "records") for number, f in enumerate(folders)]
    kept = reservoir(past, lab.recipe.continual.reservoir, lab.recipe.seed)
    return [text for text in kept if text.key not in now]


def _trained(
    lab: Lab, folder: Path, current: Path, reference: JetSpecHead, records: list[TextRecord], earlier: list[TextRecord], slower: float
) -> JetSpecHead:
    """A copy of the current head, trained on these rounds; from the latest checkpoint in the folder on."""
    recipe, head = lab.recipe, lab.head(current, trained=True)
    optimizer = recipe.optimizer
    mix = Mix(
        records, earlier, lab.read, head.config.depth, recipe.continual.replay,
        optimizer.batch_size, optimizer.micro_batch, optimizer.anchors, recipe.seed,
    )  # fmt: skip
    run = loop.Run(
        fetch=mix.step,
        steps=recipe.continual.steps,
        settings=optimizer.model_copy(update={"lr": optimizer.lr * slower}),
        checkpoints=Checkpoints(folder / "checkpoints", recipe.checkpoints.keep),
        log=folder / "log.jsonl",
        save_seconds=60 * recipe.checkpoints.every_minutes,
        stopped=lab.options.stopped,
        say=lab.say,
    )
    loop.train(head, objective(lab, head, reference), run)
    return head.eval().requires_grad_(False)


def objective(lab: Lab, head: JetSpecHead, reference: JetSpecHead) -> Objective:
    """What the recipe's steps minimise."""
    settings, distillation = lab.recipe.preference, lab.distillation(head)
    if settings.objective == "distill":
        return Distilled(distillation)
    if settings.objective == "pg":
        return Rewarded(settings, distillation)
    return Preferred(settings, distillation, lab.teacher(head), reference)


def _read(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except ValueError:
        raise InvalidRequest(f"{file} is no JSON; delete it, and that round is done again") from None
    return found
