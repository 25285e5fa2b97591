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
from ...methods import MATCH, build_rule
from ...record.pairs import check_pairs
from ...record.recorder import Recorder, all_records, read_records
from ...record.texts import TextRecord
from ...replay import replay
from .. import loop
from ..checkpoint import Checkpoints
from ..disk import put_text
from ..setup import Options
from . import head_lab, model_lab
from .gate import Lengths, Verdict, judge, transfer
from .lab import Lab
from .recipe import RcsdRecipe
from .stages import Stage, domain_of, next_stage, reservoir

RESULT, START = "result.json", "start.json"
_RECORDS_MB, _GROUP = 4096, 16  # texts that are replayed at once


def train_rcsd(recipe: RcsdRecipe, out: Path, options: Options | None = None) -> Path:
    """Train a head further by rounds; returns the folder of the result. Raises a PacelineError that says what is wrong and what to do."""
    options = options or Options()
    lab: Lab = (head_lab if recipe.draft is None else model_lab).open_lab(recipe, out, options)
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
            current = folder / lab.result
    figures = transfer(start, [(r["domains"], r["lengths"]) for r in results])
    return lab.publish(current, {"start": start, "rounds": results, **figures})


def _start(lab: Lab) -> Lengths:
    """What the first head is worth, measured once."""
    found = _read(lab.out / START)
    if found is None:
        lab.say("measuring the drafter on held-out texts")
        found = lab.lengths(lab.load(lab.start))
        put_text(lab.out / START, json.dumps(found) + "\n")
    return found


def _next(lab: Lab, results: Sequence[dict[str, Any]]) -> Stage | None:
    used = sum(r["texts"] for r in results)
    return next_stage(lab.texts, lab.recipe.continual, len(results), used, lab.recipe.optimizer.batch_size)


def run_stage(lab: Lab, stage: Stage, folder: Path, current: Path, before: Lengths, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One round: collect with the current head, train a copy of it, judge the copy."""
    reference = lab.load(current)
    given = lab.recipe.records if stage.number == 0 else None
    records = collect(lab, stage, folder / "records", reference) if given is None else recorded(lab, Path(given), reference)
    pairs = check_pairs(records, str(given or folder / "records"))
    earlier = _earlier(lab, records, results)
    domains = sorted({r.domain for r in records})
    before_these = {domain for r in results for domain in r["domains"]} - set(domains)
    settings = lab.recipe.gate
    after, verdict, attempts = before, Verdict(False, "not trained"), 0
    for attempt in range(1 + settings.retries):
        learner = _trained(lab, folder / f"try-{attempt}", current, reference, records, earlier, 0.5**attempt)
        lab.calibrate(learner)
        after, attempts = lab.lengths(learner), attempt + 1
        verdict = judge(before, after, domains, before_these, settings.most_loss)
        lab.say(f"round {stage.number + 1}, {stage.name}: {'gained' if verdict.passed else 'refused'}: {verdict.reason}")
        if verdict.passed or not settings.enforce:
            break
    deployed = verdict.passed or not settings.enforce
    if deployed:
        lab.save(learner, folder / lab.result)
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


def collect(lab: Lab, stage: Stage, folder: Path, learner: Any) -> list[TextRecord]:
    """The rounds that decoding the stage's texts with this learner takes. Texts that are recorded already are not asked for again."""
    drafter, origin = lab.drafter(learner), lab.origin(learner)
    recorder = Recorder(folder, origin, build_rule(MATCH), limit_mb=_RECORDS_MB)
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


def recorded(lab: Lab, folder: Path, learner: Any) -> list[TextRecord]:
    """The rounds that were recorded elsewhere with this learner. Raises CheckpointMismatch if drafter or target are others."""
    texts = read_records(folder, lab.origin(learner))
    lab.check_records(texts, learner, folder)
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
    lab: Lab, folder: Path, current: Path, reference: Any, records: list[TextRecord], earlier: list[TextRecord], slower: float
) -> Any:
    """A copy of the current learner, trained on these rounds; from the latest checkpoint in the folder on."""
    recipe, learner = lab.recipe, lab.load(current, trained=True)
    run = loop.Run(
        fetch=lab.fetch(learner, records, earlier),
        steps=recipe.continual.steps,
        settings=recipe.optimizer.model_copy(update={"lr": recipe.optimizer.lr * slower}),
        checkpoints=Checkpoints(folder / "checkpoints", recipe.checkpoints.keep),
        log=folder / "log.jsonl",
        save_seconds=60 * recipe.checkpoints.every_minutes,
        stopped=lab.options.stopped,
        say=lab.say,
    )
    loop.train(learner, lab.objective(learner, reference), run)
    return learner.eval().requires_grad_(False)


def _read(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except ValueError:
        raise InvalidRequest(f"{file} is no JSON; delete it, and that round is done again") from None
    return found
