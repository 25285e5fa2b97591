"""Is a rule lossless as it says, how much does it accept, and how much could it? `paceline audit`, and the same on given laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..draft import Siblings
from ..errors import InvalidRequest
from ..methods import Options, build_rule, parse
from ..rules.walk import Rule
from ..sampling import Random, SamplingParams
from ..stats import Stats
from ..targets.hf import HFTarget
from . import verdict
from .capture import FINE, Recorder, Visit
from .equality import equality
from .given import laws_of
from .laws import Laws, fold
from .lawtest import POWER, Finding
from .passes import Tell, decode_all
from .price import KEYS, price
from .verdict import Advance, Verdict

ROWS = 100  # captured rows that are replayed and priced
LEAST = 100  # replays of a row: with fewer the cells of the chi-square test would be too coarse
LIMIT = 1  # prompts per task
REPLAYS = 10_000
_APART = 1 << 32  # between the seeds of the replays and those of the prompts
Report = dict[str, Any]


def _unheard(doing: str, done: int, of: int) -> None:
    """Nobody wants to know how far it is."""


@dataclass(frozen=True)
class Plan:
    """How each prompt is decoded and how much is replayed."""

    temperature: float = 0.8
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 64
    seed: int = 0
    replays: int = REPLAYS

    def __post_init__(self) -> None:
        self.params(0)  # raises what is wrong with them
        if self.seed < 0:
            raise InvalidRequest(f"seed is {self.seed}; it must be 0 or positive")
        if self.replays < LEAST:
            raise InvalidRequest(f"replays is {self.replays}; it must be at least {LEAST}")

    def params(self, index: int) -> SamplingParams:
        """Of one prompt. Each has its own seed, for equal seeds would make their draws depend on each other."""
        seed = self.seed + index if self.temperature else None
        return SamplingParams(self.max_new_tokens, temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, seed=seed)


def audit(
    target: HFTarget, method: str, options: Options, prompts: dict[str, list[int]], plan: Plan, advance: Advance = _unheard
) -> Report:
    """Greedy equality, the distribution test and the price of a method on these prompts (id -> token ids).

    At temperature 0 only the first. Raises IncompatibleRule before the first token if drafter and rule do not fit.
    """
    rule = build_rule(parse(method)[1], options, target=target)
    recorder = Recorder(rule, np.random.default_rng(plan.seed))
    sampled = [plan.params(i) for i in range(len(prompts))] if plan.temperature else []
    tell = _counted((3 if sampled else 2) * len(prompts) * plan.max_new_tokens, advance)
    done = decode_all(target, (method, options), prompts, sampled, max_new_tokens=plan.max_new_tokens, recorder=recorder, tell=tell)
    same = equality(target, done.plain, done.greedy, prompts)
    report = {"method": method, "rule": rule.name, "lossless": rule.lossless}
    failed = same["greedy_failures"] > 0
    if not sampled:
        untested = dict.fromkeys(("power", "p_values", "control", *KEYS, "tokens_per_round"))
        remark = ["temperature 0: only greedy equality was tested, no distribution"]
        return {**report, "lossless_tests": "failed" if failed else "passed", **untested, **same, "warnings": remark}
    rows = _chosen([v.laws for v in recorder.visits if v.laws is not None], plan)
    found, priced = _examine(rule, rows, plan, advance, recorder.visits, failed)
    return {**report, **_told(found), **priced, **_decoded(recorder.visits, done.stats), **same}


def audit_laws(
    rule: Rule,
    p: Any,
    q: Any,
    k: int,
    *,
    siblings: Siblings | None = None,
    replays: int = REPLAYS,
    seed: int = 0,
    advance: Advance = _unheard,
) -> Report:
    """The replayed part of the distribution test and the price of a rule on given laws.

    Args: p, q (V,) or (R, V), the target's and the draft's law of each row; `k` children per node; `siblings` is how they are
    chosen, by default as `draft_model` does for this rule; fixed ones are the k likeliest of q.
    Raises InvalidRequest unless the rows are laws of one shape and the rule can verify such children.
    """
    plan = Plan(replays=replays, seed=seed)
    rows = [fold(laws, FINE) for laws in _chosen(laws_of(rule, p, q, k, siblings), plan)]
    found, priced = _examine(rule, rows, plan, advance, [], False)
    nothing = {"tokens_per_round": None, "greedy_identical": None, "of": 0}
    return {"method": None, "rule": rule.name, "lossless": rule.lossless, **_told(found), **priced, **nothing}


def _counted(total: int, advance: Advance) -> Tell:
    done = 0

    def count(tokens: int) -> None:
        nonlocal done
        done += tokens
        advance("decoding", done, total)

    return count


def _chosen(rows: Sequence[Laws], plan: Plan) -> list[Laws]:
    """At most ROWS of them by lot, for every second row may be of one depth, and not more than can be replayed LEAST times each."""
    count = min(ROWS, len(rows), plan.replays // LEAST)
    return [rows[i] for i in sorted(np.random.default_rng([plan.seed, 2]).choice(len(rows), count, replace=False))] if rows else []


def _examine(
    rule: Rule, rows: Sequence[Laws], plan: Plan, advance: Advance, visits: Sequence[Visit], failed: bool
) -> tuple[Verdict, Report]:
    """All tests that the visits and rows allow, the same of the control, and the price."""
    rng, coins = np.random.default_rng([plan.seed, 1]), Random(plan.seed + _APART)
    places = [place for v in visits for place in v.child_places]
    parts = verdict.parts(bool(places), bool(visits))
    at = verdict.level(parts)
    coarse = [fold(laws, verdict.COARSE) for laws in rows]
    true, false = verdict.replay_all(rule, coarse, max(2, plan.replays // max(1, len(rows))), rng, coins, advance)
    findings, control = verdict.of_replays(true, at), verdict.of_replays(false, at)
    if visits:
        broken = verdict.control_visits(rule, visits, rng, coins)
        findings, control = [*verdict.of_visits(visits, at), *findings], [*verdict.of_visits(broken, at), *control]
        if places:
            findings += verdict.of_children(places, at)
            control += verdict.of_children([place for v in broken for place in v.child_places], at)
    return verdict.judge(parts, findings, control, failed), price(rule, rows, true, rng, advance)


def _told(found: Verdict) -> Report:
    detects = {f.name: {"n": f.n, "total_variation": f.detects} for f in found.findings}
    return {
        "lossless_tests": found.result,
        "power": {"probability": POWER, "level": found.level, "detects": detects},
        "p_values": _p_values(found.findings),
        "control": {"fails": found.control_fails, "p_values": _p_values(found.control)},
        "warnings": found.warnings,
    }


def _p_values(findings: Sequence[Finding]) -> dict[str, float | None]:
    return {f.name: f.p_value for f in findings}


def _decoded(visits: Sequence[Visit], stats: Stats) -> Report:
    """What really happened while decoding."""
    asked = [v for v in visits if v.laws is not None]
    return {
        "tokens_per_round": stats.tokens / stats.rounds,
        "rounds": stats.rounds,
        "decisions": len(visits),
        "decisions_with_children": len(asked),
        "acceptance_decoded": sum(v.child is not None for v in asked) / len(asked) if asked else None,
    }
