"""Is a rule lossless? The tests on what was decoded and on what was replayed, the same tests on a control, and what follows from both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..rules.walk import Rule
from ..sampling import Rng
from .capture import Visit
from .laws import Laws, child_places, fold, likeliest
from .lawtest import ALPHA, Finding, cells, share, uniform
from .replay import Replay, replay, replay_broken

COARSE = 60  # tokens of a row that is replayed, besides the cells of the others
DECODED = ("tokens_uniform", "tokens_drafted")
CHILDREN = ("children_uniform",)
REPLAYED = ("replay_cells", "replay_drafted")
_WEAK = {DECODED: 0.1, CHILDREN: 0.1, REPLAYED: 0.05}  # total variation; parts that detect no less get a warning
Advance = Callable[[str, int, int], Any]  # what is being done, done, of how many
Part = tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """`result` is passed, failed or inconclusive. `level` is that of each test; `control_fails` is as it must be."""

    result: str
    level: float
    findings: list[Finding]
    control: list[Finding]
    control_fails: bool
    warnings: list[str]


def parts(drawn: bool, decoded: bool) -> list[Part]:
    """The groups of tests that are made. Each has a control of its own."""
    return [*([DECODED] if decoded else []), *([CHILDREN] if decoded and drawn else []), REPLAYED]


def level(chosen: Sequence[Part]) -> float:
    """Bonferroni: the level of each test, so that a lossless rule fails any of them with probability at most ALPHA."""
    return ALPHA / sum(map(len, chosen))


def of_visits(visits: Sequence[Visit], at: float) -> list[Finding]:
    """Tests of what was emitted: the places of all tokens, and how many are of those that are drafted too often."""
    expected = np.array([v.share for v in visits])
    return [
        uniform(DECODED[0], [v.place for v in visits], at),
        share(DECODED[1], sum(v.drafted for v in visits), expected, at),
    ]


def of_children(places: Sequence[float], at: float) -> list[Finding]:
    """Are the children draws from the row that is stated for them?"""
    return [uniform(CHILDREN[0], places, at)]


def of_replays(replays: Sequence[Replay], at: float) -> list[Finding]:
    rows = [r.laws for r in replays]
    each = len(replays[0].tokens) if replays else 0
    hits = sum(int(r.laws.drafted[r.tokens].sum()) for r in replays)
    expected = np.array([r.p[r.drafted].sum() for r in rows])
    return [
        cells(REPLAYED[0], [r.counts for r in replays], [r.p for r in rows], [r.order for r in rows], at),
        share(REPLAYED[1], hits, expected, at, each=each),
    ]


def control_visits(rule: Rule, visits: Sequence[Visit], rng: np.random.Generator, coins: Rng) -> list[Visit]:
    """The same visits, each decided once by the control on its folded row; leaves stay as they are."""
    return [v if v.laws is None else _controlled(rule, fold(v.laws, COARSE), rng, coins) for v in visits]


def _controlled(rule: Rule, laws: Laws, rng: np.random.Generator, coins: Rng) -> Visit:
    token = int(replay_broken(rule, laws, 1, coins).tokens[0])
    place = laws.place(token, rng.random()) if laws.p[token] > 0 else -1.0
    return Visit(place, bool(laws.drafted[token]), float(laws.p[laws.drafted].sum()), None, _likeliest_places(laws, rng), laws)


def _likeliest_places(laws: Laws, rng: np.random.Generator) -> list[float]:
    if not laws.drawn:
        return []
    assert laws.q is not None
    children = likeliest(laws.q, min(len(laws.children), int(np.count_nonzero(laws.q))))
    return child_places(Laws(laws.p, laws.q, laws.siblings, tuple(children.tolist())), rng)


def replay_all(
    rule: Rule, rows: Sequence[Laws], each: int, rng: np.random.Generator, coins: Rng, advance: Advance
) -> tuple[list[Replay], list[Replay]]:
    """Replays of the rule, `each` times at every row, and of its control on a quarter of that."""
    true, false = [], []
    for done, laws in enumerate(rows, 1):
        true.append(replay(rule, laws, each, rng, coins))
        false.append(replay_broken(rule, laws, max(2, each // 4), coins))
        advance("replaying decisions", done, len(rows))
    return true, false


def judge(chosen: Sequence[Part], findings: list[Finding], control: list[Finding], others_failed: bool = False) -> Verdict:
    """failed if any test fails at its level; inconclusive if a part's control does not fail, so that passing says nothing."""
    at, warnings = level(chosen), []
    by_name = {f.name: f for f in findings}
    for part in chosen:
        best = min((d for n in part if (d := by_name[n].detects) is not None), default=None)
        if best is None or best > _WEAK[part]:
            size = "nothing" if best is None else f"a total variation of {best:.2f} or more only"
            warnings.append(f"small sample: {' and '.join(part)} detect {size}; decode more prompts or tokens")
    blind = [part for part in chosen if not any(f.fails(at) for f in control if f.name in part)]
    warnings += [f"the control passed {' and '.join(part)}: at these laws and this sample size they prove nothing" for part in blind]
    failed = others_failed or any(f.fails(at) for f in findings)
    return Verdict("failed" if failed else "inconclusive" if blind else "passed", at, findings, control, not blind, warnings)
