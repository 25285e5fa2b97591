"""The tuner: measure the target, its drafters and their acceptance, then choose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ..bench import environment
from ..cost import SIZES, CostCurve, measure_cost_curve
from ..draft import Draft
from ..drafters.part import Known, Part
from ..live_cost import LiveCosts
from ..options import Options
from ..origin import origin_of
from ..replay import Text
from ..table import DRAFTERS, adaptive
from . import choose
from .assemble import available, model_of
from .choose import Choice, Line
from .policies import Clock, Fixed, Price, Remembered, price
from .profile import Profile, Tuned, machine
from .replay import Count, answers, counted

BUDGETS = (4, 6, 8, 12, 16, 32)
BATCHES = {1: SIZES, 4: (1, 2, 4, 8), 8: (1, 2, 4, 8)}  # batch size -> nodes of each sequence that are timed
Tell = Callable[[str, int, int], Any]  # hears what is being done, how far it is and how far it has to go


@dataclass(frozen=True)
class Tuning:
    """All that was found."""

    lines: list[Line]
    choices: list[Choice]
    lacking: Mapping[str, str]  # drafters that cannot be built here, and why
    left_out: Mapping[str, str]  # drafters that could not be measured, and why
    adaptive: Mapping[str, Any]  # what the adaptive drafter made of the same texts, by the measured costs
    texts: list[Text]
    profile: Profile
    seconds: float


def tune(target: Any, prompts: Mapping[str, Sequence[int]], options: Options, *, max_new_tokens: int, tell: Tell) -> Tuning:
    """Measure everything on this target and these prompts (id -> token ids). Raises a PacelineError for options that cannot be used."""
    began = time.perf_counter()
    found, lacking = available(target, replace(options, budget=options.budget or BUDGETS[-1]))  # untrimmed: the replay cuts them
    drafters = {name: d for name, d in found.items() if not DRAFTERS[name].on_target}
    left_out = dict.fromkeys(found.keys() - drafters.keys(), "it drafts with the target's own layers, which a replay has not: use bench")
    cost = _costs(target, tell)
    layer_ids = tuple(sorted({i for d in drafters.values() for i in d.target_layer_ids}))
    tokens, wanted = 0, max_new_tokens * len(prompts)

    def told(count: int) -> None:
        nonlocal tokens
        tokens += count
        tell("answering", min(tokens, wanted), wanted)

    texts = answers(target, prompts, max_new_tokens, layer_ids, tell=told)
    tell("answering", wanted, wanted)
    clock = Clock()
    known = {n: Remembered(d, price(d, texts, layer_ids), clock) for n, d in drafters.items()}
    lines = [choose.plain(cost), *_candidates(known, cost, (texts, layer_ids), options, tell)]
    figures, learnt = _adaptive(known, cost, (texts, layer_ids))
    choices = [choose.choose(lines, cost, batch) for batch in cost]
    tuned = {name: Tuned(model_of(drafters[name]), part.known.record) for name, part in learnt.items()}
    profile = Profile(
        origin_of(target, "none"),
        str(target.dtype).removeprefix("torch."),
        machine(target.device),
        environment.versions(),
        datetime.now(UTC).isoformat(timespec="seconds"),
        cost,
        tuned,
        {str(c.batch_size): {"options": c.line.options, "reason": c.reason} for c in choices},
    )
    return Tuning(lines, choices, lacking, left_out, figures, texts, profile, time.perf_counter() - began)


def _costs(target: Any, tell: Tell) -> dict[int, CostCurve]:
    cost = {}
    for done, (batch, sizes) in enumerate(BATCHES.items()):
        tell("timing forwards", done, len(BATCHES))
        cost[batch] = measure_cost_curve(target, sizes, batch=batch)
    tell("timing forwards", len(BATCHES), len(BATCHES))
    return cost


def _teams(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Each drafter alone, and each dear one with the cheap ones."""
    cheap = tuple(name for name in names if DRAFTERS[name].cheap)
    yield from ((name,) for name in names)
    if cheap:
        yield from ((*cheap, name) for name in names if name not in cheap)


def _candidates(
    known: Mapping[str, Remembered],
    cost: Mapping[int, CostCurve],
    texts: tuple[Sequence[Text], Sequence[int]],
    options: Options,
    tell: Tell,
) -> list[Line]:
    """Replay every team at every budget."""
    budgets = [b for b in BUDGETS if options.budget is None or b <= options.budget] or [options.budget or BUDGETS[-1]]
    plans = [(team, budget) for team in _teams(list(known)) for budget in reversed(budgets)]  # the largest first: it fills the memory
    lines = []
    for done, (team, budget) in enumerate(plans):
        tell("replaying drafters", done, len(plans))
        count = counted(Fixed([known[n] for n in team], budget), *texts)
        lines.append(_line("+".join(team), budget, count, [known[n].price for n in team], cost))
    tell("replaying drafters", len(plans), len(plans))
    return sorted(lines, key=lambda x: (x.method, x.budget or 0))


def _line(method: str, budget: int, count: Count, prices: Sequence[Price], cost: Mapping[int, CostCurve]) -> Line:
    drafting = {batch: sum(p(batch) for p in prices) for batch in cost}
    return choose.line(method, budget, length=count.mean_acceptance_length, nodes=count.nodes, drafting=drafting, cost=cost)


def _adaptive(
    known: Mapping[str, Remembered], cost: Mapping[int, CostCurve], texts: tuple[Sequence[Text], Sequence[int]]
) -> tuple[dict[str, Any], dict[str, Part]]:
    """Let the adaptive drafter go through the texts one after another, on a clock of measured costs: what it has learnt of each drafter by
    then is what it will start from."""
    clock = next((r.clock for r in known.values()), Clock())
    parts = {name: Part(name, r, Known(dict(r.price.seconds), r.price.catch_up)) for name, r in known.items()}
    drafter, began, count = adaptive(list(parts.values()), LiveCosts(cost), clock=clock), clock.now, Count()

    def verified(drafts: list[Draft]) -> None:
        clock.now += cost[1](sum(len(d.tree) for d in drafts))

    for slot, text in enumerate(texts[0]):
        own = counted(drafter, [text], texts[1], first_slot=slot, after=verified)
        count.kept += own.kept
        count.nodes += own.nodes
    seconds = max(clock.now - began, 1e-9)
    figures = {
        "mean_acceptance_length": count.mean_acceptance_length,
        "nodes_per_round": count.nodes_per_round,
        "tokens_per_second": count.tokens / seconds,
        "speedup": count.tokens * cost[1](1) / seconds,
    }
    return figures, parts
